"""A second model format, to prove that nothing above `engine.formats` knows the first: plain text, a byte a token.

User: Hello⏎Assistant: Hi⏎                    an answer
Assistant: (thought) hm⏎                       reasoning
Assistant: f({"a": 1})⏎                        a call of the function f
Tool f: 18⏎                                    what it gave back
"""

import re
from collections.abc import Collection, Iterable, Sequence

from engine.formats.base import (
    Body,
    FunctionTool,
    ItemEnded,
    ItemKind,
    ItemStarted,
    MessageKind,
    ModelFormat,
    RenderedMessage,
    Text,
    Tokens,
    ToolNamespace,
    TurnEvent,
    TurnParser,
    as_tokens,
    without_pictures,
)
from engine.types import TurnGrammar, TurnRules

END = ord("\n")
STOP = 0  # what the model samples when it is done
_THOUGHT = "(thought) "
_CALL = re.compile(r"([\w.]+)\(")
_KINDS = {ItemKind.REASONING: MessageKind.ANALYSIS, ItemKind.ANSWER: MessageKind.FINAL}


def _tokens(text: str) -> bytes:
    return text.replace("\n", "\v").encode()


def _line(text: str) -> "Tokens[int]":
    return as_tokens([*_tokens(text), END])


class PlainParser(TurnParser):
    """A line is an item; what it is shows once its beginning can be nothing else, so lines are read whole."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._called = False  # the model waits, and what comes all the same is nothing

    def feed(self, token_ids: Iterable[int]) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        for token in token_ids:
            if self._called:
                break
            if token in (END, STOP):
                events += self._end() if self._line else []
            else:
                self._line.append(token)
        return events

    def close(self) -> list[TurnEvent]:
        return self._end(truncated=True) if self._line and not self._called else []

    def is_end(self, token: int) -> bool:
        return token in (END, STOP)

    def _end(self, *, truncated: bool = False) -> list[TurnEvent]:
        text = self._line.decode(errors="replace").replace("\v", "\n")
        self._line.clear()
        call = _CALL.match(text)
        if text.startswith(_THOUGHT):
            kind, name, text = ItemKind.REASONING, None, text.removeprefix(_THOUGHT)
        elif call:
            kind = ItemKind.HOSTED_CALL if call[1].startswith("server.") else ItemKind.CALL
            name, text = call[1].removeprefix("server."), text[call.end() :].removesuffix(")")
        else:
            kind, name = ItemKind.ANSWER, None
        message = FORMAT.call(name, text) if name else FORMAT.said(kind, text)
        self._called = bool(name) and not truncated
        said: list[TurnEvent] = [Text(text)] if text else []
        reasoning = len(text) if kind is ItemKind.REASONING else 0
        return [
            ItemStarted(kind, name),
            *said,
            ItemEnded(message, reasoning, truncated, called=bool(name) and not truncated),
        ]


class PlainFormat(ModelFormat):
    name, stop_tokens = "plain", (STOP,)

    def parser(self, functions: Collection[str] | None = ()) -> PlainParser:
        return PlainParser()

    def grammar(self, rules: TurnRules, behind: Sequence[int] = ()) -> TurnGrammar | None:
        return None

    def frame(
        self,
        *,
        instructions: str | None,
        functions: Sequence[FunctionTool],
        effort: str,
        date: str,
        namespaces: Sequence[ToolNamespace] = (),
    ) -> "Tokens[int]":
        names = [tool.name for tool in (*functions, *namespaces)]
        return _line(f"System: {date} {effort} {instructions or ''} {names}")

    def generation_start(self) -> Sequence[int]:
        return _tokens("Assistant: ")

    def user(self, body: Body) -> RenderedMessage:
        return self._message(MessageKind.USER, f"User: {without_pictures(body)}")

    def developer(self, text: str) -> RenderedMessage:
        return self._message(MessageKind.OTHER, f"Developer: {text}")

    def note(self, text: str) -> RenderedMessage:
        return self._message(MessageKind.OTHER, f"Note: {text}")

    def said(self, kind: ItemKind, text: str) -> RenderedMessage:
        thought = _THOUGHT if kind is ItemKind.REASONING else ""
        return self._message(_KINDS.get(kind, MessageKind.COMMENTARY), f"Assistant: {thought}{text}")

    def call(self, name: str, arguments: str, *, hosted: bool = False, freeform: bool = False) -> RenderedMessage:
        return self._message(MessageKind.COMMENTARY, f"Assistant: {name}({arguments})")

    def output(self, name: str, body: Body, *, hosted: bool = False) -> RenderedMessage:
        return self._message(MessageKind.OTHER, f"Tool {name}: {without_pictures(body)}")

    def late_functions(self, declarations: Sequence[str], *, hosted: bool = False) -> RenderedMessage:
        return self.note(f"More functions: {' '.join(declarations)}")

    def no_such_tool(self, name: str, functions: Collection[str], hosted: Collection[str] = ()) -> RenderedMessage:
        return self.output(name, f"no such tool, only {sorted((*functions, *hosted))}")

    def text_of(self, tokens: "Tokens[int]") -> str:
        text = bytes(tokens[:-1].tolist()).decode().replace("\v", "\n")
        return text.removeprefix("User: ")

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,)) if 0 <= token < 256 else b"?"

    def _message(self, kind: MessageKind, text: str) -> RenderedMessage:
        return RenderedMessage(kind, _line(text))


FORMAT = PlainFormat()
