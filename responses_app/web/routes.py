"""What is at a path, and what answers a method there.

The API stands above what serves it, so nothing here imports it. Paths are found as Django finds them: by the name of
the module that lists them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, get_resolver, resolve

from responses_app.auth.scopes import SAFE_METHODS
from responses_app.protocol.errors import ApiError, not_found
from responses_app.runs.planning.history import store_away
from responses_app.stores.base import StoreError
from responses_app.web.endpoint import Endpoint
from responses_app.web.http import MethodNotAllowed, NotServed, json_response
from responses_app.web.not_served import NOT_SERVED

API_URLS = "responses_app.urls"


class Route:
    """A path with its endpoints: a view of Django, which has the one of a request's method answer."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = endpoints
        self.path = endpoints[0].shown_path
        self.regex = endpoints[0].regex

    async def __call__(self, request: HttpRequest, **named: str) -> HttpResponseBase:
        """Answer. Raises `ApiError`: 405 for a method that is not taken, 503 where the database is away, its own."""
        endpoint = self.endpoint(str(request.method))
        if endpoint is None:
            raise self._not_allowed(str(request.method))
        try:
            answer = await endpoint.handler(request, *named.values())
        except tuple(endpoint.refusals) as problem:
            refuse = next(refuse for kind, refuse in endpoint.refusals.items() if isinstance(problem, kind))
            raise refuse(problem, *named.values()) from None
        except StoreError as error:
            raise store_away(error) from error
        return answer if isinstance(answer, HttpResponseBase) else json_response(answer)

    def endpoint(self, method: str) -> Endpoint | None:
        """Return what answers a method."""
        return next((each for each in self.endpoints if each.answers_to(method)), None)

    def scope(self, method: str) -> str | None:
        """Return the scope that a method needs, also one that is not taken; None where not even a key is needed."""
        area = self.endpoints[0].scope
        return None if area is None else area.scope(writes=method not in SAFE_METHODS)

    def _not_allowed(self, method: str) -> ApiError:
        upgrades = any(each.websocket for each in self.endpoints)
        hint = " A WebSocket needs an upgrade request to this path." if upgrades else ""
        return MethodNotAllowed(method, [each.method for each in self.endpoints], hint)


def routes_of(endpoints: Iterable[Endpoint]) -> Sequence[Route]:
    """Return the paths of endpoints."""
    found: dict[str, list[Endpoint]] = {}
    for each in endpoints:
        found.setdefault(each.path, []).append(each)
    return [Route(same) for same in found.values()]


@cache
def routes() -> Sequence[Route]:
    """Return all paths of the API."""
    found = (pattern.callback for pattern in get_resolver(API_URLS).url_patterns)
    return [each for each in found if isinstance(each, Route)]


@cache
def served() -> Sequence[str]:
    """Return the shortest path of each resource that needs a key, as is told to who asks for something else."""
    by_resource: dict[str, list[str]] = {}
    for route in routes():
        if route.scope("GET") is not None:
            path = route.endpoints[0].path.removeprefix("/v1/")
            by_resource.setdefault(path.partition("/")[0], []).append(path)
    return [min(paths, key=len) for paths in by_resource.values()]


@cache
def _beginning() -> re.Pattern[str]:
    parts = (part for route in routes() for part in route.endpoints[0].path.split("/")[1:3])
    names = dict.fromkeys(part for part in parts if "{" not in part)
    return re.compile(rf"/(?:{'|'.join(map(re.escape, names))})(?:/|$)")


def is_api_path(path: str) -> bool:
    """Whether a path is answered by the API, if only with an error."""
    return _beginning().match(path) is not None


def find(path: str) -> tuple[Route, Mapping[str, str]]:
    """Return what is at a path, and the path's parameters. Raises `NotServed`."""
    try:
        found = resolve(path, API_URLS)
    except Resolver404:
        raise NotServed from None
    assert isinstance(found.func, Route)
    return found.func, found.kwargs


def path_not_found(path: str) -> ApiError:
    """Nothing is served at this path (404); of one that OpenAI has it says so."""
    name = path.lstrip("/").removeprefix("v1/").partition("/")[0]
    about = f" OpenAI's API has {NOT_SERVED[name]}." if name in NOT_SERVED else ""
    message = (
        f"Nothing is served at '{path[:200]}'.{about} The API begins at /v1 and has {', '.join(served()[:-1])} and "
        f"{served()[-1]}: try GET /v1/models. All paths are told at /openapi."
    )
    return not_found(message, code="not_found")
