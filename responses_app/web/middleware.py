"""`ApiMiddleware`: standing first, it answers the API's paths itself; everything else goes on to Django's own.

So sessions, auth, CSRF and messages serve the admin alone (they cost 3 ms a request), every answer of the API has its
headers, and every error is JSON in OpenAI's shape.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from asgiref.sync import markcoroutinefunction
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from responses_app.auth.scopes import SAFE_METHODS
from responses_app.observing.context import bind
from responses_app.protocol.api_keys import NOBODY_ASKED, Caller
from responses_app.protocol.errors import ApiError, foreign_page, invalid_request, server_error
from responses_app.protocol.fields import IGNORED_HEADER
from responses_app.protocol.rate_limits import as_headers
from responses_app.web.http import NotServed, error_response
from responses_app.web.origins import Source
from responses_app.web.routes import Route, find, is_api_path, path_not_found
from responses_app.wiring.wiring import get_site

logger = logging.getLogger("respsite.transport")


class ApiMiddleware:
    """Async only, like the views behind it."""

    async_capable = True
    sync_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        self._get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer, or hand on."""
        if not is_api_path(request.path_info):
            return await self._hand_on(request)
        began = asyncio.get_running_loop().time()
        given = {name.decode("latin1"): value.decode("latin1") for name, value in request.scope["headers"]}  # type: ignore[attr-defined]
        request_id = get_site().answer_headers.request_id(given)
        request.request_id = request_id  # type: ignore[attr-defined]
        bind(request_id=request_id)
        request.caller = NOBODY_ASKED  # type: ignore[attr-defined]
        response = await self._answer(request, request_id)
        if ignored := str(getattr(request, "ignored_fields", "")):
            response[IGNORED_HEADER] = ignored
            logger.info("request %s: these fields have no effect: %s", request_id, ignored)
        for name, value in (await answer_headers(given, request_id, request.caller, began=began)).items():  # type: ignore[attr-defined]
            response[name] = value
        get_site().watch.metrics.answers.count(str(response.status_code))
        # Django would log each 4xx as a warning and each 503 as an error: a load balancer that asks /ready during a
        # start would fill the log. What is worth a line is logged where it happens.
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response

    async def _hand_on(self, request: HttpRequest) -> HttpResponseBase:
        try:
            _check_host(request)  # Django itself would log a traceback for each
        except ApiError as error:
            headers = {"x-content-type-options": "nosniff"}
            return HttpResponse(error.message, status=error.status, content_type="text/plain", headers=headers)
        return await self._get_response(request)

    async def _answer(self, request: HttpRequest, request_id: str) -> HttpResponseBase:
        try:
            _check_host(request)
            _check_origin(request)
            route, named = find(request.path_info)
            await _let_in(request, route)
            return await route(request, **named)
        except NotServed:
            return _refused(path_not_found(request.path_info))
        except ApiError as error:
            return _refused(error)
        except Exception:
            logger.exception("request %s broke", request_id)
            return _refused(server_error(request_id))


async def answer_headers(given: Mapping[str, str], request_id: str, caller: Caller, *, began: float) -> dict[str, str]:
    """Return what every answer says: to a request with these headers, which began at this time of the loop."""
    site = get_site()
    limited = caller.limited
    lines = await site.rates.lines(limited, since=began) if limited else ()
    seconds = asyncio.get_running_loop().time() - began
    headers = site.answer_headers.of(given, request_id, seconds=seconds)
    return headers | as_headers(lines) if lines else headers


def _refused(error: ApiError) -> HttpResponse:
    get_site().watch.metrics.error("http", error.status, error.code or error.type)
    return error_response(error)


async def let_in(scope: Any, method: str, path: str) -> None:
    """Raise `ApiError` for who may not ask for this, 503 where none can tell now."""
    needed = find(path)[0].scope(method)
    if needed is not None:
        (await get_site().door.caller(scope)).check_scope(needed)


async def _let_in(request: HttpRequest, route: Route) -> None:
    """Find out who asks, note it, and check that their key is made for this."""
    needed = route.scope(str(request.method))
    if needed is None:
        return
    caller = request.caller = await get_site().door.caller(request.scope)  # type: ignore[attr-defined]
    bind(project=caller.project, key_id=caller.key_id)
    caller.check_scope(needed)


def _check_host(request: HttpRequest) -> None:
    try:
        request.get_host()
    except DisallowedHost:
        host = request.META.get("HTTP_HOST", "")[:100]
        raise invalid_request(
            f"The host name '{host}' is not served here. The operator can add it to ALLOWED_HOSTS.",
            code="host_not_allowed",
        ) from None


def _check_origin(request: HttpRequest) -> None:
    """Refuse what a foreign web page has a browser send: a POST without a body and any GET come unasked."""
    source = Source.of_request(request)
    if source.is_link and request.method in SAFE_METHODS:
        return
    if not source.is_allowed(get_site().settings.trusted_pages):
        raise foreign_page(source.origin or "another site")
