"""`close_connections`: under ASGI each request has a thread of its own, so its database connection is no one else's."""

from collections.abc import Callable

from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase


def close_connections(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Make Django's middleware that closes what a request opened; connections stay open otherwise, for the stores.

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
