"""PostgreSQL keeps its connections and answers nothing: a cancel is answered in time, and a worker ends in time.

Only this finds a wait without a bound at a database that neither answers nor breaks off.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from responses_app.runs.by_id import CANCEL_SECONDS
from responses_app.wiring.site import LAST_ROWS_SECONDS, LAST_WORDS_SECONDS
from tests.kit.background import begin, cancel, new_server, until
from tests.kit.clients import http_client, read_error_answer
from tests.kit.databases import url_on
from tests.kit.postgres_server import PostgresServer, private_postgres_server  # noqa: F401 - a fixture
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import gate
from tests.kit.server import Server, manage
from tests.wire.transports.test_drain import STATUSES, assert_quiet

SLACK = 30.0  # seconds, on a machine that is busy
GRACE = 2.0
TIMEOUT = 60.0  # of the database: far longer than anything here may take


@pytest.fixture
def server(folder: Path, kind: str, own_postgres_server: PostgresServer) -> Iterator[Server]:
    """A server on PostgreSQL, which makes no noise."""
    limits = {"shutdown_grace_seconds": GRACE, "database_timeout_seconds": TIMEOUT}
    server = new_server(folder, kind=kind, database_url=url_on(own_postgres_server, manage), **limits)
    with server:
        yield server
    assert_quiet(server)


async def test_a_cancel_is_answered_in_time(server: Server, own_postgres_server: PostgresServer) -> None:
    async with http_client(server) as http:
        silent = await begin(http, "[dumb a]")
        with own_postgres_server.hanging():
            for _ in range(2):  # once more is no other answer
                asked = time.monotonic()
                answer = await http.post(f"/responses/{silent['id']}/cancel", timeout=TIMEOUT)
                assert time.monotonic() - asked < CANCEL_SECONDS + SLACK
                message = read_error_answer(answer, status=503, code="server_is_overloaded")
                assert "the database does not answer" in message
        await until(http, silent["id"], "cancelled")
        assert [each["status"] for each in await cancel(http, silent)] == ["cancelled"]


async def test_a_stop_is_done_in_time(server: Server, own_postgres_server: PostgresServer) -> None:
    async with http_client(server) as http:
        speaking = await begin(http, gate("b0"))
        hanging = await RawStream.create(server, input="[hang]")
        await hanging.until("response.output_text.delta")
        await until(http, speaking["id"], "in_progress")
        with own_postgres_server.hanging():
            told = time.monotonic()
            assert await asyncio.to_thread(server.stop) in STATUSES
            last = GRACE + LAST_ROWS_SECONDS + 2 * LAST_WORDS_SECONDS
            assert time.monotonic() - told < last + SLACK
        hanging.kill()
