"""Uploads in a database: the contract on SQLite and PostgreSQL, and what is left where one is broken off."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from responses_app.models import FilePart, StoredFile, Upload, UploadPart
from responses_app.stores.database.files.files import DatabaseFileStore
from responses_app.stores.database.files.rows import AT_ONCE
from responses_app.stores.database.files.uploads import DatabaseUploads
from responses_app.stores.database.transfer.erasure import Subject, count, erase, lines
from responses_app.stores.files import PIECE_BYTES, UploadGone
from tests.contracts.adapters.conftest import OpenDatabase
from tests.contracts.adapters.stores import SQLITE_AND_POSTGRES, within
from tests.contracts.files import LIMITS, PROJECT, Hands
from tests.contracts.uploads import SECONDS, UploadsContract, added, begun, completed, content_of


async def left(alias: str) -> list[int]:
    """Return how many rows there are of pieces, parts, uploads and files."""
    models = (FilePart, UploadPart, Upload, StoredFile)
    return await asyncio.to_thread(within, alias, lambda db: [each.objects.using(alias).count() for each in models])


class TestInDatabases(UploadsContract):
    @pytest.fixture(params=SQLITE_AND_POSTGRES)
    def alias(self, request: pytest.FixtureRequest, open_database: OpenDatabase) -> Iterator[str]:
        with open_database(request.getfixturevalue(request.param)) as alias:
            yield alias

    @pytest.fixture
    async def files(self, alias: str, hands: Hands) -> AsyncIterator[DatabaseFileStore]:
        store = DatabaseFileStore(using=alias, settings=LIMITS, now=hands)
        yield store
        await store.aclose()

    @pytest.fixture
    async def uploads(self, alias: str, files: DatabaseFileStore, hands: Hands) -> AsyncIterator[DatabaseUploads]:
        store = DatabaseUploads(using=alias, settings=LIMITS, now=hands)
        yield store
        await store.aclose()
        for project in (PROJECT, "other"):
            await asyncio.to_thread(within, alias, lambda db, project=project: erased(alias, project))
        assert await left(alias) == [0, 0, 0, 0]

    async def test_a_part_that_is_broken_off_leaves_nothing(self, uploads: DatabaseUploads, alias: str) -> None:
        def broken() -> Iterator[bytes]:
            yield b"begun"
            raise OSError("the disk is gone")

        upload = await begun(uploads, 20)
        with pytest.raises(OSError, match="disk"):
            await added(uploads, upload, b"begun and ended", pieces=broken())
        assert await left(alias) == [0, 0, 1, 0]

    async def test_a_part_that_is_being_written_goes_with_its_upload(
        self, uploads: DatabaseUploads, alias: str
    ) -> None:
        upload, loop = await begun(uploads, 4), asyncio.get_running_loop()

        def pieces() -> Iterator[bytes]:
            yield b"te"
            asyncio.run_coroutine_threadsafe(uploads.cancel(PROJECT, upload.id), loop).result()
            yield b"xt"

        with pytest.raises(UploadGone):
            await added(uploads, upload, b"text", pieces=pieces())
        assert await left(alias) == [0, 0, 1, 0]

    async def test_what_a_killed_process_left_is_purged(
        self, uploads: DatabaseUploads, files: DatabaseFileStore, alias: str, hands: Hands
    ) -> None:
        upload, open_one = await begun(uploads), await begun(uploads)
        await added(uploads, upload, b"abc")
        await added(uploads, open_one, b"abc")
        rows = Upload.objects.using(alias).filter(pk=upload.id)
        await asyncio.to_thread(within, alias, lambda db: rows.update(status="cancelled"))  # and no more
        assert await files.purge() == 1
        assert await left(alias) == [1, 1, 2, 0]
        hands.time += SECONDS
        assert await files.purge() == 1
        assert await left(alias) == [0, 0, 2, 0]

    async def test_parts_that_are_not_of_the_file_go(self, uploads: DatabaseUploads, alias: str) -> None:
        upload = await begun(uploads, 2 * PIECE_BYTES)
        await added(uploads, upload, bytes(2 * PIECE_BYTES))
        await completed(uploads, upload, await added(uploads, upload, bytes(2 * PIECE_BYTES)))
        assert await left(alias) == [2, 1, 1, 1]

    async def test_a_file_of_many_parts_goes_in_several_steps(
        self, uploads: DatabaseUploads, files: DatabaseFileStore, alias: str
    ) -> None:
        number = 2 * AT_ONCE + 5
        upload = await begun(uploads, number)
        parts = [await added(uploads, upload, b"\0") for _ in range(number)]
        done = await completed(uploads, upload, *parts)
        assert done.file is not None
        assert await left(alias) == [number, number, 1, 1]
        assert await files.delete(PROJECT, done.file.id)
        assert await left(alias) == [0, 0, 1, 0]

    async def test_what_is_kept_of_a_project_is_shown_and_erased(
        self, uploads: DatabaseUploads, files: DatabaseFileStore, alias: str
    ) -> None:
        upload, open_one = await begun(uploads, 4), await begun(uploads, 4)
        await added(uploads, open_one, b"open")
        last, first = await added(uploads, upload, b"xt"), await added(uploads, upload, b"te")
        done = await completed(uploads, upload, first, last)
        assert await content_of(files, done) == b"text"
        subject = Subject(project=PROJECT)
        counted = await asyncio.to_thread(within, alias, lambda db: count(subject, using=alias))
        assert (counted["files"], counted["uploads"]) == (1, 2)
        told = await asyncio.to_thread(within, alias, lambda db: "".join(lines(subject, using=alias)))
        assert told.index('"dGU="') < told.index('"eHQ="')  # "te" and "xt", in base64
        await asyncio.to_thread(within, alias, lambda db: erased(alias, PROJECT))
        assert await left(alias) == [0, 0, 0, 0]


def erased(alias: str, project: str) -> None:
    """Erase a project."""
    for _ in erase(Subject(project=project), using=alias):
        pass
