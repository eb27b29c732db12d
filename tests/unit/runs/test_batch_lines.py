"""Lines of a batch that are refused for a time, or as the server stops; files of one that another worker has ended."""

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from itertools import count
from unittest.mock import AsyncMock

import orjson
import pytest

from responses_app.kit.clock import utc
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import rate_limited, stopping
from responses_app.resources.batches.duty import BatchWork, ClaimedBatch
from responses_app.resources.batches.fields import BatchSettings
from responses_app.resources.batches.handlers import LineAnswer, LineHandler, LineRequest
from responses_app.resources.batches.lines import ERRORED, EXPIRED, SUCCEEDED, NewLine
from responses_app.resources.batches.model import COMPLETED, IN_PROGRESS, PENDING, Batch, BatchLine
from responses_app.resources.batches.runner import MAX_PAUSE, BatchContext, LineRunner
from responses_app.resources.batches.store import Batches, DoneLine
from responses_app.resources.files.fields import NewFile
from responses_app.resources.files.model import StoredFile
from responses_app.resources.files.store import Files
from responses_app.runs.plan.turns import FairTurns
from responses_app.stores.base import ClaimLost
from responses_app.web.endpoint import line_of

PROJECT, BATCH = "p", "batch_1"


@pytest.fixture
async def store(sqlite_alias: str) -> AsyncIterator[Batches]:
    store = Batches(using=sqlite_alias)
    yield store
    await store.aclose()


async def created(store: Batches, *bodies: bytes) -> None:
    """Keep a batch in progress, with lines of these bodies."""
    row = Batch(
        id=BATCH, project=PROJECT, endpoint="/v1/responses", status=IN_PROGRESS, created_at=utc(1),
        expires_at=utc(10**10), times={IN_PROGRESS: 1}, input_file_id="file-in",
    )  # fmt: skip
    await store.create(row, [NewLine(number, f"{number}", body) for number, body in enumerate(bodies, 1)])


async def claimed(store: Batches, worker: str = "A") -> Batch:
    (batch,) = await store.claim(worker, dead_before=0.0, limit=1)
    return batch


async def states(alias: str) -> list[int]:
    """Return the states of all lines, as the database has them."""
    reader = Batches(using=alias)
    found = await reader._threads.run(lambda _: list(BatchLine.objects.using(alias).values_list("state", flat=True)))
    await reader.aclose()
    return found


def context_of(store: Batches) -> BatchContext:
    """Return what batches need, over a store."""
    return BatchContext(
        store=store, files=None, keys=AsyncMock(), settings=BatchSettings(), max_line_bytes=1000,
        read=AsyncMock(), loads=orjson.loads, check_model=lambda *_: None, new_id=str, now=lambda: 5.0,
    )  # fmt: skip


@pytest.mark.parametrize("end", ["cancelled", "stopped"])
async def test_a_line_that_was_refused_holds_up_no_end(store: Batches, sqlite_alias: str, end: str) -> None:
    refused = asyncio.Event()

    async def answer(_: LineRequest) -> LineAnswer:
        refused.set()
        raise rate_limited("Too many requests.", retry_after=int(MAX_PAUSE))

    await created(store, b"{}")
    runner = LineRunner(context_of(store), await claimed(store), FairTurns(max_running=2), LineHandler(answer))
    running = asyncio.create_task(runner.run())
    await refused.wait()
    if end == "stopped":
        runner.stop()
    else:
        await store.cancel(PROJECT, BATCH)
    await asyncio.wait_for(running, MAX_PAUSE / 4)
    await runner.give_back()
    assert await states(sqlite_alias) == [PENDING], "nothing of it was done: others may run it"


async def test_a_stop_waits_for_lines_and_those_that_are_refused_are_left_to_others(
    store: Batches, sqlite_alias: str
) -> None:
    """They would call tools, and are refused as the server stops, before anything of them was done."""
    asked, gate = asyncio.Event(), asyncio.Event()

    async def answer(_: LineRequest) -> LineAnswer:
        asked.set()
        await gate.wait()
        raise stopping()

    await created(store, b'{"tools": [{"type": "mcp"}]}')
    work = BatchWork(context_of(store), worker="A", dead_before=lambda: 0.0, ready=lambda: True)
    work.start(lambda _: LineHandler(answer))
    await asked.wait()
    await work.stop()
    over = asyncio.create_task(work.over())
    await asyncio.sleep(0.01)
    assert not over.done()
    gate.set()
    await asyncio.wait_for(over, 5)
    await work.aclose()
    assert await states(sqlite_alias) == [PENDING]


@pytest.mark.parametrize(
    ("path", "body", "may"),
    [
        *((path, {}, True) for path in ("/v1/responses", "/v1/chat/completions", "/v1/messages", "/v1/completions")),
        ("/v1/responses", {"tools": [{"type": "function"}, {"type": "custom"}]}, True),
        ("/v1/messages", {"tools": [{"name": "of a client"}]}, True),
        ("/v1/responses", {"tools": [{"type": "web_search"}]}, False),
        ("/v1/responses", {"tools": [{"type": "mcp"}]}, False),
        ("/v1/responses", {"tools": "nonsense"}, False),
        ("/v1/responses", {"conversation": "conv_1"}, False),
        ("/v1/messages", {"mcp_servers": [{}]}, False),
        ("/v1/messages", {"container": "container_1"}, False),
        ("/v1/chat/completions", {"web_search_options": {"a": 1}}, False),
        ("/v1/embeddings", {"input": "a"}, True),
    ],
)
def test_what_calls_tools_is_not_repeated(path: str, body: dict[str, object], may: bool) -> None:
    assert line_of(path).may_repeat(body) is may


class WatchedFiles(Files):
    """Files of which something happens `before_errors`, the second one, is written."""

    def __init__(self, using: str, before_errors: Callable[[], Awaitable[object]]) -> None:
        super().__init__(using=using)
        self.before_errors = before_errors
        self.created = 0

    async def create(
        self,
        project: str,
        file_id: str,
        file: NewFile,
        pieces: Iterable[bytes] | AsyncIterable[bytes],
        *,
        over_limits: bool = False,
    ) -> StoredFile:
        if "error" in file.filename:
            await self.before_errors()
        row = await super().create(project, file_id, file, pieces, over_limits=over_limits)
        self.created += 1
        return row


async def files_of_its_end(store: Batches, files: WatchedFiles) -> list[str]:
    """Work on the end of a batch whose two lines have ended; return the files that are there then."""
    await created(store, b"{}", b"{}")
    batch = await claimed(store)
    await store.step(batch, done=(), after=0, limit=2, max_bytes=100)
    done = [
        DoneLine(number=1, outcome=SUCCEEDED, result=b"good\n"),
        DoneLine(number=2, outcome=ERRORED, result=b"bad\n"),
    ]
    await store.step(batch, done=done, after=2, limit=0, max_bytes=100)
    batch = await store.finalize(batch, unrun=EXPIRED, output_file_id="", error_file_id="")
    numbers = count()
    context = replace(context_of(store), files=files, new_id=lambda kind: f"{kind}{next(numbers)}")
    await asyncio.wait_for(ClaimedBatch(context, batch, FairTurns(max_running=1), AsyncMock()).run(), 30)
    listed = await files.listed(PROJECT, None, after=None, descending=False, limit=10)
    await files.aclose()
    return [each.pk for each in listed]


async def finalized_by_another(store: Batches) -> Batch:
    """Let another worker take the batch over, and name files of its own."""
    batch = await claimed(store, "B")
    return await store.finalize(batch, unrun=EXPIRED, output_file_id="file-b", error_file_id="")


def complains(caplog: pytest.LogCaptureFixture) -> bool:
    return any(each.levelno >= logging.WARNING for each in caplog.records)


async def test_where_the_end_is_anothers_both_files_go(store: Batches, caplog: pytest.LogCaptureFixture) -> None:
    files = WatchedFiles(store._using, lambda: finalized_by_another(store))
    assert await files_of_its_end(store, files) == []
    assert files.created == 2
    row = await store.get(PROJECT, BATCH)
    assert row is not None
    assert (row.is_open, row.worker) == (True, "B")
    assert not complains(caplog)


async def test_lines_that_go_while_they_are_written_say_that_it_is_anothers(
    store: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    async def end_as_another() -> None:
        batch = await finalized_by_another(store)
        await store.end(batch, COMPLETED, output_file_id="file-b")
        await store.drop_lines(batch.pk)

    files = WatchedFiles(store._using, end_as_another)
    assert await files_of_its_end(store, files) == []
    assert files.created == 1
    row = await store.get(PROJECT, BATCH)
    assert row is not None
    assert (row.status, row.output_file_id) == (COMPLETED, "file-b")
    assert not complains(caplog)


async def test_files_of_an_earlier_try_go_too(
    store: Batches, sqlite_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(*_: object, **__: object) -> None:
        await store._threads.run(lambda _: Batch.objects.using(sqlite_alias).all().delete())
        raise StoreError("away")

    monkeypatch.setattr("responses_app.resources.batches.duty.RETRY_SECONDS", 0)
    monkeypatch.setattr(store, "end", end)
    files = WatchedFiles(store._using, AsyncMock())
    assert await files_of_its_end(store, files) == []
    assert files.created == 2


async def test_files_that_the_batch_has_stay(store: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_end = store.end

    async def end(batch: Batch, status: str, **files: str) -> None:
        await keep_end(batch, status, **files)
        raise ClaimLost("its end was kept, and the answer that says so was lost")

    monkeypatch.setattr(store, "end", end)
    files = await files_of_its_end(store, WatchedFiles(store._using, AsyncMock()))
    row = await store.get(PROJECT, BATCH)
    assert row is not None
    assert row.status == COMPLETED
    assert files == [row.output_file_id, row.error_file_id]
