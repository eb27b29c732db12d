"""PostgreSQL is switched over to its standby: nothing that was acknowledged is lost, and the new primary is found.

Only this finds a failure of a failover that is taken for a fault of one record, and a connection that stays with a
server that takes no writes any more.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.kit.background import begin, new_server, until
from tests.kit.clients import http_client
from tests.kit.databases import url_on
from tests.kit.postgres_server import PostgresServer, private_postgres_server  # noqa: F401 - a fixture
from tests.kit.scripts import gate, release
from tests.kit.server import Server, manage
from tests.kit.waiting import eventually

RUNS = 4
FOUND_WITHIN = 60.0  # seconds, on a machine that is busy


@pytest.fixture
def standby(own_postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A standby of the server that the test may stop, once it was made one by `copy_of`."""
    standby = PostgresServer()
    yield standby
    standby.close()


def served_by(folder: Path, url: str) -> Server:
    return new_server(folder, database_url=url, background_max_running=RUNS, background_max_queued=RUNS)


async def begun(http: httpx.AsyncClient) -> list[str]:
    """Begin responses in the background, each behind the gate `b0`, and return their ids once all run."""
    ids = [(await begin(http, gate("b0")))["id"] for _ in range(RUNS)]
    for each in ids:
        await until(http, each, "in_progress")
    return ids


async def test_a_server_that_only_reads_for_a_while(folder: Path, own_postgres_server: PostgresServer) -> None:
    with served_by(folder, url_on(own_postgres_server, manage)) as server:
        async with http_client(server) as http:
            ids = await begun(http)
            with own_postgres_server.only_reading():
                release(server, "b0")  # they end now, and cannot be kept
                answer = await http.post("/responses", json={"input": "Hello"})
                assert answer.status_code == 503
                await eventually(lambda: "only lets read" in httpx.get(f"{server.url}/ready").text)
            for each in ids:
                await until(http, each, "completed")
            server.wait_until("/ready", 200)
            assert (await http.post("/responses", json={"input": "Hello"})).status_code == 200
        assert "Traceback" not in server.output


async def test_the_standby_is_promoted(
    folder: Path, own_postgres_server: PostgresServer, standby: PostgresServer
) -> None:
    name = url_on(own_postgres_server, manage).rpartition("/")[2]
    standby.copy_of(own_postgres_server)
    standby.start()
    hosts = f"127.0.0.1:{own_postgres_server.port},127.0.0.1:{standby.port}"
    url = f"postgres://postgres@{hosts}/{name}?target_session_attrs=read-write"
    with served_by(folder, url) as server:
        async with http_client(server) as http:
            ids = await begun(http)
            own_postgres_server.stop()
            release(server, "b0")
            standby.promote()
            for each in ids:
                assert await ended(http, each) == "completed"
            assert (await http.post("/responses", json={"input": "Hello"})).status_code == 200
        assert "Traceback" not in server.output


async def ended(http: httpx.AsyncClient, response_id: str) -> str:
    """Return the status in which a response has ended; while nobody can say, it is asked again."""
    statuses: list[str] = []

    async def is_told() -> bool:
        answer = await http.get(f"/responses/{response_id}")
        statuses[:] = [answer.json()["status"]] if answer.status_code == 200 else ["in_progress"]
        return statuses != ["in_progress"]

    await eventually(is_told, timeout=FOUND_WITHIN)
    return statuses[0]
