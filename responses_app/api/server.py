"""Health, metrics and documentation endpoints, and the answer where nothing is served.

`/health`: the process answers. `/ready`: it can serve, and what is missing if not. `/metrics`: the numbers of this
worker, or of all workers behind one address, for Prometheus (METRICS).

`GET /docs/…`: the pages of `docs/`, as `make docs` has built them, for whoever asks: they tell nothing of a project.
They lie in `responses_app/docs_site/`, in a wheel too. Whatever a path says, nothing outside of that folder is read.

`missing` answers where nothing is served at all, outside of the API too: JSON, in OpenAI's shape.
"""

import mimetypes
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Literal, NotRequired

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, HttpResponsePermanentRedirect, HttpResponseRedirect
from django.shortcuts import render
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from typing_extensions import TypedDict

import responses_app
from responses_app.auth.scopes import SAFE_METHODS
from responses_app.kit.extension import extensions
from responses_app.protocol.api_keys import READS_METRICS
from responses_app.protocol.errors import JsonObject
from responses_app.web.endpoint import JSON, TEXT, Endpoint, path_not_found
from responses_app.web.http import NotServed, error_response, json_response
from responses_app.wiring.site import get_site


class Health(TypedDict):
    """The process answers."""

    status: Literal["ok"]
    extensions: list[str]  # that are loaded, by their labels


class Readiness(TypedDict):
    """Whether requests can be served; each part says "ok", or what is the matter.

    `models` says it of each, where there are several. `engine_replicas` counts the servers of a pool by their state,
    where there are several models of each.
    """

    status: Literal["ready", "not ready"]
    server: str  # "the server is stopping" while it does
    database: str  # read and written to, a moment ago
    engine: str  # of all that generate
    redis: str  # whether limits are counted by all workers together
    connections: int  # WebSockets that are open in this worker
    responses_in_flight: int
    background_queued: int
    engine_queued: int  # turns that wait for an engine
    streams_kept: int
    streams_kept_bytes: int
    models: NotRequired[dict[str, str]]  # by name, where there are several
    # Servers of a pool by their state; by model first, where there are several
    engine_replicas: NotRequired[dict[str, int] | dict[str, dict[str, int]]]


async def _health(request: HttpRequest) -> Health:
    return {"status": "ok", "extensions": [extension.label for extension in extensions()]}


async def _ready(request: HttpRequest) -> HttpResponse:
    """Say whether requests can be served: 200, or 503 with what to do.

    The database is asked, with a time limit, and written to. Redis being away does not make a worker unready: limits
    then hold per process, and this says so. Nor does a model being away, as long as there is another one.
    """
    site = get_site()
    database = await site.upkeep.heartbeat.check()
    troubles = await site.engines.troubles()
    models: JsonObject = {name: troubles.get(name, "ok") for name in site.engines}
    stopping = "the server is stopping" if site.registry.draining else None
    checks: JsonObject = {
        "server": stopping or "ok",
        "database": database or "ok",
        "engine": _engines(models, troubles),
        "redis": site.connection_limit.degraded or site.relay.degraded or site.ledger.forgets or "ok",
    }
    # One model that can be served is enough.
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
    embeddings = await site.embeddings.states()
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


async def _metrics(request: HttpRequest) -> HttpResponse:
    """Return all numbers in Prometheus' text format.

    They are the whole server's, whatever project asks: where a key is asked for, it must be made for them.
    """
    site = get_site()
    if site.settings.metrics == "off":
        raise NotServed
    if site.settings.metrics == "auto":
        assert isinstance(request, ASGIRequest)
        caller = await site.door.caller(request.scope)
        # A key without scopes may do everything with its project, and these numbers are of all projects.
        caller.check_scope(READS_METRICS)
    from responses_app.observing.exposition import page  # where nobody reads them, its library is not loaded

    content, content_type = page(await site.watch.whole(), request.headers.get("accept", ""))
    headers = {"content-length": str(len(content)), "cache-control": "no-store"}
    return HttpResponse(content, content_type=content_type, headers=headers)


@csrf_exempt  # a POST of a client of the API is to hear 404, in JSON
def front(request: HttpRequest) -> HttpResponseBase:
    """Lead browsers to the documentation, where no extension has a page at `/`."""
    if request.method in SAFE_METHODS and request.accepts("text/html"):
        return HttpResponseRedirect("/docs/")
    return error_response(path_not_found(request.path))


SITE = Path(responses_app.__file__).resolve().parent / "docs_site"
START = "index.html"
ASKED = "no-cache"  # a 304 each time, so that pages and what they load are of one build
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}  # of any machine


@require_safe
def docs(request: HttpRequest, path: str) -> HttpResponseBase:
    """Answer with a file of the site; for a folder with its start page. Raises `Http404`."""
    is_built = (SITE / START).is_file()
    # With DEBUG the pages are looked up anew, as they are written.
    files = _known_files(SITE) if is_built and not settings.DEBUG else _files(SITE)
    if START not in files:
        return render(request, "docs_missing.html", status=404 if path else 200)
    if path and f"{path}/{START}" in files:
        return HttpResponsePermanentRedirect(f"{request.path}/")
    file = files.get(f"{path}{START}" if path == "" or path.endswith("/") else path)
    if file is None:
        raise Http404
    return _file_answer(request, file)


def _files(site: Path) -> Mapping[str, Path]:
    """Return what can be asked for: a name that is not among them opens nothing."""
    files = (file for file in site.rglob("*") if file.is_file() and not file.is_symlink())
    return {file.relative_to(site).as_posix(): file for file in files}


@cache
def _known_files(site: Path) -> Mapping[str, Path]:
    """Return what the site had when it was first asked for: a server that runs keeps its pages."""
    return _files(site)


def _file_answer(request: HttpRequest, file: Path) -> HttpResponseBase:
    try:
        status = file.stat()
    except FileNotFoundError:  # the site has been built again since
        raise Http404 from None
    # As nginx makes it: the time of the last change, and the size.
    etag = quote_etag(f"{status.st_mtime_ns:x}-{status.st_size:x}")
    answer = get_conditional_response(request, etag=etag)
    if answer is None:
        kind = TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        answer = HttpResponse(file.read_bytes(), content_type=kind)
        if kind.startswith("text/"):
            answer["Content-Type"] = f"{kind}; charset=utf-8"
    answer["ETag"] = etag
    answer["Cache-Control"] = ASKED
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def missing(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say what there is (404)."""
    response = error_response(path_not_found(request.path_info))
    response["x-content-type-options"] = "nosniff"
    return response


_endpoint = partial(Endpoint, "GET", tag="Server", scope=None, probed=True)

ENDPOINTS = (
    _endpoint("/health", _health, "getHealth", "Say that the process answers"),
    _endpoint(
        "/ready",
        _ready,
        "getReadiness",
        "Say whether requests can be served",
        answers={JSON: Readiness},
        also={503: "Requests cannot be served now."},
    ),
    Endpoint(
        "GET",
        "/metrics",
        _metrics,
        "getMetrics",
        "Return the server's numbers for Prometheus",
        tag="Server",
        scope=None,
        asks_for_key=True,
        answers={TEXT: "", "application/openmetrics-text": ""},
        errors=(404,),
    ),
)
