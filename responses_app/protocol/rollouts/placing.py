"""`PrefixTree`: where a new generation of a roll-out stands, found by the tokens of its prompt.

Clients send the whole conversation with each request, harnesses change parts of it, and sub-agents begin others. None
of that is believed: what a prompt shares with an earlier one is what its tokens share. Example:

    generation  prompt           sampled    place
    0           A B              c d        begins a sequence
    1           A B c d E        f          continues 0: all of it stands at the beginning
    2           A B c d X        y          shares 4 tokens with 1, which are the whole of 0: it continues 0, a fork
    3           A B d            z          shares 2 tokens with 0: a break, at position 2

The tree has each token once that generations share: a thousand forks of one prompt take little more memory than one of
them. A prompt of 142,000 tokens is placed in less than a millisecond, since blocks of tokens are compared at once, and
only with generations that go on as the prompt does.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.formats.base import Tokens, as_tokens
from responses_app.protocol.rollouts.generations import EngineCall, Generation, Recorded
from responses_app.protocol.rollouts.requests import Break

BLOCK = 4096  # tokens that are compared at once
SAME = 4  # tokens in a row behind one that differs, by which a text is known again
TOKEN_BYTES = 4  # of memory
GENERATION_BYTES = 600  # of memory beside its tokens


class Placement(NamedTuple):
    """Where a generation stands; the names are `Generation`'s."""

    parent: int | None
    shared: int
    cut: Break
    near: int | None


@dataclass(frozen=True, slots=True)
class _Mark:
    """What is needed of a generation to place others."""

    number: int
    whose: tuple[str, str | None]  # the branch and the agent
    response_id: str
    compacted: bool
    reasoning: int
    instructions: int
    prompt: int  # how long its prompt is
    whole: int  # how many tokens it has read and sampled


@dataclass(slots=True)
class _Branches:
    """What goes on behind some place: by the number of tokens before it, and by the first token."""

    at: "dict[int, dict[int, list[_Run]]]" = field(default_factory=dict)

    def add(self, run: "_Run") -> None:
        """Add a run of tokens that has some."""
        self.at.setdefault(run.begin, {}).setdefault(run.tokens[0], []).append(run)

    def matching(self, prompt: "Tokens[int]", upto: int) -> "Iterable[_Run]":
        """Return the runs that go on as a prompt does, behind its first `upto` tokens or fewer."""
        for place, following in self.at.items():
            if place <= upto and place < len(prompt):
                yield from following.get(prompt[place], ())


@dataclass(slots=True)
class _Run:
    """Generations of which each continues the whole of the one before, to the end of a sequence."""

    begin: int  # how many tokens stand before its own
    tokens: "Tokens[int]" = field(default_factory=as_tokens)
    marks: list[_Mark] = field(default_factory=list)
    branches: _Branches = field(default_factory=_Branches)

    @property
    def end(self) -> int:
        """How many tokens its sequence has."""
        return self.begin + len(self.tokens)

    def owner(self, position: int) -> _Mark:
        """Return the generation that has the token before a position, which is one of its own."""
        return self.marks[bisect_left(self.marks, position, key=lambda mark: mark.whole)]


class PrefixTree:
    """The generations of one roll-out, as far as others are placed by them."""

    def __init__(self, generations: Iterable[Generation] = ()) -> None:
        self._roots = _Branches()
        self._run_of: dict[int, _Run] = {}  # by the numbers of generations
        self._latest: dict[tuple[str, str | None], _Mark] = {}  # by whose they are
        self._last: _Mark | None = None
        self.size = 0  # bytes of memory
        for generation in generations:
            self.add(generation)

    @property
    def numbers(self) -> Collection[int]:
        """Those of the generations that it knows."""
        return self._run_of.keys()

    def place(self, recorded: Recorded) -> Placement:
        """Return where a generation stands; it is added by `add`, once it has its number."""
        if self._last is None:
            return Placement(None, 0, "", None)
        call, prompt = recorded.call, recorded.prompt
        before, shared = self._nearest(prompt, _whose(call))
        if before is None:
            near = self._latest.get(_whose(call), self._last)
            return Placement(None, 0, self._reason(near, call, prompt, 0), near.number)
        cut = "" if shared == before.whole else self._reason(before, call, prompt, shared)
        return Placement(before.number, shared, cut, before.number)

    def add(self, generation: Generation) -> None:
        """Add a generation, whose parent is known."""
        if generation.number in self._run_of:
            return
        call, shared = generation.call, generation.shared
        own = as_tokens(generation.tail)
        own.extend(call.sampled)
        parent = None  # the run that has the last of the tokens that are shared
        if generation.parent is not None and shared:
            if generation.parent not in self._run_of:
                raise ValueError(f"generation {generation.parent} is not known")
            parent = self._run_of[generation.parent]
        if parent is not None and shared == parent.end:
            run = parent
            run.tokens.extend(own)
        else:
            run = _Run(shared, own)
            (self._roots if parent is None else parent.branches).add(run)
        mark = _Mark(
            number=generation.number,
            whose=_whose(call),
            response_id=call.response_id,
            compacted=call.compacted,
            reasoning=call.reasoning,
            instructions=call.instructions,
            prompt=generation.prompt_tokens,
            whole=generation.whole,
        )
        run.marks.append(mark)
        self._run_of[mark.number] = run
        self._latest[mark.whose] = self._last = mark
        self.size += GENERATION_BYTES + TOKEN_BYTES * len(own)

    def _nearest(self, prompt: "Tokens[int]", whose: tuple[str, str | None]) -> tuple[_Mark | None, int]:
        """Return the generation that a prompt continues, or shares most with, and how many tokens it shares.

        The end of a sequence is better than more tokens of another one. Of what shares as many tokens, that is taken
        whose whole it begins with, then its own branch, then the latest.
        """
        best: _Mark | None = None
        most = (False, 0, False, False, -1)
        waiting = list(self._roots.matching(prompt, 0))
        while waiting:
            run = waiting.pop()
            shared = run.begin + common(run.tokens, prompt, run.begin)
            mark = run.owner(shared)
            found = (shared == run.end, shared, shared == mark.whole, mark.whose == whose, mark.number)
            if found > most:
                best, most = mark, found
            waiting.extend(run.branches.matching(prompt, shared))
        return best, most[1]

    def _reason(self, before: _Mark, call: EngineCall, prompt: "Tokens[int]", shared: int) -> Break:
        """Return why a prompt that shares so many tokens with a generation does not continue it."""
        if call.summary or (call.compacted and not before.compacted):
            return "compaction"
        if shared == len(prompt):
            return "fork"
        if _whose(call) != before.whose:
            return "sub_agent"
        if shared < before.prompt:
            return "instructions_changed" if shared < before.instructions else "history_changed"
        if shared == before.whole - 1:
            return "end_token"
        if before.reasoning and not self._is_said_again(before, prompt, shared):
            return "reasoning_settled"
        return "template" if call.response_id == before.response_id else "history_changed"

    def _is_said_again(self, before: _Mark, prompt: "Tokens[int]", shared: int) -> bool:
        """Whether but one token of a thought differs, such as where a client gives it back as an answer."""
        run = self._run_of[before.number]
        begin, end = shared + 1, shared + 1 + SAME
        return end <= before.whole and run.tokens[begin - run.begin : end - run.begin] == prompt[begin:end]


def common(own: "Tokens[int]", prompt: "Tokens[int]", begin: int) -> int:
    """Return how many tokens `own` begins with that stand in a prompt from the place `begin` on."""
    end = min(len(own), len(prompt) - begin)
    for place in range(0, end, BLOCK):
        upto = min(place + BLOCK, end)
        first, second = own[place:upto], prompt[begin + place : begin + upto]
        if first != second:
            return place + _common_in(first, second)
    return end


def _common_in(first: "Tokens[int]", second: "Tokens[int]") -> int:
    """Return with how many tokens both begin; they differ. By halves: each is compared at once."""
    same, differ = 0, len(first)
    while differ - same > 1:
        middle = (same + differ) // 2
        if first[same:middle] == second[same:middle]:
            same = middle
        else:
            differ = middle
    return same


def _whose(call: EngineCall) -> tuple[str, str | None]:
    return call.branch, call.agent
