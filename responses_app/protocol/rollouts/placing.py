"""`Heads`: where a new generation of a roll-out stands, found by the tokens of its prompt.

Clients send the whole conversation with each request, harnesses change parts of it, and sub-agents begin others. None
of that is believed: what a prompt shares with an earlier one is what its tokens share. Example:

    generation  prompt           sampled    place
    0           A B              c d        begins a sequence
    1           A B c d E        f          continues 0: all of it stands at the beginning
    2           A B c d X        y          shares 4 tokens with 1, which are the whole of 0: it continues 0, a fork
    3           A B d            z          shares 2 tokens with 0: a break, at position 2

`Heads` has one head for each sequence: its tokens, and which generation they are of. A prompt of 142,000 tokens is
placed in less than a millisecond, since blocks of tokens are compared at once.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.formats.base import Tokens, as_tokens
from responses_app.protocol.rollouts.generations import Break, EngineCall, Generation, Recorded

BLOCK = 4096  # tokens that are compared at once
TOKEN_BYTES = 4  # of memory


class Placement(NamedTuple):
    """Where a generation stands; the names are `Generation`'s."""

    parent: int | None
    shared: int
    cut: Break
    near: int | None


@dataclass(slots=True)
class _Mark:
    """A generation on the way to a head."""

    number: int
    call: EngineCall
    prompt: int  # how long its prompt is
    whole: int  # how many tokens it has read and sampled
    upto: int  # how many of them this head begins with


@dataclass(slots=True)
class _Head:
    tokens: "Tokens[int]"  # that its last generation has read and sampled
    marks: list[_Mark] = field(default_factory=list)

    @property
    def last(self) -> _Mark:
        return self.marks[-1]

    def owner(self, position: int) -> _Mark:
        """Return the generation that has the token before a position."""
        return self.marks[bisect_left(self.marks, position, key=lambda mark: mark.upto)]

    def before(self, position: int) -> list[_Mark]:
        """Return the generations that have the tokens before a position."""
        count = bisect_left(self.marks, position, key=lambda mark: mark.upto)
        *whole, last = self.marks[: count + 1]
        return [*whole, _Mark(last.number, last.call, last.prompt, last.whole, position)]


class Heads:
    """The heads of the sequences of one roll-out."""

    def __init__(self, generations: Iterable[Generation] = ()) -> None:
        self._heads: list[_Head] = []
        self.numbers: set[int] = set()  # of the generations that it knows
        for generation in generations:
            self.add(generation)

    @property
    def size(self) -> int:
        """How many bytes of memory its tokens take."""
        return TOKEN_BYTES * sum(len(head.tokens) for head in self._heads)

    def place(self, recorded: Recorded) -> Placement:
        """Return where a generation stands; it is added by `add`, once it has its number."""
        if not self._heads:
            return Placement(None, 0, "", None)
        head, shared = self._nearest(recorded)
        if not shared:
            near = head.last
            return Placement(None, 0, _reason(near, recorded, 0), near.number)
        mark = head.owner(shared)
        cut = "" if shared == mark.whole else _reason(mark, recorded, shared)
        return Placement(mark.number, shared, cut, mark.number)

    def add(self, generation: Generation) -> None:
        """Add a generation, whose parent is known."""
        if generation.number in self.numbers:
            return
        self.numbers.add(generation.number)
        call, shared = generation.call, generation.shared
        mark = _Mark(generation.number, call, generation.prompt_tokens, generation.whole, generation.whole)
        parent = self._with(generation.parent, shared)
        if parent is not None and shared == len(parent.tokens):
            head = parent
        else:
            head = _Head(as_tokens()) if parent is None else _Head(parent.tokens[:shared], parent.before(shared))
            self._heads.append(head)
        head.tokens.extend(generation.tail)
        head.tokens.extend(call.sampled)
        head.marks.append(mark)

    def _with(self, number: int | None, shared: int) -> _Head | None:
        """Return a head that begins with so many tokens of a generation."""
        if number is None or not shared:
            return None
        for head in reversed(self._heads):
            if any(mark.number == number and mark.upto >= shared for mark in head.marks):
                return head
        raise ValueError(f"generation {number} is not known")

    def _nearest(self, recorded: Recorded) -> tuple[_Head, int]:
        """Return the head that a prompt continues, or with which it shares most, and how many tokens it shares."""
        prompt, call = recorded.prompt, recorded.call
        best, most = self._heads[-1], (False, 0, False)
        # The latest first: nearly always that is the one.
        for head in reversed(self._heads):
            shared = common(head.tokens, prompt)
            found = (shared == len(head.tokens), shared, (head.last.call.branch, head.last.call.agent) == _whose(call))
            if found > most:
                best, most = head, found
        return best, most[1]


def common(first: "Tokens[int]", second: "Tokens[int]") -> int:
    """Return how many tokens two arrays begin with that are the same."""
    end = min(len(first), len(second))
    for begin in range(0, end, BLOCK):
        upto = min(begin + BLOCK, end)
        if first[begin:upto] != second[begin:upto]:
            return begin + _common_in(first[begin:upto], second[begin:upto])
    return end


def _common_in(first: "array[int]", second: "array[int]") -> int:
    return next(place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)


def _whose(call: EngineCall) -> tuple[str, str | None]:
    return call.branch, call.agent


def _reason(mark: _Mark, recorded: Recorded, shared: int) -> Break:
    """Return why a prompt that shares so many tokens with a generation does not continue it."""
    call, before = recorded.call, mark.call
    if call.summary or (call.compacted and not before.compacted):
        return "compaction"
    if shared == len(recorded.prompt):
        return "fork"
    if _whose(call) != _whose(before):
        return "sub_agent"
    if shared < mark.prompt:
        return "instructions_changed" if shared < before.instructions else "history_changed"
    if shared == mark.whole - 1:  # all but the token that ended the turn, which some formats write otherwise later
        return "template"
    if before.reasoning:
        return "reasoning_settled"
    return "template" if call.response_id == before.response_id else "history_changed"
