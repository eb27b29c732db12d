"""Agents with what `respsite configure` writes for them, and nothing else, in a home of their own."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from responses_app.extensions.terminal.agents import AGENTS, TargetServer
from responses_app.protocol.errors import JsonObject
from tests.kit.programs import run_program, secluded

TURN_SECONDS = 300.0  # bound of one run: ten seconds where nothing else runs
CONTEXT = 131_072  # what the scripted engine takes


@dataclass(frozen=True, kw_only=True)
class Program:
    """How an agent is started, and how it says what came of it."""

    name: str  # as `respsite configure` knows it
    installed: Callable[[], Path]  # installs it, and returns the program
    arguments: Sequence[str]  # before the prompt; tools run without a question, and it prints lines of JSON
    answer: Callable[[Sequence[JsonObject]], object]  # the model's last message, of these lines
    variables: Mapping[str, str] = field(default_factory=dict)  # its environment, beside home and proxies


@dataclass(frozen=True)
class Turn:
    """What one run of an agent printed, and how it ended."""

    exit_code: int
    last_message: object
    complaints: str


class Configured:
    """An agent with a home and the working folder `work` in `folder`; `changed` changes what is written for it."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        *,
        base_url: str,
        model: str,
        changed: Callable[[str], str] = lambda text: text,
    ) -> None:
        agent = AGENTS[program.name]
        assert agent.place is not None, "it has a file"
        home, self.work = folder / "home", folder / "work"
        file = agent.place({}, home)
        for each in (self.work, file.parent):
            each.mkdir(parents=True)
        target = TargetServer(base_url=base_url, models=(model,), context=CONTEXT, key_variable="RESPSITE_API_KEY")
        file.write_text(changed(agent.text(target)))
        self._program = program
        self._environ = secluded(home, RESPSITE_API_KEY="none", **program.variables)

    async def ask(self, prompt: str) -> Turn:
        """Ask in a conversation of its own, and return when it is answered."""
        command = (self._program.installed(), *self._program.arguments, prompt)
        done = await run_program(*command, cwd=self.work, environ=self._environ, seconds=TURN_SECONDS)
        lines = [json.loads(line) for line in done.printed.splitlines()]
        return Turn(done.exit_code, self._program.answer(lines), done.complaints)


def result_of(lines: Sequence[JsonObject]) -> object:
    """Return the last message of agents that print a result."""
    results = [line for line in lines if line["type"] == "result"]
    return results[-1].get("result") if results else None


def last_text_of(lines: Sequence[JsonObject]) -> object:
    """Return the last message of agents that print every text."""
    parts = [line["part"] for line in lines if line["type"] == "text"]
    return parts[-1]["text"] if parts else None  # type: ignore[index]
