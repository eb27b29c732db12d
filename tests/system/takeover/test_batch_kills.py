"""kill -9 of the worker that runs a batch: another goes on, and each line is in the output once.

Only this finds a line that a death loses or repeats.
"""

from pathlib import Path
from typing import Any

import pytest
from openai.types import Batch

from tests.kit.batches import batch_of, ended, has_ended, line, output_of
from tests.kit.closed import ClosedServer
from tests.kit.databases import postgres_url
from tests.kit.redis_server import RedisServer
from tests.kit.sdk import sdk_of
from tests.kit.server import Server, manage
from tests.kit.stored import end_lease, stored

LEASE = 3  # WORKER_LEASE_SECONDS
SHORT_LEASE = 1  # where the one that takes over starts behind the kill
LINES = 300
FEW_LINES = 120  # of which thirty are done when the worker is killed
PACE = {"tokens_per_second": 200}
LONG = "count to 9000"  # two minutes: no test waits for its end


def pair(folder: Path, redis: RedisServer | None = None, **settings: Any) -> tuple[Server, Server]:
    """Return two servers: on one PostgreSQL and with this Redis, or on one file of SQLite."""
    if redis is not None:
        settings |= {"database_url": postgres_url(folder, manage), "redis_url": redis.url}
    first, second = (Server(folder, **{"worker_lease_seconds": LEASE, **settings}) for _ in range(2))
    second.log = folder / "second.log"
    return first, second


def test_a_batch_outlives_its_worker(tmp_path: Path, redis: RedisServer) -> None:
    first, second = pair(tmp_path, redis, engine_options=PACE)
    try:
        first.start()
        with sdk_of(first) as client:
            conversation = client.conversations.create().id
            # The first line may change a conversation, so it must not run twice; all lines run when it is killed.
            lines = [line("0", input=LONG, conversation=conversation)]
            lines += [line(str(number), input=f"count to {number % 20 + 1}") for number in range(1, FEW_LINES)]
            batch = batch_of(client, lines)
            ended(client, batch, lambda now: now.request_counts is not None and now.request_counts.completed > 30)
            ((worker,),) = stored(first, "SELECT id FROM responses_app_worker")
            second.start()  # it claims nothing of a worker that lives
            first.kill()
            end_lease(second, worker)
        with sdk_of(second) as client:
            batch = ended(client, batch)
            assert batch.status == "completed"
            answers, errors = output_of(client, batch.output_file_id), output_of(client, batch.error_file_id)
            assert sorted(answers, key=int) == [str(number) for number in range(1, FEW_LINES)]
            assert {name: each["error"]["code"] for name, each in errors.items()} == {"0": "server_error"}
            assert batch.request_counts is not None
            assert (batch.request_counts.completed, batch.request_counts.failed) == (FEW_LINES - 1, 1)
            assert not client.conversations.items.list(conversation).data
    finally:
        for server in (first, second):
            server.stop()


@pytest.mark.parametrize("state", ["validating", "finalizing", "cancelling"])
def test_a_worker_is_killed_at_each_state(tmp_path: Path, state: str) -> None:
    first, second = pair(tmp_path, engine="demo", worker_lease_seconds=SHORT_LEASE)

    def is_there(now: Batch) -> bool:
        return now.status == state or has_ended(now)

    try:
        with first, sdk_of(first) as client:
            batch = batch_of(client, [line(str(n), input="count to 1", store=False) for n in range(LINES)])
            if state == "cancelling":
                ended(client, batch, lambda now: now.request_counts is not None and now.request_counts.completed > 0)
                client.batches.cancel(batch.id)
            ended(client, batch, is_there)
            first.kill()
        with second, sdk_of(second) as client:
            batch = ended(client, batch)
            assert batch.status == ("cancelled" if state == "cancelling" else "completed")
            answers, errors = output_of(client, batch.output_file_id), output_of(client, batch.error_file_id)
            assert sorted([*answers, *errors], key=int) == [str(number) for number in range(LINES)]
            assert {each["error"]["code"] for each in errors.values()} <= {"batch_cancelled"}
            assert batch.request_counts is not None
            assert (batch.request_counts.total, batch.request_counts.completed) == (LINES, len(answers))
            files = {each.id for each in client.files.list(purpose="batch_output")}
            assert files == {batch.output_file_id, batch.error_file_id} - {None}, "none is left behind"
    finally:
        for server in (first, second):
            server.stop()


EXPIRE = """
from datetime import UTC, datetime, timedelta
from responses_app.resources.batches.model import Batch
Batch.objects.filter(metadata__contains="expires").update(expires_at=datetime.now(UTC) + timedelta(seconds=1))
"""


def test_after_a_stop_one_goes_on_and_another_expires_with_what_it_has(tmp_path: Path) -> None:
    server = ClosedServer(tmp_path, engine_options=PACE, auth="off", batch_lines_running=40)
    with server, sdk_of(server) as client:
        # Lines that take long beside lines that do not; the turns are shared with the other batch.
        lines = [line(str(number), input=LONG if number < 10 else "count to 1") for number in range(30)]
        slow = batch_of(client, lines, metadata={"it": "expires"})
        ended(client, slow, lambda now: now.request_counts is not None and now.request_counts.completed == 20)
        quick = batch_of(client, [line(str(number), input=f"count to {number % 20 + 1}") for number in range(100)])
        ended(client, quick, lambda now: now.request_counts is not None and now.request_counts.completed > 10)
    server.manage("shell", "--no-imports", "-c", EXPIRE)
    with server, sdk_of(server) as client:
        quick = ended(client, quick)  # at once: nobody waits for a lease
        assert quick.status == "completed"
        assert len(output_of(client, quick.output_file_id)) == 100
        slow = ended(client, slow)
        assert (slow.status, slow.expired_at is not None) == ("expired", True)
        answers, errors = output_of(client, slow.output_file_id), output_of(client, slow.error_file_id)
        assert sorted(answers, key=int) == [str(number) for number in range(10, 30)]
        assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}
        assert slow.request_counts is not None
        assert slow.request_counts.model_dump() == {"total": 30, "completed": 20, "failed": 0}
