"""A server that asks for keys, and requests with one."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import httpx

from tests.kit.forking import fork
from tests.kit.server import ROOT, START_SECONDS, Server, manage, server_environ

SOME_KEYS = """
from responses_app.resources.projects.callers import create_key, revoke_keys
good, revoked, limited = create_key("p"), create_key("p"), create_key("p", concurrent_responses=0)
revoke_keys([revoked[1].pk])
print(good[0], revoked[0], limited[0])
"""


class Operator:
    """A process that runs commands on a server's database, one after the other: see `tests.kit.operator`."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        pipe = folder / "operator"
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        # Opened for both: the other end is not there yet, and may never come.
        self._commands = os.fdopen(os.open(pipe, os.O_RDWR), "w")
        reading, writing = os.pipe()
        self._answers = os.fdopen(reading)
        with os.fdopen(writing, "wb") as output, (folder / "operator.log").open("ab") as log:
            command = ["-m", "tests.kit.operator", str(pipe)]
            self._process = fork(command, cwd=ROOT, environ=environ, output=output, errors=log)

    def run(self, arguments: Sequence[str]) -> str:
        """Run a command and return its answer, a line of JSON; nothing where it failed."""
        self._commands.write(json.dumps(arguments) + "\n")
        self._commands.flush()
        return self._answers.readline()

    def end(self) -> None:
        self._commands.close()  # it has nothing to read any more
        self._answers.close()
        self._process.wait(START_SECONDS)


class ClosedServer(Server):
    """A server that asks everybody for a key."""

    _operator: Operator | None = None

    def new_key(self, *flags: str) -> str:
        return self.operate("create_key", *flags).strip()

    @cached_property
    def key(self) -> str:
        """A key that may do everything, for tests that change nothing about it."""
        return self.new_key()

    def some_keys(self) -> tuple[str, str, str]:
        """Make a key that opens, one that is revoked, and one that may have no response at all; with one command."""
        *_, good, revoked, limited = self.manage("shell", "--no-imports", "-c", SOME_KEYS).split()
        return good, revoked, limited

    def manage(self, *arguments: str) -> str:
        """Run a command on this server's database."""
        return manage(*arguments, **self._own_settings())

    def operate(self, *arguments: str) -> str:
        """Run a command on this server's database, in one process for all of them."""
        self._operator = self._operator or Operator(self.folder, server_environ(**self._own_settings()))
        said = self._operator.run(arguments)
        assert said, f"{arguments} failed: see {self.folder / 'operator.log'}"
        return str(json.loads(said))

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """End the process and return its exit status."""
        self._end_operator()
        return super().stop(with_signal)

    def kill(self) -> None:
        """Kill it (-9)."""
        self._end_operator()
        super().kill()

    def _end_operator(self) -> None:
        operator, self._operator = self._operator, None
        if operator is not None:
            operator.end()

    def _own_settings(self) -> dict[str, str]:
        names = ("DATABASE_URL", "DATA_DIR", "SECRET_KEY", "PRICES")
        return {name: self.environ[name] for name in names if name in self.environ}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def post(server: Server, key: str | None, **fields: object) -> httpx.Response:
    headers = bearer(key) if key is not None else {}
    body = {"input": "Hello", **fields}
    return httpx.post(f"{server.base_url}/responses", json=body, headers=headers, verify=False, timeout=60)


def limit(server: ClosedServer, *flags: str) -> str:
    """Change limits, as an operator does."""
    return server.operate("set_limits", *flags)
