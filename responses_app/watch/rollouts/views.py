"""`/watch/rollouts`: the list of roll-outs, a group's table; and `/watch/rollouts/{id}`: one, or two side by side."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from responses_app.models.rollouts import Rollout
from responses_app.protocol.api_keys import Area
from responses_app.protocol.rollouts.requests import can_be_name, rollout_not_found
from responses_app.watch.access import caller_of, page, sees_everything, shows_content
from responses_app.watch.auditing import viewed
from responses_app.watch.rollout_places import Places
from responses_app.watch.rollouts.comparing import compare_page
from responses_app.watch.rollouts.listing import group_page, kept, list_page
from responses_app.watch.rollouts.outline import Outline
from responses_app.watch.rollouts.page import rollout_page, without_content
from responses_app.watch.rollouts.window import generation_page

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
