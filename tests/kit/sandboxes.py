"""The sandboxes that tests run code in: small ones, of the kind that this machine has."""

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from responses_app.protocol.setting import MIB
from responses_app.tools.sandbox.base import Interpreter, SandboxSettings, find_interpreter
from responses_app.tools.sandbox.choosing import SandboxChoice
from responses_app.tools.sandbox.containers import Containers
from responses_app.tools.sandbox.sandboxes import Bubblewrap
from responses_app.tools.sandbox.session import SandboxSession
from responses_app.tools.sandbox.sharing import SharedContainers

SMALL = SandboxSettings(
    sandbox_memory_bytes=192 * MIB, sandbox_disk_bytes=8 * MIB, sandbox_max_processes=24, sandbox_call_seconds=30.0
)
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def plain_python() -> Interpreter:
    """Return the Python that this venv is made of, which is what a server uses that is told of no other."""
    return find_interpreter(getattr(sys, "_base_executable", sys.executable))


async def has_bubblewrap() -> SandboxChoice:
    """Say what the self-test would: it has tests of its own."""
    return SandboxChoice(Bubblewrap(), plain_python())


def started(containers: Containers | SharedContainers) -> set[str]:
    """Return the ids of the containers of this process in which something runs."""
    own = containers._own if isinstance(containers, SharedContainers) else containers
    return {id for id, each in own._containers.items() if each.session is not None and each.session.is_alive}


async def pieces_of(*contents: bytes) -> AsyncIterator[bytes]:
    """Yield what is to be written into a file."""
    for content in contents:
        yield content


async def content_of(containers: SharedContainers, project: str, id: str, file_id: object) -> bytes:
    """Return what is in a file of a container."""
    return b"".join([part.content async for part in containers.content(project, id, str(file_id))])


@asynccontextmanager
async def session_of(
    settings: SandboxSettings = SMALL, *, python: Interpreter | None = None
) -> AsyncIterator[SandboxSession]:
    """Start a container and end it."""
    session = await SandboxSession.start(Bubblewrap(), python or plain_python(), settings)
    try:
        yield session
    finally:
        await session.close()
