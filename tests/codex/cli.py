"""The Codex CLI as a test runs it: installed once with npm, in a home of its own, asking nobody but the server."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from responses_app.protocol.errors import JsonObject

VERSION = "0.169.0"
INSTALL_SECONDS = 300.0
TURN_SECONDS = 60.0  # bound of one run of Codex; the first one on a machine reads 300 MB
NOBODY = "http://127.0.0.1:9"  # the discard port: a proxy that refuses every connection

CONFIG = """\
model = "{model}"
model_provider = "respsite"
model_context_window = 131072

[model_providers.respsite]
name = "respsite"
base_url = "{base_url}"
wire_api = "responses"
supports_websockets = {websockets}
request_max_retries = 2
stream_max_retries = 2
"""
# Without these Codex looks for plugins and news at hosts of its own.
OFFLINE = """
[features]
plugins = false
apps = false
shell_snapshot = false

[analytics]
enabled = false
"""


def config(*, base_url: str, model: str, websockets: bool) -> str:
    """Return the config.toml that makes a server Codex's provider."""
    return CONFIG.format(base_url=base_url, model=model, websockets=str(websockets).lower())


def installed() -> Path:
    """Return the `codex` command of this version; skip the test where there is no npm to install it with."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "respsite-tests"
    folder = cache / f"codex-{VERSION}"
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed, and Codex needs it.")
    if not folder.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed, and Codex comes from it.")
        cache.mkdir(parents=True, exist_ok=True)
        _install(folder)
    return folder / "node_modules" / ".bin" / "codex"


def _install(folder: Path) -> None:
    """Install into a folder beside `folder`, and rename it: `folder` is whole, or is not there."""
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix="installing-"))
    try:
        package = f"@openai/codex@{VERSION}"
        done = subprocess.run(
            ["npm", "install", "--prefix", beside, "--ignore-scripts", "--no-audit", "--no-fund", package],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"npm could not install {package}:\n{done.stderr}"
        try:
            beside.rename(folder)
        except OSError:
            if not folder.exists():  # else another test run was first
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@dataclass(frozen=True)
class Turn:
    """What one run of Codex printed, and how it ended."""

    exit_code: int
    events: Sequence[JsonObject]
    complaints: str

    @property
    def thread_id(self) -> str:
        """The conversation, as `Codex.resume` takes it."""
        (started,) = [event for event in self.events if event["type"] == "thread.started"]
        return str(started["thread_id"])

    @property
    def last_message(self) -> object:
        """The model's last message, None if it said nothing."""
        said = self.items("agent_message")
        return said[-1]["text"] if said else None

    def items(self, kind: str) -> list[JsonObject]:
        """Return the finished items of a kind, in order."""
        finished: list[JsonObject] = [
            event["item"]  # type: ignore[misc]
            for event in self.events
            if event["type"] == "item.completed"
        ]
        return [item for item in finished if item["type"] == kind]


class Codex:
    """Codex with a home and a working folder in `folder`; `config` is its config.toml."""

    def __init__(self, program: Path, folder: Path, *, config: str) -> None:
        self.work = folder / "work"
        self._program = program
        home = folder / "codex-home"
        for each in (self.work, home):
            each.mkdir(parents=True)
        (home / "config.toml").write_text(config + OFFLINE)
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CODEX_HOME": str(home),
            **dict.fromkeys(("HTTPS_PROXY", "ALL_PROXY"), NOBODY),
            "NO_PROXY": "127.0.0.1",
        }

    async def ask(self, prompt: str) -> Turn:
        """Begin a conversation (`codex exec`), and return when it is answered; commands run without a question."""
        return await self._run("exec", *_FLAGS, prompt)

    async def resume(self, thread_id: str, prompt: str) -> Turn:
        """Go on with a conversation (`codex exec resume`)."""
        return await self._run("exec", "resume", *_FLAGS, thread_id, prompt)

    async def _run(self, *arguments: str) -> Turn:
        process = await asyncio.create_subprocess_exec(
            self._program,
            *arguments,
            cwd=self.work,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(TURN_SECONDS):
                printed, complaints = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing of it is left, as it should be
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        events = [json.loads(line) for line in printed.splitlines()]
        return Turn(process.returncode or 0, events, complaints.decode())


_FLAGS = ("--json", "--strict-config", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
