"""`Person`: reads lines from a terminal, and has them answered. Ctrl-C interrupts an answer, Ctrl-D ends the chat."""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from responses_app.command_line.base.exits import CommandFailed
from responses_app.command_line.base.terminal import console, one_line, printable
from responses_app.command_line.chatting.session import DEFAULT, ChatSession
from responses_app.command_line.chatting.showing import FIGURES, TOOL, TROUBLE, Plain, Shown
from responses_app.command_line.chatting.tools import NOBODY, answer, calls_of, described

Item = dict[str, Any]
HELP = """\
  text             say it on this lane
  @NAME text       say it on the lane NAME, and go on here meanwhile
  /lane NAME       go to a lane; each has a conversation of its own
  /lanes           list the lanes with their last responses
  /wait            wait for the lanes that still answer
  /resume ID       continue a stored response on this lane
  /new             begin this lane anew
  /help, /quit     Ctrl-C interrupts an answer, Ctrl-D ends the chat"""


class Person:
    """A conversation with somebody at a terminal. `run_tool` answers calls; without it the person does."""

    def __init__(self, session: ChatSession, *, run_tool: Callable[[Item], str] | None, reasoning: bool) -> None:
        self._session = session
        self._run_tool = run_tool
        self._reasoning = reasoning
        self._console = console()
        self._lane = DEFAULT
        self._away: dict[str, tuple[Future[Item], list[str]]] = {}  # lanes that answer meanwhile, and their texts
        self._owed: dict[str, list[Item]] = {}  # answers to calls of what was interrupted, by lanes

    def talk(self) -> int:
        """Talk until the person has enough; return the exit status."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - `input` has a history then
        self._console.print("Say something. /help lists commands, Ctrl-D ends.", style=FIGURES)
        while True:
            self._show_those_that_have_ended()
            try:
                line = input(f"{self._lane}> ").strip()
            except EOFError:
                self._console.print()
                return 0
            except KeyboardInterrupt:
                self._console.print("\nCtrl-D ends the chat.", style=FIGURES)
                continue
            if line in ("/quit", "/exit"):
                return 0
            self._obey(line)

    def _obey(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word.startswith("@"):
            self._say_meanwhile(word[1:] or DEFAULT, rest.strip())
        elif word.startswith("/"):
            self._command(word, rest.strip())
        elif line:
            self._converse(self._lane, [{"role": "user", "content": line}])

    def _command(self, word: str, rest: str) -> None:
        if word == "/lane" and rest:
            self._lane = rest
        elif word == "/lanes":
            for lane in sorted({self._lane, DEFAULT, *self._session.last, *self._away}):
                state = "answers" if lane in self._away else self._session.last.get(lane, "new")
                self._console.print(f"  {lane}  {state}", style=FIGURES)
        elif word == "/wait":
            self._show_those_that_have_ended(wait=True)
        elif word == "/resume" and rest:
            self._session.last[self._lane] = rest
        elif word == "/new":
            self._session.last.pop(self._lane, None)
            self._owed.pop(self._lane, None)
        else:
            self._console.print(HELP, style=FIGURES)

    def _say_meanwhile(self, lane: str, text: str) -> None:
        if lane in self._away:
            self._console.print(f"{lane} still answers: /wait", style=TROUBLE)
        elif text:
            parts: list[str] = []
            self._away[lane] = (self._session.begin(lane, self._with_owed(lane, text), Plain(parts.append)), parts)

    def _show_those_that_have_ended(self, *, wait: bool = False) -> None:
        for lane, (future, parts) in list(self._away.items()):
            if not wait and not future.done():
                continue
            response = self._result(lane, future)
            del self._away[lane]
            self._console.print(f"{lane}:", style=FIGURES)
            self._console.print(printable("".join(parts).rstrip()))
            self._converse(lane, self._answers(lane, response))

    def _with_owed(self, lane: str, text: str) -> list[Item]:
        return [*self._owed.pop(lane, ()), {"role": "user", "content": text}]

    def _converse(self, lane: str, items: list[Item]) -> None:
        """Send items and show the answer, again while it ends with calls that are answered here."""
        if lane in self._away:
            self._console.print(f"{lane} still answers: /wait", style=TROUBLE)
            return
        items = [*self._owed.pop(lane, ()), *items]
        while items:
            view = Shown(self._console, reasoning=self._reasoning)
            items = self._answers(lane, self._result(lane, self._session.begin(lane, items, view)))

    def _result(self, lane: str, future: "Future[Item]") -> Item:
        """Wait for a response. Ctrl-C interrupts it, and what was said can be continued."""
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                if not self._session.interrupt(lane):
                    future.cancel()
                    return {}
            except CommandFailed as problem:
                self._console.print(printable(str(problem)), style=TROUBLE)
                return {}

    def _answers(self, lane: str, response: Item) -> list[Item]:
        calls = calls_of(response)
        if response.get("status") == "completed":
            return [answer(call, self._output(call)) for call in calls]
        if response.get("status") == "incomplete" and calls:  # it was interrupted, and can be continued with these
            self._owed[lane] = [answer(call, NOBODY) for call in calls]
        return []

    def _output(self, call: Item) -> str:
        approval = call["type"] == "mcp_approval_request"
        self._console.print(one_line(described(call)), style=TOOL)
        try:
            if self._run_tool is not None and not approval:
                output = self._run_tool(call)
                self._console.print(printable(output.rstrip()), style=FIGURES)
                return output
            return input("allow it? [y/N] " if approval else "its output: ") or NOBODY
        except CommandFailed as problem:
            self._console.print(printable(str(problem)), style=TROUBLE)
        except (EOFError, KeyboardInterrupt):
            self._console.print()
        return NOBODY
