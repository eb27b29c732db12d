"""`ApiMiddleware`: standing first, it answers the API's paths itself; everything else goes on to Django's own.

So sessions, auth, CSRF and messages serve the admin alone (they cost 3 ms a request), every answer of the API has its
request id, and every error is JSON in OpenAI's shape.
"""

import logging
import re
from collections.abc import Awaitable, Callable

from asgiref.sync import markcoroutinefunction
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve

from responses_app.http import error_response, not_found, usable_request_id
from responses_app.origins import SAFE_METHODS, Source
from responses_app.protocol import ids
from responses_app.protocol.errors import ApiError, foreign_page, invalid_request, server_error
from responses_app.wiring import get_site

logger = logging.getLogger("respsite.transport")

API_URLS = "responses_app.urls"
_API_PATH = re.compile(r"/(?:v1|responses|conversations|models|health|ready)(?:/|$)")


def is_api_path(path: str) -> bool:
    """Whether a path is answered here."""
    return _API_PATH.match(path) is not None


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
        request_id = _request_id(request)
        request.request_id = request_id  # type: ignore[attr-defined]
        response = await self._answer(request, request_id)
        response["x-request-id"] = request_id
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
            match = resolve(request.path_info, API_URLS)
            answer: HttpResponseBase = await match.func(request, *match.args, **match.kwargs)
        except Resolver404:
            return error_response(not_found(request.path_info))
        except ApiError as error:
            return error_response(error)
        except Exception:
            logger.exception("request %s broke", request_id)
            return error_response(server_error(request_id))
        return answer


def _request_id(request: HttpRequest) -> str:
    """Echo the client's id if it is printable and short, else make one."""
    given = request.headers.get("x-request-id", "")
    return given if usable_request_id(given) else get_site().new_id(ids.REQUEST)


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
    """Refuse what a foreign web page has a browser send: some of it, like a POST without a body, comes unasked."""
    if request.method in SAFE_METHODS:
        return
    source = Source.of_request(request)
    if not source.is_allowed(get_site().settings.trusted_pages):
        raise foreign_page(source.origin or "another site")
