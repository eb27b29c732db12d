"""How the processes of a container come to be, before any code runs in it, and what they are given."""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import reason_of
from responses_app.protocol.setting import MIB
from responses_app.tools.sandbox import disk
from responses_app.tools.sandbox.base import (
    CPUS,
    BaseSandbox,
    Door,
    Interpreter,
    Launch,
    SandboxError,
    SandboxSettings,
    UserClaim,
    claim_user,
)
from responses_app.tools.sandbox.stillness import Cgroup, Cgroups

if TYPE_CHECKING:  # its modules are imported where something is reached
    from responses_app.tools.egress.proxies import ContainerProxy

NO_START = "the container does not start"
_NICENESS = 10  # the server itself comes first
_ROOM = 64 * MIB  # in a cgroup, for what belongs to no process: the host's own watch ends a cell before that


@dataclass(frozen=True, slots=True)
class Started:
    """A sandbox whose processes begin, and what of it is ours."""

    process: "subprocess.Popen[bytes]"
    launch: Launch
    user: UserClaim  # let go once its processes are gone
    channel: socket.socket  # the warden is spoken to over it
    output: int  # the pipe from which what is printed is read
    door: socket.socket | None = None  # by which the socket of its proxy comes, once the warden is there


@dataclass(frozen=True, slots=True)
class Extras:
    """What a container has beside its files."""

    skills: Path | None = None  # as `BaseSandbox.launch` has it
    way_out: "ContainerProxy | None" = None  # None: it reaches nothing


NOTHING_MORE = Extras()


async def start_process(
    sandbox: BaseSandbox, interpreter: Interpreter, settings: SandboxSettings, extras: Extras = NOTHING_MORE
) -> Started:
    """Start a sandbox with its warden. Raises `SandboxError`; then nothing of it is left."""
    user, door = claim_user(), None
    if extras.way_out is None:
        launch = sandbox.launch(interpreter, settings, uid=user.uid, skills=extras.skills)
    else:
        door, theirs_of_door = socket.socketpair()
        # Closed with the others that are passed on.
        given = Door(theirs_of_door.detach(), extras.way_out.env, extras.way_out.bundle)
        launch = sandbox.launch(interpreter, settings, uid=user.uid, skills=extras.skills, door=given)
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    try:
        # Not asyncio's: it would need a thread a container, and the end of the channel says that it has ended.
        process = subprocess.Popen(  # noqa: ASYNC220  # 2 ms
            launch.argv,
            env=dict(launch.env),
            stdin=theirs.fileno(),
            stdout=writing,
            stderr=writing,
            pass_fds=tuple(launch.pass_fds),
            cwd="/",
            start_new_session=True,
        )
    except OSError as problem:
        ours.close()
        if door is not None:
            door.close()
        os.close(reading)
        user.close()
        if launch.folder is not None:
            await asyncio.to_thread(disk.remove, launch.folder)
        raise SandboxError(NO_START, detail=f"{launch.argv[0]}: {reason_of(problem)}") from None
    finally:
        # The container has its own copies now; with ours open the end of the channel would never be heard.
        theirs.close()
        os.close(writing)
        for descriptor in launch.pass_fds:
            os.close(descriptor)
    return Started(process, launch, user, ours, reading, door)


def received_listener(door: socket.socket) -> socket.socket:
    """Return the socket that a warden has sent before it said that it is there. Raises `SandboxError`."""
    with door:
        door.setblocking(False)
        try:
            _, descriptors, *_ = socket.recv_fds(door, 1, 1)
        except OSError:
            descriptors = []
    if not descriptors:
        raise SandboxError(NO_START, detail="it has no socket for a proxy")
    listener = socket.socket(fileno=descriptors[0])
    if listener.family != socket.AF_INET or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise SandboxError(NO_START, detail="what it gave for a proxy does not listen")
    return listener


def give_cores(pids: Sequence[int]) -> None:
    """Give the processes of a container, the first one first, the cores and the priority that they keep."""
    cores = sorted(os.sched_getaffinity(0))
    # Spread over the cores, so that not all containers share the first one.
    first = pids[0] % len(cores)
    own = {cores[(first + place) % len(cores)] for place in range(min(CPUS, len(cores)))}
    for pid in pids:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, own)
            os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)


def make_cgroup(cgroups: Cgroups, settings: SandboxSettings, *, folder: Path | None, processes: int) -> Cgroup:
    """Make the group of a container with so many processes of its sandbox's own. Raises `OSError`."""
    # Files that lie in memory count as memory.
    files = 0 if folder is not None else 2 * settings.sandbox_disk_bytes
    return cgroups.make(
        memory=settings.sandbox_memory_bytes + files + _ROOM,
        processes=settings.sandbox_max_processes + processes,
    )
