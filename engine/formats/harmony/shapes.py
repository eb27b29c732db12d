"""Shapes of token sequences: what a grammar of a turn is made of, and what is left of one behind some tokens.

    turn ── to_structural_tag() ──> JSON for xgrammar
    turn ── advance(special token or text) ──> the shapes that may follow; none where the tokens break the grammar

A special token is matched by its id, text by its bytes: how a text is divided into tokens is the model's own affair.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from engine.contents.fitting import problem_of
from engine.contents.lark_grammars import to_ebnf
from engine.contents.patterns import without_dots
from engine.contents.schemas import enforceable
from engine.formats.harmony.encoding import CHANNEL, CONSTRAIN, END, MESSAGE, SPECIAL_TOKENS, START
from engine.grammar import AnyObject, AnyText, Content, JsonSchema, Lark, Regex

Step = int | bytes  # a special token, or the bytes of ordinary ones
MAX_WHITESPACE = 16  # characters in a row between the parts of a JSON text: a model may repeat spaces without end

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
    """What some tokens may be. Shapes are values."""

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

    data: bytes

    def tag(self) -> dict[str, object]:
        return {"type": "const_string", "value": self.data.decode()}

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        if isinstance(step, int):
            return
        if self.data.startswith(step):
            yield (Chars(self.data[len(step) :]) if len(step) < len(self.data) else NOTHING), b""
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
class Row(Shape):
    """One after the other."""

    parts: tuple[Shape, ...]

    def tag(self) -> dict[str, object]:
        if len(self.parts) == 1:
            return self.parts[0].tag()
        return {"type": "sequence", "elements": [part.tag() for part in self.parts]}

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        for index, part in enumerate(self.parts):
            behind = self.parts[index + 1 :]
            for left, rest in part.advance(step):
                if rest == b"" or not behind:
                    yield row(left, *behind), rest
                else:
                    yield from row(left, *behind).advance(rest)
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
            yield row(left, self), rest

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
    """The content of a message: no special token, and as a whole what its rule says. `said` is its beginning."""

    content: Content
    said: bytes = b""

    def tag(self) -> dict[str, object]:
        if self.said:  # no grammar can be held from the middle of a content on, so the rest is any text
            return _ANY_TEXT
        match self.content:
            case JsonSchema(schema):
                return _json(orjson.Fragment(enforceable(schema)))
            case AnyObject():
                return _json({"type": "object"})
            case Regex(pattern):
                return {"type": "regex", "pattern": without_dots(pattern)}
            case Lark(grammar):
                return {"type": "grammar", "grammar": to_ebnf(grammar)}
        return _ANY_TEXT

    def advance(self, step: Step) -> Iterator[tuple[Shape, Step]]:
        if isinstance(step, bytes):
            yield (self if isinstance(self.content, AnyText) else Held(self.content, self.said + step)), b""

    def may_end(self) -> bool:
        return problem_of(self.content, self.said) is None

    def problem(self) -> str:
        return problem_of(self.content, self.said) or ""


NOTHING = Row(())


def is_inside(shape: Shape) -> bool:
    """Whether a shape begins in the middle of a content that has a rule."""
    first = shape.parts[0] if isinstance(shape, Row) and shape.parts else shape
    return isinstance(first, Held) and bool(first.said)


def row(*parts: Shape) -> Shape:
    """Return parts one after the other, without the empty ones and without rows in rows."""
    flat: list[Shape] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Row) else (part,))
    return flat[0] if len(flat) == 1 else Row(tuple(flat))


def to_structural_tag(shapes: Sequence[Shape]) -> str:
    """Return what follows these shapes, one of them, as xgrammar's structural tag: JSON.

    xgrammar (0.2.8) numbers the special tokens of a grammar as it meets them, and its cache takes rules of two grammars
    for the same where their numbers are: a mask would then allow a wrong token. So each grammar begins with a choice
    that can never be taken and has them all, in one order.
    """
    options = [_NEVER, *(shape.tag() for shape in shapes)]
    return orjson.dumps({"type": "structural_tag", "format": {"type": "or", "elements": options}}).decode()


def _json(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}
