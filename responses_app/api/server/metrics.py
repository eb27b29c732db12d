"""`GET /metrics`: the numbers of this worker, or of all workers behind one address, for Prometheus (METRICS)."""

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse

from responses_app.protocol.api_keys import READS_METRICS, missing_scope
from responses_app.web.endpoint import TEXT, Endpoint
from responses_app.web.http import NotServed
from responses_app.wiring.wiring import get_site


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
        if caller.is_known and READS_METRICS not in caller.scopes:
            raise missing_scope(READS_METRICS)
    from responses_app.observing.exposition import page  # where nobody reads them, its library is not loaded

    content, content_type = page(await site.watch.whole(), request.headers.get("accept", ""))
    headers = {"content-length": str(len(content)), "cache-control": "no-store"}
    return HttpResponse(content, content_type=content_type, headers=headers)


ENDPOINTS = (
    Endpoint(
        *("GET", "/metrics", _metrics, "getMetrics", "Return the server's numbers for Prometheus"),
        tag="Server",
        scope=None,
        asks_for_key=True,
        answers={TEXT: "", "application/openmetrics-text": ""},
        errors=(404,),
    ),
)
