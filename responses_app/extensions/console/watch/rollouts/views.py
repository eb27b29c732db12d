"""`/watch/rollouts`: the list of roll-outs, a group's table; and `/watch/rollouts/{id}`: one, or two side by side.

Two roll-outs are compared by how many generations and tokens they begin with alike, and by the tokens where they part.
Generations are compared in their order, those with the same number. Those that have the same place and the same tokens
are alike; the first two that do not are the ones in which the roll-outs part. A reader may name two others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, F, QuerySet
from django.db.models.functions import Length
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from engine import orjson
from engine.formats.base import as_tokens
from responses_app.admin.auditing import viewed
from responses_app.extensions.console.watch.access import caller_of, page, sees_everything, shows_content
from responses_app.extensions.console.watch.rollouts.outline import Outline, OutlineStep, Rails
from responses_app.extensions.console.watch.rollouts.page import (
    PAGE,
    GenerationRow,
    Side,
    TokenReader,
    generation_page,
    rollout_page,
    rows_of,
    shown_of,
    stale_text,
    without_content,
)
from responses_app.extensions.console.watch.rollouts.showing import LEGEND, reward_number, reward_text, whole_reward
from responses_app.extensions.console.watch.text import NONE, Places, milliseconds, moment, visible
from responses_app.protocol.api_keys import Area
from responses_app.protocol.rollouts.placing import common
from responses_app.protocol.rollouts.requests import can_be_group, can_be_name, rollout_not_found
from responses_app.resources.rollouts.model import Rollout, RolloutGeneration
from responses_app.resources.rollouts.rows import GONE

LISTED = 50  # roll-outs of one page of the list
MAX_GROUP = 200  # attempts of a group that are shown, the latest
MAX_COUNTED = 50_000  # generations in which breaks are looked for
MAX_DETAIL = 64 << 10  # bytes of what is kept of a call beside its tokens: of larger ones no weights are told


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """A roll-out in a table."""

    rollout: Rollout
    url: str
    group_url: str
    reward: Any
    breaks: int | None  # None where there are too many generations to look at
    weights: str
    stale: str

    @property
    def shown_reward(self) -> str:
        """Its last reward as a whole."""
        return reward_text(self.reward)

    @property
    def sorted_by(self) -> float | None:
        """What its reward is sorted by."""
        return reward_number(self.reward)

    @property
    def name(self) -> str:
        """As its client calls it."""
        return str(self.rollout.name)

    @property
    def state(self) -> str:
        """Whether it takes more requests."""
        return "open" if self.rollout.ended_at is None else "ended"

    @property
    def lasted(self) -> str:
        """How long it took from its creation to what came last."""
        return milliseconds(int((self.rollout.last_at - self.rollout.created_at).total_seconds() * 1000))

    @property
    def created(self) -> SafeString:
        """When it was created."""
        return moment(self.rollout.created_at)


Sorted = Callable[[AttemptRow], Any]
# By the names in addresses: the head of a column, what it is sorted by, and whether the largest come first.
COLUMNS: Mapping[str, tuple[str, Sorted, bool]] = {
    "name": ("Attempt", lambda each: each.name, False),
    "reward": ("Reward", lambda each: -math.inf if each.sorted_by is None else each.sorted_by, True),
    "turns": ("Turns", lambda each: each.rollout.generations, True),
    "prompt": ("Prompt tokens", lambda each: each.rollout.prompt_tokens, True),
    "sampled": ("Sampled tokens", lambda each: each.rollout.sampled_tokens, True),
    "breaks": ("Breaks", lambda each: -1 if each.breaks is None else each.breaks, True),
    "weights": ("Weights", lambda each: each.weights, False),
    "state": ("Status", lambda each: each.state, False),
    "stale": ("Stale", lambda each: each.stale, True),
    "time": ("Lasted", lambda each: each.rollout.last_at - each.rollout.created_at, True),
    "created": ("Created", lambda each: each.rollout.created_at, True),
}


def kept() -> "QuerySet[Rollout]":
    """Return all roll-outs but those that are being deleted."""
    return Rollout.objects.exclude(project=GONE)


def attempts_of(rollouts: Sequence[Rollout], places: Places) -> list[AttemptRow]:
    """Return roll-outs as rows."""
    breaks, weights = _breaks(rollouts), _weights(rollouts)
    return [
        AttemptRow(
            rollout=each,
            url=places.rollout(each),
            group_url=places.group(each) if each.group else "",
            reward=whole_reward(each.rewards),
            breaks=breaks.get(each.pk),
            weights=weights.get(each.pk, ""),
            stale=stale_text(shown_of(each)),
        )
        for each in rollouts
    ]


def group_page(rows: "QuerySet[Rollout]", group: str, places: Places, *, project: str, sort: str) -> dict[str, Any]:
    """Return what the template of a group's table needs."""
    found = list(rows.filter(group=group).order_by("-pk")[: MAX_GROUP + 1]) if can_be_group(group) and group else []
    attempts = attempts_of(found[:MAX_GROUP], places)
    column, is_down = sort.removeprefix("-"), sort.startswith("-")
    if column not in COLUMNS:
        column, is_down = "reward", True
    attempts.sort(key=lambda each: each.name)
    attempts.sort(key=COLUMNS[column][1], reverse=is_down)
    rewarded = [(each, value) for each in attempts if (value := each.sorted_by) is not None]
    best = max(rewarded, key=lambda pair: pair[1], default=(None, 0.0))[0]
    shown = _columns(attempts, column, is_down, group, project)
    return {
        "title": "Group of roll-outs",
        "name": visible(group)[:128],
        "attempts": [(each, _comparison(each, best, places)) for each in attempts],
        "columns": shown,
        "has_stale": any(each.stale for each in attempts),
        "has_weights": any(each.weights for each in attempts),
        "left_out": len(found) > MAX_GROUP,
        "most": MAX_GROUP,
        "figures": _figures(attempts, [value for _, value in rewarded]),
        "dots": _dots(rewarded),
        "ends": [reward_text(choose((value for _, value in rewarded), default=None)) for choose in (min, max)],
        "best": best,
    }


def list_page(rows: "QuerySet[Rollout]", places: Places, *, after: str, name: str = "") -> dict[str, Any]:
    """Return what the template of the list needs: the latest first, those behind the id `after`; or those of a name."""
    if name:
        rows = rows.filter(name=name) if can_be_name(name) else rows.none()
    if after and can_be_name(after):
        rows = rows.filter(pk__lt=after)
    found = list(rows.order_by("-pk")[: LISTED + 1])
    query = {"after": found[LISTED - 1].pk} if len(found) > LISTED else {}
    if query and name:
        query["name"] = name
    return {
        "title": "Roll-outs",
        "name": "Roll-outs",
        "attempts": attempts_of(found[:LISTED], places),
        "following": f"?{urlencode(query)}" if query else "",
        "is_first": not after,
        "wanted": visible(name)[:128],
    }


def _breaks(rollouts: Sequence[Rollout]) -> dict[str, int]:
    """Return how many breaks roll-outs have, as far as all of them together are not too large."""
    counted: dict[str, int] = {}
    left = MAX_COUNTED
    for each in rollouts:
        left -= each.generations
        if left < 0:
            break
        counted[each.pk] = 0
    cut = RolloutGeneration.objects.filter(rollout_id__in=list(counted)).exclude(cut="").order_by()
    return counted | dict(cut.values_list("rollout_id").annotate(Count("pk")))


def _weights(rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Return the versions of weights that roll-outs began and ended with."""
    rows = RolloutGeneration.objects.filter(rollout_id__in=[each.pk for each in rollouts])
    small = rows.annotate(size=Length("detail")).filter(size__lte=MAX_DETAIL)
    found: dict[str, list[str]] = {}
    for some, place in ((small.filter(number=0), 0), (small.filter(number=F("rollout__generations") - 1), -1)):
        for rollout_id, detail in some.values_list("rollout_id", "detail"):
            spans = orjson.loads(bytes(detail)).get("weights") or [[None, 0]]
            found.setdefault(rollout_id, []).append(visible(spans[place][0] or "")[:80])
    told = {pk: dict.fromkeys(each or "unknown" for each in some) for pk, some in found.items() if any(some)}
    return {pk: " → ".join(some) for pk, some in told.items()}


def _columns(
    attempts: Sequence[AttemptRow], sorted_by: str, is_down: bool, group: str, project: str
) -> list[tuple[str, str, str]]:
    """Return the heads of a table: each with the address that sorts by it, and how it is sorted now."""
    hidden = {name for name in ("stale", "weights") if not any(getattr(each, name) for each in attempts)}
    heads = []
    for name, (head, _, starts_down) in COLUMNS.items():
        if name in hidden:
            continue
        down = not is_down if name == sorted_by else starts_down
        query = {"group": group, "sort": f"-{name}" if down else name, **({"project": project} if project else {})}
        state = "" if name != sorted_by else "descending" if is_down else "ascending"
        heads.append((head, f"{reverse('watch-rollouts')}?{urlencode(query)}", state))
    return heads


def _comparison(each: AttemptRow, best: AttemptRow | None, places: Places) -> str:
    """Return the address that compares an attempt with the best one, "" for that one itself."""
    if best is None or each.rollout.pk == best.rollout.pk:
        return ""
    return places.rollout(best.rollout, **{"with": each.name})


def _figures(attempts: Sequence[AttemptRow], rewards: Sequence[float]) -> list[tuple[str, str, str]]:
    count = len(attempts)
    ended = sum(1 for each in attempts if each.rollout.ended_at is not None)
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    # Squares of rewards as large as 1e300 would be more than a float can be.
    spread = math.dist(rewards, [mean] * len(rewards)) / math.sqrt(len(rewards)) if rewards else 0.0
    spread_text = f"± {spread:.3g}" if len(rewards) > 1 else ""
    sampled = sum(each.rollout.sampled_tokens for each in attempts) / count if count else 0
    turns = sum(each.rollout.generations for each in attempts) / count if count else 0
    return [
        ("Attempts", f"{count:,}", f"{ended:,} ended"),
        ("Mean reward", reward_text(float(f"{mean:.3g}")) if rewards else NONE, spread_text),
        ("Best reward", reward_text(max(rewards)) if rewards else NONE, f"{len(rewards):,} rewarded"),
        ("Turns", f"{turns:,.1f}", "mean"),
        ("Sampled tokens", f"{sampled:,.0f}", "mean"),
    ]


def _dots(rewarded: Sequence[tuple[AttemptRow, float]]) -> list[tuple[float, str]]:
    """Return a dot for each reward: where, in percent of the width, and what it is of."""
    if len(rewarded) < 2:
        return []
    values = [value for _, value in rewarded]
    low, span = min(values), max(values) - min(values)
    return [
        (round(2 + 96 * ((value - low) / span if span else 0.5), 2), f"{each.name}: {each.shown_reward}")
        for each, value in rewarded
    ]


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
