"""What requests of the admin go through, and no request of the API: the login, and two middlewares.

Failed logins are counted over all workers (django-axes), and too many lock for a while. They count against the user
name and against the address they came from, in the database. While either one is locked, the right password is refused
too, so that nobody learns by guessing on that it is the right one.
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
from django.db import connections
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import Resolver404, get_script_prefix, resolve, reverse
from django.utils.http import url_has_allowed_host_and_scheme

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
