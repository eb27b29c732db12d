"""`GET /`: the playground for a browser, a JSON 404 for a client of the API that asks for JSON there."""

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt

from engine.types import SAMPLED, bounds_of, carried, kind_of
from responses_app.auth.door import headers_in
from responses_app.auth.scopes import SAFE_METHODS
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files import containers
from responses_app.protocol.items import media
from responses_app.protocol.requests.server_tools import MAX_STORES
from responses_app.resources.projects.callers import projects_of
from responses_app.runs.plan import reading
from responses_app.stores.database.roles import sees_figures, session_scopes
from responses_app.tools.base import container_limits
from responses_app.web.endpoint import path_not_found
from responses_app.web.http import error_response
from responses_app.wiring.site import Site, get_site

# Images are what models and their code draw, as data URLs; a blob is a file that the page has chosen or fetched itself.
# The font is that of formulas. The WebSocket is named: older browsers do not count it to 'self'.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self' {socket}; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@csrf_exempt  # it changes nothing; and a POST of an API client is to hear 404, in JSON
def playground(request: HttpRequest) -> HttpResponse:
    """Show the page to whoever asks for one: it tells what the server has, and holds nothing of a project."""
    if request.method not in SAFE_METHODS or not request.accepts("text/html"):
        return error_response(path_not_found(request.path))
    facts = _facts(request)
    answer = render(request, "playground/page.html", {"facts": json.dumps(facts), **facts})
    scheme = "wss" if request.is_secure() else "ws"
    answer["Content-Security-Policy"] = POLICY.format(socket=f"{scheme}://{request.get_host()}")
    answer["Cache-Control"] = "no-store"
    return answer


def _facts(request: HttpRequest) -> JsonObject:
    """Return what the page begins with: how one signs in, and which of the server's tools it can switch on."""
    site = get_site()
    settings: Any = site.settings  # with those of the extension
    is_open = site.door.is_open(request.scope, headers_in(request.scope))  # type: ignore[attr-defined]
    by_session = not is_open and bool(session_scopes(request.user))
    return {
        "door": "open" if is_open else "session" if by_session else "key",
        "user": request.user.get_username() if by_session else "",
        # Who has signed in and may not use it needs a key, and is told so.
        "without_permission": "" if is_open or by_session else request.user.get_username(),
        "projects": projects_of(request.user) if by_session else [],
        "tools": sorted({kind for tool in site.tools for kind in tool.kinds}),
        "sandbox_missing": next(filter(None, (tool.missing() for tool in site.tools)), ""),
        "servers": sorted(site.settings.mcp_servers) if is_open or by_session else [],
        "servers_by_url": site.settings.mcp_server_urls,
        "message_bytes": site.settings.websocket_max_message_bytes,
        "kept": site.settings.responses_store,
        "lease_seconds": site.settings.worker_lease_seconds,
        "sharing": settings.playground_sharing,
        "files": file_limits(site),
        "fields": [_control(name) for name in SAMPLED],
        "timeline": "/watch/responses/" if is_open or sees_figures(request.user) else "",
    }


_KINDS = {float: "number", int: "integer", bool: "boolean", dict: "json"}
_WHOLE = 2**53  # beyond this JavaScript has no whole numbers, and so no bounds


def _control(name: str) -> JsonObject:
    """Return the control of a field: `fields.js` says what its parts are."""
    field, bounds = carried(name), bounds_of(name)
    if "lt" in bounds:  # only of whole numbers
        bounds["le"] = bounds.pop("lt") - 1
    names = {"ge": "min", "gt": "above", "le": "max"}
    return {
        "name": name,
        "group": "ending" if field.ends else "sampling",
        "label": field.label or name.replace("_", " ").capitalize(),
        "of": _KINDS[kind_of(name)],
        **{names[bound]: value for bound, value in bounds.items() if abs(value) < _WHOLE},
        **({"example": field.usual} if field.usual else {}),
        **({"hint": field.hint} if field.hint else {}),
    }


PART_BYTES = 8 * 1024 * 1024  # what is larger goes in parts of this size; one that is lost is sent again


def file_limits(site: Site) -> JsonObject:
    """Return the limits of files by where they go; a place that this server does not have is null."""
    settings = site.settings
    in_containers = container_limits(site.tools)
    return {
        "bytes": settings.file_max_bytes,  # of any file
        "part": PART_BYTES,
        "message": {"count": media.MAX_FILES, "bytes": reading.MAX_BYTES, "characters": media.MAX_TEXT},
        "images": {"count": settings.input_images_max, "bytes": settings.input_image_max_bytes},
        "code": {"count": containers.MAX_FILES, "bytes": in_containers.file_bytes} if in_containers else None,
        "store": {"count": settings.vector_store_max_files, "stores": MAX_STORES} if settings.file_search else None,
    }
