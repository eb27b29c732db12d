"""`Outline`: the generations of a roll-out without their tokens, and windows of these, read where they are asked for.

A roll-out may have 10,000 generations and 256 MiB of tokens. The outline has a few numbers of each generation, which
the database knows without reading any tokens. Of tokens, only those of a window are read, by the parts of rows that
have them:

    g0  A B C d e          the window 1–5 of g2:    B C   of g0's prompt
    g1  ·····  F g                                  d e   sampled by g0
    g2  ·····  X y                                  X     of g2's prompt

`Rails` draw its tree: a row for each generation, in the order of commit, and a column for each sequence.

    ● g0
    ● g1            continues g0
    ├─╮
    │ ● g2          leaves g0 before its end: a break
    ● │ g3          continues g1

A column is free again once nothing leaves its sequence any more, so a conversation whose every turn breaks stays in
one column. There are `MAX_COLUMNS`; what needs more shares the last one.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from django.db.models import BinaryField, QuerySet
from django.db.models.functions import Length, Substr

from engine.formats.base import Tokens, as_tokens
from responses_app.protocol.rollouts.generations import EngineCall, unpack_logprobs, unpack_tokens
from responses_app.protocol.rollouts.requests import Break
from responses_app.resources.rollouts.model import Rollout, RolloutGeneration
from responses_app.resources.rollouts.rows import call_of

MAX_STEPS = 20_000  # generations of one roll-out that are looked at, the first ones
MAX_DETAIL = 2 << 20  # bytes of what is kept of a call beside its tokens: many top tokens may be more, and are not read
MAX_DETAILS = 32 << 20  # of one page
MAX_COLUMNS = 8
WIDTH, NODE = 16, 22  # pixels: of a column, and from the top of a row to its node


@dataclass(frozen=True, slots=True)
class OutlineStep:
    """A generation, without its tokens; the names are those of `Generation`."""

    number: int
    parent: int | None
    shared: int
    near: int | None
    cut: Break
    prompt: int  # how many tokens it has read
    sampled: int
    detail_size: int  # bytes
    widths: tuple[int, int, int]  # bytes that a token of its prompt, one that it sampled and a log probability take

    @property
    def whole(self) -> int:
        """How many tokens it has read and sampled."""
        return self.prompt + self.sampled

    @property
    def new(self) -> int:
        """How many tokens of its prompt are not shared."""
        return self.prompt - self.shared

    @property
    def origin(self) -> int | None:
        """The generation that it goes on from, or leaves."""
        return self.near if self.cut else self.parent


@dataclass(frozen=True, slots=True)
class OutlineStretch:
    """Tokens in a row that are all of one generation's prompt, or all sampled by it."""

    step: OutlineStep  # whose they are
    kind: Literal["prompt", "sampled"]
    begin: int  # the place of the first one in the sequence
    end: int

    @property
    def first(self) -> int:
        """The place of the first one among the tokens of its kind that the row of its generation has."""
        return self.begin - (self.step.shared if self.kind == "prompt" else self.step.prompt)


@dataclass(frozen=True, slots=True)
class TokenStretch:
    """A stretch with its tokens."""

    stretch: OutlineStretch
    tokens: "Tokens[int]"
    logprobs: "array[float] | None"  # of sampled ones, where the engine has told them


@dataclass(slots=True)
class Outline:
    """The generations of one roll-out."""

    rollout: Rollout
    steps: Mapping[int, OutlineStep]  # by their numbers, in order
    left_out: int = 0  # generations behind the last one that is looked at
    _calls: dict[int, EngineCall] = field(default_factory=dict)
    _taken: int = 0  # bytes of details

    @classmethod
    def of(cls, rollout: Rollout) -> "Outline":
        """Read the numbers of all generations."""
        packed = ("tail", "sampled", "logprobs")
        columns = ("number", "parent", "shared", "near", "cut")
        sizes = [Length(name) for name in ("tail", "sampled", "detail")]
        rows = _rows(rollout).order_by("number").values_list(*columns, *sizes, *(_part(name, 1, 1) for name in packed))
        steps: dict[int, OutlineStep] = {}
        for number, parent, shared, near, cut, tail, sampled, detail, *first in rows[:MAX_STEPS]:
            # The first byte of each column says how many bytes a number of it takes.
            of_tail, of_sampled, of_logprob = (int.from_bytes(_read(each), "little") for each in first)
            steps[number] = OutlineStep(
                *(number, parent, shared, near, cut),
                prompt=shared + (tail - 1) // of_tail,
                sampled=(sampled - 1) // of_sampled,
                detail_size=detail,
                widths=(of_tail, of_sampled, of_logprob),
            )
        return cls(rollout, steps, max(0, rollout.generations - len(steps)))

    def stretches(self, number: int, begin: int, end: int) -> list[OutlineStretch]:
        """Return whose the tokens of a generation's sequence are, from the place `begin` up to `end`, in order."""
        found: list[OutlineStretch] = []
        at: int | None = number
        while at is not None and end > begin:
            step = self.steps[at]
            parts: Sequence[tuple[Literal["sampled", "prompt"], int]]
            parts = (("sampled", step.prompt), ("prompt", step.shared))
            for kind, first in parts:
                if end > max(begin, first):
                    found.append(OutlineStretch(step, kind, max(begin, first), end))
                    end = max(begin, first)
            at = step.parent
        return found[::-1]

    def window(self, number: int, begin: int, end: int) -> Iterator[TokenStretch]:
        """Read the tokens of a generation's sequence from the place `begin` up to `end`."""
        for each in self.stretches(number, begin, min(end, self.steps[number].whole)):
            yield self._read_stretch(each)

    def tokens(self, number: int, begin: int, end: int) -> "Tokens[int]":
        """Return such tokens in a row."""
        tokens = as_tokens()
        for each in self.window(number, begin, end):
            tokens.extend(each.tokens)
        return tokens

    def calls(self, numbers: Sequence[int]) -> Mapping[int, EngineCall]:
        """Return calls without their tokens, by the numbers of generations; those that are too large are missing."""
        wanted = []
        for number in dict.fromkeys(numbers):
            step = self.steps.get(number)
            if step is None or number in self._calls or step.detail_size > MAX_DETAIL:
                continue
            self._taken += step.detail_size
            if self._taken > MAX_DETAILS:
                break
            wanted.append(number)
        rows = _rows(self.rollout).filter(number__in=wanted).values_list("number", "response_id", "detail")
        for number, response_id, detail in rows:
            self._calls[number] = call_of(response_id, bytes(detail), sampled=as_tokens())
        return {number: self._calls[number] for number in numbers if number in self._calls}

    def beginnings(self, numbers: Sequence[int], count: int) -> "Mapping[int, Tokens[int]]":
        """Return the first tokens that generations sampled, `count` of each at most."""
        rows = _rows(self.rollout).filter(number__in=list(numbers))
        found = {}
        for number, part in rows.values_list("number", _part("sampled", 2, 4 * count)):
            size = self.steps[number].widths[1]
            packed = _read(part)
            found[number] = unpack_tokens(bytes((size,)) + packed[: len(packed) // size * size])[:count]
        return found

    def response_ids(self, numbers: Sequence[int]) -> Mapping[int, str]:
        """Return the responses that generations are of."""
        rows = _rows(self.rollout).filter(number__in=list(numbers))
        return dict(rows.values_list("number", "response_id"))

    def numbers_of(self, response_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the last generation of each of these responses."""
        rows = _rows(self.rollout).filter(response_id__in=list(response_ids)).order_by("number")
        return dict(rows.values_list("response_id", "number"))

    def _read_stretch(self, stretch: OutlineStretch) -> TokenStretch:
        """Read the part of a row that a stretch is."""
        row = _rows(self.rollout).filter(number=stretch.step.number)
        first, count = stretch.first, stretch.end - stretch.begin
        of_tail, of_sampled, of_logprob = stretch.step.widths
        if stretch.kind == "prompt":
            packed = row.values_list(_part("tail", 2 + of_tail * first, of_tail * count), flat=True).get()
            return TokenStretch(stretch, unpack_tokens(bytes((of_tail,)) + _read(packed)), None)
        tokens, logprobs = row.values_list(
            _part("sampled", 2 + of_sampled * first, of_sampled * count),
            _part("logprobs", 2 + of_logprob * first, of_logprob * count),
        ).get()
        known = unpack_logprobs(bytes((of_logprob,)) + _read(logprobs)) if of_logprob else None
        return TokenStretch(stretch, unpack_tokens(bytes((of_sampled,)) + _read(tokens)), known)


def _rows(rollout: Rollout) -> "QuerySet[RolloutGeneration]":
    return RolloutGeneration.objects.filter(rollout_id=rollout.pk)


def _part(column: str, first: int, count: int) -> Substr:
    """Return an expression of a part of a binary column; `first` counts from 1."""
    return Substr(column, first, count, output_field=BinaryField())


def _read(part: object) -> bytes:
    """Return the part of a column: SQLite has NULL for a part of nothing."""
    return b"" if part is None else bytes(part)  # type: ignore[call-overload]


@dataclass(slots=True)
class Strand:
    """Generations of which each continues the one before."""

    first: int
    last: int  # its own last generation
    until: int  # the last one that leaves it, or `last`
    column: int = 0
    origin: "Strand | None" = None


@dataclass(frozen=True, slots=True)
class RailLine:
    """A line of a row, from its top or its node down to its node or its end."""

    x: int
    begin: str
    end: str
    kind: str  # own, over: what is left of a sequence is only left by others


@dataclass(frozen=True, slots=True)
class Rail:
    """What stands left of a row."""

    width: int
    x: int  # of the node
    lines: Sequence[RailLine]
    curve: str = ""  # the path from the column that is left
    is_cut: bool = False

    @property
    def y(self) -> int:
        """Of the node."""
        return NODE


@dataclass(slots=True)
class Rails:
    """The columns of all generations of an outline."""

    strand_of: dict[int, Strand] = field(default_factory=dict)
    strands: list[Strand] = field(default_factory=list)

    @classmethod
    def of(cls, outline: Outline) -> "Rails":
        """Find the sequences, and put each into a column."""
        rails = cls()
        for step in outline.steps.values():
            rails._add(step)
        busy: list[int] = []  # by columns: up to which generation one is used
        for each in rails.strands:
            free = next((place for place, until in enumerate(busy) if until < each.first), len(busy))
            each.column = min(free, MAX_COLUMNS - 1)
            if free == len(busy) < MAX_COLUMNS:
                busy.append(each.until)
            else:
                busy[each.column] = max(busy[each.column], each.until)
        return rails

    def _add(self, step: OutlineStep) -> None:
        origin = None if step.origin is None else self.strand_of.get(step.origin)
        if origin is not None and not step.cut and origin.last == step.parent:
            origin.last = step.number
            origin.until = max(origin.until, step.number)
            self.strand_of[step.number] = origin
            return
        if origin is not None and step.origin != step.number - 1:
            # The line to it passes all rows between; from the row before it needs none.
            origin.until = max(origin.until, step.number)
        new = Strand(step.number, step.number, step.number, origin=origin)
        self.strands.append(new)
        self.strand_of[step.number] = new

    def rows(self, steps: Iterable[OutlineStep]) -> list[Rail]:
        """Draw the rows of generations in a row."""
        some = list(steps)
        if not some:
            return []
        begin, end = some[0].number, some[-1].number
        near = [each for each in self.strands if each.first <= end and each.until >= begin]
        width = WIDTH * (1 + max(each.column for each in near))
        return [self._row(step, near, width) for step in some]

    def _row(self, step: OutlineStep, near: Sequence[Strand], width: int) -> Rail:
        number, own = step.number, self.strand_of[step.number]
        lines = []
        for each in near:
            x = _x(each.column)
            if each is own:
                if number > each.first:
                    lines.append(RailLine(x, "0", str(NODE), "own"))
                if number < each.until or self._leaves_next(number):
                    lines.append(RailLine(x, str(NODE), "100%", "own" if number < each.last else "over"))
            elif each.first < number < each.until:
                lines.append(RailLine(x, "0", "100%", "own" if number < each.last else "over"))
        curve = ""
        if own.first == number and own.origin is not None:
            x, to = _x(own.origin.column), _x(own.column)
            curve = f"M{x} 0C{x} {NODE} {to} 0 {to} {NODE}"
        return Rail(width, _x(own.column), lines, curve, bool(step.cut))

    def _leaves_next(self, number: int) -> bool:
        """Whether the next generation leaves this one."""
        following = self.strand_of.get(number + 1)
        own = self.strand_of[number]
        return following is not None and following.first == number + 1 and following.origin is own


def _x(column: int) -> int:
    return WIDTH * column + WIDTH // 2
