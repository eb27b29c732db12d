"""What is said of an agent once, so that the task can be run with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from responses_app.protocol.errors import JsonObject
from tests.system.agents.task import Answer, Edit, Read, Run, Search, Step, Write


class Way(StrEnum):
    """An API and a transport, as the table calls them."""

    WEBSOCKET = "Responses over the WebSocket"
    RESPONSES = "Responses over HTTP"
    CHAT = "Chat Completions"
    MESSAGES = "Anthropic's Messages"


class Turn(Protocol):
    """How one run of an agent ended."""

    @property
    def exit_code(self) -> int:
        """Its exit status."""

    @property
    def last_message(self) -> object:
        """The model's last message."""


class Client(Protocol):
    """An installed agent, with a home of its own and a working folder."""

    async def ask(self, prompt: str) -> Turn:
        """Let it work until it has answered; tools run without a question."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of an agent's tools, in its own words."""

    name: str  # of the tool, as the agent declares it
    input: JsonObject | str  # a text where the tool is a custom one


class Tools(Protocol):
    """An agent's tools."""

    def call(self, step: Step, work: Path) -> Call:
        """Return the call that does a step in the folder `work`. Raises `ValueError` for an answer."""


@dataclass(frozen=True)
class Shell:
    """A tool that runs a command."""

    name: str
    argument: str  # that has the command
    always: JsonObject = field(default_factory=dict)  # what it is told beside

    def run(self, command: str) -> Call:
        return Call(self.name, {self.argument: command, **self.always})

    def search(self, word: str) -> Call:
        """Return what finds a word in all files."""
        return self.run(f"grep -rn '{word}' .")


@dataclass(frozen=True, kw_only=True)
class FileTools:
    """A tool each to read, edit and write a file, and a shell. Beside a tool's name stand those of its arguments."""

    read: tuple[str, str]  # the path
    edit: tuple[str, str, str, str]  # the path, the old text and the new one
    write: tuple[str, str, str]  # the path and the text
    shell: Shell
    search: tuple[str, str] | None = None  # the pattern; without one the shell searches

    def call(self, step: Step, work: Path) -> Call:
        """Return the call that does a step; paths are whole."""
        match step:
            case Read(path):
                return _call(self.read, f"{work / path}")
            case Search(word) if self.search is not None:
                return _call(self.search, word)
            case Search(word):
                return self.shell.search(word)
            case Edit(path, old, new):
                return _call(self.edit, f"{work / path}", old, new)
            case Write(path, text):
                return _call(self.write, f"{work / path}", text)
            case Run(command):
                return self.shell.run(command)
            case Answer():
                raise ValueError("An answer is not a call.")


@dataclass(frozen=True, kw_only=True)
class PatchTools:
    """A shell that reads and searches, too, and apply_patch."""

    shell: Shell
    argument: str = ""  # of apply_patch, where that is a function and no custom tool

    def call(self, step: Step, _work: Path) -> Call:
        """Return the call that does a step; paths are those in the working folder."""
        match step:
            case Read(path):
                return self.shell.run(f"cat {path}")
            case Search(word):
                return self.shell.search(word)
            case Edit(path, old, new):
                return self._patch(patch(path, old=old, new=new))
            case Write(path, text):
                return self._patch(patch(path, new=text))
            case Run(command):
                return self.shell.run(command)
            case Answer():
                raise ValueError("An answer is not a call.")

    def _patch(self, text: str) -> Call:
        return Call("apply_patch", {self.argument: text} if self.argument else text)


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent. It works in the folder `work` of the one that `open` gets: a client makes it."""

    name: str
    manifest: Path  # the package.json or requirements.txt with its version
    ways: tuple[Way, ...]  # how it can ask
    open: Callable[[Path, str, Way], Client]  # a folder of its own, the server's address without a path, a way
    tools: Tools
    package: str = ""  # its name in a requirements.txt
    models: Mapping[Way, str] = field(default_factory=dict)  # names that a model needs, for ways chosen by name
    # What it asks beside the task, such as a title: what the developer says then, and what is answered.
    asides: Mapping[str, str] = field(default_factory=dict)


def patch(path: str, *, old: str | None = None, new: str) -> str:
    """Return what apply_patch takes: one line for another, or a new file."""
    lines = [f"+{line}" for line in new.splitlines()]
    body = [f"*** Add File: {path}"] if old is None else [f"*** Update File: {path}", "@@", f"-{old}"]
    return "\n".join(["*** Begin Patch", *body, *lines, "*** End Patch"]) + "\n"


def _call(tool: tuple[str, ...], *values: str) -> Call:
    name, *arguments = tool
    return Call(name, dict(zip(arguments, values, strict=True)))
