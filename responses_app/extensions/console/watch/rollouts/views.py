"""`/watch/rollouts`: the list of roll-outs, a group's table; and `/watch/rollouts/{id}`: one, or two side by side.

Two roll-outs are compared by how many generations and tokens they begin with alike, and by the tokens where they part.
Generations are compared in their order, those with the same number. Those that have the same place and the same tokens
are alike; the first two that do not are the ones in which the roll-outs part. A reader may name two others.
"""

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from engine.formats.base import as_tokens
from responses_app.admin.auditing import viewed
from responses_app.extensions.console.watch.access import caller_of, page, sees_everything, shows_content
from responses_app.extensions.console.watch.rollouts.listing import AttemptRow, attempts_of, group_page, kept, list_page
from responses_app.extensions.console.watch.rollouts.outline import Outline, OutlineStep
from responses_app.extensions.console.watch.rollouts.page import (
    PAGE,
    GenerationRow,
    Rails,
    rollout_page,
    rows_of,
    without_content,
)
from responses_app.extensions.console.watch.rollouts.showing import LEGEND, reward_text
from responses_app.extensions.console.watch.rollouts.window import Side, TokenReader, generation_page
from responses_app.extensions.console.watch.text import Places
from responses_app.models.rollouts import Rollout, RolloutGeneration
from responses_app.protocol.api_keys import Area
from responses_app.protocol.rollouts.placing import common
from responses_app.protocol.rollouts.requests import can_be_name, rollout_not_found

AT_ONCE = 20  # generations whose tokens are compared at once
MAX_COMPARED = 32 << 20  # bytes of rows that are compared: what is behind them is taken for different
BLOCK = 16_384  # tokens of two sequences that are compared at once
MAX_TOKENS = 2_000_000  # of two sequences that are compared
BEHIND = 256  # tokens that are shown behind the place at which two part
MAX_REWARDS = 30  # of turns


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two roll-outs part."""

    alike: int  # generations that are the same in both
    left: int | None  # the generations that differ; None where a roll-out has no more
    right: int | None
    position: int  # how many tokens these begin with alike
    is_bounded: bool = False  # more was not compared
    is_chosen: bool = False  # the reader has named the generations


@dataclass(frozen=True, slots=True)
class Column:
    """One of two roll-outs."""

    key: str  # left, right
    rollout: Rollout
    url: str
    attempt: AttemptRow
    rewards: list[tuple[str, str]]  # of turns: the generation, and the reward
    rows: list[GenerationRow]
    left_out: int  # generations that are not listed
    step: OutlineStep | None  # the generation in which it parts from the other one
    side: Side | None
    bar: tuple[float, float, float]  # of that generation: common, other prompt, other sampled, in percent

    @property
    def bar_sampled(self) -> float:
        """Where the sampled part of the bar begins."""
        return round(self.bar[0] + self.bar[1], 3)


def compare_page(
    left: Rollout, right: Rollout, places: Places, *, numbers: tuple[int | None, int | None]
) -> dict[str, Any]:
    """Return what the template needs; `numbers` are the generations that the reader names."""
    outlines = Outline.of(left), Outline.of(right)
    parting = _chosen(*outlines, *numbers) or part(*outlines)
    parted = zip(outlines, (parting.left, parting.right), strict=True)
    largest = max([1, *(each.steps[number].whole for each, number in parted if number is not None)])
    columns = [
        _column(key, outline, places, attempt, parting, largest)
        for key, outline, attempt in zip(("left", "right"), outlines, attempts_of([left, right], places), strict=True)
    ]
    return {
        "title": "Compare two roll-outs",
        "name": left.name,
        "other": right.name,
        "columns": columns,
        "parting": parting,
        "is_same": parting.left is None and parting.right is None,
        "in_sampled": [each.step is not None and parting.position >= each.step.prompt for each in columns],
        "legend": LEGEND,
        "action": reverse("watch-rollout", args=(left.name,)),
        "project": left.project if places.is_staff else "",
    }


def part(left: Outline, right: Outline) -> Parting:
    """Return where two roll-outs part."""
    alike, is_bounded = _alike(left, right)
    one = alike if alike in left.steps else None
    other = alike if alike in right.steps else None
    if one is None or other is None or is_bounded:
        return Parting(alike, one, other, 0, is_bounded)
    position, is_bounded = _common(left, one, right, other)
    return Parting(alike, one, other, position, is_bounded)


def _chosen(left: Outline, right: Outline, one: int | None, other: int | None) -> Parting | None:
    if one is None or other is None or one not in left.steps or other not in right.steps:
        return None
    position, is_bounded = _common(left, one, right, other)
    return Parting(0, one, other, position, is_bounded, is_chosen=True)


def _alike(left: Outline, right: Outline) -> tuple[int, bool]:
    """Return how many generations two roll-outs begin with alike, and whether that many were all that was compared."""
    shaped = 0
    for number, step in left.steps.items():
        other = right.steps.get(number)
        if other is None or _shape(step) != _shape(other):
            break
        shaped += 1
    left_rows, right_rows = ({"rollout_id": each.rollout.pk} for each in (left, right))
    size = 0
    for begin in range(0, shaped, AT_ONCE):
        some = range(begin, min(begin + AT_ONCE, shaped))
        size += sum(8 * (left.steps[number].new + left.steps[number].sampled) for number in some)
        if size > MAX_COMPARED:
            return begin, True
        both = [
            RolloutGeneration.objects.filter(**rows, number__in=some).order_by("number").values_list("tail", "sampled")
            for rows in (left_rows, right_rows)
        ]
        for number, (one, other_one) in zip(some, zip(*both, strict=True), strict=True):
            if any(bytes(first) != bytes(second) for first, second in zip(one, other_one, strict=True)):
                return number, False
    return shaped, False


def _shape(step: OutlineStep) -> tuple[object, ...]:
    return step.parent, step.shared, step.prompt, step.sampled


def _common(left: Outline, one: int, right: Outline, other: int) -> tuple[int, bool]:
    """Return how many tokens two generations' sequences begin with alike, and whether no more were compared."""
    end = min(left.steps[one].whole, right.steps[other].whole)
    for begin in range(0, min(end, MAX_TOKENS), BLOCK):
        tokens = left.tokens(one, begin, min(begin + BLOCK, end))
        found = common(tokens, as_tokens(right.tokens(other, begin, min(begin + BLOCK, end))), 0)
        if found < len(tokens):
            return begin + found, False
    return min(end, MAX_TOKENS), end > MAX_TOKENS


def _column(key: str, outline: Outline, places: Places, attempt: AttemptRow, parting: Parting, largest: int) -> Column:
    rollout, number = outline.rollout, getattr(parting, key)
    step = None if number is None else outline.steps[number]
    side, bar = None, (0.0, 0.0, 0.0)
    if step is not None:
        side = TokenReader(outline).side(f"g{step.number}", step.number, parting.position, behind=BEHIND)
        prompt = max(0, step.prompt - parting.position)
        parts = (parting.position, prompt, step.whole - parting.position - prompt)
        bar = tuple(round(count / largest * 100, 3) for count in parts)  # type: ignore[assignment]
    shown = list(outline.steps.values())[:PAGE]
    turns = [each for each in rollout.rewards if each["turn"] is not None][:MAX_REWARDS]
    known = outline.numbers_of([each["turn"] for each in turns])
    return Column(
        key=key,
        rollout=rollout,
        url=places.rollout(rollout),
        attempt=attempt,
        rewards=[(f"g{known[each['turn']]}", reward_text(each["reward"])) for each in turns if each["turn"] in known],
        rows=rows_of(outline, Rails.of(outline), shown, places),
        left_out=max(0, rollout.generations - len(shown)),
        side=side,
        step=step,
        bar=bar,
    )


MAX_PLACE = 10  # digits of a number in an address


@page
def rollouts(request: HttpRequest) -> HttpResponse:
    """Show the list, or the attempts of a group."""
    rows, places = _visible(request)
    group = request.GET.get("group", "").strip()
    if group:
        project = request.GET.get("project", "") if places.is_staff else ""
        context = group_page(rows, group, places, project=project, sort=request.GET.get("sort", ""))
        return _answer(request, "rollout/group.html", context, places)
    asked = {name: request.GET.get(name, "").strip() for name in ("after", "name")}
    return _answer(request, "rollout/list.html", list_page(rows, places, **asked), places)


@page
def rollout(request: HttpRequest, name: str) -> HttpResponse:
    """Show a roll-out, a part of it, or what tells it from another one."""
    rows, places = _visible(request)
    found = _named(rows, name)
    if len(found) > 1:  # of several projects: the list says which there are
        return _answer(request, "rollout/list.html", list_page(rows, places, after="", name=name), places)
    if not shows_content(request):
        if request.GET.get("with") or request.GET.get("part"):
            raise PermissionDenied
        context = rollout_page(found[0], places, first=_number(request, "from"), opened=None, at=None, as_table=False)
        return _answer(request, "rollout/page.html", without_content(context), places)
    viewed(request, found[0].name, project=found[0].project)
    if other := request.GET.get("with", "").strip():
        numbers = _number(request, "left"), _number(request, "right")
        beside = _named(rows.filter(project=found[0].project), other)[0]
        viewed(request, beside.name, project=beside.project)
        context = compare_page(found[0], beside, places, numbers=numbers)
        return _answer(request, "rollout/compare.html", context, places)
    opened, at, as_table = _number(request, "g"), _number(request, "at"), request.GET.get("as") == "table"
    if request.GET.get("part") == "tokens":
        return _part(request, found[0], places, opened, at=at, as_table=as_table)
    first = _number(request, "from")
    context = rollout_page(found[0], places, first=first, opened=opened, at=at, as_table=as_table)
    return _answer(request, "rollout/page.html", context, places)


def _part(
    request: HttpRequest, found: Rollout, places: Places, opened: int | None, *, at: int | None, as_table: bool
) -> HttpResponse:
    """Show the tokens of one generation, without the page around them."""
    outline = Outline.of(found)
    step = None if opened is None else outline.steps.get(opened)
    if step is None:
        raise rollout_not_found(f"{found.name} g{opened}")
    shown = generation_page(outline, step, at=at, as_table=as_table)
    context = {"generation": shown, "here": places.rollout(found)}
    answer = TemplateResponse(request, "rollout/generation.html", context)
    answer["Cache-Control"] = "no-store"
    return answer


def _answer(request: HttpRequest, template: str, context: dict[str, Any], places: Places) -> HttpResponse:
    context = {**admin.site.each_context(request), **context, "is_staff": places.is_staff}
    answer = TemplateResponse(request, template, context)
    answer["Cache-Control"] = "no-store"
    return answer


def _visible(request: HttpRequest) -> "tuple[QuerySet[Rollout], Places]":
    """Return the roll-outs that a request may see. Raises `ApiError`."""
    if not sees_everything(request):
        return kept().filter(project=caller_of(request, Area.ROLLOUTS).project), Places(is_staff=False)
    project = request.GET.get("project", "")
    # No project's name has an encoded surrogate or a NUL: databases refuse them.
    is_plain = project.isprintable() and len(project) <= 64
    return (kept().filter(project=project) if project and is_plain else kept()), Places(is_staff=True)


def _named(rows: "QuerySet[Rollout]", name: str) -> list[Rollout]:
    """Return the roll-outs with a name: one of each project. Raises `ApiError` where there is none."""
    found = list(rows.filter(name=name)[:2]) if can_be_name(name) else []
    if not found:
        raise rollout_not_found(name[:200])
    return found


def _number(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name, "").strip().removeprefix("g")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_PLACE else None
