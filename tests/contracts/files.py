"""What every store of files does."""

import time
from collections.abc import Iterable, Iterator, Sequence

import pytest

from responses_app.kit.clock import id_factory
from responses_app.protocol import ids
from responses_app.resources.files.fields import (
    PIECE_BYTES,
    FileGone,
    FileSettings,
    FilesFull,
    FileUsage,
    NewFile,
    shown,
)
from responses_app.resources.files.model import StoredFile
from responses_app.resources.files.store import Files

PROJECT = "default"
NOW = 1_796_000_000
_new_id = id_factory(time.time)
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


async def listed(
    store: Files,
    *,
    purpose: str | None = None,
    after: str | None = None,
    descending: bool = False,
    limit: int = 100,
) -> Sequence[str] | None:
    """Return the ids of a list."""
    found = await store.listed(PROJECT, purpose, after=after, descending=descending, limit=limit)
    return None if found is None else [record.id for record in found]


class FileStoreContract:
    """Give a subclass the fixtures `files`, a store with `LIMITS` whose clock is `hands`, and `hands`."""

    async def test_gives_back_what_was_kept(self, files: Files) -> None:
        content = bytes(range(256)) * 6000  # a piece and a half
        record = await kept(files, content, filename='Ünï "\\" 漢字.txt')
        found = await files.get(PROJECT, record.id)
        assert found is not None
        assert shown(found) == shown(record)
        assert (shown(found)["created_at"], shown(found)["expires_at"]) == (NOW, None)
        assert await content_of(files, record) == content
        assert await files.content(PROJECT, record.id, max_bytes=len(content)) == content
        assert await files.content(PROJECT, record.id, max_bytes=len(content) - 1) is None
        assert await files.usage(PROJECT) == FileUsage(1, len(content))

    async def test_an_empty_file_is_one(self, files: Files) -> None:
        record = await kept(files, b"")
        assert await content_of(files, record) == b""

    async def test_nobody_else_sees_it(self, files: Files) -> None:
        record = await kept(files)
        assert await files.get("other", record.id) is None
        assert await files.some("other", [record.id]) == []
        assert await files.listed("other", None, after=None, descending=True, limit=9) == []
        assert await files.listed("other", None, after=record.id, descending=True, limit=9) == []
        assert not await files.delete("other", record.id)
        with pytest.raises(FileGone):
            await content_of(files, record, "other")
        assert await files.usage("other") == FileUsage(0, 0)
        assert await content_of(files, record) == b"text"

    async def test_lists_in_the_order_they_came(self, files: Files) -> None:
        first, second, third = [(await kept(files, purpose=purpose)).id for purpose in ("vision", "batch", "vision")]
        assert await listed(files) == [first, second, third]
        assert await listed(files, descending=True, limit=2) == [third, second]
        assert await listed(files, after=second) == [third]
        assert await listed(files, after=second, descending=True) == [first]
        assert await listed(files, purpose="vision") == [first, third]
        assert await listed(files, purpose="vision", after=second) == [third]
        assert [record.id for record in await files.some(PROJECT, [third, "file-x", first, third])] == [first, third]

    async def test_what_was_deleted_is_gone(self, files: Files) -> None:
        record = await kept(files)
        assert await files.delete(PROJECT, record.id)
        assert not await files.delete(PROJECT, record.id)
        assert await files.get(PROJECT, record.id) is None
        assert await files.usage(PROJECT) == FileUsage(0, 0)

    async def test_one_that_goes_while_it_is_read_says_so(self, files: Files) -> None:
        record = await kept(files, bytes(PIECE_BYTES + 1))
        reading = files.pieces(PROJECT, record.id)
        assert len(await anext(reading)) == PIECE_BYTES
        await files.delete(PROJECT, record.id)
        with pytest.raises(FileGone):
            await anext(reading)

    async def test_it_is_gone_from_the_second_of_its_expiry(self, files: Files, hands: Hands) -> None:
        record = await kept(files, seconds=3600)
        hands.time = NOW + 3599.9
        assert await files.purge() == 0
        assert await files.get(PROJECT, record.id) == record
        hands.time = NOW + 3600
        assert await files.get(PROJECT, record.id) is None
        assert await listed(files) == []
        assert not await files.delete(PROJECT, record.id)
        assert await files.purge() == 1
        assert await files.purge() == 0

    async def test_a_project_keeps_only_so_many_files(self, files: Files) -> None:
        for _ in range(LIMITS.files_max_entries):
            await kept(files)
        with pytest.raises(FilesFull):
            await kept(files)
        await kept(files, project="other")
        assert await files.usage(PROJECT) == FileUsage(LIMITS.files_max_entries, 4 * LIMITS.files_max_entries)

    async def test_a_project_keeps_only_so_many_bytes(self, files: Files) -> None:
        first = await kept(files, bytes(2 * PIECE_BYTES))
        await kept(files, bytes(PIECE_BYTES))
        with pytest.raises(FilesFull):
            await kept(files, b"1")
        await files.delete(PROJECT, first.id)
        await kept(files, b"1")

    @pytest.mark.parametrize("size", [3, 5])
    async def test_of_a_file_of_another_size_nothing_is_kept(self, files: Files, size: int) -> None:
        with pytest.raises(ValueError, match=r"size|bytes"):
            await kept(files, b"text", pieces=[bytes(size)])
        assert await files.usage(PROJECT) == FileUsage(0, 0)

    @pytest.mark.parametrize("file_id", ["", "file-", "file-\0", "file-\ud800", "x" * 10_000, "ﬁle"])
    async def test_ids_that_nobody_made_name_nothing(self, files: Files, file_id: str) -> None:
        assert await files.get(PROJECT, file_id) is None
        assert not await files.delete(PROJECT, file_id)
        assert await files.some(PROJECT, [file_id]) == []
