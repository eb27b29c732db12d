"""The API's paths, made of the table of endpoints, and resolved by `ApiMiddleware`. Base URLs without /v1 work too."""

from collections.abc import Mapping

from django.urls import Resolver404, re_path, resolve

from responses_app.api.endpoints import ROUTES, Route
from responses_app.http import NotServed

urlpatterns = [re_path(route.regex, route) for route in ROUTES]


def find(path: str) -> tuple[Route, Mapping[str, str]]:
    """Return what is at a path, and the path's parameters. Raises `NotServed`."""
    try:
        found = resolve(path, __name__)
    except Resolver404:
        raise NotServed from None
    assert isinstance(found.func, Route)
    return found.func, found.kwargs
