"""Files that tests keep, the limits of their store, and a clock that a test sets."""

import time
from collections.abc import Iterable, Iterator

from responses_app.kit.clock import IdFactory
from responses_app.protocol import ids
from responses_app.resources.files.fields import PIECE_BYTES, FileSettings, NewFile
from responses_app.resources.files.model import StoredFile
from responses_app.resources.files.store import Files

PROJECT = "default"
NOW = 1_796_000_000
_new_id = IdFactory(time.time)
LIMITS = FileSettings(files_max_entries=6, files_max_bytes=3 * PIECE_BYTES, uploads_max_open=4)


class Hands:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = float(NOW)

    def __call__(self) -> float:
        return self.time


def pieces_of(content: bytes) -> Iterator[bytes]:
    """Yield content as an upload does."""
    return (content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES))


async def kept(
    store: Files,
    content: bytes = b"text",
    *,
    project: str = PROJECT,
    filename: str = "a.txt",
    purpose: str = "user_data",
    seconds: int | None = None,
    pieces: Iterable[bytes] | None = None,
) -> StoredFile:
    """Keep a new file."""
    file = NewFile(filename=filename, purpose=purpose, bytes=len(content), seconds=seconds)
    return await store.create(project, _new_id(ids.FILE), file, pieces_of(content) if pieces is None else pieces)


async def content_of(store: Files, record: StoredFile, project: str = PROJECT) -> bytes:
    """Return what is in a file."""
    return b"".join([piece async for piece in store.pieces(project, record.id)])
