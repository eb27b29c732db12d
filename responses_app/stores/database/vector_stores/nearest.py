"""Which chunks of a store have vectors near that of a query: by their signs first, then by the vectors themselves.

A vector of 1,024 numbers is kept twice: as 16-bit floats (2 KB), and as the signs of its numbers (128 bytes). A search
has the signs of all chunks of the store (`codes`), 13 MB for 100,000, and counts how many differ from those of the
query. Of the `CANDIDATES` chunks with the fewest it reads the vectors, and ranks them by the cosine. In a store that
has no more chunks than that, the result is exact.

NumPy does it, on SQLite and on PostgreSQL alike: the same vectors are found on both, and no extension is needed. One
search holds the signs of one store in memory, which VECTOR_STORE_MAX_CHUNKS bounds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models.vector_stores import VectorStoreVector
from responses_app.stores.database.vector_stores.codes import Codes, KeptCodes, any_of, binary_rows
from responses_app.stores.vector_stores import Meaning

if TYPE_CHECKING:
    import numpy as np

VECTORS = VectorStoreVector._meta.db_table
CANDIDATES = 400  # whose vectors are read: about 1 MB
NUMBER = "<f2"  # of a vector, as it is kept


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
