"""`SandboxKeeper`: a host of containers beside `respsite serve`, which outlives every worker.

It is a process of its own (`respsite sandboxes`), found by a Unix socket in a folder of this server's own. The socket
is bound here, once; the process is started when somebody first connects, and again when somebody does behind its end:
whoever connected waits meanwhile. A server that runs no code has no such process. It ends with the server: its end of a
pipe is closed then, whatever ends the server. No signal for the workers reaches it. By another pipe it says each second
that it lives: one that is silent hangs, and is ended, as a worker is.
"""

import contextlib
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends.base import restart_pause
from responses_app.extensions.containers.settings import ContainerSettings
from responses_app.settings.conf import secret_files, table
from responses_app.web.servers.listening import BACKLOG

if TYPE_CHECKING:
    from responses_app.extensions.containers.settings import ServerSettings

logger = logging.getLogger("respsite.supervisor")

START_SECONDS = 60.0  # for a host to be heard for the first time
CLOSE_SECONDS = 30.0  # that a host may take behind its grace, to save files
STEADY_SECONDS = 60.0  # one that has lived so long did not fail at its start
# Settings that it reads. Not SANDBOX_HOSTS: it has its own containers; and who reaches its socket needs no secret.
_OF_HOST = {each.name.upper() for each in fields(ContainerSettings)}
_OF_HOST -= {"SANDBOX_HOSTS", "SANDBOX_MCP", "SANDBOX_SECRET"}
_OF_HOST |= {"CORE_DUMPS", "DATA_DIR", "LOG_FORMAT", "LOG_LEVEL", "SHUTDOWN_GRACE_SECONDS"}
_PROGRAM = "import sys\nfrom responses_app.command_line import main\nsys.exit(main())"


class SandboxKeeper:
    """Keeps a host, as a context: workers that are started inside of it find it by SANDBOX_HOSTS.

    It gives the settings of a worker in this process, by which that one finds the host.
    """

    def __init__(self, own: "ServerSettings") -> None:
        self._own = own
        self._silence = own.worker_silence_seconds or None  # that a host may be silent; None: for ever

    def __enter__(self) -> "ServerSettings":
        self._folder = Path(tempfile.mkdtemp(prefix="respsite-sandboxes-"))  # mode 0700
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / "socket"))
        (self._folder / "socket").chmod(0o600)
        self._listener.listen(BACKLOG)
        os.environ["SANDBOX_HOSTS"] = str(self._folder / "socket")
        self._lifeline, self._own_end = os.pipe()  # nothing is ever written: it ends with this process
        self._woken, self._wakes = os.pipe()
        self._stopping = threading.Event()
        self._host: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="sandboxes", daemon=True)
        self._thread.start()
        return replace(self._own, sandbox_hosts=(os.environ["SANDBOX_HOSTS"],))

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        os.close(self._own_end)  # it hears the end
        os.close(self._wakes)
        self._thread.join(self._own.shutdown_grace_seconds + CLOSE_SECONDS)
        if self._host is not None:
            _kill_group(self._host)
            self._thread.join()
        for descriptor in (self._lifeline, self._woken):
            os.close(descriptor)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep(self) -> None:
        """Runs on a thread: start a host whenever somebody connects and there is none."""
        failed = 0
        while True:
            readable, _, _ = select.select([self._listener.fileno(), self._woken], [], [])
            if self._woken in readable or self._stopping.is_set():
                return
            began = threading.Event()
            timer = threading.Timer(STEADY_SECONDS, began.set)
            timer.daemon = True
            timer.start()
            status = self._live()
            timer.cancel()
            if self._stopping.is_set():
                return
            failed = 0 if began.is_set() else failed + 1
            pause = restart_pause(failed - 1) if failed else 0
            logger.error("the host of containers is gone (status %d): what they had in memory is lost", status)
            # Woken where the server ends meanwhile.
            select.select([self._woken], [], [], pause)

    def _live(self) -> int:
        """Run a host to its end; return its exit status."""
        hears, beats = os.pipe()
        descriptors = {"--listener": self._listener.fileno(), "--lifeline": self._lifeline, "--heartbeat": beats}
        flags = [word for flag, descriptor in descriptors.items() for word in (flag, str(descriptor))]
        try:
            self._host = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, "sandboxes", *flags],
                env=_environ_of_host(self._own.extensions),
                pass_fds=tuple(descriptors.values()),
                stdin=subprocess.DEVNULL,
                # Ctrl-C in a terminal is not for it.
                start_new_session=True,
            )
        except OSError as problem:  # no memory, no process, no descriptor is left, for now
            logger.error("the host of containers cannot be started: %s", problem)
            os.close(hears)
            return os.EX_OSERR
        finally:
            os.close(beats)  # its own copy is the only one: it ends with it
        try:
            self._hear(self._host, hears)
            return self._host.wait()
        finally:
            os.close(hears)
            _kill_group(self._host)
            self._host = None

    def _hear(self, host: "subprocess.Popen[bytes]", hears: int) -> None:
        """Return when a host ends; end one that says nothing for too long."""
        seconds = self._silence and max(self._silence, START_SECONDS)
        while select.select([hears], [], [], seconds)[0]:
            if not os.read(hears, 4096):
                return
            seconds = self._silence
        logger.error("the host of containers is silent, although it serves, and is killed")
        _kill_group(host)


def _environ_of_host(extensions: tuple[str, ...]) -> dict[str, str]:
    """Return the environment without the settings that are not a host's: model's code runs below it, so no secrets."""
    settings = {row.name for row in table(extensions)} | set(secret_files(extensions))
    kept = {name: value for name, value in os.environ.items() if name not in settings - _OF_HOST}
    return kept | {"EXTENSIONS": "containers"}


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
