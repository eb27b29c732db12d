"""The files of a batch that another worker has ended meanwhile: none are left behind, and nothing is said to break."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest

from responses_app.protocol.files.batches import FINALIZING, IN_PROGRESS, BatchSettings
from responses_app.runs.batches.office import BatchOffice
from responses_app.runs.batches.work import _Worked
from responses_app.runs.queues.turns import FairTurns
from responses_app.stores.base import Claim, ClaimLost, StoreError
from responses_app.stores.batches import SUCCEEDED, BaseBatchStore, BatchRecord, ClaimedBatch, ResultLine
from tests.kit.memory_files import MemoryFileStore

PROJECT = "p"
RECORD = BatchRecord(
    id="batch_1", project=PROJECT, endpoint="/v1/responses", status=FINALIZING, created_at=1, expires_at=10**10,
    times={IN_PROGRESS: 1}, input_file_id="file-in",
)  # fmt: skip
LINES = [ResultLine(1, "a", SUCCEEDED, b"good\n"), ResultLine(2, "b", "errored", b"bad\n")]


def store_of(**calls: Any) -> Any:
    """Return a store that has a batch whose lines have ended, and that is another worker's by now."""

    async def results(batch_id: str, *, after: int, limit: int, outcomes: Any) -> list[ResultLine]:
        return [each for each in LINES if each.number > after and each.outcome in outcomes]

    async def sizes(batch_id: str, outcomes: Any) -> tuple[int, int]:
        found = [each.result for each in LINES if each.outcome in outcomes]
        return len(found), sum(map(len, found))

    store = AsyncMock(spec=BaseBatchStore)
    store.get.return_value = RECORD
    store.finalize.return_value = RECORD
    given = {"results": results, "sizes": sizes, "end": ClaimLost("another's"), "step": ClaimLost("another's"), **calls}
    for name, does in given.items():
        getattr(store, name).side_effect = does
    return store


async def worked(store: Any) -> MemoryFileStore:
    """Work on the batch to its end, and return the files."""
    files, numbers = MemoryFileStore(), iter(range(100))
    office = BatchOffice(
        store=store, files=files, keys=AsyncMock(), settings=BatchSettings(), max_line_bytes=1000, loads=orjson.loads,
        check_model=lambda *_: None, new_id=lambda kind: f"{kind}{next(numbers)}", now=lambda: 5.0,
    )  # fmt: skip
    claimed = ClaimedBatch(record=RECORD, claim=Claim("A", 1))
    async with asyncio.timeout(30):
        await _Worked(office, claimed, FairTurns(max_running=1), AsyncMock()).run()
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
    monkeypatch.setattr("responses_app.runs.batches.work.RETRY_SECONDS", 0)
    store = store_of(end=StoreError("away"), finalize=[RECORD, ClaimLost("deleted")])
    store.get.side_effect = [RECORD, RECORD, RECORD, None]
    assert await files_of(await worked(store)) == []
    assert store.finalize.await_count == 2


async def test_files_that_the_batch_has_stay() -> None:
    has = SimpleNamespace(output_file_id="", error_file_id="")

    async def finalize(batch_id: str, claim: Claim, **fields: Any) -> BatchRecord:
        has.output_file_id, has.error_file_id = fields["output_file_id"], fields["error_file_id"]
        return RECORD

    async def get(project: str, batch_id: str) -> Any:
        return has if has.output_file_id else RECORD

    # Its end was kept, and the answer that says so was lost.
    store = store_of(finalize=finalize, get=get)
    assert await files_of(await worked(store)) == [has.output_file_id, has.error_file_id]
