"""What stands behind the question mark."""

from collections.abc import Mapping, Sequence

from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest

from responses_app.protocol.errors import invalid_request
from responses_app.protocol.items.item_resources import SCREENSHOTS
from responses_app.protocol.requests.pages import Query, parse_include_query
from responses_app.wiring.wiring import get_site


def query_of(request: HttpRequest) -> Mapping[str, Sequence[str]]:
    """Return a request's query: all values of each name. Raises `ApiError` for one that has too many."""
    try:
        return dict(request.GET.lists())
    except SuspiciousOperation:
        raise invalid_request("The query has too many parameters.") from None


def include_of(query: Query) -> Sequence[str]:
    """Return what a list of items is to include, as far as the settings allow it. Raises `ApiError`."""
    include = parse_include_query(query)
    if get_site().settings.enable_computer_call:
        return include
    return [each for each in include if each != SCREENSHOTS]
