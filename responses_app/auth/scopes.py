"""What a request's key must be made for, by what its body names; by its method and path `routes` says it."""

from collections.abc import Iterable, Sequence

from responses_app.protocol.api_keys import missing_scope
from responses_app.protocol.requests.requests import Named

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def check_named(scopes: Sequence[str], named: Iterable[Named]) -> None:
    """Raise `ApiError` (403) where a key with these scopes, if it has any, may not use what a request names.

    The error is of the first field that names such a thing, with all scopes that this field needs.
    """
    if not scopes:
        return
    needed = [(each.param, each.area.scope(writes=each.writes)) for each in named]
    missing = [(param, scope) for param, scope in needed if scope not in scopes]
    if missing:
        first, _ = missing[0]
        raise missing_scope(*(scope for param, scope in missing if param == first), param=first)
