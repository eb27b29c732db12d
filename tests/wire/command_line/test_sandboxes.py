"""`respsite sandboxes` as a process of its own, and how it refuses to be open to everybody."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path

from responses_app.extensions.containers.sandbox.hosts import RemoteHost
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from tests.kit.sandboxes import host_process, needs_bubblewrap
from tests.kit.waiting import eventually
from tests.wire.command_line.program import respsite


def refused(*words: str, **settings: str) -> str:
    ended = respsite("sandboxes", *words, **settings)
    assert ended.returncode != 0
    return ended.stderr


def test_it_is_not_open_to_everybody(tmp_path: Path) -> None:
    secret = {"SANDBOX_SECRET": "a secret of some length"}
    files = {"SANDBOX_TLS_CERT": str(tmp_path / "cert"), "SANDBOX_TLS_KEY": str(tmp_path / "key")}
    assert "SANDBOX_SECRET is not set" in refused("--listen", "127.0.0.1:0", **files)
    assert "SANDBOX_TLS_CERT is not set" in refused("--listen", "127.0.0.1:0", **secret)
    assert "cannot be used" in refused("--listen", "127.0.0.1:0", **secret, **files)
    for words in ((), ("--listen", "box"), ("--listen", str(tmp_path / "none" / "socket"))):
        assert "listen" in refused(*words)


@needs_bubblewrap
async def test_its_containers_have_their_files_again_when_it_is_started_again() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        every = SharedContainers([RemoteHost(str(folder / "socket"))])
        with host_process(folder) as process:
            await eventually((folder / "socket").exists)
            await every.check()
            assert os.stat(folder / "socket").st_mode & 0o077 == 0
            container = await every.create("p")
            await every.run("p", container.id, "open('a.txt', 'w').write('hello');")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
        await every.aclose()
        every = SharedContainers([RemoteHost(str(folder / "socket"))])
        with host_process(folder):
            await eventually((folder / "socket").exists)
            run = await every.run("p", container.id, "print(open('a.txt').read())")
            assert (run.execution.output, run.was_saved) == ("hello\n", True)
            await every.aclose()
