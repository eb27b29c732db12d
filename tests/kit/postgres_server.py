"""A real PostgreSQL for tests: private, mostly without durability, on a free port of 127.0.0.1."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from tests.kit.capabilities import POSTGRES, require
from tests.kit.redis_server import low_port
from tests.kit.waiting import looks

START_SECONDS = 90.0
STOP_SECONDS = 10.0
# All servers of a run have their databases there, so PostgreSQL's own 100 are too few.
FAST = (
    *("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "shared_buffers=32MB"),
    "max_connections=1000",
)
DURABLE = ()  # what PostgreSQL does by itself: what is committed survives that it is killed


class PostgresServer:
    """Run PostgreSQL; stopped or killed, it can be started again on the same port, with its data.

    `directory` keeps its data, else they go with it. `options` are PostgreSQL's own: `FAST` or `DURABLE` here.
    """

    def __init__(self, directory: Path | None = None, *, options: Sequence[str] = FAST) -> None:
        self.port = low_port()
        self._keeps = directory is not None
        self._options = options
        self._programs = newest_programs()
        self._user = "postgres" if os.geteuid() == 0 else None  # initdb and postgres refuse to run as root
        self._process: subprocess.Popen[bytes] | None = None
        # Not below pytest's own directory, which only root may enter.
        self._directory = directory or Path(tempfile.mkdtemp(prefix="respsite-postgres-"))
        self._directory.mkdir(exist_ok=True)
        self._directory.chmod(0o755)
        if self._user:
            shutil.chown(self._directory, self._user, self._user)

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def folder(self) -> Path:
        """Where its data and its log are."""
        return self._directory

    @property
    def url(self) -> str:
        """Give the address of the database `postgres`, as DATABASE_URL takes it."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Give the address of a database, as DATABASE_URL takes it."""
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended since."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and return when it answers; the first time, make its data.

        Raises:
            RuntimeError: it ended, or did not answer within `START_SECONDS`; the text holds its log.
        """
        assert self._process is None, "The server runs already."
        if not self._data.exists():
            self._run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        where = ("listen_addresses=127.0.0.1", f"port={self.port}", f"unix_socket_directories={self._directory}")
        words = [word for option in (*where, *self._options) for word in ("-c", option)]
        log = self._directory / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._programs / "postgres", *words],
                **self._as_owner(),
                stdout=output,
                stderr=output,
            )
        for _ in looks(START_SECONDS):
            if self._answers():
                return
            if self._process.poll() is not None:
                break
        self.stop()
        raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}")

    def copy_of(self, primary: "PostgresServer") -> None:
        """Become a standby of a server, which runs, before the first start: it reads along until `promote`."""
        where = ("--dbname", primary.url, "--pgdata", str(self._data))
        self._run("pg_basebackup", *where, "--write-recovery-conf", "--checkpoint=fast")

    def promote(self) -> None:
        """Let a standby be a primary, and return when it is."""
        self.execute("SELECT pg_promote()")

    @contextmanager
    def only_reading(self) -> Iterator[None]:
        """Let it take no writes, as a primary that is being switched over."""
        self._allow_writes(False)
        try:
            yield
        finally:
            self._allow_writes(True)

    def _allow_writes(self, allow: bool) -> None:
        wanted = "off" if allow else "on"
        self.execute(f"ALTER SYSTEM SET default_transaction_read_only = {wanted}")
        self.execute("SELECT pg_reload_conf()")
        # A session that begins knows of it once the server has read it, and told those that are there.
        for _ in looks(START_SECONDS):
            if self.execute("SHOW default_transaction_read_only") == wanted:
                return
        raise AssertionError(f"default_transaction_read_only did not become {wanted}")

    @contextmanager
    def hanging(self, *, accepts: bool = False) -> Iterator[None]:
        """Stall the server's processes: connections stay open and nothing is answered; `accepts`: new ones are."""
        assert self._process is not None, "The server does not run."
        stalled = []
        if not accepts:
            stalled.append(self._process.pid)
            _stall(self._process.pid)  # the first: it makes no others then
        try:
            for child in _children(self._process.pid):
                _stall(child)
                stalled.append(child)
            yield
        finally:
            for process in reversed(stalled):
                os.kill(process, signal.SIGCONT)

    def stop(self) -> None:
        """Let the server shut down, cutting its connections; do nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)  # "fast": it does not wait for its clients
            process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """End all of its processes without warning; do nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            children = _children(process.pid)
            process.kill()
            process.wait(STOP_SECONDS)
            for child in children:
                with suppress(ProcessLookupError):  # it has seen that the first one is gone
                    os.kill(child, signal.SIGKILL)

    def close(self) -> None:
        """Stop the server for good and remove its data, unless they were given a directory."""
        self.stop()
        if not self._keeps:
            shutil.rmtree(self._directory)

    def execute(self, statement: str) -> object:
        """Run a statement in a session of its own; return the first value of its result, None where it has none."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.read_only = False  # also where sessions only read by default
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return row and row[0]

    def create_database(self, *, template: str = "template1", name: str | None = None) -> str:
        """Make a database and give its name; a copy of `template`, to which nobody may be connected."""
        name = name or f"test_{uuid.uuid4().hex}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, whoever is connected to it."""
        self.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def create_role(self, *, connections: int) -> str:
        """Make a role that may have so many connections, and read and write everywhere; give its name."""
        name = f"role_{uuid.uuid4().hex}"
        self.execute(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT {connections}")
        self.execute(f"GRANT pg_read_all_data, pg_write_all_data TO {name}")
        return name

    def drop_role(self, name: str) -> None:
        self.execute(f"DROP ROLE {name}")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run([self._programs / program, *arguments], **self._as_owner(), capture_output=True)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr.decode()}")

    def _as_owner(self) -> dict[str, object]:
        """Give what makes a subprocess run as the server's owner, in its directory."""
        identity = {"user": self._user, "group": self._user, "extra_groups": []} if self._user else {}
        return {"cwd": self._directory, "env": {"PGDATA": str(self._data), "LC_ALL": "C"}, **identity}


def _stall(process: int) -> None:
    """Stop a process, and return once it stands still: the signal alone leaves it a moment."""
    os.kill(process, signal.SIGSTOP)
    for _ in looks(STOP_SECONDS):
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return
    raise AssertionError(f"process {process} did not stop")


def _children(process: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(stat.parent.name))
    return found


def programs() -> Path | None:
    """Return the folder of the newest PostgreSQL's programs; nothing where none is installed."""
    if (found := shutil.which("initdb")) and (Path(found).parent / "postgres").exists():
        return Path(found).resolve().parent
    folders = [folder for folder in POSTGRES.glob("*/bin") if (folder / "initdb").exists()]
    return max(
        folders, key=lambda folder: [int(number) for number in re.findall(r"\d+", folder.parent.name)], default=None
    )


def newest_programs() -> Path:
    """Return the folder of PostgreSQL's programs, or skip the test."""
    require("postgres")
    found = programs()
    assert found is not None, "initdb is there without PostgreSQL"
    return found


@pytest.fixture(name="own_postgres_server")
def private_postgres_server() -> Iterator[PostgresServer]:
    """Run a server that the test may stop."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
