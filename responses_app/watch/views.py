"""`/watch/…`: the page of one response, which is live while it runs, and of two side by side; JSON for programs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from responses_app.admin.formats import milliseconds, pill
from responses_app.admin.text import Room, visible
from responses_app.admin.transcript import Transcript
from responses_app.http import error_response, json_response
from responses_app.models import Response
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.timeline import Timeline, guess
from responses_app.runs.watching import Watched
from responses_app.watch.access import project_of, sees_everything
from responses_app.watch.comparing import Differences, differences
from responses_app.watch.drawing import draw
from responses_app.watch.family import Branch, Family, asked_of, family_of
from responses_app.wiring import get_site

ROOM = 60_000  # characters of input and output on a page
MAX_ASKED = 6  # items of the input that are shown, the last ones
LOOK_MS = 1_000  # between two looks of a page that is live
UNAUTHORIZED = 401

View = Callable[..., HttpResponse]


@dataclass(frozen=True, slots=True)
class Shown:
    """A response as a page shows it."""

    project: str
    watched: Watched
    row: Response | None
    input_items: list[JsonObject]

    @property
    def id(self) -> str:
        """The id by which clients know it."""
        return self.watched.response["id"]

    @property
    def timeline(self) -> Timeline:
        """Its timeline."""
        return self.watched.timeline


def page(view: View) -> View:
    """Make a view that only reads, and tells on a page why it refuses; who is to log in is sent there."""

    @wraps(view)
    def told(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except ApiError as error:
            if error.status == UNAUTHORIZED:
                return redirect_to_login(request.get_full_path(), reverse("admin:login"))
            context = {**admin.site.each_context(request), "title": "Watch", "message": error.message}
            return TemplateResponse(request, "watch/refused.html", context, status=error.status)

    return require_safe(told)


@page
def response(request: HttpRequest, response_id: str) -> HttpResponse:
    """Show a response; `?part=live` is the part of its page that changes while it runs."""
    shown = _load(request, response_id)
    part = request.GET.get("part") == "live"
    context = {**_context(request, shown), "family": _family(shown), "look_ms": LOOK_MS}
    if part:
        answer: HttpResponse = TemplateResponse(request, "watch/live.html", context)
    else:
        answer = TemplateResponse(request, "watch/response.html", {**admin.site.each_context(request), **context})
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
        "status": shown.watched.response["status"],
        "created": timeline.created,
        "ended": timeline.ended,
        "now": shown.watched.now,
        "is_timed": timeline.is_timed,
        "phases": timeline.phases,
        "turns": timeline.turns,
        "tree": _flat(_family(shown)),
    }
    return json_response(body, headers={"cache-control": "no-store"})


@page
def compare(request: HttpRequest) -> HttpResponse:
    """Show two responses side by side, on one scale."""
    ids = [request.GET.get(name, "").strip() for name in ("left", "right")]
    context = {**admin.site.each_context(request), "title": "Compare", "left": ids[0], "right": ids[1]}
    if not all(ids):
        return TemplateResponse(request, "watch/compare.html", context)
    both = [_load(request, each) for each in ids]
    scale = max(each.timeline.milliseconds(each.watched.now) for each in both)
    sides = [_context(request, each, scale=scale, key=key) for each, key in zip(both, ("left", "right"), strict=True)]
    found: Differences = differences(*((each.watched.response, each.input_items) for each in both))
    return TemplateResponse(request, "watch/compare.html", {**context, "sides": sides, "found": found})


def _load(request: HttpRequest, response_id: str) -> Shown:
    project = project_of(request, response_id)
    watched = async_to_sync(_look)(project, response_id)
    asked = async_to_sync(_asked)(project, watched.response_id)
    row = Response.objects.defer("body", "input_items", "request").filter(pk=watched.response_id).first()
    _complete(watched, row)
    return Shown(project, watched, row, asked)


# What follows runs on the event loop of the server, which the view's thread belongs to.


async def _look(project: str, response_id: str) -> Watched:
    return await get_site().responses.watch(project, response_id)


async def _asked(project: str, response_id: str) -> list[JsonObject]:
    return list(await get_site().responses.input_items(project, response_id))


def _complete(watched: Watched, row: Response | None) -> None:
    """Tell a timeline without times what the response's row knows."""
    timeline = watched.timeline
    first = None if row is None or row.first_token_ms is None else timeline.created + row.first_token_ms
    ended = None if row is None or row.duration_ms is None else timeline.created + row.duration_ms
    guess(timeline, first_token=first, ended=ended)
    if timeline.ended is None and not watched.is_running:
        for phase in timeline.phases[-1:]:  # its worker died, and its log has no end
            phase.ended = timeline.ended = max(phase.began, ended or phase.began)


def _context(request: HttpRequest, shown: Shown, *, scale: int = 0, key: str = "run") -> dict[str, Any]:
    watched, room = shown.watched, Room(ROOM)
    body = watched.response
    transcript = Transcript(room)
    asked, said = transcript.read(shown.input_items[-MAX_ASKED:]), transcript.read(body["output"])
    return {
        "title": "Watch",
        "id": shown.id,
        "own_id": watched.response_id,
        "status": body["status"],
        "running": watched.is_running,
        "pill": pill(body["status"]),
        "model": visible(body["model"]),
        "question": asked_of(shown.input_items),
        "picture": draw(shown.timeline, now=watched.now, key=key, scale=scale),
        "figures": _figures(shown),
        "asked": asked,
        "left_out": max(0, len(shown.input_items) - MAX_ASKED),
        "said": said,
        "problem": _problem(body),
        "in_admin": sees_everything(request) and shown.row is not None,
    }


def _problem(body: Any) -> str:
    error, incomplete = body.get("error"), body.get("incomplete_details")
    if isinstance(error, dict):
        return visible(error.get("message") or error.get("code") or "")[:2_000]
    if isinstance(incomplete, dict):
        return f"Cut short: {visible(incomplete.get('reason') or '')[:200].replace('_', ' ')}."
    return ""


def _figures(shown: Shown) -> list[tuple[str, str, str]]:
    """Return the numbers at the top: a name, a value, a remark."""
    timeline, now = shown.timeline, shown.watched.now
    sent = sum(turn.input for turn in timeline.turns)
    cached, made = sum(turn.cached for turn in timeline.turns), sum(turn.output for turn in timeline.turns)
    first = next((turn.first_token for turn in timeline.turns if turn.first_token is not None), None)
    took = timeline.milliseconds(now)
    return [
        ("Turns", f"{len(timeline.turns):,}", ""),
        ("Tokens in", f"{sent:,}", f"{cached:,} cached" if cached else ""),
        ("Tokens out", f"{made:,}", ""),
        ("First token", milliseconds(None if first is None else first - timeline.created), ""),
        ("Duration", milliseconds(took), "so far" if timeline.ended is None else ""),
    ]


def _family(shown: Shown) -> Family:
    return family_of(shown.project, shown.watched.response_id, ttl=settings.RESPSITE.responses_store_ttl)


def _flat(family: Family) -> list[JsonObject]:
    """Return the tree as a list of its responses, each with the one it goes on from."""
    found: list[JsonObject] = []

    def add(branch: Branch, parent: str) -> None:
        for node in branch:
            known = {"id": node.id, "parent": parent, "status": node.status or None, "more": node.more}
            found.append({**known, "is_current": node.is_current, "asked": node.asked})
            for fork in node.forks:
                add(fork, node.id)
            parent = node.id

    add(family.branch, family.before)
    return found
