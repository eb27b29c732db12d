"""Endpoints of resources that still say what they are in several places; the last of them takes this file along."""

import re
from collections.abc import Iterator, Mapping

from responses_app.api.before_urls import urlpatterns
from responses_app.api.endpoint import Endpoint
from responses_app.openapi.chat_operations import CHAT_OPERATIONS
from responses_app.openapi.model_operations import MODEL_OPERATIONS
from responses_app.openapi.operations import OPERATIONS, Operation
from responses_app.protocol.api_keys import Area

_OPERATIONS = {**OPERATIONS, **CHAT_OPERATIONS, **MODEL_OPERATIONS}
_AREAS = {
    **dict.fromkeys(("responses", "chat", "completions", "decisions"), Area.RESPONSES),
    **{"conversations": Area.CONVERSATIONS, "containers": Area.CONTAINERS, "models": Area.MODELS},
    **{"files": Area.FILES, "uploads": Area.FILES, "embeddings": Area.EMBEDDINGS},
}


def endpoints_before() -> Iterator[Endpoint]:
    """Yield them."""
    for pattern in urlpatterns:
        path = _path_of(str(pattern.pattern.regex.pattern))
        for method, operation in _OPERATIONS[path.replace(":path", "")].items():
            yield Endpoint(method, path, pattern.callback, operation.id, operation.summary, **_told(path, operation))  # type: ignore[arg-type]


def _told(path: str, operation: Operation) -> Mapping[str, object]:
    return {
        **{name: getattr(operation, name) for name in ("tag", "takes", "errors", "answers")},
        "scope": _AREAS.get(path.split("/")[2] if path.startswith("/v1") else ""),
        "body": operation.body,
        "websocket": operation.id == "createResponse",
        "asks_for_key": path == "/metrics",
        "probed": path in ("/health", "/ready"),
        "also": {503: "Requests cannot be served now."} if path == "/ready" else {},
    }


def _path_of(regex: str) -> str:
    path = regex.removeprefix("^").removesuffix("$").removesuffix("/?").replace("(?:v1/)?", "v1/").replace("\\.", ".")
    return "/" + re.sub(r"\(\?P<(\w+)>([^)]*)\)", lambda found: _parameter(*found.groups()), path)


def _parameter(name: str, pattern: str) -> str:
    return f"{{{name}:path}}" if pattern.startswith(".") else f"{{{name}}}"
