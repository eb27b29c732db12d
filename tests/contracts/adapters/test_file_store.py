"""Files on SQLite and on PostgreSQL, and what a broken-off upload leaves."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from responses_app.kit.pieces import FilePart
from responses_app.resources.files.fields import PIECE_BYTES, FileGone, FilesFull, FileUsage, shown
from responses_app.resources.files.keeping import AT_ONCE, remove_files
from responses_app.resources.files.model import StoredFile
from responses_app.resources.files.store import Files
from tests.contracts.adapters.stores import within
from tests.contracts.files import LIMITS, NOW, PROJECT, Hands, content_of, kept


def _ids(alias: str) -> list[str]:
    return list(StoredFile.objects.using(alias).values_list("pk", flat=True))


async def parts(alias: str) -> int:
    """Return how many pieces there are."""
    return await asyncio.to_thread(within, alias, lambda db: FilePart.objects.using(alias).count())


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


class TestInDatabases:
    @pytest.fixture
    async def files(self, alias: str, hands: Hands) -> AsyncIterator[Files]:
        store = Files(using=alias, settings=LIMITS, now=hands)
        yield store
        await store.aclose()
        await asyncio.to_thread(within, alias, lambda db: remove_files(alias, _ids(alias)))
        assert await parts(alias) == 0

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

    async def test_an_upload_that_is_broken_off_leaves_nothing(self, files: Files) -> None:
        def broken() -> Iterator[bytes]:
            yield b"begun"
            raise OSError("the disk is gone")

        with pytest.raises(OSError, match="disk"):
            await kept(files, pieces=broken())
        assert await files.usage(PROJECT) == FileUsage(0, 0)

    async def test_a_cancelled_upload_leaves_nothing(self, files: Files) -> None:
        task: asyncio.Task[object] | None = None
        loop = asyncio.get_running_loop()

        def endless() -> Iterator[bytes]:
            while True:
                yield b"a piece"
                assert task is not None
                loop.call_soon_threadsafe(task.cancel)

        task = asyncio.create_task(kept(files, bytes(PIECE_BYTES), pieces=endless()))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await files.usage(PROJECT) == FileUsage(0, 0)

    async def test_what_a_killed_process_left_is_purged_after_a_while(
        self, files: Files, alias: str, hands: Hands
    ) -> None:
        record = await kept(files, bytes(2 * PIECE_BYTES))
        await asyncio.to_thread(within, alias, lambda db: StoredFile.objects.using(alias).update(is_whole=False))
        assert await files.get(PROJECT, record.id) is None
        assert await files.usage(PROJECT) == FileUsage(1, 2 * PIECE_BYTES)
        assert await files.purge() == 0
        hands.time += 3601
        assert await files.purge() == 1
        assert await parts(alias) == 0

    async def test_uploads_at_once_do_not_exceed_a_limit_together(self, files: Files) -> None:
        done = await asyncio.gather(*(kept(files) for _ in range(LIMITS.files_max_entries + 4)), return_exceptions=True)
        assert sum(isinstance(each, Exception) for each in done) == 4
        assert (await files.usage(PROJECT)).files == LIMITS.files_max_entries

    async def test_many_pieces_go_in_several_steps(self, files: Files, alias: str) -> None:
        content = bytes(2 * AT_ONCE + 5)
        record = await kept(files, content, pieces=[b"\0"] * len(content))
        assert await parts(alias) == len(content)
        await files.delete(PROJECT, record.id)
        assert await parts(alias) == 0

    async def test_one_that_is_removed_while_it_is_written_is_not_kept(self, files: Files, alias: str) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"te"
            within(alias, lambda db: remove_files(alias, _ids(alias)))
            yield b"xt"

        with pytest.raises(FileGone):
            await kept(files, pieces=pieces())
