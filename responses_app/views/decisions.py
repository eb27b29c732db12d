"""`POST /v1/decisions`."""

from django.http import HttpRequest, HttpResponse

from responses_app.http import MethodNotAllowed, caller_of, json_response, read_json, request_id_of, span_of
from responses_app.protocol.decisions import parse_decisions
from responses_app.runs.plan import Origin
from responses_app.wiring import get_site


async def create(request: HttpRequest) -> HttpResponse:
    """Answer questions about an input with probabilities."""
    if request.method != "POST":
        raise MethodNotAllowed(str(request.method), ["POST"])
    site = get_site()
    wanted = await read_json(request, parse_decisions, site.reader)
    origin = Origin.of(caller_of(request), "json", request_id=request_id_of(request), span=span_of(request))
    return json_response(await site.decisions.decide(wanted, origin))
