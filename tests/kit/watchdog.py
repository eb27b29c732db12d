"""The process that watches one that runs tests: `python watchdog.py PID STACKS REPORT` (see `tests.kit.limits`).

On its input stand lines of JSON: `{"test": ID, "seconds": LIMIT, "grace": SECONDS}` where a test begins, `{}` where one
has ended, and `{"process": PID}` for a process that the test has started otherwise than as a child. Where a limit is
over it writes the stacks of all of them into the file REPORT, behind a line with the test's ID, and sends OVER, upon
which the test fails. Where that does not end the test, it prints the stacks and kills all of them. STACKS is the file
into which PID writes its own stacks. It ends with its input, and imports nothing but Python's own.
"""

import contextlib
import json
import os
import re
import select
import signal
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path

WRITE_STACKS = signal.SIGRTMIN + 7  # to a process that has `faulthandler` registered for it
OVER = signal.SIGRTMIN + 8
WRITING_SECONDS = 2.0  # until a process has written its stacks


class Watch:
    """What is known of the watched process and of its test."""

    def __init__(self, pid: int, stacks: Path, report: Path) -> None:
        self._pid = pid
        self._stacks = stacks
        self._report = report
        self._others: dict[int, str] = {}  # when each began: its number may be another one's later
        self._test, self._seconds, self._grace = "", 0.0, 0.0
        self._is_over = False
        self.ends_at: float | None = None  # of the clock `time.monotonic`; None while no test runs

    def hear(self, line: bytes) -> None:
        """Take a line of the input."""
        heard = json.loads(line)
        if "process" in heard:
            self._others[heard["process"]] = _began(heard["process"])
            return
        self.ends_at, self._is_over = None, False
        if heard:
            self._test, self._seconds, self._grace = heard["test"], heard["seconds"], heard["grace"]
            self.ends_at = time.monotonic() + self._seconds

    def act(self) -> None:
        """Let the test fail, or, if it has not ended since, end it with its processes."""
        self._others = {pid: began for pid, began in self._others.items() if began and _began(pid) == began}
        family = dict.fromkeys(descendants([self._pid, *self._others]))
        processes = [pid for pid in family if pid != os.getpid()]
        report = "\n".join(self._described(pid) for pid in processes)
        if not self._is_over:
            self._is_over = True
            self._report.write_text(f"{self._test}\n{report}")
            self.ends_at = time.monotonic() + self._grace
            _signal(self._pid, OVER)
            return
        told = f"{self._test} did not end within its {self._seconds:g} seconds, nor when it had failed by that."
        print(f"\n{told}\n{report}\nKilled: {processes}", file=sys.stderr, flush=True)
        self.ends_at = None
        for pid in reversed(processes):
            _signal(pid, signal.SIGKILL)

    def _described(self, pid: int) -> str:
        """Return what a process is and waits for, with its stacks where it can write them."""
        folder, text = Path("/proc") / str(pid), ""
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            status = dict(re.findall(r"^(\w+):\t(.*)$", (folder / "status").read_text(), re.MULTILINE))
            waits = (folder / "wchan").read_text()
            text = f"--- process {pid} ({status['Name']}), {status['State']}, waits in {waits}: {command[:300]}\n"
            if int(status["SigCgt"], 16) >> (WRITE_STACKS - 1) & 1:
                text += _written(pid, self._stacks if pid == self._pid else folder / "fd" / "2")
        except OSError as gone:
            text += f"--- process {pid}: {gone}\n"
        return text


def _began(pid: int) -> str:
    """Return when a process began, by the system's clock; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def descendants(pids: Iterable[int]) -> list[int]:
    """Return these processes, then all that descend from them."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            children.setdefault(int(place.read_text().rpartition(")")[2].split()[1]), []).append(int(place.parent.name))
    found = list(pids)
    for pid in found:  # which grows meanwhile
        found += children.get(pid, [])
    return found


def _written(pid: int, target: Path) -> str:
    """Let a process write its stacks; return them if it writes into a file."""
    if not stat.S_ISREG(target.stat().st_mode):
        return ""
    before = seen = target.stat().st_size
    _signal(pid, WRITE_STACKS)
    ends_at = time.monotonic() + WRITING_SECONDS
    while time.monotonic() < ends_at:
        time.sleep(0.05)
        now = target.stat().st_size
        if now == seen > before:
            break
        seen = now
    with target.open("rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace")


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, number)


def main() -> None:
    """Watch until the input ends."""
    watch, unread = Watch(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])), b""
    while True:
        seconds = None if watch.ends_at is None else max(0.0, watch.ends_at - time.monotonic())
        if not select.select([0], [], [], seconds)[0]:
            watch.act()
            continue
        read = os.read(0, 65536)
        if not read:
            return
        *lines, unread = (unread + read).split(b"\n")
        for line in lines:
            watch.hear(line)


if __name__ == "__main__":
    main()
