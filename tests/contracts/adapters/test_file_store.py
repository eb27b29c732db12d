"""Files in a database: the contract on SQLite and PostgreSQL, and what a broken-off upload leaves."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from responses_app.kit.pieces import FilePart
from responses_app.resources.files.fields import PIECE_BYTES, FileGone, FileUsage
from responses_app.resources.files.keeping import AT_ONCE, remove_files
from responses_app.resources.files.model import StoredFile
from responses_app.resources.files.store import Files
from tests.contracts.adapters.stores import within
from tests.contracts.files import LIMITS, PROJECT, FileStoreContract, Hands, kept


def _ids(alias: str) -> list[str]:
    return list(StoredFile.objects.using(alias).values_list("pk", flat=True))


async def parts(alias: str) -> int:
    """Return how many pieces there are."""
    return await asyncio.to_thread(within, alias, lambda db: FilePart.objects.using(alias).count())


class TestInDatabases(FileStoreContract):
    @pytest.fixture
    async def files(self, alias: str, hands: Hands) -> AsyncIterator[Files]:
        store = Files(using=alias, settings=LIMITS, now=hands)
        yield store
        await store.aclose()
        await asyncio.to_thread(within, alias, lambda db: remove_files(alias, _ids(alias)))
        assert await parts(alias) == 0

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
