"""The coalescing writer: what is committed together, and what a failure or a cancellation touches."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest
from django.db import DataError, IntegrityError, OperationalError, connections

from responses_app.kit import writer as writer_module
from responses_app.kit.errors import StoreError
from responses_app.kit.writer import CoalescingWriter
from tests.contracts.adapters.conftest import OpenDatabase
from tests.kit.waiting import eventually


class Ledger:
    """Stands for a table: `commit` notes what it is given; it can be held up, and made to fail."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        self.failures: list[Exception] = []  # raised one by one by the next commits
        self.bad: dict[str, Exception] = {}  # records that fail every batch they are in
        self.opened = threading.Event()
        self.opened.set()
        self.attempts = 0

    def commit(self, batch: Sequence[str]) -> None:
        self.attempts += 1
        self.threads.add(threading.get_ident())
        assert self.opened.wait(10)
        if self.failures:
            raise self.failures.pop(0)
        for record in batch:
            if record in self.bad:
                raise self.bad[record]
        self.batches.append(list(batch))


@pytest.fixture
def alias(sqlite_url: str, open_database: OpenDatabase) -> Iterator[str]:
    with open_database(sqlite_url) as alias:
        yield alias


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def writer(alias: str, ledger: Ledger) -> Iterator[CoalescingWriter[str]]:
    writer = CoalescingWriter(ledger.commit, using=alias, max_pending=5)
    writer.start()
    yield writer
    ledger.opened.set()
    writer.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without pauses."""
    monkeypatch.setattr(writer_module, "RETRY_PAUSES", (0.0, 0.0, 0.0))


Writer = CoalescingWriter[str]


async def hold_up(writer: Writer, ledger: Ledger, *records: str) -> list["asyncio.Task[None]"]:
    """Let a commit of "first" block, and queue `records` behind it; give the tasks of all."""
    ledger.opened.clear()
    first = asyncio.create_task(writer.write("first"))
    await eventually(lambda: ledger.attempts == 1)
    rest = [asyncio.create_task(writer.write(record)) for record in records]
    await asyncio.sleep(0)
    return [first, *rest]


async def test_what_comes_during_a_commit_goes_into_the_next_together(writer: Writer, ledger: Ledger) -> None:
    tasks = await hold_up(writer, ledger, "a", "b", "c")
    assert not any(task.done() for task in tasks)
    ledger.opened.set()
    await asyncio.gather(*tasks)
    assert ledger.batches == [["first"], ["a", "b", "c"]]


async def test_all_is_committed_by_one_thread_that_is_not_the_loops(writer: Writer, ledger: Ledger) -> None:
    for number in range(5):
        await writer.write(str(number))
    assert ledger.batches == [[str(number)] for number in range(5)]
    assert len(ledger.threads) == 1
    assert threading.get_ident() not in ledger.threads


async def test_a_batch_is_bounded(writer: Writer, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_BATCH", 2)
    tasks = await hold_up(writer, ledger, "a", "b", "c")
    ledger.opened.set()
    await asyncio.gather(*tasks)
    assert ledger.batches == [["first"], ["a", "b"], ["c"]]


async def test_a_full_queue_refuses(writer: Writer, ledger: Ledger) -> None:
    tasks = await hold_up(writer, ledger, *"abcde")
    with pytest.raises(StoreError, match="5 records wait"):
        await writer.write("f")
    ledger.opened.set()
    await asyncio.gather(*tasks)
    await writer.write("g")
    assert ledger.batches == [["first"], list("abcde"), ["g"]]


@pytest.mark.parametrize("error", [IntegrityError("twice"), DataError("too long"), TypeError("no JSON")], ids=repr)
async def test_a_bad_record_fails_alone(writer: Writer, ledger: Ledger, error: Exception) -> None:
    ledger.bad["b"] = error
    tasks = await hold_up(writer, ledger, "a", "b", "c")
    ledger.opened.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert ledger.batches == [["first"], ["a"], ["c"]]
    assert [answers[0], answers[1], answers[3]] == [None, None, None]
    assert isinstance(answers[2], StoreError)
    assert str(error) in str(answers[2])
    assert answers[2].__cause__ is error


@pytest.mark.usefixtures("at_once")
async def test_a_passing_failure_is_tried_again_on_a_new_connection(writer: Writer, ledger: Ledger) -> None:
    ledger.failures = [OperationalError("database is locked")] * 3
    await writer.write("a")
    assert ledger.batches == [["a"]]
    assert ledger.attempts == 4


@pytest.mark.usefixtures("at_once")
async def test_tries_are_bounded(writer: Writer, ledger: Ledger) -> None:
    ledger.failures = [OperationalError("database is locked")] * 4
    with pytest.raises(StoreError, match="database is locked"):
        await writer.write("a")
    assert ledger.attempts == 4
    await writer.write("b")
    assert ledger.batches == [["b"]]


@pytest.mark.usefixtures("at_once")
async def test_a_database_lost_while_trying_one_by_one_fails_the_rest_at_once(writer: Writer, ledger: Ledger) -> None:
    ledger.bad = {"b": DataError("too long"), "c": OperationalError("gone"), "d": OperationalError("gone")}
    tasks = await hold_up(writer, ledger, *"abcd")
    ledger.opened.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), type(None), StoreError, StoreError, StoreError]
    assert ledger.batches == [["first"], ["a"]]
    assert ledger.attempts == 1 + 1 + 2 + 4  # first; all; a, b; c and no more


async def test_a_cancelled_caller_breaks_nothing(writer: Writer, ledger: Ledger) -> None:
    tasks = await hold_up(writer, ledger, "a", "b", "c")
    tasks[0].cancel()
    tasks[2].cancel()
    ledger.opened.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [
        asyncio.CancelledError,
        type(None),
        asyncio.CancelledError,
        type(None),
    ]
    assert ledger.batches == [["first"], ["a", "b", "c"]]


@pytest.mark.parametrize("times", [1, 2])
async def test_closing_commits_what_is_queued(writer: Writer, ledger: Ledger, times: int) -> None:
    tasks = await hold_up(writer, ledger, "a", "b")
    closing = [asyncio.create_task(writer.aclose()) for _ in range(times)]
    done, _ = await asyncio.wait(closing, timeout=0.05)
    assert not done
    with pytest.raises(StoreError, match="does not run"):
        await writer.write("c")
    ledger.opened.set()
    await asyncio.gather(*closing)
    await asyncio.gather(*tasks)
    assert ledger.batches == [["first"], ["a", "b"]]
    await writer.aclose()
    writer.close()


async def test_closing_ends_the_thread_and_its_connection(alias: str) -> None:
    seen: list[tuple[threading.Thread, object]] = []

    def commit(batch: Sequence[str]) -> None:
        seen.append((threading.current_thread(), connections[alias]))

    writer = CoalescingWriter(commit, using=alias)
    writer.start()
    await writer.write("a")
    [(thread, connection)] = seen
    assert not thread.daemon
    assert connection.connection is not None
    await writer.aclose()
    assert not thread.is_alive()
    assert connection.connection is None


async def test_wants_to_be_started(alias: str, ledger: Ledger) -> None:
    writer = CoalescingWriter(ledger.commit, using=alias)
    with pytest.raises(StoreError, match="does not run"):
        await writer.write("a")
    await writer.aclose()
    with pytest.raises(StoreError, match="closed"):
        writer.start()


def test_serves_several_loops(writer: Writer, ledger: Ledger) -> None:
    for record in "ab":
        asyncio.run(writer.write(record))
    assert ledger.batches == [["a"], ["b"]]


def test_a_loop_that_has_ended_does_no_harm(writer: Writer, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    async def leave() -> None:
        writing = asyncio.create_task(writer.write("a"))
        await eventually(lambda: ledger.attempts == 1)
        assert not writing.done()

    ledger.opened.clear()
    asyncio.run(leave())
    ledger.opened.set()
    asyncio.run(writer.write("b"))
    assert ledger.batches == [["a"], ["b"]]
    assert "after their event loop had ended" in caplog.text


async def test_everyone_is_answered_and_nothing_is_lost(alias: str) -> None:
    committed: list[int] = []
    writer = CoalescingWriter(committed.extend, using=alias)
    writer.start()

    async def client(number: int) -> None:
        for step in range(40):
            await writer.write(number * 40 + step)
            assert number * 40 + step in committed

    await asyncio.gather(*(client(number) for number in range(50)))
    await writer.aclose()
    assert sorted(committed) == list(range(2000))


UNCLOSED = """
import asyncio, sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}})
django.setup()
from responses_app.kit.writer import CoalescingWriter

writer = CoalescingWriter(lambda batch: print(len(batch), flush=True))
writer.start()

async def leave():
    asyncio.create_task(writer.write("a"))
    await asyncio.sleep(0)

asyncio.run(leave())
"""


def test_a_process_that_forgets_to_close_still_writes_and_ends(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNCLOSED, f"{tmp_path}/db.sqlite3"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
