"""Roll-outs as rows of tables: a list of all, and the attempts of one group with what tells them from each other."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, F, QuerySet
from django.db.models.functions import Length
from django.urls import reverse
from django.utils.safestring import SafeString

from engine import orjson
from responses_app.extensions.console.watch.rollouts.page import shown_of, stale_text
from responses_app.extensions.console.watch.rollouts.showing import reward_number, reward_text, whole_reward
from responses_app.extensions.console.watch.text import NONE, Places, milliseconds, moment, visible
from responses_app.models.rollouts import Rollout, RolloutGeneration
from responses_app.protocol.rollouts.requests import can_be_group, can_be_name
from responses_app.stores.database.rollouts.rows import GONE

PAGE = 50  # roll-outs of one page of the list
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
    found = list(rows.order_by("-pk")[: PAGE + 1])
    query = {"after": found[PAGE - 1].pk} if len(found) > PAGE else {}
    if query and name:
        query["name"] = name
    return {
        "title": "Roll-outs",
        "name": "Roll-outs",
        "attempts": attempts_of(found[:PAGE], places),
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
