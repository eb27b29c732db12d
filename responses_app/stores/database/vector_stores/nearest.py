"""Which chunks of a store have vectors near that of a query: by their signs first, then by the vectors themselves.

A vector of 1,024 numbers is kept twice: as 16-bit floats (2 KB), and as the signs of its numbers (128 bytes). A search
reads the signs of all chunks of the store, 13 MB for 100,000, and counts how many differ from those of the query. Of
the `CANDIDATES` chunks with the fewest it reads the vectors, and ranks them by the cosine. In a store that has no more
chunks than that, the result is exact.

NumPy does it, on SQLite and on PostgreSQL alike: the same vectors are found on both, and no extension is needed. One
search holds the signs of one store in memory, which VECTOR_STORE_MAX_CHUNKS bounds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models import json_text
from responses_app.models.vector_stores import VectorStoreCodes, VectorStoreVector

if TYPE_CHECKING:
    import numpy as np

CODES = VectorStoreCodes._meta.db_table
VECTORS = VectorStoreVector._meta.db_table
CANDIDATES = 400  # whose vectors are read: about 1 MB
KEY, NUMBER = "<i8", "<f2"  # of a chunk, and of a vector, as they are kept


def nearest(
    connection: BaseDatabaseWrapper,
    store_id: str,
    model: str,
    vectors: Sequence[Sequence[float]],
    *,
    limit: int,
    among: Sequence[int] | None = None,
) -> Sequence[Sequence[int]]:
    """Return for each of these vectors the keys of the chunks nearest to it, the nearest first.

    Only vectors of this model count, and of the files whose keys `among` has. Those that point away are left out.
    """
    # Imported here: it takes a tenth of a second and 20 MB, and many servers have no vectors.
    import numpy as np

    every = [np.asarray(vector, np.float32) for vector in vectors]
    found = _codes(connection, store_id, model, among, size=code_size(len(every[0])) if every else 0)
    if found is None:
        return [[] for _ in every]
    keys, codes = found
    return [_nearest(connection, keys, codes, vector, limit) for vector in every]


def packed(vectors: Sequence[Sequence[float]]) -> tuple[bytes, list[bytes]]:
    """Return the codes of vectors, one behind the other, and each vector, as they are kept."""
    import numpy as np

    matrix = np.asarray([np.asarray(vector, np.float32) for vector in vectors])
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    # A vector of zeros stays one, and is near nothing.
    matrix = matrix / np.where(lengths > 0, lengths, 1)
    codes = np.zeros((len(matrix), code_size(matrix.shape[1])), np.uint8)
    signs = np.packbits(matrix > 0, axis=1)
    codes[:, : signs.shape[1]] = signs
    return codes.tobytes(), [row.tobytes() for row in matrix.astype(NUMBER)]


def packed_keys(keys: Sequence[int]) -> bytes:
    """Return the keys of chunks, as they are kept."""
    return b"".join(key.to_bytes(8, "little", signed=True) for key in keys)


def code_size(dimensions: int) -> int:
    """Return how many bytes the signs of a vector take: whole numbers of 64 bits, so that they are counted fast."""
    return -(-dimensions // 64) * 8


def _codes(
    connection: BaseDatabaseWrapper, store_id: str, model: str, among: Sequence[int] | None, *, size: int
) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None":
    """Return the keys of a store's chunks, and a row of 64-bit numbers for each; None where no chunk has a vector."""
    import numpy as np

    where, arguments = "store_id = %s AND model = %s", [store_id, model]
    if among is not None:
        where, more = _any_of(connection, where, "file_id", among)
        arguments.append(more)
    rows = _rows(connection, f"SELECT keys, codes FROM {CODES} WHERE {where}", arguments)
    # The name of the model has the length of its vectors: others do not come, unless somebody changed the rows.
    rows = [(keys, codes) for keys, codes in rows if len(codes) == len(keys) // 8 * size]
    if not rows:
        return None
    keys = np.frombuffer(b"".join(keys for keys, _ in rows), KEY)
    codes = np.frombuffer(b"".join(codes for _, codes in rows), np.uint64)
    return keys, codes.reshape(len(keys), size // 8)


def _nearest(
    connection: BaseDatabaseWrapper,
    keys: "np.ndarray[Any, Any]",
    codes: "np.ndarray[Any, Any]",
    vector: "np.ndarray[Any, Any]",
    limit: int,
) -> Sequence[int]:
    import numpy as np

    code = np.frombuffer(packed([vector])[0], np.uint64)
    if len(keys) > CANDIDATES:
        differing = np.bitwise_count(codes ^ code).sum(axis=1, dtype=np.uint32)
        keys = keys[np.argpartition(differing, CANDIDATES)[:CANDIDATES]]
    where, argument = _any_of(connection, "TRUE", "chunk_id", keys.tolist())
    rows = _rows(connection, f"SELECT chunk_id, vector FROM {VECTORS} WHERE {where}", [argument])
    rows = [(key, kept) for key, kept in rows if len(kept) == 2 * len(vector)]
    if not rows:
        return []
    matrix = np.frombuffer(b"".join(kept for _, kept in rows), NUMBER).reshape(len(rows), len(vector))
    cosines = matrix.astype(np.float32) @ vector
    # By their keys where they are as near, so that the order is always the same.
    ordered = sorted((-cosine, key) for (key, _), cosine in zip(rows, cosines.tolist(), strict=True) if cosine > 0)
    return [key for _, key in ordered[:limit]]


def _any_of(connection: BaseDatabaseWrapper, where: str, column: str, keys: Sequence[int]) -> tuple[str, object]:
    if connection.vendor == "postgresql":
        return f"{where} AND {column} = ANY(%s::bigint[])", list(keys)
    return f"{where} AND {column} IN (SELECT value FROM json_each(%s))", json_text(keys)


def _rows(connection: BaseDatabaseWrapper, sql: str, arguments: Sequence[object]) -> list[tuple[Any, bytes]]:
    if connection.vendor != "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            rows: list[tuple[Any, bytes]] = cursor.fetchall()
            return rows
    # Imported here: a server with SQLite may not have it.
    import psycopg

    connection.ensure_connection()
    # Past Django's cursor, which has bytes sent as text: twice as many, to be decoded under the interpreter's lock.
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as binary:
        binary.format = psycopg.pq.Format.BINARY
        binary.execute(sql, arguments)
        return [(first, bytes(second)) for first, second in binary.fetchall()]
