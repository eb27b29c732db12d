"""`serve --workers N` as a real process, and what a test does to its workers.

A worker looks for files in the server's folder: `broken` ends it before it begins, `hang` lets it hang there, and
`grow-PID` lets it take 200 MiB; `slow-NUMBER` keeps that worker's engine from ever being ready. SIGUSR1 blocks its
event loop for good. `broken-load` ends the fork server before it has loaded the application, `hang-load` lets it hang.
A worker dies that reads a request with the text "deadly to read"; one that runs a response with "deadly to run" dies
once there is a file `deadly`.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

import httpx

from tests.kit.forking import ForkedProcess, fork
from tests.kit.server import ROOT, START_SECONDS, Server
from tests.kit.waiting import looks

CUSTOM = """
import asyncio, os, signal, sys, threading, time
folder = {folder!r}
def meet(end, wait):
    if os.path.exists(folder + "/" + end):
        os.write(2, b"this version is broken\\n")
        os._exit(3)
    while os.path.exists(folder + "/" + wait):
        time.sleep(0.05)
def begin():
    meet("broken", "hang")
    if os.path.exists(folder + "/slow-" + sys.orig_argv[sys.orig_argv.index("--number") + 1]):
        from django.conf import settings
        from responses_app.settings.conf import from_environ
        settings.RESPSITE, _ = from_environ({{**os.environ, "ENGINE_OPTIONS": '{{"start_seconds": 3600}}'}})
    def grow():
        while not os.path.exists(folder + "/grow-%d" % os.getpid()):
            time.sleep(0.05)
        sys.grown = b"x" * 200 * 1024 * 1024
    threading.Thread(target=grow, daemon=True).start()
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
    from responses_app.runs.registry.registry import RunRegistry
    from responses_app.wiring import reading
    loads, start = reading.loads_bounded, RunRegistry.start
    def kill():
        os.kill(os.getpid(), signal.SIGKILL)
    def read(content, **bounds):
        return kill() if b"deadly to read" in content else loads(content, **bounds)
    def run(registry, run):
        start(registry, run)
        if "deadly to run" in repr(run.plan.input_items):
            kill_once_wanted()
    def kill_once_wanted():
        if os.path.exists(folder + "/deadly"):
            kill()
        asyncio.get_running_loop().call_later(0.05, kill_once_wanted)
    reading.loads_bounded, RunRegistry.start = read, run
class Watch:
    def find_spec(name, path=None, target=None):
        if name == "respsite.asgi" and "serve_worker" in sys.orig_argv:
            begin()
if "fork_workers" in sys.orig_argv:
    meet("broken-load", "hang-load")
sys.meta_path.insert(0, Watch)  # a worker that was forked has imported all else
"""


class Supervised(Server):
    """A server with several workers. It is started when all of them serve. `program`: whose command `serve` is.

    `is_forked`: the supervisor begins with all that it imports; what it starts itself begins as users see it.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        workers: int = 3,
        program: str = "manage.py",
        is_forked: bool = True,
        **settings: object,
    ) -> None:
        super().__init__(folder, workers=workers, **settings)  # type: ignore[arg-type]
        self.is_forked = is_forked
        self.environ["PORT"] = str(self.port)
        self.workers = workers
        self._command_line = [sys.executable, *program.split(), "serve", *flags]
        custom = folder / "custom"
        custom.mkdir(exist_ok=True)
        (custom / "sitecustomize.py").write_text(CUSTOM.format(folder=str(folder)))
        self._handed_on = {"PYTHONPATH": f"{custom}{os.pathsep}{ROOT}"}

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://[::1]:{self.port}" if self.environ.get("HOST") == "::1" else super().url

    def _command(self) -> list[str]:
        return self._command_line

    def _begin(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes] | ForkedProcess:
        if self.is_forked:
            environ, handed_on = self.environ, self._handed_on
            return fork(command[1:], cwd=ROOT, environ=environ, output=log, errors=log, handed_on=handed_on)
        environ = {**self.environ, **self._handed_on}
        return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True)

    def start(self, *, wait: bool = True) -> Self:
        """Start; wait until all workers serve."""
        before = self.output.count(" serves\n")
        super().start(wait=wait)
        self.wait_for(lambda: self.output.count(" serves\n") - before >= self.workers, self.start_seconds)
        return self

    def wait_for(self, is_so: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until something is so."""
        assert any(is_so() for _ in looks(seconds)), self.output[-3000:]

    def wait_for_line(self, text: str, *, count: int = 1, seconds: float = START_SECONDS) -> None:
        """Wait until the output has so many lines with this in them."""
        self.wait_for(lambda: self.output.count(text) >= count, seconds)

    def pids(self) -> list[int]:
        """Return the workers' processes, also of those that are leaving."""
        assert self.process is not None
        forked = (pid for server in self.fork_servers() for pid in children(server))
        return sorted(pid for pid in (*children(self.process.pid), *forked) if "serve_worker" in command_line(pid))

    def fork_servers(self) -> list[int]:
        """Return the processes that workers are forked from."""
        assert self.process is not None
        return [pid for pid in children(self.process.pid) if "fork_workers" in command_line(pid)]

    def hup(self) -> None:
        """Ask for a new version."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def told(self, number: int | None = None) -> list[str]:
        """Return the lines of one worker, without its number; of the supervisor without one."""
        lines = (re.match(r"(?:\[(\w+)\] )?(.*)", line) for line in self.output.splitlines())
        wanted = None if number is None else str(number)
        return [match[2] for match in lines if match is not None and match[1] == wanted]

    def answered_by(self, *, since: int = 0) -> set[str]:
        """Return the numbers of the workers that have answered something, behind a place of the output."""
        return set(re.findall(r"^\[(\d+)\] .* response resp_\w+", self.output[since:], re.MULTILINE))

    def accepts(self) -> bool:
        """Whether anything listens on the port."""
        host = httpx.URL(self.url).host
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            return probe.connect_ex((host, self.port)) == 0


def command_line(pid: int) -> str:
    """Return what a process was started with, nothing if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def children(pid: int) -> list[int]:
    """Return the children that the main thread of a process has started, none if it is gone."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also where nobody has fetched its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:  # it may go while it is read
        return True
