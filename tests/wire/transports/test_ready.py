"""`/ready` asks the database: dead, hung, or with no room to write, it says so, and says when it is well again."""

import resource
import time
from pathlib import Path

import httpx

from tests.kit.postgres_server import PostgresServer, private_postgres_server  # noqa: F401 - a fixture
from tests.kit.server import Server, manage

SECONDS = 2  # DATABASE_TIMEOUT_SECONDS


def reason(server: Server) -> str:
    """Return what a server says about its database when it is not ready."""
    answer = server.wait_until("/ready", 503)
    assert answer.headers["retry-after"]
    assert answer.json()["status"] == "not ready"
    assert httpx.get(f"{server.url}/health").status_code == 200
    return str(answer.json()["database"])


def test_a_database_that_is_dead_or_hangs(folder: Path, own_postgres_server: PostgresServer) -> None:
    url = own_postgres_server.url_of(own_postgres_server.create_database())
    manage("migrate", "--verbosity", "0", DATABASE_URL=url)
    with Server(folder, database_url=url, database_timeout_seconds=SECONDS) as server:
        with own_postgres_server.hanging():
            assert "answer" in reason(server)
        server.wait_until("/ready", 200)
        own_postgres_server.stop()
        assert "cannot be reached" in reason(server)
        own_postgres_server.start()
        server.wait_until("/ready", 200)
        assert httpx.post(f"{server.base_url}/responses", json={"input": "Hello"}).json()["status"] == "completed"
        assert "Traceback" not in server.output
        assert "django.request" not in server.output, "each 503 would be an error in the log"


def test_a_disk_without_room(folder: Path) -> None:
    """No file of the server may grow beyond what its write-ahead log has already."""
    folder.mkdir()
    url = f"sqlite:///{folder / 'respsite.sqlite3'}"  # wherever the other servers of this run have theirs
    manage("migrate", "--verbosity", "0", DATABASE_URL=url)
    with Server(folder, database_url=url) as server:
        size = (folder / "respsite.sqlite3-wal").stat().st_size
        assert server.log.stat().st_size < size // 2, "the server has its log in a file, too"
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, hard))
        deadline = time.monotonic() + 30
        while "cannot be written to" not in (said := reason(server)):  # a busy machine may take its 2 s first
            assert time.monotonic() < deadline, said
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        server.wait_until("/ready", 200)
