"""Who may ask: `ApiMiddleware` stands first and answers the API's paths itself; all else goes on to Django's own.

So sessions, auth, CSRF and messages serve the admin alone (they cost 3 ms a request), every answer of the API has its
headers, and every error is JSON in the shape that its client knows.

A stream whose caller may not ask any more is ended in its middle: the key was revoked, or the session is over. Clients
take a clean end for the whole; who asks again hears a 401. A WebSocket says so itself (`web.sockets.connection`).

`Source` tells which web pages may use the server: a browser says where a request comes from, and cannot be made to lie
about it. The API asks nobody for a password, and a browser inside the network reaches it for any page that its user
opens. So a page's requests pass where the page is the server's own (same scheme, host and port as the request went to)
or one of ALLOWED_ORIGINS. What is not a browser sends no Origin, and passes. The host that a request names is checked
everywhere (`host_allowed`): without that, a page could call itself by any name and let it lead here (DNS rebinding).
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from asgiref.sync import markcoroutinefunction
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port, validate_host
from django.http.response import HttpResponseBase

from responses_app.auth.origins import is_listed
from responses_app.auth.scopes import SAFE_METHODS
from responses_app.kit.clock import rfc3339
from responses_app.observing.logs import bind, is_silent
from responses_app.observing.traces import NO_SPAN
from responses_app.protocol.api_keys import Caller
from responses_app.protocol.errors import ApiError, foreign_page, host_not_allowed, server_error
from responses_app.protocol.fields import IGNORED_HEADER
from responses_app.protocol.rate_limits import as_anthropic_headers, as_headers
from responses_app.protocol.transport import ANTHROPIC_VERSION
from responses_app.web.auditing import answer_audited
from responses_app.web.endpoint import Route, find, path_not_found
from responses_app.web.http import ApiRequest, NotServed, error_response
from responses_app.wiring.site import get_site

_PREFLIGHT = {"origin", "access-control-request-method"}  # with OPTIONS: may a page send what no form does?
_REQUESTED_HEADERS = "Access-Control-Request-Headers"
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")  # in lower case; RFC 9110 section 5.6.2
_FOR_OWN_PAGES = ("respsite-session",)  # headers that no other origin may send: `auth.door` says why
PREFLIGHT_SECONDS = 600  # for which a browser need not ask again
PAGE_METHODS = "GET, HEAD, POST, DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a request came from and where it went, as its headers say; None where they say nothing."""

    scheme: str  # http or https
    host: str | None  # with its port, if one is named
    origin: str | None  # the page's, such as "https://example.com"; "null" for a page without one
    fetch_site: str | None  # the browser's own word: same-origin, same-site, cross-site or none
    fetch_mode: str | None = None  # "navigate" where a page is opened

    @classmethod
    def of_request(cls, request: HttpRequest) -> "Source":
        """Read a request whose host has been checked."""
        return cls(
            scheme=str(request.scheme),
            host=request.get_host(),
            origin=request.headers.get("origin"),
            fetch_site=request.headers.get("sec-fetch-site"),
            fetch_mode=request.headers.get("sec-fetch-mode"),
        )

    @classmethod
    def of_handshake(cls, scope: Any) -> "Source":
        """Read the scope of a WebSocket."""
        headers = {name: value.decode("latin1") for name, value in reversed(scope["headers"])}  # the first one counts
        return cls(
            scheme="https" if scope.get("scheme") == "wss" else "http",
            host=headers.get(b"host"),
            origin=headers.get(b"origin"),
            fetch_site=headers.get(b"sec-fetch-site"),
        )

    def is_allowed(self, trusted: Collection[str]) -> bool:
        """Whether this is not a page's request, or that of the server's own pages, or of one that is `trusted`.

        `Sec-Fetch-Site` is the browser's own judgement: behind a proxy with TLS it knows the scheme that we do not.
        Where it comes without an Origin it is all there is to go by.
        """
        if self.fetch_site == "same-origin":
            return True
        if self.origin is None:
            return self.fetch_site in (None, "none")  # none: the user's own doing, as from the address bar
        if self.host and is_listed(self.origin, (f"{self.scheme}://{self.host}",)):
            return True
        return is_listed(self.origin, trusted)


def host_allowed(host: str | None, allowed_hosts: Collection[str]) -> bool:
    """Whether a `Host` header names this server."""
    domain, _ = split_domain_port(host or "")
    return bool(domain) and validate_host(domain, allowed_hosts)


logger = logging.getLogger("respsite.transport")


class ApiMiddleware:
    """The middleware that answers the API's paths. Async only, like the views behind it."""

    async_capable = True
    sync_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        self._get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer, or hand on."""
        if not (isinstance(request, ApiRequest) and request.is_of_api):
            return await self._hand_on(request)
        began = asyncio.get_running_loop().time()
        site = get_site()
        request.request_id = site.answer_headers.request_id(request.sent_headers)
        bind(request_id=request.request_id)
        response = await self._answer(request)
        if request.ignored_fields is not None and request.ignored_fields.names:
            ignored = str(request.ignored_fields)
            response[IGNORED_HEADER] = ignored
            logger.info("request %s: these fields have no effect: %s", request.request_id, ignored)
        headers = await answer_headers(request.sent_headers, request.request_id, request.caller, began=began)
        for name, value in headers.items():
            response[name] = value
        if site.answer_headers.is_listed is not None:
            for name, value in site.answer_headers.for_page(request.sent_headers, response.headers).items():
                response[name] = value
        site.watch.metrics.answers.count(str(response.status_code))
        # Django would log each 4xx as a warning and each 503 as an error: a load balancer that asks /ready during a
        # start would fill the log. What is worth a line is logged where it happens.
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response

    async def _hand_on(self, request: HttpRequest) -> HttpResponseBase:
        try:
            request.get_host()  # Django itself would log a traceback for each
        except DisallowedHost:
            error = host_not_allowed(request.META.get("HTTP_HOST", ""))
            headers = {"x-content-type-options": "nosniff"}
            return HttpResponse(error.message, status=error.status, content_type="text/plain", headers=headers)
        answer = await self._get_response(request)
        if answer.status_code == 404:  # it has nothing to keep from the pages that the API trusts
            for name, value in get_site().answer_headers.for_page(request.headers, answer.headers).items():
                answer[name] = f"{answer[name]}, {value}" if name == "vary" and name in answer else value
        return answer

    async def _answer(self, request: ApiRequest) -> HttpResponseBase:
        try:
            request.get_host()
            if "origin" in request.sent_headers or "sec-fetch-site" in request.sent_headers:
                _check_origin(request)
            if request.method == "OPTIONS" and request.sent_headers.keys() >= _PREFLIGHT:
                return _preflight_answer(request)
            route, named = find(request.path_info)
            await _let_in(request, route)
            if request.caller.session:
                answering = partial(route, request, **named)
                answer = await answer_audited(get_site().audit, request, route, named, answering)
            else:
                answer = await route(request, **named)
            if answer.streaming:
                _end_with_caller(request)
            return answer
        except NotServed:
            return _refused(path_not_found(request.path_info), request)
        except DisallowedHost:
            return _refused(host_not_allowed(request.META.get("HTTP_HOST", "")), request)
        except ApiError as error:
            return _refused(error, request)
        except Exception:
            logger.exception("request %s broke", request.request_id)
            return _refused(server_error(request.request_id), request)


def _end_with_caller(request: ApiRequest) -> None:
    """Watch who asks for a stream until the task that sends it, which is the current one, has ended."""
    caller, cut, sending = request.caller, request.cut, asyncio.current_task()
    if not (caller.is_known and cut is not None and sending is not None):
        return

    def lost() -> None:
        over = "API key opens no more" if caller.key else "session is over"
        logger.info("the answer to request %s ends: its %s", request.request_id, over)
        # It lasts until the server has noticed that the connection is gone, and cancels the sending.
        cutting = asyncio.ensure_future(cut())
        sending.add_done_callback(lambda _: cutting.cancel())

    unwatch = get_site().door.watch(caller, lost)
    sending.add_done_callback(lambda _: unwatch())


async def answer_headers(given: Mapping[str, str], request_id: str, caller: Caller, *, began: float) -> dict[str, str]:
    """Return what every answer says: to a request with these headers, which began at this time of the loop."""
    site = get_site()
    limited = caller.limited
    lines = await site.rates.lines(limited, since=began) if limited else ()
    seconds = asyncio.get_running_loop().time() - began
    headers = site.answer_headers.of(given, request_id, seconds=seconds)
    if lines and ANTHROPIC_VERSION in given:
        # Rounded up: at that second all of it is left.
        return headers | as_anthropic_headers(lines, lambda left: rfc3339(ceil(time.time() + left / 1000)))
    return headers | as_headers(lines) if lines else headers


def _refused(error: ApiError, request: ApiRequest) -> HttpResponse:
    get_site().watch.metrics.error("http", error.status, error.code or error.type)
    headers = {name.lower(): value for name, value in request.headers.items()}
    return error_response(error, path=request.path_info, headers=headers, request_id=request.request_id)


async def let_in(scope: Any, method: str, path: str) -> None:
    """Raise `ApiError` for who may not ask for this, 503 where none can tell now."""
    needed = find(path)[0].scope(method)
    if needed is not None:
        (await get_site().door.caller(scope, needed=needed)).check_scope(needed)


async def _let_in(request: ApiRequest, route: Route) -> None:
    """Find out who asks, note it, and check that their key is made for this."""
    needed = route.scope(str(request.method))
    if needed is None:
        return
    caller = request.caller = await get_site().door.caller(request.scope, needed=needed)
    bind(project=caller.project, key_id=caller.key_id)
    if request.span is not NO_SPAN and not is_silent():  # a path has the ids that a client names, whatever they are
        request.span.note({"url.path": request.path_info})
    caller.check_scope(needed)


def _check_origin(request: ApiRequest) -> None:
    """Refuse what a foreign web page has a browser send: a POST without a body and any GET come unasked."""
    source = Source.of_request(request)
    if source.is_allowed(get_site().settings.trusted_pages):
        return
    # The user opens a page, from wherever a link led them here. It changes nothing, and no other page sees the answer.
    if not (source.origin is None and source.fetch_mode == "navigate" and request.method in SAFE_METHODS):
        raise foreign_page(source.origin)


def _preflight_answer(request: HttpRequest) -> HttpResponse:
    """Return what a page of a listed origin may send. No browser sends a key with that question.

    Cookies are left out: the answer has no `Access-Control-Allow-Credentials`.
    """
    names = [name.strip().lower() for name in request.headers.get(_REQUESTED_HEADERS, "").split(",")]
    allowed = [name for name in names if _HEADER_NAME.fullmatch(name) and name not in _FOR_OWN_PAGES]
    headers = {
        "access-control-allow-methods": PAGE_METHODS,
        "access-control-max-age": str(PREFLIGHT_SECONDS),
        **({"access-control-allow-headers": ", ".join(allowed)} if allowed else {}),
    }
    return HttpResponse(status=204, headers=headers)
