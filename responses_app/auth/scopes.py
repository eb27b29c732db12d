"""What a request's key must be made for: by its method and path, and by what its body names."""

from collections.abc import Iterable, Sequence

from responses_app.protocol.api_keys import missing_scope
from responses_app.protocol.named import Named

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_RESOURCES = {
    "responses": "api.responses",
    "chat": "api.responses",  # what it makes are responses
    "conversations": "api.conversations",
    "containers": "api.containers",
    "files": "api.files",
    "uploads": "api.files",  # what they become
    "vector_stores": "api.vector_stores",
    "models": "api.model",
    "completions": "api.responses",  # a model generates, as for a response
    "decisions": "api.responses",
    "embeddings": "api.embeddings",
}
# Who asks whether the server lives, or what it takes, needs no key; who may read the metrics is for their view to say.
_FOR_EVERYBODY = ("health", "ready", "metrics", "openapi.json", "openapi")


def needed_scope(method: str, path: str) -> str | None:
    """Return the scope that a request to one of the API's paths needs, None where not even a key is needed.

    Raises `KeyError` for a path whose resource has no scope: a new one must be given its own here.
    """
    resource = path.strip("/").removeprefix("v1/").partition("/")[0]
    if resource in _FOR_EVERYBODY:
        return None
    return _scope(resource, writes=method not in SAFE_METHODS)


def check_named(scopes: Sequence[str], named: Iterable[Named]) -> None:
    """Raise `ApiError` (403) where a key with these scopes, if it has any, may not use what a request names.

    The error is of the first field that names such a thing, with all scopes that this field needs.
    """
    if not scopes:
        return
    needed = [(each.param, _scope(each.resource, each.writes)) for each in named]
    missing = [(param, scope) for param, scope in needed if scope not in scopes]
    if missing:
        first, _ = missing[0]
        raise missing_scope(*(scope for param, scope in missing if param == first), param=first)


def _scope(resource: str, writes: bool) -> str:
    return f"{_RESOURCES[resource]}.{'write' if writes else 'read'}"
