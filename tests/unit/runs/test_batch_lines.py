"""Lines of a batch that are refused for a time, or as the server stops; files of one that another worker has ended."""

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest

from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import rate_limited, stopping
from responses_app.resources.batches.duty import BatchWork, _Worked
from responses_app.resources.batches.handlers import LineAnswer, LineHandler, LineRequest
from responses_app.resources.batches.lines import CANCELLING, FINALIZING, IN_PROGRESS
from responses_app.resources.batches.office import BatchOffice
from responses_app.resources.batches.records import (
    SUCCEEDED,
    BaseBatchStore,
    BatchRecord,
    BegunLine,
    ClaimedBatch,
    ResultLine,
    Step,
)
from responses_app.resources.batches.runner import MAX_PAUSE, LineRunner
from responses_app.resources.batches.settings import BatchSettings
from responses_app.runs.queues.turns import FairTurns
from responses_app.stores.base import Claim, ClaimLost
from responses_app.web.endpoint import line_of
from tests.kit.memory_files import MemoryFileStore

RECORD = BatchRecord(
    id="batch_1", project="p", endpoint="/v1/responses", status=IN_PROGRESS, created_at=1, expires_at=10**10,
    times={IN_PROGRESS: 1}, input_file_id="file-in",
)  # fmt: skip


def office_of(store: BaseBatchStore) -> BatchOffice:
    """Return what batches need, over a store."""
    return BatchOffice(
        store=store, files=MemoryFileStore(), keys=AsyncMock(), settings=BatchSettings(), max_line_bytes=1000,
        read=AsyncMock(), loads=orjson.loads, check_model=lambda *_: None, new_id=str, now=lambda: 5.0,
    )  # fmt: skip


@pytest.mark.parametrize("end", ["cancelled", "stopped"])
async def test_a_line_that_was_refused_holds_up_no_end(end: str) -> None:
    now = SimpleNamespace(status=IN_PROGRESS, lines=[BegunLine(1, "a", b"{}", False)])
    refused = asyncio.Event()

    async def step(*_: object, limit: int, **__: object) -> Step:
        return Step(now.status, [now.lines.pop()] if now.lines and limit else [])

    async def answer(_: LineRequest) -> LineAnswer:
        refused.set()
        raise rate_limited("Too many requests.", retry_after=int(MAX_PAUSE))

    store = AsyncMock(spec=BaseBatchStore)
    store.step.side_effect = step
    office = office_of(store)
    runner = LineRunner(
        office, ClaimedBatch(record=RECORD, claim=Claim("A", 1)), FairTurns(max_running=2), LineHandler(answer)
    )
    running = asyncio.create_task(runner.run())
    await refused.wait()
    if end == "stopped":
        runner.stop()
    else:
        now.status = CANCELLING
    await asyncio.wait_for(running, MAX_PAUSE / 4)
    await runner.give_back()
    assert store.give_back.await_args.kwargs == {"pending": [1]}, "nothing of it was done: others may run it"


async def test_a_stop_waits_for_lines_and_those_that_are_refused_are_left_to_others() -> None:
    """They would call tools, and are refused as the server stops, before anything of them was done."""
    lines = [BegunLine(1, "a", b'{"tools": [{"type": "mcp"}]}', False)]
    asked, gate = asyncio.Event(), asyncio.Event()

    async def step(*_: object, limit: int, **__: object) -> Step:
        return Step(IN_PROGRESS, [lines.pop()] if lines and limit else [])

    async def answer(_: LineRequest) -> LineAnswer:
        asked.set()
        await gate.wait()
        raise stopping()

    store = AsyncMock(spec=BaseBatchStore)
    store.step.side_effect = step
    store.has_work.side_effect = [True, *[False] * 9]
    store.claim.return_value = [ClaimedBatch(record=RECORD, claim=Claim("A", 1))]
    work = BatchWork(office_of(store), worker="A", dead_before=lambda: 0.0, ready=lambda: True)
    work.start(lambda _: LineHandler(answer))
    await asked.wait()
    await work.stop()
    over = asyncio.create_task(work.over())
    await asyncio.sleep(0.01)
    assert not over.done()
    gate.set()
    await asyncio.wait_for(over, 5)
    await work.aclose()
    assert store.give_back.await_args.kwargs == {"pending": [1]}


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


PROJECT = RECORD.project
FINAL = replace(RECORD, status=FINALIZING)
LINES = [ResultLine(1, "a", SUCCEEDED, b"good\n"), ResultLine(2, "b", "errored", b"bad\n")]


def store_of(**calls: Any) -> Any:
    """Return a store that has a batch whose lines have ended, and that is another worker's by now."""

    async def results(batch_id: str, *, after: int, limit: int, outcomes: Any) -> list[ResultLine]:
        return [each for each in LINES if each.number > after and each.outcome in outcomes]

    async def sizes(batch_id: str, outcomes: Any) -> tuple[int, int]:
        found = [each.result for each in LINES if each.outcome in outcomes]
        return len(found), sum(map(len, found))

    store = AsyncMock(spec=BaseBatchStore)
    store.get.return_value = FINAL
    store.finalize.return_value = FINAL
    given = {"results": results, "sizes": sizes, "end": ClaimLost("another's"), "step": ClaimLost("another's"), **calls}
    for name, does in given.items():
        getattr(store, name).side_effect = does
    return store


async def worked(store: Any) -> MemoryFileStore:
    """Work on the batch to its end, and return the files."""
    files, numbers = MemoryFileStore(), iter(range(100))
    office = replace(office_of(store), files=files, new_id=lambda kind: f"{kind}{next(numbers)}")
    claimed = ClaimedBatch(record=FINAL, claim=Claim("A", 1))
    await asyncio.wait_for(_Worked(office, claimed, FairTurns(max_running=1), AsyncMock()).run(), 30)
    return files


async def files_of(files: MemoryFileStore) -> list[str]:
    listed = await files.listed(PROJECT, purpose=None, after=None, descending=False, limit=10)
    return [each.id for each in listed or ()]


async def test_where_the_end_is_anothers_both_files_go(caplog: pytest.LogCaptureFixture) -> None:
    store = store_of()
    assert await files_of(await worked(store)) == []
    assert store.end.await_count == 1
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_lines_that_go_while_they_are_written_say_that_it_is_anothers(caplog: pytest.LogCaptureFixture) -> None:
    async def errors_are_gone(batch_id: str, *, after: int, limit: int, outcomes: Any) -> list[ResultLine]:
        return [each for each in LINES if each.number > after and each.outcome in outcomes and each.number == 1]

    store = store_of(results=errors_are_gone)
    assert await files_of(await worked(store)) == []
    assert store.step.await_count == 1
    assert store.end.await_count == 0
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_files_of_an_earlier_try_go_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.resources.batches.duty.RETRY_SECONDS", 0)
    store = store_of(end=StoreError("away"), finalize=[FINAL, ClaimLost("deleted")])
    store.get.side_effect = [FINAL, FINAL, FINAL, None]
    assert await files_of(await worked(store)) == []
    assert store.finalize.await_count == 2


async def test_files_that_the_batch_has_stay() -> None:
    has = SimpleNamespace(output_file_id="", error_file_id="")

    async def finalize(batch_id: str, claim: Claim, **fields: Any) -> BatchRecord:
        has.output_file_id, has.error_file_id = fields["output_file_id"], fields["error_file_id"]
        return FINAL

    async def get(project: str, batch_id: str) -> Any:
        return has if has.output_file_id else FINAL

    # Its end was kept, and the answer that says so was lost.
    store = store_of(finalize=finalize, get=get)
    assert await files_of(await worked(store)) == [has.output_file_id, has.error_file_id]
