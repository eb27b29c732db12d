"""A roll-out as it is recorded, one `Generation` for each call of the engine, and as its tokens are packed.

A call that was cut, since its replica or its worker died, and went on is one generation: what was sampled before the
cut is sampled, and no part of the prompt.

Tokens and log probabilities are kept as bytes, 7 for a sampled token where log probabilities are 32-bit floats:

    tokens              b"\\x03" and 3 bytes each, or b"\\x04" and 4 bytes each where an id does not fit into 3
    log probabilities   b"\\x04" and 32-bit floats where these are exactly what the engine has sent, else b"\\x08" and
                        64-bit floats; empty where the engine has sent none

All is little-endian. A log probability that the engine did not tell of a token is NaN.
"""

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.formats.base import Tokens, as_tokens
from engine.types import WeightsSpan
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.rollouts.requests import MAIN, Api, Break, RolloutRef

_LITTLE = sys.byteorder == "little"
Tops = Sequence[Sequence[tuple[int, float]]]


@dataclass(frozen=True, slots=True)
class Times:
    """When the steps of a call came, in Unix milliseconds; None where nobody knows."""

    queued: int | None = None  # it began to wait for its turn
    asked: int | None = None  # the engine was asked
    first_token: int | None = None
    ended: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCall:
    """One call of the engine: whose it was, what it was asked beside the prompt, and what it gave."""

    response_id: str
    api: Api = "responses"
    branch: str = MAIN
    agent: str | None = None  # the name of an agent below the root of a response
    turn: int = 0  # of the response
    sampled: "Tokens[int]"
    logprobs: "array[float] | None" = None  # one for each sampled token; None where the engine has none
    tops: Tops | None = None  # the likeliest tokens at each place, where the request asked for them
    finish: str | None = None  # stop, length, abort, or one of `weights.FINISHED`; None where something else ended it
    times: Times = Times()
    weights: Sequence[WeightsSpan] = ()  # of all sampled tokens, in order
    sampling: JsonObject = field(default_factory=dict)  # what was asked, by vLLM's names
    # Whether a grammar held it: then its log probabilities are of the tokens that the grammar allowed. None where it
    # was recorded before this was.
    grammar: bool | None = None
    images: Sequence[tuple[int, str]] = ()  # of the prompt: the place of the first token, and its digest
    summary: bool = False  # it sums up what came before
    compacted: bool = False  # it begins with a summary instead of what came before
    reasoning: int = 0  # how many of its tokens are thoughts
    instructions: int = 0  # how many tokens stand before the first message of its prompt, where that is known
    dropped: int = 0  # tokens that the engine gave behind the end of the turn, and that nobody has read
    vocabulary: str = ""  # whose tokens they are: `ModelFormat.vocabulary_name`
    experts: Any = None  # that its tokens were routed to, as the engine tells it; None where it does not


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call with all that the model has read: as it is recorded, before it has its place.

    The turns of one response begin with the same tokens, and may be long and many: those are there once.
    """

    call: EngineCall
    tail: "Tokens[int]"  # its prompt behind what is shared
    before: "Recorded | None" = None  # the call with whose tokens the prompt begins
    shared: int = 0  # how many of them

    @property
    def prompt(self) -> "Tokens[int]":
        """All of its prompt: made anew at each call, unless nothing is shared."""
        return self.tail if self.before is None else self._upto(self.shared + len(self.tail))

    def whole(self) -> "Tokens[int]":
        """Return all tokens that the model has read and sampled."""
        return self._upto(self.shared + len(self.tail) + len(self.call.sampled))

    def _upto(self, end: int) -> "Tokens[int]":
        """Return the first tokens of the prompt and of those that were sampled behind it."""
        parts: list[Tokens[int]] = []
        each = self
        while True:
            own = each.tail[: max(0, end - each.shared)]
            parts += [each.call.sampled[: max(0, end - each.shared - len(each.tail))], own]
            if each.before is None:
                break
            end, each = min(end, each.shared), each.before
        found = as_tokens()
        for part in reversed(parts):
            found.extend(part)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResponse:
    """What one response, or one completion, adds to a roll-out: all of it, or none."""

    project: str
    rollout: RolloutRef
    response_id: str
    model: str
    calls: Sequence[Recorded]  # in the order in which they ended

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes: 4 a token, 8 a log probability, and 150 one of the likeliest."""
        size = 0
        for tail, call in ((each.tail, each.call) for each in self.calls):
            size += 4 * len(tail) + 12 * len(call.sampled) + 150 * sum(map(len, call.tops or ()))
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A call at its place: behind the first `shared` tokens that `parent` has read and sampled."""

    number: int  # in the order in which they were kept, from 0 on
    call: EngineCall
    parent: int | None = None  # the number of the generation with whose tokens it begins
    shared: int = 0  # how many of them
    cut: Break = ""  # why it does not continue the whole of another one
    near: int | None = None  # the one that it could have continued; None where it is the first
    tail: "Tokens[int]"  # its prompt behind what is shared

    @property
    def prompt_tokens(self) -> int:
        """How long its prompt is."""
        return self.shared + len(self.tail)

    @property
    def whole(self) -> int:
        """How many tokens it has read and sampled."""
        return self.prompt_tokens + len(self.call.sampled)


def spans_of(weights: Sequence[WeightsSpan], begin: int, end: int) -> list[WeightsSpan]:
    """Return the versions of the sampled tokens from `begin` up to `end`, where two in a row differ."""
    found: list[WeightsSpan] = []
    position = 0
    for span in weights:
        count = min(end, position + span.tokens) - max(begin, position)
        position += span.tokens
        if count > 0:
            add_span(found, WeightsSpan(span.version, count))
    return found


def add_span(spans: list[WeightsSpan], span: WeightsSpan) -> None:
    """Add tokens behind others."""
    if spans and spans[-1].version == span.version:
        spans[-1] = WeightsSpan(span.version, spans[-1].tokens + span.tokens)
    elif span.tokens:
        spans.append(span)


def pack_tokens(tokens: "Tokens[int]") -> bytes:
    """Return tokens as bytes."""
    data = _as_bytes(tokens)
    # The highest byte of every token is 0: three of four are kept.
    if data[3::4].count(0) == len(tokens):
        packed = bytearray(3 * len(tokens))
        for place in range(3):
            packed[place::3] = data[place::4]
        return b"\x03" + packed
    return b"\x04" + data


def unpack_tokens(packed: bytes) -> "Tokens[int]":
    """Read the bytes of `pack_tokens`."""
    content = packed[1:]
    if packed[:1] == b"\x03":
        wide = bytearray(len(content) // 3 * 4)
        for place in range(3):
            wide[place::4] = content[place::3]
        content = bytes(wide)
    tokens = as_tokens()
    tokens.frombytes(content)
    if not _LITTLE:
        tokens.byteswap()
    return tokens


def pack_logprobs(logprobs: "array[float] | None") -> bytes:
    """Return log probabilities as bytes, exactly as they are."""
    if logprobs is None:
        return b""
    short = array("f", logprobs)
    # Compared as bytes: so NaN is equal to itself.
    if _as_bytes(array("d", short)) == _as_bytes(logprobs):
        return b"\x04" + _as_bytes(short)
    return b"\x08" + _as_bytes(logprobs)


def unpack_logprobs(packed: bytes) -> "array[float] | None":
    """Read the bytes of `pack_logprobs`."""
    if not packed:
        return None
    read = array("f" if packed[:1] == b"\x04" else "d")
    read.frombytes(packed[1:])
    if not _LITTLE:
        read.byteswap()
    return array("d", read)


def as_logprobs(values: Iterable[float] = ()) -> "array[float]":
    """Return log probabilities as an array."""
    return array("d", values)


def numbers(values: "array[float]") -> list[float | None]:
    """Return numbers as JSON has them: nothing for NaN, and -9999 for minus infinity, as vLLM's servers say it."""
    if math.isfinite(sum(values)):  # nearly always, for sampled tokens
        return list(values)
    return [number(value) for value in values]


def number(value: float) -> float | None:
    """Return a number as JSON has it."""
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else -9999.0


def _as_bytes(values: "array[int] | array[float]") -> bytes:
    if not _LITTLE:
        values = values[:]
        values.byteswap()
    return values.tobytes()
