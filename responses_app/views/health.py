"""`/health`: the process answers. `/ready`: it can serve, and what is missing if not."""

from collections.abc import Mapping

from django.http import HttpRequest, HttpResponse

from responses_app.http import json_response, only_reads
from responses_app.protocol.errors import JsonObject
from responses_app.wiring import get_site


async def health(request: HttpRequest) -> HttpResponse:
    """Say that the process answers."""
    _only_asks(request)
    return json_response({"status": "ok"})


async def ready(request: HttpRequest) -> HttpResponse:
    """Say whether requests can be served: 200, or 503 with what to do.

    The database is asked, with a time limit, and written to. Redis being away does not make a worker unready: limits
    then hold per process, and this says so. Nor does a model being away, as long as there is another one.
    """
    _only_asks(request)
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


def _only_asks(request: HttpRequest) -> None:
    """Refuse what changes something. A load balancer may ask with OPTIONS: HAProxy does, if it is told no method."""
    if request.method != "OPTIONS":
        only_reads(request)


def _engines(models: Mapping[str, object], troubles: Mapping[str, str]) -> str:
    """Return how the engines are: what is the matter, of which models where there are several."""
    if len(models) == 1:
        return next(iter(troubles.values()), "ok")
    return "; ".join(f"{name}: {trouble}" for name, trouble in troubles.items()) or "ok"
