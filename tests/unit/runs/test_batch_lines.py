"""Lines of a batch that the server refuses for a time."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import orjson
import pytest

from responses_app.protocol.errors import rate_limited
from responses_app.protocol.files.batches import CANCELLING, IN_PROGRESS, BatchSettings
from responses_app.runs.batches.lines import BatchLine, Line, LineAnswer
from responses_app.runs.batches.office import BatchOffice
from responses_app.runs.batches.running import MAX_PAUSE, LineRunner
from responses_app.runs.queues.turns import FairTurns
from responses_app.stores.base import Claim
from responses_app.stores.batches import BaseBatchStore, BatchRecord, BegunLine, ClaimedBatch, Step
from responses_app.web.endpoint import line_of
from tests.kit.memory_files import MemoryFileStore

RECORD = BatchRecord(
    id="batch_1", project="p", endpoint="/v1/responses", status=IN_PROGRESS, created_at=1, expires_at=10**10,
    times={IN_PROGRESS: 1}, input_file_id="file-in",
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
    office = BatchOffice(
        store=store, files=MemoryFileStore(), keys=AsyncMock(), settings=BatchSettings(), max_line_bytes=1000,
        loads=orjson.loads, check_model=lambda *_: None, new_id=str, now=lambda: 5.0,
    )  # fmt: skip
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
