"""What a request's key must be made for, by its method and path."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_RESOURCES = {
    "responses": "api.responses",
    "chat": "api.responses",  # what it makes are responses
    "conversations": "api.conversations",
    "containers": "api.containers",
    "files": "api.files",
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
    return f"{_RESOURCES[resource]}.{'read' if method in SAFE_METHODS else 'write'}"
