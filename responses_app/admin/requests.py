"""Parts of the admin's requests that no request of the API has: login, middlewares, pages of problems.

Failed logins are counted over all workers (django-axes), and too many lock for a while. They count against the user
name and against the address they came from, in the database. While either one is locked, the right password is refused
too, so that nobody learns by guessing on that it is the right one.

Pages of what did not work stand in the place of Django's: each says what it was, and what helps. They are made without
the database and without a session, which may be what is broken.
"""

import logging
import threading
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from math import ceil
from typing import Any
from urllib.parse import urlsplit

from axes.signals import user_locked_out
from django.conf import settings
from django.contrib import admin
from django.db import OperationalError, connections
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import REASON_BAD_REFERER, REASON_INSECURE_REFERER, REASON_NO_REFERER
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import Resolver404, get_script_prefix, resolve, reverse
from django.utils.http import url_has_allowed_host_and_scheme

from responses_app.api.server import missing
from responses_app.protocol.errors import ApiError, overloaded
from responses_app.resources.audit.fields import AuditUnavailable

logger = logging.getLogger("respsite.admin")

WAIT_SECONDS = 10.0  # for one's turn to log in
HOUSEHOLD = 64  # bits of an IPv6 address that its owner did not choose: the others can be made up at will

_turn = threading.Lock()


def login(request: HttpRequest) -> HttpResponse:
    """Show the form, or take it: one at a time, so that guesses made at once are counted before the next is checked.

    Each worker has a turn of its own: so many workers, so many guesses more than the limit at most.
    """
    keep_own_next(request)
    # Named where single sign-on is configured: the form has a link to it.
    extra = {"sign_on": settings.RESPSITE.oidc_issuer and settings.RESPSITE.oidc_name}
    if request.method != "POST":
        return admin.site.login(request, extra)
    # Each request has a thread of its own here, so waiting blocks nobody else.
    if not _turn.acquire(timeout=WAIT_SECONDS):
        return _refusal(request, "Many are logging in at once.", seconds=ceil(WAIT_SECONDS))
    try:
        return admin.site.login(request, extra)
    finally:
        _turn.release()


def keep_own_next(request: HttpRequest) -> None:
    """Let `next` of a request to sign in be a page of this server: the dashboard takes the place of all else."""
    for name in ("GET", "POST"):
        values = getattr(request, name)
        if "next" in values and not _is_own_page(request, values["next"]):
            values = values.copy()
            values["next"] = reverse("admin:index")
            setattr(request, name, values)


def _is_own_page(request: HttpRequest, url: str) -> bool:
    if not url_has_allowed_host_and_scheme(url, {request.get_host()}, require_https=request.is_secure()):
        return False
    prefix = get_script_prefix()
    try:
        path = urlsplit(url).path
        resolve(f"/{path[len(prefix) :]}" if path.startswith(prefix) else path)
    except (Resolver404, ValueError):
        return False
    return True


def locked_page(request: HttpRequest, response: HttpResponse, credentials: dict[str, Any]) -> HttpResponse:
    """Return what django-axes shows in place of the form: 429, and when to come back."""
    text = "Too many logins failed with this user name or from this address."
    return _refusal(request, text, seconds=ceil(settings.RESPSITE.admin_login_lock_seconds))


def client_address(request: HttpRequest) -> str | None:
    """Return the address that failures count against, an IPv6 one without what its owner chose; None if unknown.

    Behind a proxy it is the client's: see `web.servers.heads`.
    """
    try:
        address = ip_address(request.META.get("REMOTE_ADDR") or "")
    except ValueError:  # a Unix socket has none
        return None
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    # 2001:db8::1:2:3:4 counts as 2001:db8::.
    return str(IPv6Network((int(address), HOUSEHOLD), strict=False).network_address)


@receiver(user_locked_out)
def log_lock(request: Any, username: str | None, ip_address: str | None, **kwargs: Any) -> None:
    """Tell the operator, once for each time that something is locked."""
    if request.axes_failures_since_start is None:  # it was locked before
        return
    logger.warning(
        "logins to the admin as %r and from %s are locked for %g s, after %d failures; `respsite manage axes_reset` "
        "unlocks",
        str(username)[:80],
        ip_address,
        settings.RESPSITE.admin_login_lock_seconds,
        request.axes_failures_since_start,
    )


def _refusal(request: HttpRequest, reason: str, *, seconds: int) -> HttpResponse:
    wait = f"{seconds} seconds" if seconds < 120 else f"{ceil(seconds / 60)} minutes"
    context = {**admin.site.each_context(request), "title": "Please wait", "reason": reason, "wait": wait}
    answer = render(request, "admin/respsite/locked.html", context, status=429)
    answer["Retry-After"] = str(seconds)
    return answer


GetResponse = Callable[[HttpRequest], HttpResponseBase]

POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def content_policy(get_response: GetResponse) -> GetResponse:
    """Make the middleware that gives every page a policy: scripts and styles come from this server's files alone.

    So no script runs, whatever a client managed to write into what the pages show.
    """

    def middleware(request: HttpRequest) -> HttpResponseBase:
        answer = get_response(request)
        answer.headers.setdefault("Content-Security-Policy", POLICY)  # the playground has its own
        return answer

    return middleware


def close_connections(get_response: GetResponse) -> GetResponse:
    """Make the middleware that closes what a request opened; connections stay open otherwise, for the stores.

    Under ASGI each request has a thread of its own, so nobody else uses its database connection.
    It is sync: so are the admin and the middleware behind this one, which then takes one thread for all of them.
    """

    def middleware(request: HttpRequest) -> HttpResponseBase:
        try:
            return get_response(request)
        finally:
            for connection in connections.all(initialized_only=True):
                if not connection.in_atomic_block:  # tests have their transaction around the request
                    connection.close()

    return middleware


PEOPLES = ("/admin/", "/docs/", "/watch/")  # below these are pages for people
TOO_MUCH = "The server does not take this form: it is too large, or it was damaged on its way. Go back and try again."
NOT_ALLOWED = "Your user may not do this. An administrator of this server can give it the role that may."
NOTHING_HERE = "There is nothing at this address. It may have been deleted, or a part of the address is missing."
BROKEN = "Something broke in the server. Try again later. Its operator finds the reason in the server's log."
EXPIRED = "The form had expired, or the browser sent no cookie with it. Open the page again, and send it once more."
NO_REFERER = "The browser does not say which page the form came from. Let it send the header Referer to this server."
ELSEWHERE = (
    "The form came from %s, and the server does not know that as its own address: to it, you called %s. If you did not "
    "open the form on this server, do not send it again."
)
FOR_OPERATORS = (
    "If it is the address of this server, a proxy in front of it is not in its settings yet. Its operator sets "
    "BEHIND_PROXY=%s and CSRF_TRUSTED_ORIGINS=%s, and starts it again: see Deployment in the documentation."
)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Say why a form was not taken (403); Django's `CSRF_FAILURE_VIEW`."""
    origin = _origin(request, reason)
    if reason == REASON_NO_REFERER:
        return problem_page("The form was not taken", NO_REFERER, status=403)
    if not origin:
        return problem_page("The form was not taken", EXPIRED, status=403)
    called = f"{request.scheme}://{request.get_host()}"
    operator = FOR_OPERATORS % ("tls" if origin.startswith("https:") else "http", origin)
    return problem_page("The form was not taken", ELSEWHERE % (origin, called), operator, status=403)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say that a request is not taken (400); Django's `handler400`."""
    return problem_page("The form was not taken", TOO_MUCH, status=400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say that a user may not do this (403); Django's `handler403`."""
    return problem_page("Not allowed", NOT_ALLOWED, status=403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say that there is nothing (404): as a page to people, else in the API's shape; Django's `handler404`."""
    if request.path_info.startswith(PEOPLES):
        return problem_page("Nothing here", NOTHING_HERE, status=404)
    return missing(request, exception)


def broken(request: HttpRequest) -> HttpResponse:
    """Say that something broke (500); Django's `handler500`."""
    return problem_page("Something broke", BROKEN, status=500)


def _origin(request: HttpRequest, reason: str) -> str:
    """Return where a form came from that was refused for that; "" where it was refused for something else."""
    if reason.startswith("Origin checking failed"):
        return str(request.META.get("HTTP_ORIGIN", ""))
    beginning = REASON_BAD_REFERER.partition("%s")[0]
    if reason.startswith((beginning, REASON_INSECURE_REFERER)) and reason != REASON_NO_REFERER:
        return "/".join(str(request.META.get("HTTP_REFERER", "")).split("/")[:3])
    return ""


def problem_page(title: str, *paragraphs: str, status: int) -> HttpResponse:
    """Return a page with these paragraphs, of which the first one stands out."""
    context = {"title": title, "paragraphs": paragraphs, "site_title": admin.site.site_title, "has_permission": False}
    return HttpResponse(render_to_string("admin/respsite/problem.html", context), status=status)


NO_DATABASE = (
    "The database does not answer, or cannot be written to: nothing was changed. The server's log says why. Try again "
    "when it works."
)


def refusals(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Make the middleware that shows a page where something was not done: the database is away or cannot be written
    to, or the audit trail cannot.
    """

    def middleware(request: HttpRequest) -> HttpResponseBase:
        return get_response(request)

    def process_exception(request: HttpRequest, exception: Exception) -> HttpResponse | None:
        problem: ApiError
        if isinstance(exception, AuditUnavailable):
            title, problem = "Not recorded", exception
        elif isinstance(exception, OperationalError):
            logger.error("%s: the database fails: %s", request.path, exception)
            title, problem = "Not done", overloaded(NO_DATABASE, retry_after=2)
        else:
            return None
        answer = problem_page(title, problem.message, status=problem.status)
        answer["Retry-After"] = str(problem.retry_after)
        return answer

    middleware.process_exception = process_exception  # type: ignore[attr-defined]
    return middleware
