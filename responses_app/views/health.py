"""`/health`: the process answers. `/ready`: it can serve, and what is missing if not."""

from django.http import HttpRequest, HttpResponse

from engine.errors import EngineError
from responses_app.http import json_response
from responses_app.protocol.errors import JsonObject
from responses_app.wiring import get_site


async def health(request: HttpRequest) -> HttpResponse:
    """Say that the process answers."""
    return json_response({"status": "ok"})


async def ready(request: HttpRequest) -> HttpResponse:
    """Say whether requests can be served: 200, or 503 with what to do.

    The database is asked, with a time limit, and written to. Redis being away does not make a worker unready: limits
    then hold per process, and this says so.
    """
    site = get_site()
    database = await site.upkeep.check()
    engine = None if site.engine.info else site.engine.problem
    if engine is None:
        try:
            await site.engine.engine.health()
        except EngineError:
            engine = "the engine is away"
    stopping = "the server is stopping" if site.registry.draining else None
    checks: JsonObject = {
        "server": stopping or "ok",
        "database": database or "ok",
        "engine": engine or "ok",
        "redis": site.connection_limit.degraded or site.rates.degraded or "ok",
    }
    is_ready = not stopping and not database and not engine
    body: JsonObject = {"status": "ready" if is_ready else "not ready", **checks}
    body["connections"] = site.connection_limit.open_connections
    body["responses_in_flight"] = len(site.registry)
    body["background_queued"] = site.registry.queue.waiting
    if replicas := site.engine.engine.replicas():
        body["engine_replicas"] = dict(replicas)
    body["engine_queued"] = sum(model.turns.waiting.total() for model in site.service.models.values())
    body["streams_kept"] = len(site.registry.resumable)
    body["streams_kept_bytes"] = site.registry.resumable.kept_bytes
    return json_response(body, status=200 if is_ready else 503, headers={} if is_ready else {"retry-after": "2"})
