"""`/health`: the process answers. `/ready`: it can serve, and what is missing if not."""

from collections.abc import Mapping
from functools import partial
from typing import Literal, NotRequired

from django.http import HttpRequest, HttpResponse
from typing_extensions import TypedDict

from responses_app.protocol.errors import JsonObject
from responses_app.web.endpoint import JSON, Endpoint
from responses_app.web.http import json_response
from responses_app.wiring.wiring import get_site


class Health(TypedDict):
    """The process answers."""

    status: Literal["ok"]


class Readiness(TypedDict):
    """Whether requests can be served; each part says "ok", or what is the matter.

    `models` says it of each, where there are several. `engine_replicas` counts the servers of a pool by their state,
    where there are several models of each.
    """

    status: Literal["ready", "not ready"]
    server: str
    database: str
    engine: str
    redis: str
    connections: int
    responses_in_flight: int
    background_queued: int
    engine_queued: int
    streams_kept: int
    streams_kept_bytes: int
    models: NotRequired[dict[str, str]]
    engine_replicas: NotRequired[dict[str, int] | dict[str, dict[str, int]]]


async def _health(request: HttpRequest) -> Health:
    return {"status": "ok"}


async def _ready(request: HttpRequest) -> HttpResponse:
    """Say whether requests can be served: 200, or 503 with what to do.

    The database is asked, with a time limit, and written to. Redis being away does not make a worker unready: limits
    then hold per process, and this says so. Nor does a model being away, as long as there is another one.
    """
    site = get_site()
    database = await site.upkeep.check()
    troubles = await site.engines.troubles()
    models: JsonObject = {name: troubles.get(name, "ok") for name in site.engines}
    stopping = "the server is stopping" if site.registry.draining else None
    checks: JsonObject = {
        "server": stopping or "ok",
        "database": database or "ok",
        "engine": _engines(models, troubles),
        "redis": site.connection_limit.degraded or "ok",
    }
    is_ready = not stopping and not database and len(troubles) < len(models)
    body: JsonObject = {"status": "ready" if is_ready else "not ready", **checks}
    body["connections"] = site.connection_limit.open_connections
    body["responses_in_flight"] = len(site.registry)
    body["background_queued"] = site.registry.queue.waiting
    replicas = {model.name: dict(model.engine.replicas()) for model in site.service.models if model.engine.replicas()}
    if len(models) > 1:
        body |= {"models": models, "engine_replicas": replicas} if replicas else {"models": models}
    elif replicas:
        body |= {"engine_replicas": replicas[site.service.models.first.name]}
    embeddings = await site.embeddings.troubles()
    if embeddings:
        body["embeddings"] = embeddings
    body["engine_queued"] = sum(model.turns.waiting.total() for model in site.service.models)
    body["streams_kept"] = len(site.registry.resumable)
    body["streams_kept_bytes"] = site.registry.resumable.kept_bytes
    return json_response(body, status=200 if is_ready else 503, headers={} if is_ready else {"retry-after": "2"})


def _engines(models: Mapping[str, object], troubles: Mapping[str, str]) -> str:
    """Return how the engines are: what is the matter, of which models where there are several."""
    if len(models) == 1:
        return next(iter(troubles.values()), "ok")
    return "; ".join(f"{name}: {trouble}" for name, trouble in troubles.items()) or "ok"


_endpoint = partial(Endpoint, "GET", tag="Server", scope=None, probed=True)

ENDPOINTS = (
    _endpoint("/health", _health, "getHealth", "Say that the process answers"),
    _endpoint(
        *("/ready", _ready, "getReadiness", "Say whether requests can be served"),
        answers={JSON: Readiness},
        also={503: "Requests cannot be served now."},
    ),
)
