"""Real server processes for tests: `daphne respsite.asgi:application` or uvicorn, on a free loopback port.

    with Server(tmp_path, engine="scripted", script=[…]) as server:
        httpx.get(f"{server.url}/v1/models")

A server gets a migrated database of its own, that of its `folder` (see `databases`), unless `DATABASE_URL` is set. Its
output goes to `folder/server.log`.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import httpx

from tests.kit.databases import database_settings, make_templates
from tests.kit.failure_reports import show_log
from tests.kit.forking import ForkedProcess, fork, run_forked, start_forker
from tests.kit.waiting import looks

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180.0  # bound of every wait for a process here, on a machine that is busy
PYTHON_WARNINGS = "error::RuntimeWarning"  # what was never awaited ends a server
HELD_PORTS = 100  # that are given out and may not have been listened on yet
_held_ports: deque[int] = deque()  # their sockets' descriptors
KINDS = ("daphne", "uvicorn")


def free_port() -> int:
    """Return a port that nothing listens on, and that nobody else is given: it stays bound here for a while.

    Whoever sets SO_REUSEADDR, as servers do, can bind it too, and listen.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    if len(_held_ports) == HELD_PORTS:
        os.close(_held_ports.popleft())
    port = int(held.getsockname()[1])
    _held_ports.append(held.detach())
    return port


def clean_environ(**settings: str) -> dict[str, str]:
    """Return this process's environment without any setting of ours but `settings`."""
    from responses_app.settings.conf import secret_files, table

    ours = {*(row.name for row in table()), *secret_files()}
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    return {**environ, "DJANGO_SETTINGS_MODULE": "respsite.settings", "PYTHONPATH": str(ROOT), **settings}


def server_environ(**settings: str) -> dict[str, str]:
    """Return the environment of a server with these settings."""
    return clean_environ(**settings, PYTHONWARNINGS=PYTHON_WARNINGS)


def prepare() -> threading.Thread:
    """Begin what all processes of a run share, if they are forked behind it.

    That is what servers are forked from, and the databases that theirs are copies of. Returns the thread that makes
    these: it has to end before anything is forked.
    """
    start_forker(server_environ())
    making = threading.Thread(target=make_templates, args=(manage,), name="templates")
    making.start()
    return making


def manage(*arguments: str, **settings: str) -> str:
    """Run a command of manage.py and return its output."""
    ended = run_forked(["manage.py", *arguments], cwd=ROOT, environ=server_environ(**settings), seconds=START_SECONDS)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(options: Mapping[str, object] | str | None) -> Mapping[str, object]:
    read: Mapping[str, object] = json.loads(options) if isinstance(options, str) else options or {}
    return read


class Server:
    """One server process. Settings are keyword arguments in their environment's names, in lower case."""

    migrating = staticmethod(manage)  # runs commands of manage.py for new databases
    is_forked = True  # see `tests.kit.forking`; what is measured is started as its users start it

    def __init__(
        self,
        folder: Path,
        *,
        kind: str = "daphne",
        application: str = "respsite.asgi:application",
        script: Sequence[Mapping[str, Any]] | None = None,
        engine_options: Mapping[str, object] | str | None = None,
        journal: bool = False,  # the scripted engine writes down what it generated: `tests.kit.scripts.journal`
        start_seconds: float = START_SECONDS,
        **settings: object,
    ) -> None:
        self.folder = folder
        self.start_seconds = start_seconds
        self.kind = kind
        self.application = application
        self.port = free_port()
        self.log = folder / "server.log"
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)
        show_log(self)
        chosen = {name.upper(): str(value) for name, value in settings.items()}
        chosen.setdefault("SHUTDOWN_GRACE_SECONDS", "0")  # what hangs would be waited for
        if script is not None:
            self.script = folder / "script.json"
            self.script.write_text(json.dumps(list(script)))
            chosen |= {"ENGINE": "scripted", "ENGINE_SCRIPT": str(self.script)}
        if journal:
            engine_options = {**_read(engine_options), "journal": str(folder / "journal.jsonl")}
        if engine_options is not None:
            chosen["ENGINE_OPTIONS"] = engine_options if isinstance(engine_options, str) else json.dumps(engine_options)
        if "DATABASE_URL" not in chosen:
            chosen |= database_settings(folder, self.migrating)
        self.environ = server_environ(DATA_DIR=str(folder), **chosen)

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """What an SDK takes as its base URL."""
        return f"{self.url}/v1"

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/responses"

    @property
    def output(self) -> str:
        """What it has logged so far."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self, *, wait: bool = True) -> Self:
        """Start, and wait until it is ready."""
        with self.log.open("ab") as log:
            self.process = self._begin(self._command(), log)
        try:
            self.wait_until("/ready" if wait else "/health", 200)
        except BaseException:
            self.kill()
            raise
        return self

    def _begin(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes] | ForkedProcess:
        """Fork daphne and uvicorn; `manage.py serve`, which does more at its start, starts as its users start it."""
        if self.is_forked and command[1:3] in (["-m", "daphne"], ["-m", "uvicorn"]):
            return fork(command[1:], cwd=ROOT, environ=self.environ, output=log, errors=log)
        return subprocess.Popen(command, cwd=ROOT, env=self.environ, stdout=log, stderr=log, start_new_session=True)

    def _command(self) -> list[str]:
        port = str(self.port)
        if self.kind == "daphne":
            return [
                sys.executable,
                "-m",
                "daphne",
                "-b",
                "127.0.0.1",
                "-p",
                port,
                "-v",
                "0",
                self.application,
            ]
        return [
            *(sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", port, "--log-level", "warning"),
            *("--http", "h11", "--ws", "websockets-sansio", "--ws-max-size", str(128 * 1024 * 1024)),
            *("--ws-per-message-deflate", "false", self.application),
        ]

    def wait_until(self, path: str, status: int) -> httpx.Response:
        """Ask `path` until it answers with `status`; a process that ended fails at once."""
        assert self.process is not None
        for _ in looks(self.start_seconds):
            assert self.process.poll() is None, f"the server ended:\n{self.output}"
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(f"{self.url}{path}", timeout=5, verify=False)  # no TLS context: 0.08 s CPU each
                if answer.status_code == status:
                    return answer
        raise AssertionError(f"{path} did not answer {status}:\n{self.output}")

    def post(self, path: str, /, **body: object) -> httpx.Response:
        """Ask its API over a connection of its own."""
        return httpx.post(f"{self.base_url}{path}", json=body, verify=False, timeout=60)

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """End the process and return its exit status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        return self.ended()

    def ended(self) -> int:
        """Wait until a process that was told to stop has ended, and return its exit status.

        A second signal, as `stop` would send it, ends what it waits for.
        """
        assert self.process is not None
        try:
            return self.process.wait(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop:\n{self.output}") from None

    def kill(self) -> None:
        """Kill it (-9): no clean-up of any kind."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def memory_bytes(self) -> int:
        """Return the memory the process holds now (resident set)."""
        assert self.process is not None
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak_memory_bytes(self) -> int:
        """Return the most memory the process has held since `forget_peak`."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def forget_peak(self) -> None:
        """Begin to look for the peak of the memory anew."""
        assert self.process is not None
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def cpu_seconds(self) -> float:
        """Return the CPU time the process has used."""
        assert self.process is not None
        return cpu_seconds_of(self.process.pid)
