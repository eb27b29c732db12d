"""The grammar of a Harmony turn, and whether tokens follow it.

    turn      = { thought | call <|end|> next | thought } last
    thought   = <|channel|> (analysis | commentary) <|message|> text <|end|> next
    next      = <|start|> assistant
    last      = call | answer                       (a call alone where the turn must call)
    call      = (to=NAME <|channel|> CHANNEL | <|channel|> CHANNEL to=NAME) [type] <|message|> what the tool takes
    answer    = <|channel|> final [type] <|message|> what an answer is
    type      = json | code | text, each bare or behind <|constrain|>

The token that stops the model is not part of it: xgrammar takes a stop token only where the grammar is complete, and
never as a part of a grammar. So `<|call|>` may stand behind an answer and `<|return|>` behind a call; the parser lets
the header decide what a message is. A call may stand on any channel but `final`, as the parser reads it.

A turn is made of shapes, which also say what is left of it behind some tokens:

    turn ── to_structural_tag() ──> JSON for xgrammar
    turn ── advance(special token or text) ──> the shapes that may follow; none where the tokens break the grammar

A special token is matched by its id, text by its bytes: how a text is divided into tokens is the model's own affair.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

from engine import orjson
from engine.contents.ebnf import to_ebnf
from engine.contents.keywords import text_pattern_of
from engine.contents.schemas import json_tag
from engine.contents.validation import problem_of
from engine.formats.harmony.encoding import (
    ANALYSIS,
    ASSISTANT,
    CHANNEL,
    COMMENTARY,
    CONSTRAIN,
    END,
    ENDOFTEXT,
    FINAL,
    FUNCTIONS,
    MESSAGE,
    SPECIAL_TOKENS,
    START,
    STOP_TOKENS,
    decode_tokens,
    token_bytes,
)
from engine.types import AnyObject, AnyText, CallRule, Content, JsonSchema, Lark, Regex, TurnGrammar, TurnRules

Step = int | bytes  # a special token, or the bytes of ordinary ones
MAX_REMEMBERED_CHARACTERS = 128 * 1024  # of the schemas and grammars of one turn
MAX_SHOWN = 60  # tokens of a completion in a sentence about it

_KINDS = ("json", "code", "text")
# What may end a turn; `<|endoftext|>` is sampled in place of a stop token.
_LAST = frozenset((*STOP_TOKENS, ENDOFTEXT))
_SPECIAL = frozenset(SPECIAL_TOKENS)

_ANY_TEXT: dict[str, object] = {"type": "any_tokens", "exclude_tokens": list(SPECIAL_TOKENS)}
_NEVER: dict[str, object] = {
    "type": "sequence",
    "elements": [
        {"type": "regex", "pattern": r"[^\u0000-\U0010ffff]"},  # no character at all
        _ANY_TEXT,
        *({"type": "token", "token": token} for token in (CHANNEL, MESSAGE, END, START, CONSTRAIN)),
    ],
}


class Shape(ABC):
    """A shape that tokens may have. Shapes are values."""

    __slots__ = ()

    @abstractmethod
    def tag(self) -> dict[str, object]:
        """Return it in xgrammar's words."""

    @abstractmethod
    def advance(self, step: Step) -> Iterator[tuple["Shape", Step]]:
        """Yield each shape that is left behind `step`, with the part of it (of a text) that belongs to what follows."""

    @abstractmethod
    def may_end(self) -> bool:
        """Whether nothing more is needed."""

    def problem(self) -> str:
        """Say why it may not end, where the content of a message is to blame; else nothing."""
        return ""


@dataclass(frozen=True, slots=True)
class Chars(Shape):
    """Exactly this text."""

    data: bytes  # UTF-8; what is left of a text may begin within a character

    def tag(self) -> dict[str, object]:
        return {"type": "const_string", "value": self.data.decode()}

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        if isinstance(step, int):
            return
        # The step says the beginning of the text, or all of it.
        if self.data.startswith(step):
            yield (Chars(self.data[len(step) :]) if len(step) < len(self.data) else NOTHING), b""
        # The step says more than the text: the rest belongs to what follows.
        elif step.startswith(self.data):
            yield NOTHING, step[len(self.data) :]

    def may_end(self) -> bool:
        return not self.data


@dataclass(frozen=True, slots=True)
class Special(Shape):
    """Exactly this special token."""

    token: int

    def tag(self) -> dict[str, object]:
        return {"type": "token", "token": self.token}

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        if step == self.token:
            yield NOTHING, b""

    def may_end(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class InOrder(Shape):
    """One after the other."""

    parts: tuple[Shape, ...]

    def tag(self) -> dict[str, object]:
        if len(self.parts) == 1:
            return self.parts[0].tag()
        return {"type": "sequence", "elements": [part.tag() for part in self.parts]}

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        # A part that may be nothing can be skipped, so the step may belong to any part up to the first that may not.
        for index, part in enumerate(self.parts):
            behind = self.parts[index + 1 :]
            for left, rest in part.advance(step):
                if rest == b"" or not behind:
                    yield in_order(left, *behind), rest
                else:
                    yield from in_order(left, *behind).advance(rest)
            if not part.may_end():
                return

    def may_end(self) -> bool:
        return all(part.may_end() for part in self.parts)

    def problem(self) -> str:
        return next((part.problem() for part in self.parts if not part.may_end()), "")


@dataclass(frozen=True, slots=True)
class OneOf(Shape):
    """One of these."""

    options: tuple[Shape, ...]

    def tag(self) -> dict[str, object]:
        return {"type": "or", "elements": [option.tag() for option in self.options]}

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        for option in self.options:
            yield from option.advance(step)

    def may_end(self) -> bool:
        return any(option.may_end() for option in self.options)


@dataclass(frozen=True, slots=True)
class Many(Shape):
    """This, any number of times."""

    part: Shape

    def tag(self) -> dict[str, object]:
        return {"type": "star", "content": self.part.tag()}

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        for left, rest in self.part.advance(step):
            yield in_order(left, self), rest

    def may_end(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Maybe(Shape):
    """This or nothing."""

    part: Shape

    def tag(self) -> dict[str, object]:
        return {"type": "optional", "content": self.part.tag()}

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        return self.part.advance(step)

    def may_end(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Held(Shape):
    """The content of a message: no special token, and as a whole what its rule says."""

    content: Content  # what it is to be as a whole
    said: bytes = b""  # its beginning, which was said already

    def tag(self) -> dict[str, object]:
        if self.said:  # no grammar can be held from the middle of a content on, so the rest is any text
            return _ANY_TEXT
        match self.content:
            case JsonSchema() | AnyObject():
                return json_tag(self.content)
            case Regex(pattern):
                return {"type": "regex", "pattern": text_pattern_of(pattern)}
            case Lark(grammar):
                return {"type": "grammar", "grammar": to_ebnf(grammar)}
        return _ANY_TEXT

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        if isinstance(step, bytes):
            # Any text can follow: whether it fits as a whole is known at its end only (`may_end`).
            yield (self if isinstance(self.content, AnyText) else Held(self.content, self.said + step)), b""

    def may_end(self) -> bool:
        return problem_of(self.content, self.said) is None

    def problem(self) -> str:
        return problem_of(self.content, self.said) or ""


NOTHING = InOrder(())


def is_inside(shape: Shape) -> bool:
    """Whether a shape begins in the middle of a content that has a rule."""
    first = shape.parts[0] if isinstance(shape, InOrder) and shape.parts else shape
    return isinstance(first, Held) and bool(first.said)


def in_order(*parts: Shape) -> Shape:
    """Return parts one after the other, without the empty ones and without rows in rows."""
    flat: list[Shape] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, InOrder) else (part,))
    return flat[0] if len(flat) == 1 else InOrder(tuple(flat))


def to_structural_tag(shapes: Sequence[Shape]) -> str:
    """Return what follows these shapes, one of them, as xgrammar's structural tag: JSON.

    xgrammar (0.2.8) numbers the special tokens of a grammar as it meets them, and its cache takes rules of two grammars
    for the same where their numbers are: a mask would then allow a wrong token. So each grammar begins with a choice
    that can never be taken and has them all, in one order.
    """
    options = [_NEVER, *(shape.tag() for shape in shapes)]
    return orjson.dumps({"type": "structural_tag", "format": {"type": "or", "elements": options}}).decode()


def turn_grammar(rules: TurnRules, behind: Sequence[int] = ()) -> TurnGrammar | None:
    """Return the grammar of a turn, or of what is left of it `behind` tokens that were sampled already.

    None where those tokens break it: then nothing can be held from there. Where they end within a content that has a
    rule, that content goes on without it, and the grammar is `loose`. Raises `GrammarRefused` for a Lark grammar that
    cannot be used.
    """
    # Not remembered: hardly any two turns are cut at the same place.
    if behind:
        left, _ = _follow(turn_shape(rules), behind)
        return TurnGrammar(rules, to_structural_tag(left), loose=any(map(is_inside, left))) if left else None
    contents = (rules.answer, *(rule.content for rule in rules.calls))
    if sum(len(repr(content)) for content in contents) > MAX_REMEMBERED_CHARACTERS:
        return _whole_grammar.__wrapped__(rules)
    return _whole_grammar(rules)


def problem_of_turn(rules: TurnRules, tokens: Sequence[int], *, cut: bool = False) -> str | None:
    """Say what in a completion, stop token included, breaks the rules; None for nothing. `cut`: it is a beginning."""
    # The stop token is not part of the grammar.
    ended = bool(tokens) and tokens[-1] in _LAST
    sampled = tokens[:-1] if ended else tokens
    left, problem = _follow(turn_shape(rules), sampled)
    if problem is not None:
        return problem
    if (cut and not ended) or any(shape.may_end() for shape in left):
        return None
    return f"it ends too early{_because(left)}"


@lru_cache(maxsize=64)  # with MAX_REMEMBERED_CHARACTERS: at most 8 MiB, twice
def _whole_grammar(rules: TurnRules) -> TurnGrammar:
    return TurnGrammar(rules, to_structural_tag([turn_shape(rules)]))


def turn_shape(rules: TurnRules) -> Shape:
    """Return what a turn may be, as the module's docstring draws it."""
    onward = in_order(Special(END), _NEXT)
    # `groupby` needs its input in the order of the key; contents have no order, so their `repr` gives one.
    by_content = groupby(sorted(rules.calls, key=lambda rule: repr(rule.content)), attrgetter("content"))
    calls = [_call(list(same), content) for content, same in by_content]
    options = tuple(in_order(part, onward) for part in (_THOUGHT, *calls))
    before = OneOf(options) if calls else options[0]
    answer = in_order(Special(CHANNEL), Chars(FINAL.encode()), _TYPE, Special(MESSAGE), Held(rules.answer))
    last = calls if rules.must_call else [*calls, answer]
    return in_order(Many(before), last[0] if len(last) == 1 else OneOf(tuple(last)))


def _call(rules: Sequence[CallRule], content: Content) -> Shape:
    """Return a call of one of several tools that take the same."""
    names = [Chars((rule.name if rule.hosted else FUNCTIONS + rule.name).encode()) for rule in rules]
    name = names[0] if len(names) == 1 else OneOf(tuple(names))
    # The recipient stands before the channel or behind it: models write both.
    to = in_order(Chars(b" to="), name)
    return in_order(OneOf((in_order(to, _CHANNEL), in_order(_CHANNEL, to))), _TYPE, Special(MESSAGE), Held(content))


_NEXT = in_order(Special(START), Chars(ASSISTANT.encode()))
_CHANNEL = in_order(Special(CHANNEL), OneOf((Chars(COMMENTARY.encode()), Chars(ANALYSIS.encode()))))
_THOUGHT = in_order(_CHANNEL, Special(MESSAGE), Held(AnyText()))
_TYPE = Maybe(
    OneOf(
        (
            in_order(Chars(b" "), OneOf(tuple(Chars(kind.encode()) for kind in _KINDS))),
            in_order(Maybe(Chars(b" ")), Special(CONSTRAIN), OneOf(tuple(Chars(kind.encode()) for kind in _KINDS))),
        )
    )
)


def _follow(shape: Shape, tokens: Sequence[int]) -> tuple[list[Shape], str | None]:
    """Return what may follow some tokens; if nothing may, say where they go wrong."""
    left, read = [shape], 0
    for step, size in _steps(tokens):
        # Only those that take all of the step: what is left over belongs to nothing.
        after = [each for shape in left for each, rest in shape.advance(step) if rest == b""]
        if not after:
            shown = decode_tokens(tokens[max(0, read - MAX_SHOWN) : read])
            wrong = decode_tokens(tokens[read : read + size])
            return [], f"{wrong[:200]!r} cannot follow {shown!r}{_because(left)}"
        # `dict.fromkeys`: the same shape may be reached in several ways, and would be followed as often.
        left, read = list(dict.fromkeys(after)), read + size
    return left, None


def _because(shapes: Sequence[Shape]) -> str:
    problem = next(filter(None, (shape.problem() for shape in shapes)), "")
    return f": {problem}" if problem else ""


def _steps(tokens: Sequence[int]) -> Iterator[tuple[Step, int]]:
    """Yield special tokens, and the bytes of the ordinary ones between them, each with its number of tokens."""
    # A `bytearray`, as `bytes +=` copies all that came before.
    text, size = bytearray(), 0
    for token in tokens:
        if token not in _SPECIAL:
            text += token_bytes(token)
            size += 1
            continue
        if size:
            yield bytes(text), size
            text, size = bytearray(), 0
        yield token, 1
    if size:
        yield bytes(text), size
