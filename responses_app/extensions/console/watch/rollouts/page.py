"""The page of a roll-out: its numbers, the tree of its generations, its rewards and what is set for it.

The tree is drawn as rails: a row for each generation, in the order of commit, and a column for each sequence.

    ● g0
    ● g1            continues g0
    ├─╮
    │ ● g2          leaves g0 before its end: a break
    ● │ g3          continues g1

A column is free again once nothing leaves its sequence any more, so a conversation whose every turn breaks stays in
one column. There are `MAX_COLUMNS`; what needs more shares the last one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django.utils.html import format_html

from responses_app.extensions.console.watch.rollouts.outline import Outline, OutlineStep
from responses_app.extensions.console.watch.rollouts.showing import (
    LEGEND,
    reason_of,
    reward_text,
    text_of,
    versions,
    whole_reward,
)
from responses_app.extensions.console.watch.rollouts.window import TokenReader, generation_page
from responses_app.extensions.console.watch.text import NONE, Places, ago, in_bytes, milliseconds, moment, visible
from responses_app.models.rollouts import Rollout
from responses_app.protocol.rollouts.generations import MAIN, EngineCall
from responses_app.protocol.rollouts.requests import RolloutObject
from responses_app.stores.database.rollouts.rows import record_of
from responses_app.wiring.site import get_site

PAGE = 60  # generations of one page
PREVIEW = 32  # tokens of what was sampled, of which a row shows `CHARACTERS` at most
CHARACTERS = 120
MAX_REWARDS = 50  # that are shown, the last ones
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


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A generation in the tree."""

    step: OutlineStep
    rail: Rail
    url: str  # of the page with its tokens
    cut: tuple[str, str] | None  # why it broke: in a word or two, in a sentence
    call: EngineCall | None  # None where it is too large for the page
    preview: str
    chips: Sequence[str]  # its branch and its agent, where it has one
    reward: str  # of its response
    version: str
    took: str
    bar: tuple[float, float, float]  # what it shares, what is new in its prompt and what it sampled, in percent
    response_id: str  # "" where it is not stored

    @property
    def bar_new(self) -> float:
        """Where the sampled part of the bar begins."""
        return round(self.bar[0] + self.bar[1], 3)

    @property
    def goes_on(self) -> bool:
        """Whether it continues another generation that is not the one before it."""
        return not self.cut and self.step.parent is not None and self.step.parent != self.step.number - 1


def rollout_page(
    rollout: Rollout, places: Places, *, first: int | None, opened: int | None, at: int | None, as_table: bool
) -> dict[str, Any]:
    """Return what the template of the page needs.

    It has the generations from the one numbered `first` on; of the one numbered `opened` it has tokens, from the place
    `at` on.
    """
    outline = Outline.of(rollout)
    rails = Rails.of(outline)
    is_known = opened in outline.steps
    begin = first if first is not None else (opened // PAGE * PAGE if opened is not None and is_known else 0)
    shown = [step for number, step in outline.steps.items() if begin <= number < begin + PAGE]
    rows = rows_of(outline, rails, shown, places)
    cuts = sum(1 for step in outline.steps.values() if step.cut)
    return {
        "title": "Roll-out",
        "name": rollout.name,
        "rollout": rollout,
        "model": visible(rollout.model)[:200],
        "is_ended": rollout.ended_at is not None,
        "has_content": True,
        "figures": _figures(rollout, outline, rails, cuts),
        "rows": rows,
        "first_row": begin,
        "pages": _pages(rollout, outline, places, begin),
        "opened": opened if is_known else None,
        "generation": generation_page(outline, outline.steps[opened], at=at, as_table=as_table)  # type: ignore[index]
        if is_known
        else None,
        "here": places.rollout(rollout, **({"from": first} if first is not None else {})),
        "legend": LEGEND,
        "facts": facts_of(rollout, places),
        "asked": [(visible(name)[:80], visible(value)[:200]) for name, value in list(rollout.sampling.items())[:16]],
        "metadata": [(visible(name)[:80], visible(value)[:200]) for name, value in list(rollout.metadata.items())[:16]],
        "rewards": _rewards(rollout, outline, places),
        "rewards_left_out": max(0, len(rollout.rewards) - MAX_REWARDS),
        "left_out": outline.left_out,
    }


def without_content(context: dict[str, Any]) -> dict[str, Any]:
    """Return what the template gets for who may see figures alone: no tokens, no texts, nothing that clients wrote."""
    rows = [replace(row, preview="", chips=()) for row in context["rows"]]
    return {**context, "rows": rows, "asked": [], "metadata": [], "has_content": False}


def rows_of(outline: Outline, rails: Rails, shown: Sequence[OutlineStep], places: Places) -> list[GenerationRow]:
    """Return the rows of generations, which are in order."""
    numbers = [step.number for step in shown]
    calls = outline.calls([*numbers, *(step.origin for step in shown if step.origin is not None)])
    response_ids, begun = outline.response_ids(numbers), outline.beginnings(numbers, PREVIEW)
    reader = TokenReader(outline)
    reader.look_up(list(response_ids.values()))
    rewards = {each["turn"]: reward_text(each["reward"]) for each in outline.rollout.rewards if each["turn"]}
    largest = max((step.whole for step in outline.steps.values()), default=1) or 1
    rows = []
    for step, rail in zip(shown, rails.rows(shown), strict=True):
        number, call = step.number, calls.get(step.number)
        response_id = response_ids.get(number, "")
        parts = [round(count / largest * 100, 3) for count in (step.shared, step.new, step.sampled)]
        rows.append(
            GenerationRow(
                step=step,
                rail=rail,
                url=places.rollout(outline.rollout, g=number),
                cut=reason_of(step.cut) if step.cut else None,
                call=call,
                preview=text_of(begun.get(number, ()), reader.format_of(response_id, call))[:CHARACTERS],
                chips=_chips(call),
                reward=rewards.get(response_id, ""),
                version="" if call is None else versions(call.weights),
                took=_took(call),
                bar=(parts[0], parts[1], parts[2]),
                response_id=response_id if reader.is_stored(response_id) else "",
            )
        )
    return rows


def _chips(call: EngineCall | None) -> list[str]:
    """Return what tells whose a generation is."""
    if call is None:
        return []
    names = [call.branch if call.branch != MAIN else "", call.agent or "", "summary" if call.summary else ""]
    return [visible(name)[:80] for name in names if name]


def _took(call: EngineCall | None) -> str:
    if call is None:
        return ""
    begin, end = call.times.asked, call.times.ended
    return milliseconds(max(0, end - begin)) if begin is not None and end is not None else ""


def _figures(rollout: Rollout, outline: Outline, rails: Rails, cuts: int) -> list[tuple[str, str, str]]:
    strands = len(rails.strands)
    reward = whole_reward(rollout.rewards)
    shown = f"{len(reward)} values" if isinstance(reward, dict) else reward_text(reward)
    of_turns = sum(1 for each in rollout.rewards if each["turn"] is not None)
    return [
        ("Reward", shown, f"{of_turns} of turns" if of_turns else ""),
        ("Generations", f"{rollout.generations:,}", ""),
        ("Sequences", f"{strands:,}", ""),
        ("Breaks", f"{cuts:,}", ""),
        ("Prompt tokens", f"{rollout.prompt_tokens:,}", "each once"),
        ("Sampled tokens", f"{rollout.sampled_tokens:,}", ""),
    ]


def facts_of(rollout: Rollout, places: Places) -> list[tuple[str, Any]]:
    """Return what is known of a roll-out beside its numbers."""
    now = datetime.now(UTC)
    head = shown_of(rollout)
    facts: list[tuple[str, Any]] = [
        ("Status", "ended" if rollout.ended_at else "open"),
        ("Created", format_html("{} UTC, {}", moment(rollout.created_at), ago(rollout.created_at, now))),
        ("Last", format_html("{} UTC, {}", moment(rollout.last_at), ago(rollout.last_at, now))),
    ]
    if rollout.ended_at:
        facts.append(("Ended", format_html("{} UTC", moment(rollout.ended_at))))
    if rollout.group:
        link = format_html('<a href="{}">{}</a>', places.group(rollout), visible(rollout.group))
        facts.append(("Group", link))
    facts += [("Model", visible(rollout.model) or NONE), ("Project", visible(rollout.project))]
    if head["weights_wanted"]:
        facts.append(("Weights wanted", visible(head["weights_wanted"])))
    if head["max_staleness"] is not None:
        facts.append(("Max staleness", f"{head['max_staleness']:,}"))
    if stale := stale_text(head):
        facts.append(("Stale", stale))
    facts.append(("Size", in_bytes(rollout.bytes)))
    return facts


def shown_of(rollout: Rollout) -> RolloutObject:
    """Return a roll-out as the API shows it."""
    return get_site().rollouts.shown(record_of(rollout))


def stale_text(head: RolloutObject) -> str:
    """Return whether a roll-out is older than its weights may be; "" where it has no bound, or nobody can tell."""
    return {True: "yes", False: "no", None: ""}[head["stale"]]


def _rewards(rollout: Rollout, outline: Outline, places: Places) -> list[tuple[str, str, str]]:
    """Return the last rewards: what each is of, the link to that, and the reward."""
    last = rollout.rewards[-MAX_REWARDS:]
    known = outline.numbers_of([each["turn"] for each in last if each["turn"]])
    shown = []
    for each in last:
        number = known.get(each["turn"])
        name = "the whole" if each["turn"] is None else f"g{number}" if number is not None else visible(each["turn"])
        link = "" if number is None else f"{places.rollout(rollout, g=number)}#g{number}"
        shown.append((name, link, reward_text(each["reward"])))
    return shown


def _pages(rollout: Rollout, outline: Outline, places: Places, begin: int) -> list[tuple[str, str]]:
    """Return the links to other pages of the tree."""
    last = len(outline.steps)
    pages = []
    if begin > 0:
        pages += [("First", 0), ("Earlier generations", max(0, begin - PAGE))]
    if begin + PAGE < last:
        pages += [("Later generations", begin + PAGE), ("Last", (last - 1) // PAGE * PAGE)]
    return [(name, places.rollout(rollout, **{"from": number})) for name, number in pages]
