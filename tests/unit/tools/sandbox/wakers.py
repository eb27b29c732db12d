"""Code that has itself woken after its call has ended, and what came of it. A program of its own, too.

On the standard library and the package of sandboxes alone: `wakers.py PYTHON` tries all as whoever runs it, and says as
JSON what came of each.
"""

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass

from responses_app.extensions.containers.sandbox import processes, watching
from responses_app.extensions.containers.sandbox import session as sessions
from responses_app.extensions.containers.sandbox.launch import find_interpreter
from responses_app.extensions.containers.sandbox.records import CellEnd, SandboxError
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap
from responses_app.extensions.containers.sandbox.session import SandboxGone, SandboxSession
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.protocol.setting import MIB

LIMITS = SandboxSettings(
    sandbox_memory_bytes=192 * MIB, sandbox_disk_bytes=8 * MIB, sandbox_max_processes=24, sandbox_call_seconds=30.0
)
REST_SECONDS = 0.03  # in place of the host's own, to be sooner at an end
LOOKS = 2 * watching.LOOKS_UNTIL_WALK  # of the host, until what has not run by then counts as still
WAIT_SECONDS = 30.0
_TOOLS = """
import ctypes, fcntl, os, platform, signal, threading, time
libc = ctypes.CDLL(None, use_errno=True)
SIGNAL, THREAD_ID = 0, 4  # SIGEV_…
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("number", ctypes.c_int), ("how", ctypes.c_int), ("thread", ctypes.c_int),
                ("rest", ctypes.c_char * 44)]
ready, done = os.pipe()
def armed():
    os.write(done, b"x")
def spin(*_):
    while True: pass
def woken(*_):
    pass
def race(*_):
    if os.fork() == 0:
        while True:
            try: os.fork() and os._exit(0)
            except OSError: pass  # as many as there may be have ended, and nobody has looked at them yet
    os.kill(os.getpid(), signal.SIGSTOP)
def arm(how=SIGNAL, handler=woken):
    signal.signal(signal.SIGCONT, handler)
    event, timer = Event(None, signal.SIGCONT, how, libc.gettid() if how == THREAD_ID else 0), ctypes.c_void_p()
    # First when the call has ended. On a busy machine it may not have: the stop then removes the signal that is on its
    # way, and with it the timer, which is set again as its signal is taken. So there is a second one.
    for seconds, nanoseconds in ((0, 200_000_000), (2, 0)):
        assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
        times = (ctypes.c_long * 4)(0, 20_000_000, seconds, nanoseconds)
        assert libc.timer_settime(timer, 0, ctypes.byref(times), None) == 0
def end_main_thread():
    libc.syscall(93 if platform.machine() == "aarch64" else 60, 0)
"""
_WAIT = "\nassert os.read(ready, 1)\nprint('armed')"


@dataclass(frozen=True)
class Waker:
    """A way to be woken. `wakes`: it works, where nothing freezes the container. `then` is what the host does next."""

    name: str
    code: str
    wakes: bool = True
    then: str = ""


def _forked(body: str) -> str:
    return "if os.fork() == 0:\n" + "".join(f"    {line}\n" for line in body.splitlines())


_SPINS = _forked("arm()\narmed()\nspin()")
_SPINS_WHEN_ITS_PARENT_DIES = _forked(
    "libc.prctl(1, signal.SIGCONT)\nsignal.signal(signal.SIGCONT, woken)\narmed()\nspin()"
)
WAKERS = (
    Waker("a timer", _SPINS),
    Waker("a timer of one thread", _forked("arm(THREAD_ID)\narmed()\nspin()")),
    Waker("a timer in the kernel itself", "arm(handler=lambda *_: asleep and spin())\nasleep = False\narmed()"),
    Waker("a grandchild in a session of its own", _forked("os.setsid()\n" + _SPINS + "os._exit(0)")),
    Waker("forks that end", _forked("arm(handler=race)\narmed()\nsignal.pause()")),
    Waker(
        "threads behind a main thread that has ended",
        _forked("arm()\nthreading.Thread(target=spin).start()\narmed()\nend_main_thread()"),
    ),
    Waker(
        "a folder that tells of its files",
        _forked(
            "signal.signal(signal.SIGCONT, woken)\n"
            "folder = os.open('/mnt/data', os.O_RDONLY)\n"
            "fcntl.fcntl(folder, fcntl.F_SETSIG, signal.SIGCONT)\n"
            "fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)\n"
            "armed()\nspin()"
        ),
        then="put new",
    ),
    Waker(
        "a lease of a file",
        _forked(
            "signal.signal(signal.SIGCONT, woken)\n"
            "file = os.open('leased', os.O_WRONLY | os.O_CREAT)\n"
            "fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGCONT)\n"
            "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
            "armed()\nspin()"
        ),
        then="get leased",
    ),
    Waker(
        "an alarm",
        _forked("signal.signal(signal.SIGALRM, spin)\nsignal.setitimer(0, 0.1, 0.1)\narmed()\nsignal.pause()"),
        wakes=False,
    ),
    Waker(
        "the death of a parent, which stands still",
        _forked(_SPINS_WHEN_ITS_PARENT_DIES + "time.sleep(5)\nos._exit(0)"),
        wakes=False,
    ),
    Waker("io that completes", "import io\narmed()\nassert libc.syscall(425, 8, 0) == -1", wakes=False),
)
# Each step takes its time of the processor, so a machine on which the host's look comes late lets it grow little more.
GROWS = """
def spend(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
for _ in range(4):
    if os.fork() == 0:
        arm(handler=lambda *_: rested.append(1))
        rested, kept = [], []
        armed()
        began = time.monotonic()
        while time.monotonic() < began + 0.2: time.sleep(0.01)
        while True:
            spend(0.02)
            try:
                kept.append(bytearray(b"x" * (4 << 20)))
            except MemoryError:
                time.sleep(1)
for _ in range(3): assert os.read(ready, 1)
"""


# What takes more than it may while it runs, in ways that only the host can see, and what it comes to.
HIDDEN_MEMORY = f"""
import ctypes, os, platform, threading, time
for _ in range(3):
    if os.fork() == 0:
        # Filled with zeros, so it is all there; more at once would be refused.
        kept = bytearray({LIMITS.sandbox_memory_bytes // 2})
        threading.Thread(target=time.sleep, args=(60,)).start()
        ctypes.CDLL(None).syscall(93 if platform.machine() == 'aarch64' else 60, 0)
time.sleep(10)
"""
TOO_MUCH = {
    "memory behind a main thread that has ended": (HIDDEN_MEMORY, "too_much_memory"),
    "sockets": (
        "import socket, time\nheld = [socket.socketpair() for _ in range(120)]\ntime.sleep(10)",
        "too_much_memory",
    ),
    "files": (
        "import time\nfor each in range(400): open(f'{each}', 'w').close()\ntime.sleep(10)",
        "the container wrote too many files, and was ended",
    ),
}


@dataclass(frozen=True)
class Came:
    """What came of code: why its container was ended (nothing where it lives), and what it took after its call.

    `ticks` are hundredths of a second of the processor, `memory` is the most bytes that were seen.
    """

    why: str
    ticks: int
    memory: int


def code_of(waker: Waker) -> str:
    """Return the code of a cell that arms it."""
    asleep = "\nasleep = True" if "asleep" in waker.code else ""
    return f"{_TOOLS}{waker.code}{_WAIT}{asleep}"


def code_that_grows() -> str:
    """Return the code of a cell that leaves four processes, each of which takes as much as one may once it is woken."""
    return f"{_TOOLS}{GROWS}{_WAIT}"


async def came_of(session: SandboxSession, code: str, then: str = "", *, ends: bool = False) -> Came:
    """Run a cell; return what its processes do until the host has looked at them often enough, or has ended them.

    Where it `ends` that is waited for: on a busy machine what is awake may have no processor for long.
    """
    did = await session.run(code)
    assert did.ended is CellEnd.DONE, did
    assert did.output.endswith("armed\n"), did.output
    at_first = _ticks(session)
    if then:
        await _settled(session)
        what, _, path = then.partition(" ")
        with contextlib.suppress(SandboxError):  # the container has been ended, or the file is leased
            await (session.put(path, b"x") if what == "put" else session.get_part(path, 0, 1))
    most_ticks = most = 0
    rest, looks = session._rest, 0
    async with asyncio.timeout(WAIT_SECONDS):
        while session.is_alive and (ends or looks < LOOKS):
            await asyncio.sleep(0.02)
            most_ticks, most = max(most_ticks, _ticks(session)), max(most, session.memory())
            if session._rest is not rest:  # a question was asked
                rest = session._rest
            looks = rest.looks if rest is not None and rest.is_settled else 0
    return Came(session.why_ended, max(0, most_ticks - at_first), most)


async def _settled(session: SandboxSession) -> None:
    for _ in range(int(WAIT_SECONDS / 0.01)):
        if not session.is_alive or (session._rest is not None and session._rest.is_settled):
            return
        await asyncio.sleep(0.01)


def _ticks(session: SandboxSession) -> int:
    found = (processes.seen(pid) for pid in processes.tree(session._process.pid) if pid not in session._attendants)
    return sum(each.ticks + each.of_children for each in found if each is not None)


async def main() -> None:
    """Try each in a container of bubblewrap, and what takes too much."""
    sessions.REST_SECONDS = REST_SECONDS
    python, said = find_interpreter(sys.argv[1]), {}
    tried = [(each.name, code_of(each), each.then, each.wakes) for each in WAKERS]
    for name, code, then, ends in [*tried, ("grows", code_that_grows(), "", True)]:
        session = await SandboxSession.start(Bubblewrap(), python, LIMITS)
        try:
            said[name] = (await came_of(session, code, then, ends=ends)).why
        finally:
            await session.close()
    watching.MAX_FILES_IN_MEMORY, watching.MAX_SOCKETS = 300, 200
    for name, (code, _) in TOO_MUCH.items():
        session = await SandboxSession.start(Bubblewrap(), python, LIMITS)
        try:
            said[name] = (await session.run(code)).ended.value
        except SandboxGone as gone:
            said[name] = str(gone)
        finally:
            await session.close()
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main())
