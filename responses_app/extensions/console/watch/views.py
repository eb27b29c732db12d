"""`/watch/…`: the page of one response, which is live while it runs, and of two side by side; JSON for programs.

How two responses are compared comes first, the views stand at the end. Who may watch what: `access`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from responses_app.admin.auditing import viewed
from responses_app.extensions.console.watch.access import caller_of, page, sees_everything, shows_content
from responses_app.extensions.console.watch.drawing import trace_of
from responses_app.extensions.console.watch.family import Branch, ChainTree
from responses_app.extensions.console.watch.page import (
    Surroundings,
    WatchedResponse,
    response_page,
    shown_to_clients,
    summary,
    tree_of,
)
from responses_app.extensions.console.watch.text import PageRoom, visible
from responses_app.extensions.console.watch.transcript import PageTranscript
from responses_app.kit.table import can_be_known
from responses_app.models import PublicName, Response
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError, JsonObject, response_not_found
from responses_app.web.http import error_response, json_response

SETTINGS = (
    "model instructions reasoning text temperature top_p max_output_tokens max_tool_calls tool_choice tools "
    "parallel_tool_calls truncation service_tier background previous_response_id"
).split()
_OF_ONE = ("id", "call_id", "status", "created_at", "encrypted_content", "logprobs")  # differ anyway, or say nothing
AROUND = 60  # characters that are shown before and behind the first difference
LONGEST = 300  # characters of a setting


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two lists of items differ."""

    item: int  # its number, from 1
    left_kind: str  # type or role of the item there, in words
    right_kind: str
    same: str  # the end of what stands before it in both
    left: str  # the beginning of what stands there
    right: str


@dataclass(frozen=True, slots=True)
class Differences:
    """Where two responses differ."""

    settings: Sequence[tuple[str, str, str]]  # those that differ: name, left and right
    asked: Difference | None  # of the input; None where it is the same
    said: Difference | None  # of the output


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
        # The kind counts, too: a message and a reasoning item may have the same text.
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
        strings = [text for text in texts if isinstance(text, str)]
        if strings and len(strings) == len(texts):
            return "\n".join(strings)
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
    # Halving: comparing slices is done in C, character by character it would be Python.
    low, high = 0, shorter  # the first `low` are alike, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle)
    return low


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return visible(text[:LONGEST]) + ("…" if len(text) > LONGEST else "")


ROOM = 60_000  # characters of two conversations side by side
MAX_ASKED = 6  # items of the input that are shown of each, the last ones


@page
def response(request: HttpRequest, response_id: str) -> HttpResponse:
    """Show a response."""
    frame = Surroundings("watch-response", staff=sees_everything(request))
    return shown_page(request, _load(request, response_id), frame, "watch/response.html")


def shown_page(
    request: HttpRequest, shown: WatchedResponse, frame: Surroundings, template: str, **more: object
) -> HttpResponse:
    """Show a response in a frame; `?part=live` is the part of its page that changes while it runs."""
    context = response_page(shown, frame, turns=request.GET.get("turns", ""))
    if request.GET.get("part") == "live":
        template = "response/live.html"
    else:
        context = {**admin.site.each_context(request), **context, **more}
    answer = TemplateResponse(request, template, context)
    answer["Cache-Control"] = "no-store"
    return answer


@require_safe
def response_json(request: HttpRequest, response_id: str) -> HttpResponse:
    """Send a response's timeline and tree as JSON. Times are Unix milliseconds."""
    try:
        shown = _load(request, response_id)
    except ApiError as error:
        return error_response(error)
    timeline = shown.timeline
    body: JsonObject = {
        "id": shown.id,
        "status": shown.body["status"],
        "created": timeline.created,
        "ended": timeline.ended,
        "now": shown.now,
        "is_timed": timeline.is_timed,
        "phases": timeline.phases,
        "turns": timeline.turns,
        "tree": _flat(tree_of(shown)),
    }
    return json_response(body, headers={"cache-control": "no-store"})


@require_safe
def response_trace(request: HttpRequest, response_id: str) -> HttpResponse:
    """Send a response's timeline as a file that Perfetto opens."""
    try:
        shown = _load(request, response_id)
    except ApiError as error:
        return error_response(error)
    body = trace_of(shown.timeline, name=shown.id, now=shown.now)
    name = f'attachment; filename="{shown.row.pk}.trace.json"'
    return json_response(body, headers={"cache-control": "no-store", "content-disposition": name})


@page
def compare(request: HttpRequest) -> HttpResponse:
    """Show two responses side by side, on one scale."""
    ids = [request.GET.get(name, "").strip() for name in ("left", "right")]
    context = {**admin.site.each_context(request), "title": "Compare", "left": ids[0], "right": ids[1]}
    context["has_content"] = shows_content(request)
    if not all(ids):
        return TemplateResponse(request, "response/compare.html", context)
    both = [_load(request, each) for each in ids]
    # Both pictures have the same scale, so that bars can be compared.
    scale = max(each.timeline.milliseconds(each.now) for each in both)
    room = PageRoom(ROOM)
    sides = []
    for key, each in zip(("left", "right"), both, strict=True):
        transcript = PageTranscript(room)
        blocks = [*transcript.read((each.input_items or [])[-MAX_ASKED:]), *transcript.read(each.body["output"])]
        sides.append({**summary(each, key=key, scale=scale), "blocks": blocks})
    where_they_differ = differences(*((each.body, each.input_items or ()) for each in both))
    frame = Surroundings("watch-response", staff=False)
    context |= {"sides": sides, "found": where_they_differ, "frame": frame}
    return TemplateResponse(request, "response/compare.html", context)


def _load(request: HttpRequest, response_id: str) -> WatchedResponse:
    if not can_be_known(response_id):
        raise response_not_found(response_id)
    project = _project(response_id) if sees_everything(request) else caller_of(request, Area.RESPONSES).project
    found = shown_to_clients(project, response_id, ttl=settings.RESPSITE.responses_store_ttl)
    if not shows_content(request):
        return found.shape()
    viewed(request, found.row.pk, project=project)
    return found


def _project(response_id: str) -> str:
    """Return the project of a response, by its own id or by what clients call it. Raises `ApiError`."""
    project: str | None = Response.objects.filter(pk=response_id).values_list("project", flat=True).first()
    project = project or PublicName.objects.filter(name=response_id).values_list("project", flat=True).first()
    if project is None:
        raise response_not_found(response_id)
    return project


def _flat(family: ChainTree) -> list[JsonObject]:
    """Return the tree as a list of its responses, each with the one it goes on from."""
    nodes: list[JsonObject] = []

    def add(branch: Branch, parent: str) -> None:
        for node in branch:
            known = {"id": node.id, "parent": parent, "status": node.status or None, "more": node.more}
            nodes.append({**known, "is_current": node.is_current, "asked": node.asked})
            for fork in node.forks:
                add(fork, node.id)
            parent = node.id

    add(family.branch, family.before)
    return nodes
