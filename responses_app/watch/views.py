"""`/watch/…`: the page of one response, which is live while it runs, and of two side by side; JSON for programs."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.watch.access import project_of, sees_everything
from responses_app.watch.comparing import differences
from responses_app.watch.family import Branch, Family
from responses_app.watch.page import Frame, response_page, summary, tree_of
from responses_app.watch.shown import Shown, shown_to_clients
from responses_app.watch.text import Room
from responses_app.watch.transcript import Transcript
from responses_app.web.http import error_response, json_response

ROOM = 60_000  # characters of two conversations side by side
MAX_ASKED = 6  # items of the input that are shown of each, the last ones
UNAUTHORIZED = 401

View = Callable[..., HttpResponse]


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
            return TemplateResponse(request, "response/refused.html", context, status=error.status)

    return require_safe(told)


@page
def response(request: HttpRequest, response_id: str) -> HttpResponse:
    """Show a response."""
    frame = Frame("watch-response", staff=sees_everything(request))
    return shown_page(request, _load(request, response_id), frame, "watch/response.html")


def shown_page(request: HttpRequest, shown: Shown, frame: Frame, template: str, **more: object) -> HttpResponse:
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


@page
def compare(request: HttpRequest) -> HttpResponse:
    """Show two responses side by side, on one scale."""
    ids = [request.GET.get(name, "").strip() for name in ("left", "right")]
    context = {**admin.site.each_context(request), "title": "Compare", "left": ids[0], "right": ids[1]}
    if not all(ids):
        return TemplateResponse(request, "response/compare.html", context)
    both = [_load(request, each) for each in ids]
    scale = max(each.timeline.milliseconds(each.now) for each in both)
    room = Room(ROOM)
    sides = []
    for key, each in zip(("left", "right"), both, strict=True):
        transcript = Transcript(room)
        blocks = [*transcript.read((each.input_items or [])[-MAX_ASKED:]), *transcript.read(each.body["output"])]
        sides.append({**summary(each, key=key, scale=scale), "blocks": blocks})
    found = differences(*((each.body, each.input_items or ()) for each in both))
    frame = Frame("watch-response", staff=False)
    context |= {"sides": sides, "found": found, "frame": frame}
    return TemplateResponse(request, "response/compare.html", context)


def _load(request: HttpRequest, response_id: str) -> Shown:
    project = project_of(request, response_id)
    return shown_to_clients(project, response_id, ttl=settings.RESPSITE.responses_store_ttl)


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
