"""Django's own part of the site: what each request of the admin gets, and no request of the API."""

from collections.abc import Callable

from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

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
