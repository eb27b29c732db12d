"""Between calls nothing of a container runs or grows, whatever wakes it: with a cgroup, and without one."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from responses_app.extensions.containers.sandbox import choosing, watching
from responses_app.extensions.containers.sandbox import session as sessions
from responses_app.extensions.containers.sandbox.launch import BaseSandbox, find_interpreter
from responses_app.extensions.containers.sandbox.records import CellEnd
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap, Sandlock
from responses_app.extensions.containers.sandbox.session import SandboxGone, SandboxSession
from responses_app.extensions.containers.sandbox.watching import Cgroup, Cgroups, find_cgroups
from tests.kit.sandboxes import needs_bubblewrap, session_of
from tests.unit.tools.sandbox.nobody import SYSTEM_PYTHON, needs_root, needs_sandlock, run_as_nobody
from tests.unit.tools.sandbox.wakers import (
    HIDDEN_MEMORY,
    LIMITS,
    REST_SECONDS,
    TOO_MUCH,
    WAKERS,
    Came,
    Waker,
    came_of,
    code_of,
    code_that_grows,
)

RAN_ON = "its code ran on between calls"
every_waker = pytest.mark.parametrize("waker", WAKERS, ids=[each.name for each in WAKERS])
SOME = [WAKERS[0], *(each for each in WAKERS if each.name in ("forks that end", "a folder that tells of its files"))]
needs_system_python = pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason="the system has no Python")
SANDBOXES = [
    pytest.param(Bubblewrap, id="bubblewrap", marks=needs_bubblewrap),
    pytest.param(Sandlock, id="sandlock", marks=[needs_sandlock, needs_root]),
]
pytestmark = needs_system_python


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the host look more often, so that what needs many looks is soon there."""
    monkeypatch.setattr(sessions, "REST_SECONDS", REST_SECONDS)


def started(
    kind: Callable[[], BaseSandbox], cgroups: Cgroups | None = None
) -> AbstractAsyncContextManager[SandboxSession]:
    return session_of(LIMITS, sandbox=kind(), python=find_interpreter(SYSTEM_PYTHON), cgroups=cgroups)


@pytest.fixture(scope="module")
def cgroups() -> Cgroups:
    found = find_cgroups()
    if found is None:
        pytest.skip("no control group can be made here")
    return found


async def next_call(session: SandboxSession) -> str:
    try:
        return (await session.run("1 + 1")).output.strip()
    except SandboxGone as gone:
        return str(gone)


@every_waker
@needs_bubblewrap
async def test_a_container_that_runs_on_is_ended_and_says_why(waker: Waker) -> None:
    await ends_if_it_wakes(Bubblewrap, waker)


@needs_sandlock
@needs_root
@pytest.mark.parametrize("waker", SOME, ids=[each.name for each in SOME])
async def test_so_it_is_without_namespaces(waker: Waker) -> None:
    await ends_if_it_wakes(Sandlock, waker)


async def ends_if_it_wakes(kind: Callable[[], BaseSandbox], waker: Waker) -> None:
    """Check that code which wakes has its container ended, and that any other has not."""
    async with started(kind) as session:
        came = await came_of(session, code_of(waker), waker.then, ends=waker.wakes)
        said = await next_call(session)
    assert came.ticks < 5 * watching.SETTLE_TICKS
    assert (came.why, said) == ((RAN_ON, f"the container was ended: {RAN_ON}") if waker.wakes else ("", "2"))


@needs_bubblewrap
async def test_in_a_cgroup_nothing_runs_and_the_container_lives(cgroups: Cgroups) -> None:
    await stays_still(Bubblewrap, WAKERS, cgroups)


@needs_sandlock
@needs_root
async def test_so_it_is_in_a_cgroup_without_namespaces(cgroups: Cgroups) -> None:
    await stays_still(Sandlock, SOME, cgroups)


async def stays_still(kind: Callable[[], BaseSandbox], wakers: Sequence[Waker], cgroups: Cgroups) -> None:
    """Check that nothing of a container runs behind any of these, one after another."""
    async with started(kind, cgroups) as session:
        for waker in wakers:
            came = await came_of(session, code_of(waker), waker.then)
            assert came.why == "", waker.name
            assert came.ticks < watching.SETTLE_TICKS, waker.name
            await session.restart()


@pytest.mark.parametrize("kind", SANDBOXES)
@pytest.mark.parametrize("in_cgroup", [False, True])
async def test_none_grows(kind: Callable[[], BaseSandbox], in_cgroup: bool, request: pytest.FixtureRequest) -> None:
    """Each of the four would take all that the container may have."""
    async with started(kind, request.getfixturevalue("cgroups") if in_cgroup else None) as session:
        came = await came_of(session, code_that_grows(), ends=not in_cgroup)
    if in_cgroup:
        assert came.why == ""
        assert came.memory < LIMITS.sandbox_memory_bytes
    else:
        assert came.why == RAN_ON
        assert came.memory < 3 * LIMITS.sandbox_memory_bytes


@needs_bubblewrap
@needs_root
def test_a_user_who_is_not_root_has_the_same(readable_copy: Path) -> None:
    said = json.loads(run_as_nobody(readable_copy, SYSTEM_PYTHON, "wakers.py", SYSTEM_PYTHON))
    wakers = {each.name: RAN_ON if each.wakes else "" for each in WAKERS}
    assert said == {**wakers, "grows": RAN_ON, **{name: came for name, (_, came) in TOO_MUCH.items()}}


@needs_bubblewrap
async def test_memory_behind_a_main_thread_that_has_ended_counts() -> None:
    """The system shows no memory of such a process, but of its threads."""
    async with started(Bubblewrap) as session:
        assert (await session.run(HIDDEN_MEMORY)).ended is CellEnd.TOO_MUCH_MEMORY


@needs_bubblewrap
async def test_what_only_waits_is_left_alone() -> None:
    """A program in the background, one that waits for its child to begin, and one that has ended."""
    waits = (
        "import os, subprocess, threading\n"
        "sleeps = subprocess.Popen(['sleep', '60'])\n"
        "begins = threading.Thread(target=subprocess.run, args=(['sh', '-c', 'sleep 60'],), daemon=True)\n"
        "begins.start()\n"
        "ended = subprocess.Popen(['true'])\n"
        "print('armed')"
    )
    async with started(Bubblewrap) as session:
        assert await came_of(session, waits) == Came("", 0, session.memory())
        assert (await session.run("sleeps.poll() is None")).output == "True\n"


class Refusing(Cgroups):
    """Groups that can be made, and that take no process."""

    def make(self, *, memory: int, processes: int) -> Cgroup:
        return Cgroup(Path("/proc/self"))


@needs_bubblewrap
async def test_where_containers_do_not_start_in_a_group_they_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "find_cgroups", lambda: Refusing(Path("/nowhere")))
    choice = await choosing.choose("bubblewrap", SYSTEM_PYTHON)
    assert (choice.problem, choice.cgroups) == ("", None)
    assert choice.between_calls() == "no cgroup: each container is watched"


def test_processes_that_were_ended_for_memory_are_counted(tmp_path: Path) -> None:
    assert Cgroup(tmp_path).killed_for_memory() == 0
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert Cgroup(tmp_path).killed_for_memory() == 2


@needs_bubblewrap
async def test_a_group_goes_with_its_container(cgroups: Cgroups) -> None:
    async with started(Bubblewrap, cgroups) as session:
        assert session._cgroup is not None
        path = session._cgroup.path
        inside = (path / "cgroup.procs").read_text().split()
        assert len(inside) >= 2, "the warden and the kernel"
        assert str(os.getpid()) not in inside
        for name, most in (("memory", LIMITS.sandbox_memory_bytes), ("pids", LIMITS.sandbox_max_processes)):
            if name in cgroups.limits:
                assert most <= int((path / f"{name}.max").read_text()) <= 2 * most
    assert not path.exists()
