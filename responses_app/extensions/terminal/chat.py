"""`respsite chat`: a conversation in the terminal, over the WebSocket of any server of responses.

In a pipe: one prompt in, the text of its answer out. First the tools that a file declares, those of the server, and
what answers calls; then `TerminalChat`, who talks at a terminal; the command itself is at the end.
"""

import contextlib
import json
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from engine.errors import reason_of
from responses_app.command_line.endpoint import FAILED, INTERRUPTED, USAGE, CommandFailed, endpoint_of, message_of
from responses_app.extensions.terminal.showing import FIGURES, TOOL, TROUBLE, Plain, Vivid
from responses_app.extensions.terminal.streams import DEFAULT, ChatSession
from responses_app.management.terminal import console, errors, is_conversation, printable
from responses_app.observing.logs import as_one_line

Item = dict[str, Any]
ANSWERED = {  # the kinds of calls that are answered here, and the kinds of their answers
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
SERVER_TOOLS: dict[str, Item] = {
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
    "shell": {"type": "shell", "environment": {"type": "container_auto"}},
    "web_search": {"type": "web_search"},
    "image_generation": {"type": "image_generation"},
}
MAX_OUTPUT = 1024 * 1024  # characters of what a command gives back
COMMAND_SECONDS = 300.0
NOBODY = "The user did not answer this call."


def read_tools(path: str) -> list[Item]:
    """Return the tools that a JSON file declares: a list, or an object with a list `tools`. Raises `CommandFailed`."""
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise CommandFailed(f"--tools {path} cannot be read ({reason_of(error)}).", status=USAGE) from None
    except ValueError as error:
        raise CommandFailed(f"--tools {path} is not JSON ({error}).", status=USAGE) from None
    tools = content.get("tools") if isinstance(content, dict) else content
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "type" in tool for tool in tools):
        example = '[{"type": "function", "name": "get_weather", "parameters": {…}}]'
        raise CommandFailed(f"--tools {path} holds no list of tools like {example}.", status=USAGE)
    return tools


def server_tools(names: str) -> list[Item]:
    """Return the server's tools of a list like `code_interpreter,mcp=wiki`. Raises `CommandFailed`."""
    return [_server_tool(name.strip()) for name in names.split(",") if name.strip()]


def _server_tool(name: str) -> Item:
    kind, _, value = name.partition("=")
    if kind in SERVER_TOOLS and not value:
        return SERVER_TOOLS[kind]
    if kind == "mcp" and value:
        return {"type": "mcp", "server_label": value}
    if kind == "file_search" and value:
        return {"type": "file_search", "vector_store_ids": [value]}
    known = ", ".join((*SERVER_TOOLS, "mcp=LABEL", "file_search=VECTOR_STORE_ID"))
    raise CommandFailed(f"--server-tools {name} is not known: it takes some of {known}.", status=USAGE)


def calls_of(response: Item) -> list[Item]:
    """Return what of a response's output somebody here has to answer: calls, and requests for an approval."""
    kinds = (*ANSWERED, "mcp_approval_request")
    complete = (item for item in response.get("output", ()) if item.get("status") != "incomplete")
    return [item for item in complete if item.get("type") in kinds]


def described(call: Item) -> str:
    """Return a call as people read it; of a server's tool with the server's label."""
    arguments = call.get("arguments", call.get("input", ""))
    label = f"{call['server_label']}." if call.get("server_label") else ""
    return f"{label}{call.get('name', '')}({arguments})"


def answer(call: Item, output: str) -> Item:
    """Return the item that gives a call its output; an approval is given by `yes`."""
    if call["type"] == "mcp_approval_request":
        approves = output.strip().lower() in ("y", "yes")
        return {"type": "mcp_approval_response", "approval_request_id": call["id"], "approve": approves}
    return {"type": ANSWERED[call["type"]], "call_id": call["call_id"], "output": output}


def by_command(command: str) -> Callable[[Item], str]:
    """Return what answers calls by a command: it reads `{"name", "arguments"}` as JSON, and prints the output.

    One that fails is what the model is told, with what it said on standard error.
    """
    words: Sequence[str] = shlex.split(command)
    if not words:
        raise CommandFailed("--run-tools takes a command, like './tools.sh'.", status=USAGE)

    def run(call: Item) -> str:
        call_fields = {"name": call["name"], "arguments": call.get("arguments", call.get("input", ""))}
        try:
            done = subprocess.run(
                words,
                input=json.dumps(call_fields),
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except OSError as error:
            raise CommandFailed(f"--run-tools {command} cannot be run ({reason_of(error)}).") from None
        except subprocess.TimeoutExpired:
            return f"The tool did not end within {COMMAND_SECONDS:.0f} seconds."
        if done.returncode:
            return f"The tool failed with status {done.returncode}. {done.stderr.strip()}"[:MAX_OUTPUT]
        return done.stdout[:MAX_OUTPUT]

    return run


HELP = """\
  text             say it on this lane
  @NAME text       say it on the lane NAME, and go on here meanwhile
  /lane NAME       go to a lane; each has a conversation of its own
  /lanes           list the lanes with their last responses
  /wait            wait for the lanes that still answer
  /resume ID       continue a stored response on this lane
  /new             begin this lane anew
  /help, /quit     Ctrl-C interrupts an answer, Ctrl-D ends the chat"""


class TerminalChat:
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
            word, _, rest = line.partition(" ")
            if word.startswith("@"):
                lane = word[1:] or DEFAULT
                text = rest.strip()
                if lane in self._away:
                    self._console.print(f"{lane} still answers: /wait", style=TROUBLE)
                elif text:
                    parts: list[str] = []
                    items = [*self._owed.pop(lane, ()), {"role": "user", "content": text}]
                    self._away[lane] = (self._session.begin(lane, items, Plain(parts.append)), parts)
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

    def _show_those_that_have_ended(self, *, wait: bool = False) -> None:
        for lane, (future, parts) in list(self._away.items()):
            if not wait and not future.done():
                continue
            response = self._result(lane, future)
            del self._away[lane]
            self._console.print(f"{lane}:", style=FIGURES)
            self._console.print(printable("".join(parts).rstrip()))
            self._converse(lane, self._answers(lane, response))

    def _converse(self, lane: str, items: list[Item]) -> None:
        """Send items and show the answer, again while it ends with calls that are answered here."""
        if lane in self._away:
            self._console.print(f"{lane} still answers: /wait", style=TROUBLE)
            return
        items = [*self._owed.pop(lane, ()), *items]
        while items:
            view = Vivid(self._console, reasoning=self._reasoning)
            items = self._answers(lane, self._result(lane, self._session.begin(lane, items, view)))

    def _result(self, lane: str, future: "Future[Item]") -> Item:
        """Wait for a response. Ctrl-C interrupts it, and what was said can be continued."""
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                # Nothing has begun to come yet: there is no response that could be interrupted.
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
            # The server refuses to go on from a call without an output.
            self._owed[lane] = [answer(call, NOBODY) for call in calls]
        return []

    def _output(self, call: Item) -> str:
        approval = call["type"] == "mcp_approval_request"
        self._console.print(as_one_line(described(call)), style=TOOL)
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


MAX_PROMPT = 16 * 1024 * 1024  # characters that are read from a pipe
MAX_ROUNDS = 100  # of calls and their outputs, for one prompt in a pipe


def run(options: Namespace) -> int:
    """Talk until the person ends it, or answer one prompt."""
    asks = by_command(options.run_tools) if options.run_tools else None
    session = ChatSession(endpoint_of(options.url, options.key_variable), _common(options))
    if options.resume:
        session.last[DEFAULT] = options.resume
    try:
        if options.prompt is None and is_conversation():
            return TerminalChat(session, run_tool=asks, reasoning=not options.no_reasoning).talk()
        return _answer_once(session, options, asks)
    finally:
        session.close()


def _common(options: Namespace) -> dict[str, Any]:
    """Return what every create of this chat says."""
    tools = read_tools(options.tools) if options.tools else []
    tools += server_tools(options.server_tools or "")
    common: dict[str, Any] = {"store": not options.no_store}
    if tools:
        common["tools"] = tools
    if any(tool["type"] == "code_interpreter" for tool in tools):
        common["include"] = ["code_interpreter_call.outputs"]
    for name in ("model", "instructions"):
        if getattr(options, name):
            common[name] = getattr(options, name)
    if options.effort:
        common["reasoning"] = {"effort": options.effort}
    return common


def _answer_once(session: ChatSession, options: Namespace, asks: Any) -> int:
    prompt = options.prompt if options.prompt is not None else sys.stdin.read(MAX_PROMPT)
    if not prompt.strip():
        raise CommandFailed("There is no prompt: give one as an argument, or on standard input.", status=USAGE)
    items: list[dict[str, Any]] = [{"role": "user", "content": prompt.rstrip("\n")}]
    for _ in range(MAX_ROUNDS):
        response = _finished(session, items)
        calls = calls_of(response)
        if options.show_id:
            errors().print(printable(str(response.get("id", ""))))
        if response.get("status") != "completed" or not calls:
            if response.get("status") == "completed":
                return 0
            details = response.get("incomplete_details") or {}
            problem = message_of(response) if response.get("error") else details.get("reason") or response.get("status")
            errors().print(printable(f"respsite: the answer has not been completed: {problem}"))
            return FAILED
        if asks is None:
            called = ", ".join(map(described, calls))
            raise CommandFailed(f"The model calls {called}, and nobody here answers: give --run-tools COMMAND.")
        if any(call["type"] == "mcp_approval_request" for call in calls):
            raise CommandFailed("The model wants an approval, which takes a person: run this in a terminal.")
        items = [answer(call, asks(call)) for call in calls]
    raise CommandFailed(f"The model still calls tools after {MAX_ROUNDS} rounds.")


def _finished(session: ChatSession, items: list[dict[str, Any]]) -> dict[str, Any]:
    future = session.begin(DEFAULT, items, Plain(_write))
    try:
        return future.result()
    except KeyboardInterrupt:
        if session.interrupt(DEFAULT):
            future.result()
        raise SystemExit(INTERRUPTED) from None


def _write(text: str) -> None:
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
