"""The Codex CLI as a test runs it: installed once with npm, in a home of its own, asking nobody but the server."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from responses_app.protocol.errors import JsonObject
from tests import npm
from tests.programs import run_program, secluded

TURN_SECONDS = 60.0  # bound of one run of Codex; the first one on a machine reads 300 MB

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
    """Return the `codex` command; skip the test where there is no npm to install it with."""
    return npm.installed(Path(__file__).with_name("package.json")) / ".bin" / "codex"


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
        self._environ = secluded(home, CODEX_HOME=str(home))

    async def ask(self, prompt: str) -> Turn:
        """Begin a conversation (`codex exec`), and return when it is answered; commands run without a question."""
        return await self._run("exec", *_FLAGS, prompt)

    async def resume(self, thread_id: str, prompt: str) -> Turn:
        """Go on with a conversation (`codex exec resume`)."""
        return await self._run("exec", "resume", *_FLAGS, thread_id, prompt)

    async def _run(self, *arguments: str) -> Turn:
        done = await run_program(self._program, *arguments, cwd=self.work, environ=self._environ, seconds=TURN_SECONDS)
        return Turn(done.exit_code, [json.loads(line) for line in done.printed.splitlines()], done.complaints)


_FLAGS = ("--json", "--strict-config", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
