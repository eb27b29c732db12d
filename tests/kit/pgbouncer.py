"""A real PgBouncer for tests, in front of a PostgreSQL: it lends each transaction a session of the server's."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psycopg

from tests.kit.capabilities import program, require
from tests.kit.redis_server import low_port
from tests.kit.waiting import looks

START_SECONDS = 90.0
CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
logfile = {folder}/log
"""


class PgBouncer:
    """Run PgBouncer in front of the server at a port, with at most so many sessions there for each database."""

    def __init__(self, server_port: int, *, sessions: int = 4) -> None:
        require("pgbouncer")
        self.port = low_port()
        self._server_port = server_port
        self._sessions = sessions
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="respsite-pgbouncer-"))
        file = self._folder / "pgbouncer.ini"
        numbers = {"server": self._server_port, "port": self.port, "sessions": self._sessions}
        file.write_text(CONFIGURATION.format(folder=self._folder, **numbers))
        self._folder.chmod(0o755)
        user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        if user:
            shutil.chown(self._folder, user, user)
        command = [str(program("pgbouncer")), "-q", str(file)]
        groups: list[int] | None = [] if user else None
        self._process = subprocess.Popen(command, user=user, group=user, extra_groups=groups, stderr=subprocess.DEVNULL)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)

    def url_of(self, database: str) -> str:
        """Give the address of a database of the server's through it, as DATABASE_URL takes it."""
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"

    def _wait(self) -> None:
        assert self._process is not None
        for _ in looks(START_SECONDS):
            try:
                psycopg.connect(self.url_of("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, f"PgBouncer did not start: {(self._folder / 'log').read_text()}"
            else:
                return
        raise AssertionError("PgBouncer did not answer")
