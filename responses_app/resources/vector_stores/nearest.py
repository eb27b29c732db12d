"""Which chunks of a store have vectors near that of a query: by their signs first, then by the vectors themselves.

A vector of 1,024 numbers is kept twice: as 16-bit floats (2 KB), and as the signs of its numbers (128 bytes). A search
has the signs of all chunks of the store (`Codes`), 13 MB for 100,000, and counts how many differ from those of the
query. Of the `CANDIDATES` chunks with the fewest it reads the vectors, and ranks them by the cosine. In a store that
has no more chunks than that, the result is exact.

NumPy does it, on SQLite and on PostgreSQL alike: the same vectors are found on both, and no extension is needed. One
search holds the signs of one store in memory, which VECTOR_STORE_MAX_CHUNKS bounds.

To read the signs of 100,000 vectors takes far longer than to compare them. So a process keeps those of the stores that
were searched last (`KeptCodes`), within FILE_SEARCH_CACHE_BYTES. Every search asks for the ids of the store's rows in
`VectorStoreCodes`, which an index has. A row is never changed, and its id is never given to another (AUTOINCREMENT on
SQLite, a sequence on PostgreSQL). So rows that are known need not be read again, those that are new are read, and what
is kept of others is left out, whichever process removed them.
"""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models import json_text
from responses_app.resources.vector_stores.fields import Meaning
from responses_app.resources.vector_stores.model import VectorStoreCodes, VectorStoreVector

if TYPE_CHECKING:
    import numpy as np

CODES = VectorStoreCodes._meta.db_table
KEY = "<i8"  # of a chunk, as it is kept
OBJECTS = 1000  # bytes that the objects of one store take beside its numbers, about
VECTORS = VectorStoreVector._meta.db_table
CANDIDATES = 400  # whose vectors are read: about 1 MB
NUMBER = "<f2"  # of a vector, as it is kept


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """The codes of chunks. Nothing in it is changed."""

    rows: "np.ndarray[Any, Any]"  # for each chunk the id of its row
    files: "np.ndarray[Any, Any]"  # for each chunk the key of its file
    keys: "np.ndarray[Any, Any]"  # for each chunk its key
    words: "np.ndarray[Any, Any]"  # 64 signs of each chunk in a row: twice as fast to count as 1,024 of one chunk

    def where(self, chosen: "np.ndarray[Any, Any]") -> "Codes":
        """Return those of some chunks: `chosen` has true or false for each."""
        if chosen.all():
            return self
        return Codes(self.rows[chosen], self.files[chosen], self.keys[chosen], self.words[:, chosen])

    def with_others(self, others: "Codes") -> "Codes":
        """Return these, and others of other rows."""
        import numpy as np

        if not len(others.keys):
            return self
        return Codes(
            np.concatenate([self.rows, others.rows]),
            np.concatenate([self.files, others.files]),
            np.concatenate([self.keys, others.keys]),
            np.concatenate([self.words, others.words], axis=1),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """What is kept of a store, of one model."""

    ids: "array[int]"  # of all rows of the store, also of those that other models made
    codes: Codes

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        arrays = (self.codes.rows, self.codes.files, self.codes.keys, self.codes.words)
        return OBJECTS + 8 * len(self.ids) + sum(int(each.nbytes) for each in arrays)


class KeptCodes:
    """Reads codes, and keeps at most so many bytes of them; 0: none. Threads may share it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()  # over what follows; nothing is read while it is held
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()  # the one that was used last at the end
        self._bytes = 0

    def read(
        self, connection: BaseDatabaseWrapper, store_id: str, model: str, *, size: int, among: Sequence[int] | None
    ) -> Codes:
        """Return the codes, of `size` bytes each, of a store's chunks; `among` are the keys of the files that count."""
        import numpy as np

        with connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM {CODES} WHERE store_id = %s ORDER BY id", [store_id])
            ids = array("q", (row for (row,) in cursor.fetchall()))
        with self._lock:
            kept = self._kept.get((store_id, model))
            if kept is not None:
                self._kept.move_to_end((store_id, model))
        if kept is None or kept.ids != ids:
            if not ids or self._is_too_large(connection, store_id, model, size):
                return _read(connection, store_id, model, size, {} if among is None else {"file_id": among})
            kept = self._renewed(connection, (store_id, model), size, ids, kept)
        return kept.codes if among is None else kept.codes.where(np.isin(kept.codes.files, np.asarray(among, np.int64)))

    def _is_too_large(self, connection: BaseDatabaseWrapper, store_id: str, model: str, size: int) -> bool:
        """Whether a store's codes are not kept, however little else is."""
        sql = f"SELECT count(*), sum(count) FROM {CODES} WHERE store_id = %s AND model = %s"
        with connection.cursor() as cursor:
            cursor.execute(sql, [store_id, model])
            rows, chunks = cursor.fetchone()
        # See `_Kept.bytes`: three numbers of 64 bits for each chunk, beside its code.
        return bool(OBJECTS + 8 * rows + (chunks or 0) * (size + 24) > self._max_bytes)

    def _renewed(
        self, connection: BaseDatabaseWrapper, store: tuple[str, str], size: int, ids: "array[int]", kept: _Kept | None
    ) -> _Kept:
        """Read what is not known of a store, and keep it all."""
        import numpy as np

        known = frozenset(kept.ids if kept else ())
        codes = _read(connection, *store, size, {"id": [row for row in ids if row not in known]})
        if kept is not None:
            codes = kept.codes.where(np.isin(kept.codes.rows, np.asarray(ids))).with_others(codes)
        renewed = _Kept(ids, codes)
        with self._lock:
            old = self._kept.pop(store, None)
            self._bytes += renewed.bytes - (old.bytes if old else 0)
            self._kept[store] = renewed
            while self._bytes > self._max_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.bytes
        return renewed


def any_of(connection: BaseDatabaseWrapper, column: str, keys: Sequence[int]) -> tuple[str, object]:
    """Return a condition, and its argument: the column has one of these numbers."""
    if connection.vendor == "postgresql":
        return f"{column} = ANY(%s::bigint[])", list(keys)
    return f"{column} IN (SELECT value FROM json_each(%s))", json_text(keys)


def binary_rows(connection: BaseDatabaseWrapper, sql: str, arguments: Sequence[object]) -> list[tuple[Any, ...]]:
    """Return the rows of a query, in which columns of bytes are `bytes`."""
    if connection.vendor != "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows
    # Imported here: a server with SQLite may not have it.
    import psycopg

    connection.ensure_connection()
    # Past Django's cursor, which has bytes sent as text: twice as many, to be decoded under the interpreter's lock.
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as binary:
        binary.format = psycopg.pq.Format.BINARY
        binary.execute(sql, arguments)
        return binary.fetchall()


def _read(
    connection: BaseDatabaseWrapper, store_id: str, model: str, size: int, only: Mapping[str, Sequence[int]]
) -> Codes:
    """Return the codes of a model in a store; `only` those of rows whose columns have these values."""
    import numpy as np

    conditions, arguments = ["store_id = %s", "model = %s"], [store_id, model]
    for column, values in only.items():
        condition, argument = any_of(connection, column, values)
        conditions.append(condition)
        arguments.append(argument)
    sql = f"SELECT id, file_id, keys, codes FROM {CODES} WHERE {' AND '.join(conditions)} ORDER BY id"
    rows = binary_rows(connection, sql, arguments)
    # The name of the model has the length of its vectors: others do not come, unless somebody changed the rows.
    rows = [row for row in rows if len(row[3]) == len(row[2]) // 8 * size]
    counts = [len(keys) // 8 for *_, keys, _ in rows]
    codes = np.frombuffer(b"".join(codes for *_, codes in rows), np.uint64).reshape(-1, size // 8)
    return Codes(
        rows=np.repeat(np.asarray([row for row, *_ in rows], np.int64), counts),
        files=np.repeat(np.asarray([file_id for _, file_id, *_ in rows], np.int64), counts),
        keys=np.frombuffer(b"".join(keys for *_, keys, _ in rows), KEY),
        words=np.ascontiguousarray(codes.T),
    )


def nearest(
    connection: BaseDatabaseWrapper,
    kept: KeptCodes,
    store_id: str,
    meaning: Meaning,
    *,
    limit: int,
    among: Sequence[int] | None = None,
) -> Sequence[Sequence[int]]:
    """Return for each of these vectors the keys of the chunks nearest to it, the nearest first.

    Only vectors of the same model count, and of the files whose keys `among` has. Those that point away are left out.
    """
    # Imported here: it takes a tenth of a second and 20 MB, and many servers have no vectors.
    import numpy as np

    every = [np.asarray(vector, np.float32) for vector in meaning.vectors]
    size = code_size(len(every[0])) if every else 0
    if not size:
        return [[] for _ in every]
    codes = kept.read(connection, store_id, meaning.model, size=size, among=among)
    return [_nearest(connection, codes, vector, limit) for vector in every]


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


def _nearest(
    connection: BaseDatabaseWrapper, codes: Codes, vector: "np.ndarray[Any, Any]", limit: int
) -> Sequence[int]:
    import numpy as np

    keys = codes.keys
    if len(keys) > CANDIDATES:
        keys = keys[np.argpartition(_differing(codes, vector), CANDIDATES)[:CANDIDATES]]
    where, argument = any_of(connection, "chunk_id", keys.tolist())
    rows = binary_rows(connection, f"SELECT chunk_id, vector FROM {VECTORS} WHERE {where}", [argument])
    rows = [(key, number) for key, number in rows if len(number) == 2 * len(vector)]
    if not rows:
        return []
    matrix = np.frombuffer(b"".join(number for _, number in rows), NUMBER).reshape(len(rows), len(vector))
    cosines = matrix.astype(np.float32) @ vector
    # By their keys where they are as near, so that the order is always the same.
    ordered = sorted((-cosine, key) for (key, _), cosine in zip(rows, cosines.tolist(), strict=True) if cosine > 0)
    return [key for _, key in ordered[:limit]]


def _differing(codes: Codes, vector: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return for each chunk how many signs are not those of a vector."""
    import numpy as np

    count = len(codes.keys)
    differing, bits, of_word = np.zeros(count, np.uint32), np.empty(count, np.uint64), np.empty(count, np.uint8)
    for word, own in zip(codes.words, np.frombuffer(packed([vector])[0], np.uint64), strict=True):
        np.bitwise_count(np.bitwise_xor(word, own, out=bits), out=of_word)
        differing += of_word
    return differing
