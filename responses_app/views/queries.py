"""What stands behind the question mark."""

from collections.abc import Mapping, Sequence

from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest

from responses_app.protocol.errors import invalid_request


def query_of(request: HttpRequest) -> Mapping[str, Sequence[str]]:
    """Return a request's query: all values of each name. Raises `ApiError` for one that has too many."""
    try:
        return dict(request.GET.lists())
    except SuspiciousOperation:
        raise invalid_request("The query has too many parameters.") from None
