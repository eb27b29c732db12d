"""Two responses compared: which of their settings differ, and where what was asked and said first does."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from responses_app.watch.text import visible

SETTINGS = (
    "model instructions reasoning text temperature top_p max_output_tokens max_tool_calls tool_choice tools "
    "parallel_tool_calls truncation service_tier background previous_response_id"
).split()
_OF_ONE = ("id", "call_id", "status", "created_at", "encrypted_content", "logprobs")  # differ anyway, or say nothing
AROUND = 60  # characters that are shown before and behind the first difference
LONGEST = 300  # characters of a setting


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two lists of items differ: `same` is what stands before it in both, then each side's."""

    item: int
    left_kind: str
    right_kind: str
    same: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Differences:
    """Settings that differ, as name, left and right; where the input and the output first differ, None: nowhere."""

    settings: Sequence[tuple[str, str, str]]
    asked: Difference | None
    said: Difference | None


Side = tuple[Mapping[str, Any], Sequence[object]]


def differences(left: Side, right: Side) -> Differences:
    """Compare two responses, each with its input items; ids, which always differ, do not count."""
    bodies = left[0], right[0]
    rows = []
    for name in SETTINGS:
        one, other = (body.get(name) for body in bodies)
        if one != other:
            rows.append((name.replace("_", " "), _short(one), _short(other)))
    return Differences(
        rows, first_difference(left[1], right[1]), first_difference(*(body["output"] for body in bodies))
    )


def first_difference(left: Sequence[object], right: Sequence[object]) -> Difference | None:
    """Return where two lists of items first differ in what they say."""
    for place, (one, other) in enumerate(zip_longest(left, right), start=1):
        texts = [_text(each) for each in (one, other)]
        if texts[0] == texts[1] and _kind(one) == _kind(other):
            continue
        at = _common(*texts)
        before = visible(texts[0][max(0, at - AROUND) : at])
        same = ("…" if at > AROUND else "") + before
        ends = [visible(text[at : at + AROUND]) + ("…" if len(text) > at + AROUND else "") for text in texts]
        return Difference(place, _kind(one), _kind(other), same, *ends)
    return None


def _kind(item: object) -> str:
    if item is None:
        return "nothing more"
    return visible(item.get("type") or item.get("role") or "item")[:40] if isinstance(item, dict) else "item"


def _text(item: object) -> str:
    """Return what an item says: its text, or its JSON without what is of this response alone."""
    if item is None:
        return ""
    if isinstance(item, dict):
        parts = item.get("content")
        texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else [parts]
        said = [text for text in texts if isinstance(text, str)]
        if said and len(said) == len(texts):
            return "\n".join(said)
    return json.dumps(_plain(item), ensure_ascii=False, sort_keys=True, default=str)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if name not in _OF_ONE}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _common(left: str, right: str) -> int:
    """Return how many characters two texts begin with alike."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    low, high = 0, shorter  # the first `low` are alike, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle)
    return low


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return visible(text[:LONGEST]) + ("…" if len(text) > LONGEST else "")
