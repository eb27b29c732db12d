"""A lease of a place at a shared engine core, as it goes over a socket, and who can ask for one."""

import asyncio
import os
import select
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from engine.backends.vllm import config as vllm_config
from engine.backends.vllm.shared_core import CoreHost, Lease, SharedCore, decode_lease, refusal
from engine.errors import EngineConfigurationError, EngineUnavailable
from tests.kit.waiting import eventually

LEASE = Lease(
    place=3,
    places=7,
    input_address="ipc:///tmp/x/3.in",
    output_address="ipc:///tmp/x/3.out",
    greeting=b"\x00\xff\n",
    version="0.32.0",
    pid=42,
)


def test_it_comes_as_it_was_sent_and_is_one_line() -> None:
    line = LEASE.encode()
    assert line.index(b"\n") == len(line) - 1
    assert decode_lease(line) == LEASE


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_a_host_that_ends_before_it_has_said_all_is_away(cut: int) -> None:
    with pytest.raises(EngineUnavailable, match="ended before it was loaded"):
        decode_lease(LEASE.encode()[:cut])


def test_a_refusal_says_why() -> None:
    with pytest.raises(EngineUnavailable, match="takes no more workers: all is taken"):
        decode_lease(refusal("all is taken"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name is short, as a socket's address has to be."""
    with TemporaryDirectory() as name:
        yield Path(name)


def host_at(path: Path) -> CoreHost:
    return CoreHost(model="m", options={}, path=str(path), places=2)


def test_only_processes_of_its_own_user_can_ask_for_a_place(folder: Path) -> None:
    """Whoever has a place can have requests of others aborted, and keep the workers out."""
    path = folder / "core"
    before = os.umask(0)
    try:
        hosts = [host_at(path), host_at(path)]  # the second one finds what the first has left
    finally:
        os.umask(before)
    mode = path.stat().st_mode
    for host in hosts:
        host.close()
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_a_file_that_is_not_a_socket_is_not_taken_for_an_old_one(folder: Path) -> None:
    path = folder / "notes"
    path.write_text("kept")
    with pytest.raises(EngineConfigurationError, match="No socket can be made"):
        host_at(path)
    assert path.read_text() == "kept"


async def test_a_host_that_ends_while_it_loads_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens, and accepts nobody before the model is there: what waits is reset, and does not merely end."""
    monkeypatch.setattr(vllm_config, "import_vllm", lambda: None)
    path = str(tmp_path / "core")
    core = SharedCore("model", {}, path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        loading = asyncio.ensure_future(core.load())
        await eventually(lambda: select.select([listener], [], [], 0)[0])
    with pytest.raises(EngineUnavailable, match="ended before it was loaded"):
        await loading
    await core.aclose()


async def test_a_path_that_leads_nowhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_config, "import_vllm", lambda: None)
    core = SharedCore("model", {}, str(tmp_path / ("long" * 50)))
    with pytest.raises(EngineUnavailable, match="no way to the engine core"):
        await core.load()
    await core.aclose()
