"""`POST /v1/responses`: JSON or server-sent events."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from responses_app.http import MethodNotAllowed, event_stream, json_response, read_json, request_id_of, run_to_end
from responses_app.protocol.requests import parse_create
from responses_app.runs.run import Origin
from responses_app.wiring import get_site


async def create(request: HttpRequest) -> HttpResponseBase:
    """Create a response; `stream: true` streams it."""
    if request.method != "POST":
        raise MethodNotAllowed(str(request.method), ["POST"], " A WebSocket needs an upgrade request to this path.")
    site = get_site()
    wanted = parse_create(read_json(request, max_body_bytes=site.settings.max_body_bytes))
    transport = "sse" if wanted.stream else "json"
    run = await site.service.create(wanted, Origin(transport=transport, request_id=request_id_of(request)))
    if wanted.stream:
        interval = site.settings.responses_ping_interval_seconds
        return await event_stream(site.registry, run, ping_seconds=interval)
    return json_response(await run_to_end(site.registry, run))
