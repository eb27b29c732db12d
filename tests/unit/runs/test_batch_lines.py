"""Lines of a batch that the server refuses for a time, or as it stops."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest

from responses_app.protocol.errors import rate_limited, stopping
from responses_app.protocol.files.batches import CANCELLING, IN_PROGRESS, BatchSettings
from responses_app.runs.batches.lines import BatchLine, Line, LineAnswer
from responses_app.runs.batches.office import BatchOffice
from responses_app.runs.batches.running import MAX_PAUSE, LineRunner
from responses_app.runs.batches.work import BatchWork
from responses_app.runs.queues.turns import FairTurns
from responses_app.stores.base import Claim
from responses_app.stores.batches import BaseBatchStore, BatchRecord, BegunLine, ClaimedBatch, Step
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
        loads=orjson.loads, check_model=lambda *_: None, new_id=str, now=lambda: 5.0,
    )  # fmt: skip


@pytest.mark.parametrize("end", ["cancelled", "stopped"])
async def test_a_line_that_was_refused_holds_up_no_end(end: str) -> None:
    now = SimpleNamespace(status=IN_PROGRESS, lines=[BegunLine(1, "a", b"{}", False)])
    refused = asyncio.Event()

    async def step(*_: object, limit: int, **__: object) -> Step:
        return Step(now.status, [now.lines.pop()] if now.lines and limit else [])

    async def answer(_: Line) -> LineAnswer:
        refused.set()
        raise rate_limited("Too many requests.", retry_after=int(MAX_PAUSE))

    store = AsyncMock(spec=BaseBatchStore)
    store.step.side_effect = step
    office = office_of(store)
    runner = LineRunner(
        office, ClaimedBatch(record=RECORD, claim=Claim("A", 1)), FairTurns(max_running=2), BatchLine(answer)
    )
    running = asyncio.create_task(runner.run())
    await refused.wait()
    if end == "stopped":
        runner.stop()
    else:
        now.status = CANCELLING
    async with asyncio.timeout(MAX_PAUSE / 4):
        await running
    await runner.give_back()
    assert store.give_back.await_args.kwargs == {"pending": [1]}, "nothing of it was done: others may run it"


async def test_a_stop_waits_for_lines_and_those_that_are_refused_are_left_to_others() -> None:
    """They would call tools, and are refused as the server stops, before anything of them was done."""
    lines = [BegunLine(1, "a", b'{"tools": [{"type": "mcp"}]}', False)]
    asked, gate = asyncio.Event(), asyncio.Event()

    async def step(*_: object, limit: int, **__: object) -> Step:
        return Step(IN_PROGRESS, [lines.pop()] if lines and limit else [])

    async def answer(_: Line) -> LineAnswer:
        asked.set()
        await gate.wait()
        raise stopping()

    store = AsyncMock(spec=BaseBatchStore)
    store.step.side_effect = step
    store.has_work.side_effect = [True, *[False] * 9]
    store.claim.return_value = [ClaimedBatch(record=RECORD, claim=Claim("A", 1))]
    heartbeat: Any = SimpleNamespace(pulse=SimpleNamespace(dead_before=0.0))
    work = BatchWork(office_of(store), heartbeat, worker="A", ready=lambda: True)
    work.start(lambda _: BatchLine(answer))
    await asked.wait()
    await work.stop()
    over = asyncio.create_task(work.over())
    await asyncio.sleep(0.01)
    assert not over.done()
    gate.set()
    async with asyncio.timeout(5):
        await over
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
