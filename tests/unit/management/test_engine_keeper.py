"""`EngineKeeper`: the process of a shared engine core is kept, refused, stopped, and leaves nothing behind.

What it keeps here is a real process that does as a file says, in the place of `manage.py serve_engine`.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.backends import base
from responses_app.management import processes
from responses_app.management.processes import EngineKeeper
from tests.kit.served import is_gone
from tests.kit.waiting import eventually

MANAGE = """
import os, signal, subprocess, sys, time
folder = os.path.dirname(__file__)
does = open(folder + "/does").read()
says = int(sys.argv[sys.argv.index("--says") + 1])
if does == "refuse":
    sys.exit(os.EX_CONFIG)
if does == "be stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # in the same group, like vLLM's
os.write(says, b"r?")  # and a word that nobody knows
with open(folder + "/pids", "a") as file:
    file.write(f"{os.getpid()} {core.pid}\\n")
time.sleep(600)
"""


class Kept:
    """A keeper, what it has said, and what it keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: Counter[str] = Counter()
        self._lifeline = os.pipe()
        self.keeper = EngineKeeper(
            self._lifeline[0],
            loads=lambda: self.said.update(["loads"]),
            up=lambda: self.said.update(["up"]),
            refused=lambda: self.said.update(["refused"]),
        )

    def start(self, does: str) -> None:
        self.does(does)
        self.keeper.start()

    def does(self, what: str) -> None:
        (self.folder / "does").write_text(what)

    def processes(self) -> list[tuple[int, ...]]:
        """Return each that came up, with what it has started."""
        lines = (self.folder / "pids").read_text().splitlines()
        return [tuple(map(int, line.split())) for line in lines]

    async def is_up(self) -> None:
        await eventually(lambda: self.said["up"] == 1 and (self.folder / "pids").exists())
        await eventually(lambda: len(self.processes()) == 1)

    def close(self) -> None:
        for descriptor in self._lifeline:
            os.close(descriptor)


@pytest_asyncio.fixture
async def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    manage = tmp_path / "manage.py"
    manage.write_text(MANAGE)
    monkeypatch.setattr("sys.argv", [str(manage)])
    monkeypatch.setattr(base, "RESTART_SECONDS", (0.05,))
    monkeypatch.setattr(processes, "ENGINE_STOP_SECONDS", 1.0)
    kept = Kept(tmp_path)
    yield kept
    await kept.keeper.stop()
    kept.close()


async def test_one_that_its_settings_keep_from_starting_is_not_tried_again(kept: Kept) -> None:
    kept.start("refuse")
    await eventually(lambda: kept.said["refused"] == 1)
    await asyncio.sleep(0.2)
    assert kept.said == {"loads": 1, "refused": 1}


async def test_one_that_dies_is_started_again_and_leaves_no_core_behind(kept: Kept) -> None:
    kept.start("live")
    await kept.is_up()
    ((host, core),) = kept.processes()
    kept.does("refuse")  # what was there once is tried again, whatever it says
    os.kill(host, signal.SIGKILL)
    await eventually(lambda: kept.said["loads"] >= 3)
    await eventually(lambda: is_gone(core))
    kept.does("live")
    await eventually(lambda: kept.said["up"] == 2)
    assert kept.said["refused"] == 0


async def test_one_for_which_the_machine_has_no_process_is_tried_again(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def live(*_: object) -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(processes.ChildProcess, "live", live)
    kept.keeper.start()
    await eventually(lambda: kept.said["loads"] >= 3)
    assert "cannot be started: Resource temporarily unavailable" in caplog.text
    assert kept.said["refused"] == 0


@pytest.mark.parametrize("does", ["live", "be stubborn"])
async def test_a_stop_ends_it_and_all_that_it_has_started(kept: Kept, does: str) -> None:
    kept.start(does)
    await kept.is_up()
    await kept.keeper.stop()
    await eventually(lambda: all(map(is_gone, kept.processes()[0])))
    assert kept.said["loads"] == 1
