"""A server that asks for keys, and requests with one."""

import json
import signal
import subprocess
import sys
from functools import cached_property

import httpx

from tests.kit.server import ROOT, Server, clean_environ, manage

SOME_KEYS = """
from responses_app.stores.database.callers import create_key, revoke_keys
good, revoked, limited = create_key("p"), create_key("p"), create_key("p", concurrent_responses=0)
revoke_keys([revoked[1].pk])
print(good[0], revoked[0], limited[0])
"""

# Runs the commands it reads, a JSON list a line, and answers each with what it printed.
OPERATOR = """
import json, sys
from io import StringIO
import django
django.setup()
from django.core.management import call_command
for line in sys.stdin:
    said = StringIO()
    call_command(*json.loads(line), stdout=said, stderr=StringIO())
    print(json.dumps(said.getvalue()), flush=True)
"""


class ClosedServer(Server):
    """A server that asks everybody for a key."""

    _operator: "subprocess.Popen[str] | None" = None

    def new_key(self, *flags: str) -> str:
        """Make a key."""
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
        """Run a command on this server's database, in one process for all of them: its start takes 1.2 s of CPU."""
        operator = self._operator = self._operator or self._start_operator()
        assert operator.stdin is not None
        assert operator.stdout is not None
        operator.stdin.write(json.dumps(arguments) + "\n")
        operator.stdin.flush()
        said = operator.stdout.readline()
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

    def _start_operator(self) -> "subprocess.Popen[str]":
        with (self.folder / "operator.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", OPERATOR],
                cwd=ROOT,
                env=clean_environ(**self._own_settings()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _end_operator(self) -> None:
        operator, self._operator = self._operator, None
        if operator is not None:
            operator.communicate()  # it has nothing to read any more

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
