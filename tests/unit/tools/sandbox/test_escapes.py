"""The self-test of escapes, on every sandbox that this machine has; and that it would find them."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from responses_app.extensions.containers.sandbox import choosing as attempts
from responses_app.extensions.containers.sandbox import processes, watching
from responses_app.extensions.containers.sandbox.choosing import Host, choose
from responses_app.extensions.containers.sandbox.launch import (
    INSIDE,
    BaseSandbox,
    Interpreter,
    Launch,
    environment,
    find_interpreter,
    warden_command,
    warden_settings,
)
from responses_app.extensions.containers.sandbox.records import CellEnd, Execution
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap, Sandlock
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from tests.kit.sandboxes import needs_bubblewrap, plain_python, session_of
from tests.kit.waiting import eventually
from tests.unit.tools.sandbox.nobody import (
    HAS_SANDLOCK,
    NOBODY,
    ROOT,
    SYSTEM_PYTHON,
    needs_root,
    needs_sandlock,
    run_as_nobody,
)

TRIAL = """
import asyncio, sys
from responses_app.extensions.containers.sandbox.choosing import choose
choice = asyncio.run(choose("auto", sys.argv[1]))
print(choice.sandbox.name if choice.sandbox else choice.problem)
"""


every_sandbox = pytest.mark.parametrize(
    ("kind", "python"),
    [
        pytest.param(Bubblewrap, plain_python().executable, marks=needs_bubblewrap),
        pytest.param(Sandlock, SYSTEM_PYTHON, marks=[needs_sandlock, needs_root]),
    ],
)


@every_sandbox
async def test_it_holds(kind: type[BaseSandbox], python: str) -> None:
    choice = await choose(kind.name, python)
    assert (choice.problem, type(choice.sandbox)) == ("", kind)


def tried_as_nobody(folder: Path, *before: str) -> str:
    """Try all sandboxes as a user that is not root; return what is chosen, or why nothing is."""
    return run_as_nobody(folder, *before, SYSTEM_PYTHON, "-c", TRIAL, SYSTEM_PYTHON)


@needs_bubblewrap
@needs_root
def test_bubblewrap_holds_for_a_user_who_is_not_root(readable_copy: Path) -> None:
    assert tried_as_nobody(readable_copy) == "bubblewrap"


@needs_bubblewrap  # which this machine would have, were they not forbidden
@needs_root
def test_where_user_namespaces_are_forbidden_there_is_sandlock_or_it_is_said(readable_copy: Path) -> None:
    user = [f"--map-user={NOBODY}", f"--map-group={NOBODY}"]
    harmless = "exec setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all"
    forbid = f'echo 0 > /proc/sys/user/max_user_namespaces && {harmless} "$@"'
    said = tried_as_nobody(readable_copy, "unshare", "--user", *user, "--keep-caps", "sh", "-c", forbid, "sh")
    if HAS_SANDLOCK:
        assert said == "sandlock"
    else:
        assert said.startswith("No sandbox can be used here. bubblewrap: it ")
        assert said.endswith("; sandlock: it is not installed (pip install sandlock).")


class NoSandbox(BaseSandbox):
    """Runs the warden as any other program of another user: only the limits that it takes itself hold."""

    name = "none"

    def missing(self) -> str | None:
        return None

    def launch(
        self, interpreter: Interpreter, settings: SandboxSettings, *, uid: int | None, skills: Path | None = None
    ) -> Launch:
        folder = Path(tempfile.mkdtemp(prefix="respsite-no-sandbox-"))
        folder.chmod(0o777)
        argument = warden_settings(settings, folder=str(folder), uid=uid, has_own_processes=True)
        return Launch(
            warden_command(interpreter, argument, programs=str(INSIDE)),
            {**environment(), "HOME": str(folder)},  # the warden clears it: it must not be this machine's /tmp
            folder=folder,
            ends_together=False,
        )


@needs_bubblewrap
@needs_root
def test_the_self_test_finds_every_hole(readable_copy: Path) -> None:
    tried = json.loads(run_as_nobody(readable_copy, SYSTEM_PYTHON, "leaks.py", SYSTEM_PYTHON))
    assert [found for _, found in tried] == [expected for expected, _ in tried]
    host = Host(0, "", "", "", Path(), canary := subprocess.Popen(["true"]), "secret")
    canary.wait()
    stayed_in = Execution("stayed in\n", CellEnd.DONE)
    checks = {each.name: each.failed for each in attempts.ESCAPES}
    assert not checks["send signals to the host"](stayed_in, host), "what it was to leave alone is dead"
    assert not checks["print for ever"](Execution("x" * 10**6, CellEnd.TIMED_OUT), host)
    covered = {name for names, _ in tried for name in names} | {"send signals to the host", "print for ever"}
    assert covered > set(checks), "each has its hole here"


@needs_root
async def test_the_self_test_finds_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = ("reach the network", "read and write files of the host", "gain privileges", "fill the disk")
    monkeypatch.setattr(attempts, "ESCAPES", [each for each in attempts.ESCAPES if each.name in tried])
    possible = await attempts.ways_out(NoSandbox(), find_interpreter(SYSTEM_PYTHON))
    assert {"reach the network", "read and write files of the host"} <= set(possible)
    assert "fill the disk" not in possible  # that is the host's to stop


@needs_sandlock
@needs_root
async def test_what_forks_without_end_stands_still_between_cells() -> None:
    """In a namespace the system itself stops all at once; here a process that forks could go on as its child."""
    forks = "import os\nif os.fork() == 0:\n    while True:\n        os.fork() and os._exit(0)"
    async with session_of(sandbox=Sandlock(), python=find_interpreter(SYSTEM_PYTHON)) as session:
        assert (await session.run(f"{forks}\nimport time\ntime.sleep(0.3)")).ended is CellEnd.DONE
        before = set(processes.tree(session._process.pid))
        await asyncio.sleep(0.1)
        assert set(processes.tree(session._process.pid)) <= before
        await eventually(lambda: len(set(processes.tree(session._process.pid))) < 20)  # those that ended are no more


@every_sandbox
async def test_sockets_are_bounded(kind: type[BaseSandbox], python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sandlock the network is that of the host."""
    monkeypatch.setattr(watching, "MAX_SOCKETS", 100)
    code = "import socket, time\nheld = [socket.socketpair() for _ in range(80)]\ntime.sleep(20)"
    async with session_of(sandbox=kind(), python=find_interpreter(python)) as session:
        assert (await session.run(code)).ended is CellEnd.TOO_MUCH_MEMORY


@needs_sandlock
@needs_root
async def test_a_server_that_is_killed_leaves_no_code_behind_that_has_stopped_its_warden() -> None:
    server = (
        "import asyncio\n"
        "from responses_app.extensions.containers.sandbox.settings import SandboxSettings\n"
        "from responses_app.extensions.containers.sandbox.launch import find_interpreter\n"
        "from responses_app.extensions.containers.sandbox.sandboxes import Sandlock\n"
        "from responses_app.extensions.containers.sandbox.session import SandboxSession\n"
        "async def main():\n"
        f"    python = find_interpreter({SYSTEM_PYTHON!r})\n"
        "    session = await SandboxSession.start(Sandlock(), python, SandboxSettings())\n"
        "    print(session._process.pid, flush=True)\n"
        "    await session.run('import os, signal\\nos.kill(os.getppid(), signal.SIGSTOP)\\nwhile True: pass')\n"
        "asyncio.run(main())\n"
    )
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", server, stdout=subprocess.PIPE, cwd=ROOT)
    assert running.stdout is not None
    launcher = int(await running.stdout.readline())
    await eventually(lambda: "T" in map(_state, processes.tree(launcher)))
    inside = list(processes.tree(launcher))
    running.kill()
    await running.wait()
    await eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in inside))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
