"""`respsite chat`: a conversation in the terminal, over the WebSocket of any server of responses.

In a pipe: one prompt in, the text of its answer out.
"""

import sys
from argparse import Namespace
from typing import Any

from responses_app.command_line.base.endpoint import endpoint_of, message_of
from responses_app.command_line.base.exits import FAILED, INTERRUPTED, USAGE, CommandFailed
from responses_app.command_line.base.terminal import errors, is_conversation, printable
from responses_app.command_line.chatting.person import Person
from responses_app.command_line.chatting.session import DEFAULT, ChatSession
from responses_app.command_line.chatting.showing import Plain
from responses_app.command_line.chatting.tools import (
    answer,
    by_command,
    calls_of,
    described,
    read_tools,
    server_tools,
)

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
            return Person(session, run_tool=asks, reasoning=not options.no_reasoning).talk()
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
            return _status(response)
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


def _status(response: dict[str, Any]) -> int:
    if response.get("status") == "completed":
        return 0
    details = response.get("incomplete_details") or {}
    problem = message_of(response) if response.get("error") else details.get("reason") or response.get("status")
    errors().print(printable(f"respsite: the answer has not been completed: {problem}"))
    return FAILED
