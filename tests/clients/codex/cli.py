"""The Codex CLI as a test runs it: installed once with npm, in a home of its own, asking nobody but the server."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from responses_app.extensions.terminal.agents import AGENTS, TargetServer
from responses_app.protocol.errors import JsonObject
from tests.kit import npm
from tests.kit.programs import run_program, secluded

TURN_SECONDS = 300.0  # bound of one run of Codex: thirty turns on a vLLM without a GPU take 30 s and more

# Without these Codex looks for plugins and news at hosts of its own.
OFFLINE = """
[features]
plugins = false
apps = false
shell_snapshot = false

[analytics]
enabled = false
"""


def config(*, base_url: str, model: str, websockets: bool, retries: int = 2) -> str:
    """Return what `respsite configure codex` prints, with `retries` of its own where a server does not answer."""
    target = TargetServer(base_url=base_url, models=(model,), context=None, key_variable="RESPSITE_API_KEY")
    printed = AGENTS["codex"].text(target)
    if not websockets:
        printed = printed.replace("supports_websockets = true", "supports_websockets = false")
    table = "[model_providers.respsite]\n"
    return printed.replace(table, f"{table}request_max_retries = {retries}\nstream_max_retries = {retries}\n")


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
        self.program = program
        self.websockets = "supports_websockets = true" in config
        home = folder / "codex-home"
        for each in (self.work, home):
            each.mkdir(parents=True)
        (home / "config.toml").write_text(config + OFFLINE)
        self.environ = secluded(home, CODEX_HOME=str(home))

    async def ask(self, prompt: str, *options: str | Path) -> Turn:
        """Begin a conversation (`codex exec`), and return when it is answered; commands run without a question."""
        return await self._run("exec", *_FLAGS, *options, prompt)

    async def resume(self, thread_id: str, prompt: str) -> Turn:
        """Go on with a conversation (`codex exec resume`)."""
        return await self._run("exec", "resume", *_FLAGS, thread_id, prompt)

    async def _run(self, *arguments: str | Path) -> Turn:
        done = await run_program(self.program, *arguments, cwd=self.work, environ=self.environ, seconds=TURN_SECONDS)
        return Turn(done.exit_code, [json.loads(line) for line in done.printed.splitlines()], done.complaints)


_FLAGS = ("--json", "--strict-config", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
