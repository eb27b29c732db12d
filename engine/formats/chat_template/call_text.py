"""A call as text: how its beginning and its end look, and what it calls with what."""

from dataclasses import dataclass
from typing import TypeGuard

import regex

from engine import orjson
from engine.formats.chat_template.prompt import FREEFORM

MAX_NAME = 256  # characters of a function's name
MAX_HEAD = 8 * MAX_NAME  # characters of what stands before a call's arguments, or behind them: white space, too
CALL_END = "</tool_call>"

# A JSON string with its quotes; possessive (`*+`), so that an open one is not tried again at each character.
_STRING = r'("(?:[^"\\]|\\.)*+")'
# `{"name": "f", "arguments": {`, up to the brace that begins the arguments.
HERMES_HEAD = regex.compile(rf'\s*\{{\s*"name"\s*:\s*{_STRING}\s*,\s*"arguments"\s*:\s*\{{', regex.DOTALL)
# `{"name": "f", "parameters": {`, with or without `"type": "function"` before it.
JSON_HEAD = regex.compile(
    rf'\s*\{{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*{_STRING}\s*,\s*"(?:parameters|arguments)"\s*:\s*\{{',
    regex.DOTALL,
)
# `{"freeform_text"`: arguments that begin like this are those of a tool that takes text.
FREEFORM_ARGUMENTS = regex.compile(rf'\{{\s*"{FREEFORM}"')
# `}` and the end tag; the brace may be missing, as models forget it.
HERMES_TAIL = regex.compile(rf"\s*\}}?\s*{CALL_END}")
JSON_TAIL = regex.compile(r"\s*\}")


def name_of(written: str) -> str | None:
    """Return a function's name of a JSON string; None for what is not one."""
    try:
        name = orjson.loads(written)
    except orjson.JSONDecodeError:
        return None
    return name if _is_name(name) else None


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME


def call_of(text: str) -> tuple[str, str, bool] | None:
    """Return name and arguments of a call that is JSON, and whether it is called with text as it is."""
    try:
        call = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    name = call.get("name") if isinstance(call, dict) else None
    if not _is_name(name):
        return None
    # Llama 3 writes `parameters`, all others `arguments`.
    arguments = call.get("arguments", call.get("parameters", {}))
    freeform = _freeform_of(arguments)
    if freeform is not None:
        return name, freeform, True
    return name, arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode(), False


def freeform_text(arguments: str) -> str | None:
    """Return the text that a tool is called with which takes text as it is; None for any other arguments."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    return _freeform_of(parsed)


def _freeform_of(arguments: object) -> str | None:
    # The one key and no other: a function of the client's may have a parameter of that name among others.
    text = arguments[FREEFORM] if isinstance(arguments, dict) and arguments.keys() == {FREEFORM} else None
    return text if isinstance(text, str) else None


def matched(pattern: regex.Pattern[str], text: str, *, final: bool) -> tuple[regex.Match[str] | None, bool]:
    """Return what of a text's first `MAX_HEAD` characters matches, and whether more text is needed to decide that.

    A match may be partial only where the text is `final`, which means that nothing follows it. Whatever does not end
    within these characters is no match: else each token would make all of them be read again.
    """
    match = pattern.match(text[:MAX_HEAD], partial=True)
    if match is None or not match.partial:
        return match, False
    if len(text) > MAX_HEAD:
        return None, False
    return match, not final


@dataclass(slots=True)
class ObjectScan:
    """Where the JSON object ends with which a text begins; the text may grow, and each character is read once."""

    place: int = 0  # characters that `size` has read
    depth: int = 0  # of objects; a list ends within the object that it stands in
    in_string: bool = False
    escaped: bool = False  # the character before was a `\` within a string

    def size(self, text: str) -> int | None:
        """Return how long the object is; None where it does not end in this text, which begins with the last one."""
        begin, self.place = self.place, len(text)
        for place, character in enumerate(text[begin:], begin):
            if self.ends_with(character):
                return place + 1
        return None

    def ends_with(self, character: str) -> bool:
        """Read the next character; return whether it is the last of the object."""
        if self.in_string:
            # The string ends at a `"` without a `\` before it.
            self.in_string = self.escaped or character != '"'
            self.escaped = character == "\\" and not self.escaped
        elif character == '"':
            self.in_string = True
        elif character in "{}":  # lists need no count: one that is open ends before its object does
            self.depth += 1 if character == "{" else -1
            return self.depth == 0
        return False
