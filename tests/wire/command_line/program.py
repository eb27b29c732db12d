"""`respsite` as a process: `python -m respsite`, which is the same program wherever this checkout is."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.kit.forking import run_forked
from tests.kit.server import ROOT, START_SECONDS, Server, clean_environ, server_environ

PROGRAM = (sys.executable, "-m", "respsite")


def respsite(
    *words: str | Path, given: str = "", folder: Path = ROOT, program: Sequence[str] = PROGRAM, **settings: str
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end, with `given` on its standard input."""
    if not given and program is PROGRAM:
        return run_forked(
            ["-m", "respsite", *map(str, words)], cwd=folder, environ=server_environ(**settings), seconds=START_SECONDS
        )
    return subprocess.run(
        [*program, *map(str, words)],
        cwd=folder,
        env=clean_environ(**settings),
        input=given,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


def settings_of(server: Server) -> dict[str, str]:
    """Return the settings with which a command looks at what a server keeps, and at the server itself."""
    kept = {name: server.environ[name] for name in ("DATA_DIR", "DATABASE_URL") if name in server.environ}
    return {**kept, "PORT": str(server.port), "SANDBOX": "off", "OPENAI_BASE_URL": server.base_url}


class AtTerminal:
    def __init__(self, *words: str, **settings: str) -> None:
        self._words = words
        self._environ = clean_environ(**settings, TERM="xterm")
        self.said = ""

    def __enter__(self) -> Self:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(PROGRAM[0], [*PROGRAM, *self._words], self._environ)
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._terminal)  # its end, if it has not ended: the terminal hangs up
        os.waitpid(self.pid, 0)

    def type(self, text: str) -> None:
        """Press these keys: a line ends with `\\n`, Ctrl-C is `\\x03`, Ctrl-D `\\x04`."""
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str) -> str:
        """Wait until it shows a text, and return all that it has shown since the last one, with that."""
        deadline = time.monotonic() + START_SECONDS
        while text not in self.said:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.said!r}"
            if select.select([self._terminal], [], [], 1)[0]:
                try:
                    self.said += os.read(self._terminal, 65536).decode(errors="replace")
                except OSError:  # it has ended
                    raise AssertionError(f"it ended before {text!r}: {self.said!r}") from None
        shown, _, self.said = self.said.partition(text)
        return shown + text
