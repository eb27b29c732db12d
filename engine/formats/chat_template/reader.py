"""The text of a turn → reasoning, answers and calls, as the families of open models write them.

    <think>…</think>                                          reasoning; the opening tag may stand in the prompt
    <tool_call>{"name": …, "arguments": {…}}</tool_call>      a call, as Hermes and Qwen write it
    {"name": …, "parameters": {…}}                            a call, as Llama 3 writes it: a turn that begins with it,
    <|python_tag|>{"name": …, "parameters": {…}}; {…}         or what follows this tag; several are divided by `;`
    anything else                                             the answer

Text is taken as it comes, cut anywhere: whatever may be the beginning of a tag, or of a call, is held until that is
decided. What looks like a call and is not one is the answer's text: nothing that a model says is lost, but the white
space around tags that is the template's.

    CONTENT ── <think> ──> REASONING ── </think> ──> CONTENT
       │ └── <tool_call>, "{" ──> HEAD ── name, "{" ──> ARGUMENTS ── "}" ──> TAIL ──> CONTENT
       └── the end                 └── not so ──> WHOLE (a call once it is all there, or the answer) ──> CONTENT

White space between items is an item's, or what a chat template writes by itself (`Gap`):

    <think>⏎Hm.⏎</think>⏎⏎Hello.⏎<tool_call>…        the line ends shown here belong to the template

A chat template writes these line ends anew around a text that it is given. Any more white space is the item's own, and
its text keeps it: so the next rendering says what was sampled, byte by byte, and the sampled tokens are found in it.
White space with nothing behind it but a tag, or a call, is no item's text.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeGuard

import regex

from engine import orjson
from engine.formats.base import Text
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

    A match may be partial only where the text is `final`, which means that nothing follows it. A text that does
    not end within these characters does not match: else each token would make all of them be read again.
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


SPACE = " \t\r\n"
LINE = "\n"
_LINES_BEHIND_THOUGHT = 2  # line ends that a template writes behind a thought


@dataclass(slots=True)
class Gap:
    """White space that came where an item may begin, until it is known which one does."""

    text: str = ""  # the white space itself
    is_behind_thought: bool = False  # then the template's own lines are in it
    is_behind_call: bool = False  # then an answer is a message of its own, and the gap before it is dropped

    def take(self, text: str) -> str:
        """Take the white space with which a text begins; return the rest of it."""
        rest = text.lstrip(SPACE)
        self.text += text[: len(text) - len(rest)]
        return rest

    def before_answer(self) -> str:
        """Return what an answer that begins here begins with."""
        if self.is_behind_call:
            return ""
        text = self.text
        for _ in range(_LINES_BEHIND_THOUGHT if self.is_behind_thought else 0):
            text = text.removeprefix(LINE)
        return text

    def before_thought(self) -> str:
        """Return what a thought that begins here begins with."""
        return self.text.removeprefix(LINE)


THINK, THINK_END = "<think>", "</think>"
CALL = "<tool_call>"
PYTHON = "<|python_tag|>"
TAGS = (THINK, THINK_END, CALL, CALL_END, PYTHON)


class CallStyle(Enum):
    """How a family of models writes calls."""

    NONE = "none"  # nothing is read as a call
    HERMES = "hermes"  # between tags
    JSON = "json"  # by its shape alone


_TAGS: Mapping[CallStyle, Sequence[str]] = {  # with which calls begin
    CallStyle.NONE: (),
    CallStyle.HERMES: (CALL,),
    CallStyle.JSON: (PYTHON,),
}


class ReadKind(Enum):
    """The kinds of items."""

    REASONING = "reasoning"
    ANSWER = "answer"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class ReadStarted:
    """An item begins."""

    kind: ReadKind  # what begins
    name: str = ""  # of a call: what it calls


@dataclass(frozen=True, slots=True)
class Whole:
    """All of the open call has been said; it ends when something follows."""


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """The open item ends."""

    truncated: bool = False  # the turn ended before the item did
    is_last: bool = False  # the turn ends with it, and it is a call that was said as a whole
    freeform: bool = False  # a call's text was taken out of `FREEFORM`


# `Text`: of the open item; of a call, its arguments.
Read = ReadStarted | Text | Whole | ReadEnded


class BaseReader(ABC):
    """Reads one turn: the items do not depend on how its text comes. `repairs` counts those that were malformed."""

    takes_special_tokens: bool = False  # else only those that are tags of ours
    repairs: int

    @abstractmethod
    def feed(self, text: str, tokens: Sequence[int] = ()) -> list[Read]:
        """Take text, and the tokens that it is; return what it completes. Raises nothing, whatever it says."""

    @abstractmethod
    def end(self, *, stopped: bool) -> list[Read]:
        """End the turn. `stopped`: by the model, else in its middle: then what is open is truncated."""


class TagReader(BaseReader):
    """Reads one turn. `is_call` says whether a name can be that of a tool, where only its shape tells a call."""

    def __init__(
        self, *, style: CallStyle, thinks: bool, is_open: bool = False, is_call: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Begin; `thinks`: there are tags around reasoning; `is_open`: the first of them stands in the prompt."""
        self._style = style
        self._tags = _TAGS[style]
        self._is_call = is_call
        self._thinks = thinks
        self._held = ""  # text that was not decided yet: it may be the beginning of a tag, or of a call
        self._final = False  # nothing more comes
        # What reads the next text: each state returns whether it got on, and so another one may have something to read.
        self._state: Callable[[], bool] = self._reasoning if is_open else self._content
        self._may_think_again = is_open  # some models write the tag that stands in the prompt, too
        self._open: ReadKind | None = None  # what the open item is
        self._is_whole = False  # the open call was said
        self._freeform = False  # the open call was given text as it is
        self._gap = Gap()  # before the item that comes next
        self._tag = ""  # before the call that is being read
        self._scan = ObjectScan()  # of a call's arguments, or of a call that is read as a whole
        self._read: list[Read] = []
        self.repairs = 0

    def feed(self, text: str, tokens: Sequence[int] = ()) -> list[Read]:
        self._held += text
        while self._state():
            pass
        read, self._read = self._read, []
        return read

    def end(self, *, stopped: bool) -> list[Read]:
        self._final = True
        read = self.feed("")
        if self._open is not None:
            # An answer or a thought is done where the model stopped; a call only with its last brace.
            done = self._is_whole or (stopped and self._open is not ReadKind.CALL)
            self._close(truncated=not done, is_last=self._is_whole)
            read += self.feed("")
        return read

    # Items.

    def _begin(self, kind: ReadKind, name: str = "") -> None:
        self._close()
        self._open, self._gap = kind, Gap()
        self._read.append(ReadStarted(kind, name))

    def _say(self, text: str) -> None:
        if text:
            self._read.append(Text(text))

    def _close(self, *, truncated: bool = False, is_last: bool = False) -> None:
        if self._open is not None:
            self._read.append(ReadEnded(truncated, is_last, self._freeform))
        self._open, self._is_whole, self._freeform = None, False, False

    def _complete(self) -> None:
        """The open call was said; it ends once something follows, or the turn does."""
        self._is_whole = True
        self._gap = Gap(is_behind_call=True)
        self._read.append(Whole())
        self._state = self._content

    # Text: reasoning and answers.

    def _content(self) -> bool:
        if self._open is not ReadKind.ANSWER and not self._begins():
            return False
        if self._is_whole:
            self._close()  # something follows the call
        tag, place = self._next_tag()
        # Text before the tag belongs to the answer; the tag itself is read in the next round.
        if tag and not (self._open is not ReadKind.ANSWER and place == 0):
            before = self._held[:place].removesuffix(LINE)
            self._answer(before)
            self._close()
            # The line end before the tag is the template's: it goes into the gap.
            self._gap.text, self._held = self._held[len(before) : place], self._held[place:]
            return True
        if tag == "{":
            self._tag, self._state = "", self._head
            return True
        if tag:
            self._tag, self._held = tag, self._held[len(tag) :]
            # A thought ends what is open; a call does so only once it turns out to be one.
            self._state = self._reasoning if tag == THINK else self._head
            if tag == THINK:
                self._close()
                self._gap = Gap()
            return True
        # What may be the beginning of a tag is held until more text decides it.
        if self._thinks and self._open is not ReadKind.ANSWER and THINK.startswith(self._held) and not self._final:
            return False
        decided = len(self._held) - (0 if self._final else _undecided(self._held, self._tags))
        self._answer(self._held[:decided])
        self._held = self._held[decided:]
        return False

    def _begins(self) -> bool:
        """Set aside the white space before an item; whether there is anything behind it."""
        self._held = self._gap.take(self._held)
        # Calls of Llama 3 are divided by `;`.
        while self._gap.is_behind_call and self._style is CallStyle.JSON and self._held.startswith(";"):
            self._held = self._gap.take(self._held[1:])
        return bool(self._held)

    def _answer(self, text: str) -> None:
        if text:
            if self._open is not ReadKind.ANSWER:
                text = self._gap.before_answer() + text
                self._begin(ReadKind.ANSWER)
            self._read.append(Text(text))

    def _next_tag(self) -> tuple[str, int]:
        """Return the first tag, and its place; where an item begins a thought may, too, and a call without a tag."""
        if self._open is not ReadKind.ANSWER:
            if self._thinks and self._held.startswith(THINK):
                return THINK, 0
            if self._style is CallStyle.JSON and self._held.startswith("{"):
                return "{", 0
        places = [(self._held.find(tag), tag) for tag in self._tags if tag in self._held]
        place, tag = min(places, default=(-1, ""))
        return tag, place

    def _reasoning(self) -> bool:
        # The prompt ended with the tag, and the model may write it once more.
        if self._may_think_again:
            text = self._held.lstrip()
            if THINK.startswith(text) and not self._final and text != THINK:
                return False
            self._held = text.removeprefix(THINK) if text.startswith(THINK) else self._held
            self._may_think_again = False
        place = self._held.find(THINK_END)
        if place < 0:
            decided = len(self._held) - (0 if self._final else _undecided(self._held, (THINK_END,)))
            self._thought(self._held[:decided])
            self._held = self._held[decided:]
            return False
        # A line end before the closing tag is the template's.
        self._thought(self._held[:place].removesuffix(LINE))
        self._held = self._held[place + len(THINK_END) :]
        self._close()
        self._gap = Gap(is_behind_thought=True)
        self._state = self._content
        return True

    def _thought(self, text: str) -> None:
        if self._open is not ReadKind.REASONING:
            text = self._gap.take(text)
            if text:
                text = self._gap.before_thought() + text
                self._begin(ReadKind.REASONING)
        if text:
            self._read.append(Text(text))

    # Calls.

    def _head(self) -> bool:
        """Read a call up to the beginning of its arguments."""
        # The Python tag may stand alone, with its call behind it.
        if self._tag == PYTHON and not self._held.strip() and not self._final:
            return False
        pattern = HERMES_HEAD if self._tag == CALL else JSON_HEAD
        match, waits = matched(pattern, self._held, final=self._final)
        if waits:
            return False
        self._scan = ObjectScan()
        name = name_of(match[1]) if match is not None and not match.partial else None
        # Not a call, but it began like one: with tags it may be written in another order, without it is text.
        if match is None or name is None or not (self._tag == CALL or self._is_call(name)):
            self._state = self._whole if self._tag == CALL else self._text_after_all
            return True
        # The brace that begins the arguments is part of the match, and is scanned again.
        arguments = self._held[match.end() - 1 :]
        freeform, waits = matched(FREEFORM_ARGUMENTS, arguments, final=self._final)
        if waits:
            return False
        if freeform is not None:
            self._state = self._whole
            return True
        self._begin(ReadKind.CALL, name)
        self._held = arguments
        self._state = self._arguments
        return True

    def _arguments(self) -> bool:
        """Say the arguments as they come, to the brace that closes them."""
        end = self._scanned()
        if end is None:
            return False
        self._say(self._held[:end])
        self._held = self._held[end:]
        # An open brace at the end: the end tag stands in the middle of the arguments.
        if self._scan.depth:
            self.repairs += 1  # the call's end tag stands in the middle of its arguments
        self._state = self._tail
        return True

    def _scanned(self) -> int | None:
        """Return where the arguments end; without their end say all that is there, and return None."""
        for place, character in enumerate(self._held):
            if self._scan.ends_with(character):
                return place + 1
            # The end tag within a string is text; outside of one it ends the call, closed or not.
            if character == "<" and self._tag == CALL and not self._scan.in_string:
                rest = self._held[place:]
                if rest.startswith(CALL_END):
                    return place
                # The beginning of the tag alone: more text decides.
                if CALL_END.startswith(rest) and not self._final:
                    self._say(self._held[:place])
                    self._held = rest
                    return None
        self._say(self._held)
        self._held = ""
        return None

    def _tail(self) -> bool:
        """Read what closes a call; anything else that stands there is text behind it."""
        pattern = HERMES_TAIL if self._tag == CALL else JSON_TAIL
        match, waits = matched(pattern, self._held, final=self._final)
        if waits:
            return False
        if match is not None and not match.partial:
            self._held = self._held[match.end() :]
        elif match is None:
            self.repairs += 1
        else:
            self._held = ""  # the turn has ended in the middle of it
        self._complete()
        return True

    def _whole(self) -> bool:
        """Read a call once it is all there: one that is written in another order, or called with text as it is."""
        if self._tag == CALL:
            # From where the last look ended, less the tag's length: a tag may be cut by two pieces of text.
            end = self._held.find(CALL_END, max(0, self._scan.place - len(CALL_END)))
            self._scan.place = len(self._held)
            if end < 0 and not self._final:
                return False
            text, rest = (self._held, "") if end < 0 else (self._held[:end], self._held[end + len(CALL_END) :])
            raw = CALL + text + ("" if end < 0 else CALL_END)
        else:
            size = self._scan.size(self._held)
            if size is None and not self._final:
                return False
            text, rest = (self._held, "") if size is None else (self._held[:size], self._held[size:])
            raw = text
        self._held = rest
        call = call_of(text)
        if call is None:
            self.repairs += 1
            self._state = self._content
            # All that was held is the answer's, with its tags: nothing the model said is lost.
            self._answer(raw)
            return True
        name, arguments, freeform = call
        self._begin(ReadKind.CALL, name)
        self._say(arguments)
        self._freeform = freeform
        self._complete()
        return True

    def _text_after_all(self) -> bool:
        """Go on with what looked like a call, as the answer's text."""
        self._state = self._content
        # Its first character is text; from the next one on a call may begin anew.
        first, self._held = self._held[:1], self._held[1:]
        self._answer(first)
        return bool(self._held) or self._final


def _undecided(text: str, tags: Sequence[str]) -> int:
    """Return how many characters at a text's end may be the beginning of a tag, with the white space before them."""
    # A whole tag would have been found: one character less is the most that can be open.
    longest = max(map(len, tags), default=1) - 1
    begins = next(
        (size for size in range(min(longest, len(text)), 0, -1) if any(tag.startswith(text[-size:]) for tag in tags)), 0
    )
    return len(text) - len(text[: len(text) - begins].rstrip())
