"""What a store of uploads does, beside the store of the files that they become, on SQLite and on PostgreSQL."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest

from responses_app.kit.clock import unix
from responses_app.kit.pieces import AT_ONCE, FilePart
from responses_app.protocol import ids
from responses_app.resources.files.fields import (
    PIECE_BYTES,
    FilesFull,
    FileUsage,
    NewFile,
    PartsWrong,
    UploadClosed,
    UploadGone,
    shown,
    shown_upload,
)
from responses_app.resources.files.model import COMPLETED, EXPIRED, StoredFile, Upload, UploadPart
from responses_app.resources.files.store import TIMES_STORED, Files, Uploads
from responses_app.stores.database.transfer.erasure import Subject, count, erase, lines
from tests.contracts.adapters.stores import within
from tests.contracts.files import LIMITS, NOW, PROJECT, Hands, _new_id, kept, pieces_of

SECONDS = 3600


async def begun(uploads: Uploads, size: int = 6, *, project: str = PROJECT, file_seconds: int | None = None) -> Upload:
    """Begin an upload."""
    file = NewFile(filename="a.txt", purpose="user_data", bytes=size, seconds=file_seconds)
    return await uploads.create(project, _new_id(ids.UPLOAD), file)


async def added(
    uploads: Uploads,
    upload: Upload,
    content: bytes,
    *,
    project: str = PROJECT,
    pieces: Iterable[bytes] | None = None,
) -> str:
    """Add a part, and return its id."""
    pieces = pieces_of(content) if pieces is None else pieces
    part = await uploads.add(project, upload.id, _new_id(ids.UPLOAD_PART), len(content), pieces)
    return str(part.pk)


async def completed(
    uploads: Uploads, upload: Upload, *part_ids: str, project: str = PROJECT, md5: str | None = None
) -> Upload:
    """Complete an upload."""
    return await uploads.complete(project, upload.id, part_ids, file_id=_new_id(ids.FILE), md5=md5)


async def content_of(files: Files, upload: Upload) -> bytes:
    """Return what is in the file that an upload became."""
    assert upload.file is not None
    return b"".join([piece async for piece in files.pieces(PROJECT, upload.file.id)])


async def purged(files: Files, uploads: Uploads) -> int:
    """Remove all that is over, and return how much."""
    return await files.purge() + await uploads.purge()


async def left(alias: str) -> list[int]:
    """Return how many rows there are of pieces, parts, uploads and files."""
    models = (FilePart, UploadPart, Upload, StoredFile)
    return await asyncio.to_thread(within, alias, lambda db: [each.objects.using(alias).count() for each in models])


class TestInDatabases:
    @pytest.fixture
    async def files(self, alias: str, hands: Hands) -> AsyncIterator[Files]:
        store = Files(using=alias, settings=LIMITS, now=hands)
        yield store
        await store.aclose()

    @pytest.fixture
    async def uploads(self, alias: str, files: Files, hands: Hands) -> AsyncIterator[Uploads]:
        store = Uploads(using=alias, settings=LIMITS, now=hands)
        yield store
        await store.aclose()
        for project in (PROJECT, "other"):
            await asyncio.to_thread(within, alias, lambda db, project=project: erased(alias, project))
        assert await left(alias) == [0, 0, 0, 0]

    async def test_a_file_is_made_of_parts_in_the_order_that_is_said(self, uploads: Uploads, files: Files) -> None:
        first, second = bytes(range(256)) * 5000, b"the end"  # more than a piece, and less
        upload = await begun(uploads, len(first) + len(second))
        assert shown_upload(await uploads.get(PROJECT, upload.id)) == shown_upload(upload)
        late, early = await added(uploads, upload, second), await added(uploads, upload, first)
        done: Any = await completed(uploads, upload, early, late, md5=hashlib.md5(first + second).hexdigest().upper())
        assert (done.status, done.file and done.file.bytes) == (COMPLETED, upload.bytes)
        assert await content_of(files, done) == first + second
        assert shown_upload(await uploads.get(PROJECT, upload.id)) == shown_upload(done)
        assert shown(await files.get(PROJECT, done.file.id)) == shown(done.file)
        assert await files.delete(PROJECT, done.file.id)
        assert await files.usage(PROJECT) == FileUsage(0, 0)
        assert (await uploads.get(PROJECT, upload.id)).file is None

    async def test_it_counts_as_a_file_from_its_beginning(self, uploads: Uploads, files: Files) -> None:
        upload = await begun(uploads, 6)
        assert await files.usage(PROJECT) == FileUsage(1, 6, 1)
        part = await added(uploads, upload, b"abcdef")
        assert await files.usage(PROJECT) == FileUsage(1, 6, 1)
        await completed(uploads, upload, part)
        assert await files.usage(PROJECT) == FileUsage(1, 6)

    async def test_a_project_has_only_so_many_open(self, uploads: Uploads) -> None:
        first, *_ = [await begun(uploads, 1) for _ in range(LIMITS.uploads_max_open)]
        with pytest.raises(FilesFull, match="UPLOADS_MAX_OPEN"):
            await begun(uploads, 1)
        await begun(uploads, 1, project="other")
        await uploads.cancel(PROJECT, first.id)
        await begun(uploads, 1)

    async def test_the_limits_of_files_hold(self, uploads: Uploads, files: Files) -> None:
        with pytest.raises(FilesFull, match="FILES_MAX_BYTES"):
            await begun(uploads, LIMITS.files_max_bytes + 1)
        await begun(uploads, LIMITS.files_max_bytes)
        with pytest.raises(FilesFull):
            await kept(files)

    async def test_many_at_once_do_not_exceed_a_limit_together(self, uploads: Uploads) -> None:
        many = (begun(uploads, 1) for _ in range(LIMITS.uploads_max_open + 3))
        done = await asyncio.gather(*many, return_exceptions=True)
        assert sum(isinstance(each, FilesFull) for each in done) == 3

    async def test_parts_may_come_beside_each_other(self, uploads: Uploads, files: Files) -> None:
        upload = await begun(uploads, 20)
        parts = await asyncio.gather(*(added(uploads, upload, b"%02d" % number) for number in range(10)))
        done = await completed(uploads, upload, *parts)
        assert await content_of(files, done) == b"00010203040506070809"

    async def test_of_what_is_asked_twice_the_answer_is_the_same(self, uploads: Uploads) -> None:
        upload = await begun(uploads, 2)
        a, b = await added(uploads, upload, b"a"), await added(uploads, upload, b"b")
        unused = await added(uploads, upload, b"c")
        done = await completed(uploads, upload, a, b)
        assert shown_upload(await completed(uploads, upload, a, b)) == shown_upload(done)
        for wrong, raised in (((b, a), UploadClosed), ((unused, b), PartsWrong), ((a,), PartsWrong)):
            with pytest.raises(raised):
                await completed(uploads, upload, *wrong)
        with pytest.raises(UploadClosed, match="completed"):
            await uploads.cancel(PROJECT, upload.id)
        with pytest.raises(UploadClosed, match="completed"):
            await added(uploads, upload, b"d")

    async def test_a_cancelled_one_is_gone_with_its_parts(self, uploads: Uploads, files: Files) -> None:
        upload = await begun(uploads)
        part = await added(uploads, upload, b"abcdef")
        cancelled = await uploads.cancel(PROJECT, upload.id)
        assert shown_upload(cancelled) == {**shown_upload(upload), "status": "cancelled"}
        assert shown_upload(await uploads.cancel(PROJECT, upload.id)) == shown_upload(cancelled)
        with pytest.raises(UploadClosed, match="cancelled"):
            await completed(uploads, upload, part)
        assert await files.usage(PROJECT) == FileUsage(0, 0)

    async def test_it_expires(self, uploads: Uploads, files: Files, hands: Hands) -> None:
        upload = await begun(uploads)
        part = await added(uploads, upload, b"abcdef")
        hands.time = NOW + SECONDS - 0.1
        assert await purged(files, uploads) == 0
        hands.time = NOW + SECONDS
        assert (await uploads.get(PROJECT, upload.id)).status == EXPIRED
        assert await files.usage(PROJECT) == FileUsage(0, 0)
        for way in (
            lambda: completed(uploads, upload, part),
            lambda: added(uploads, upload, b"a"),
            lambda: uploads.cancel(PROJECT, upload.id),
        ):
            with pytest.raises(UploadClosed, match="expired"):
                await way()
        assert await purged(files, uploads) == 1
        assert await purged(files, uploads) == 0
        assert (await uploads.get(PROJECT, upload.id)).status == EXPIRED
        hands.time += 24 * 3600
        assert await purged(files, uploads) == 0
        with pytest.raises(UploadGone):
            await uploads.get(PROJECT, upload.id)

    async def test_its_file_stays_as_long_as_was_said(self, uploads: Uploads, files: Files, hands: Hands) -> None:
        upload = await begun(uploads, 2 * PIECE_BYTES, file_seconds=7200)
        part = await added(uploads, upload, bytes(2 * PIECE_BYTES))
        hands.time += 60
        done: Any = await completed(uploads, upload, part)
        assert (unix(done.file.created_at), unix(done.file.expires_at)) == (NOW + 60, NOW + 7260)
        hands.time = NOW + 24 * 3600 + SECONDS  # the upload is forgotten before
        await purged(files, uploads)
        with pytest.raises(UploadGone):
            await uploads.get(PROJECT, upload.id)
        assert await files.get(PROJECT, done.file.id) is None

    async def test_a_file_outlives_its_upload(self, uploads: Uploads, files: Files, hands: Hands) -> None:
        upload = await begun(uploads)
        done = await completed(uploads, upload, await added(uploads, upload, b"abcdef"))
        hands.time = NOW + 48 * 3600
        await purged(files, uploads)
        with pytest.raises(UploadGone):
            await uploads.get(PROJECT, upload.id)
        assert await content_of(files, done) == b"abcdef"

    async def test_parts_that_do_not_make_the_file(self, uploads: Uploads) -> None:
        upload, other = await begun(uploads, 3), await begun(uploads, 3)
        part, foreign = await added(uploads, upload, b"abc"), await added(uploads, other, b"abc")
        for wrong in ((), (part, part), (foreign,), ("part_\0",), ("part_\ud800",)):
            with pytest.raises(PartsWrong):
                await completed(uploads, upload, *wrong)
        with pytest.raises(PartsWrong, match="MD5"):
            await completed(uploads, upload, part, md5="0" * 32)
        assert (await completed(uploads, upload, part)).status == COMPLETED

    async def test_what_is_sent_again_is_bounded(self, uploads: Uploads) -> None:
        upload = await begun(uploads, 3)
        for _ in range(TIMES_STORED):
            await added(uploads, upload, b"abc")
        with pytest.raises(PartsWrong, match="3 bytes"):
            await added(uploads, upload, b"a")

    @pytest.mark.parametrize("size", [3, 5])
    async def test_of_a_part_of_another_size_nothing_is_kept(self, uploads: Uploads, size: int) -> None:
        upload = await begun(uploads, 4)
        with pytest.raises(ValueError, match="bytes"):
            await added(uploads, upload, b"text", pieces=[bytes(size)])
        for _ in range(TIMES_STORED):  # all the room is there
            await added(uploads, upload, b"text")

    async def test_nobody_else_sees_it(self, uploads: Uploads) -> None:
        upload = await begun(uploads)
        part = await added(uploads, upload, b"abcdef")
        for way in (
            lambda: uploads.get("other", upload.id),
            lambda: uploads.cancel("other", upload.id),
            lambda: completed(uploads, upload, part, project="other"),
            lambda: added(uploads, upload, b"a", project="other"),
        ):
            with pytest.raises(UploadGone):
                await way()
        assert (await completed(uploads, upload, part)).status == COMPLETED

    @pytest.mark.parametrize("upload_id", ["", "upload_", "upload_\0", "upload_\ud800", "x" * 10_000, "ﬁle"])
    async def test_ids_that_nobody_made_name_nothing(self, uploads: Uploads, upload_id: str) -> None:
        with pytest.raises(UploadGone):
            await uploads.get(PROJECT, upload_id)
        with pytest.raises(UploadGone):
            await uploads.cancel(PROJECT, upload_id)

    async def test_a_part_that_is_broken_off_leaves_nothing(self, uploads: Uploads, alias: str) -> None:
        def broken() -> Iterator[bytes]:
            yield b"begun"
            raise OSError("the disk is gone")

        upload = await begun(uploads, 20)
        with pytest.raises(OSError, match="disk"):
            await added(uploads, upload, b"begun and ended", pieces=broken())
        assert await left(alias) == [0, 0, 1, 0]

    async def test_a_part_that_is_being_written_goes_with_its_upload(self, uploads: Uploads, alias: str) -> None:
        upload, loop = await begun(uploads, 4), asyncio.get_running_loop()

        def pieces() -> Iterator[bytes]:
            yield b"te"
            asyncio.run_coroutine_threadsafe(uploads.cancel(PROJECT, upload.id), loop).result()
            yield b"xt"

        with pytest.raises(UploadGone):
            await added(uploads, upload, b"text", pieces=pieces())
        assert await left(alias) == [0, 0, 1, 0]

    async def test_what_a_killed_process_left_is_purged(
        self, uploads: Uploads, files: Files, alias: str, hands: Hands
    ) -> None:
        upload, open_one = await begun(uploads), await begun(uploads)
        await added(uploads, upload, b"abc")
        await added(uploads, open_one, b"abc")
        rows = Upload.objects.using(alias).filter(pk=upload.id)
        await asyncio.to_thread(within, alias, lambda db: rows.update(status="cancelled"))  # and no more
        assert await purged(files, uploads) == 1
        assert await left(alias) == [1, 1, 2, 0]
        hands.time += SECONDS
        assert await purged(files, uploads) == 1
        assert await left(alias) == [0, 0, 2, 0]

    async def test_parts_that_are_not_of_the_file_go(self, uploads: Uploads, alias: str) -> None:
        upload = await begun(uploads, 2 * PIECE_BYTES)
        await added(uploads, upload, bytes(2 * PIECE_BYTES))
        await completed(uploads, upload, await added(uploads, upload, bytes(2 * PIECE_BYTES)))
        assert await left(alias) == [2, 1, 1, 1]

    async def test_a_file_of_many_parts_goes_in_several_steps(self, uploads: Uploads, files: Files, alias: str) -> None:
        number = 2 * AT_ONCE + 5
        upload = await begun(uploads, number)
        parts = [await added(uploads, upload, b"\0") for _ in range(number)]
        done: Any = await completed(uploads, upload, *parts)
        assert await left(alias) == [number, number, 1, 1]
        assert await files.delete(PROJECT, done.file.id)
        assert await left(alias) == [0, 0, 1, 0]

    async def test_what_is_kept_of_a_project_is_shown_and_erased(
        self, uploads: Uploads, files: Files, alias: str
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
