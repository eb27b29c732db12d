"""GitHub's Copilot CLI as a test runs it: installed with npm, in a home of its own, asking nobody but the server."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from responses_app.protocol.errors import JsonObject
from tests.kit import npm
from tests.kit.programs import run_program, secluded

TURN_SECONDS = 60.0  # bound of one run; the first one on a machine unpacks 230 MB
SHELL_ALONE = "--available-tools=bash"  # with all its tools a prompt has 12,000 tokens


def provider(*, base_url: str, model: str, transport: str) -> dict[str, str]:
    """Return the variables that make a server Copilot's provider; `transport` is websockets or http."""
    return {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_BASE_URL": base_url,
        "COPILOT_PROVIDER_WIRE_API": "responses",
        "COPILOT_PROVIDER_TRANSPORT": transport,
        "COPILOT_MODEL": model,
    }


def installed() -> Path:
    """Return the `node_modules` with Copilot; skip the test where there is no npm to install it with."""
    return npm.installed(Path(__file__).with_name("package.json"))


@dataclass(frozen=True)
class Turn:
    """What one run of Copilot printed, and how it ended."""

    exit_code: int
    events: Sequence[JsonObject]
    complaints: str

    @property
    def last_message(self) -> object:
        """The model's last message, None if it said nothing."""
        said = self.told("assistant.message")
        return said[-1]["content"] if said else None

    def told(self, kind: str) -> list[JsonObject]:
        """Return the data of the events of a type, in order."""
        return [event["data"] for event in self.events if event["type"] == kind]  # type: ignore[misc]


class Copilot:
    """Copilot with one conversation, and with a home and a working folder in `folder`.

    `packages` is where it is installed, `variables` says whom it asks.
    """

    def __init__(self, packages: Path, folder: Path, variables: dict[str, str]) -> None:
        self.work = folder / "work"
        self._program = packages / ".bin" / "copilot"
        self._conversation = str(uuid.uuid4())
        home = folder / "copilot-home"
        for each in (self.work, home):
            each.mkdir(parents=True)
        # It unpacks itself into its cache, 230 MB: that is to happen once.
        self._environ = secluded(home, XDG_CACHE_HOME=str(packages.with_name("cache")), **variables)

    async def ask(self, prompt: str) -> Turn:
        """Begin the conversation or go on with it; commands run without a question."""
        return await self.run("--session-id", self._conversation, "--allow-all-tools", "-p", prompt)

    async def run(self, *arguments: str) -> Turn:
        """Run `copilot` with these arguments."""
        command = (self._program, "--output-format", "json", *arguments)
        done = await run_program(*command, cwd=self.work, environ=self._environ, seconds=TURN_SECONDS)
        return Turn(done.exit_code, [json.loads(line) for line in done.printed.splitlines()], done.complaints)
