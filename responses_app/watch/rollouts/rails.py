"""The tree of a roll-out as rails: a row for each generation, in the order of commit, and a column for each sequence.

    ● g0
    ● g1            continues g0
    ├─╮
    │ ● g2          leaves g0 before its end: a break
    ● │ g3          continues g1

A column is free again once nothing leaves its sequence any more, so a conversation whose every turn breaks stays in
one column. There are `MAX_COLUMNS`; what needs more shares the last one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from responses_app.watch.rollouts.outline import Outline, Step

MAX_COLUMNS = 8
WIDTH, NODE = 16, 22  # pixels: of a column, and from the top of a row to its node


@dataclass(slots=True)
class Strand:
    """Generations of which each continues the one before."""

    first: int
    last: int  # its own last generation
    until: int  # the last one that leaves it, or `last`
    column: int = 0
    origin: "Strand | None" = None


@dataclass(frozen=True, slots=True)
class Line:
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
    lines: Sequence[Line]
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

    def _add(self, step: Step) -> None:
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

    def rows(self, steps: Iterable[Step]) -> list[Rail]:
        """Draw the rows of generations in a row."""
        some = list(steps)
        if not some:
            return []
        begin, end = some[0].number, some[-1].number
        near = [each for each in self.strands if each.first <= end and each.until >= begin]
        width = WIDTH * (1 + max(each.column for each in near))
        return [self._row(step, near, width) for step in some]

    def _row(self, step: Step, near: Sequence[Strand], width: int) -> Rail:
        number, own = step.number, self.strand_of[step.number]
        lines = []
        for each in near:
            x = _x(each.column)
            if each is own:
                if number > each.first:
                    lines.append(Line(x, "0", str(NODE), "own"))
                if number < each.until or self._leaves_next(number):
                    lines.append(Line(x, str(NODE), "100%", "own" if number < each.last else "over"))
            elif each.first < number < each.until:
                lines.append(Line(x, "0", "100%", "own" if number < each.last else "over"))
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
