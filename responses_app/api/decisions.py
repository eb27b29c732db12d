"""`POST /v1/decisions`."""

from django.http import HttpRequest

from responses_app.protocol.api_keys import Area
from responses_app.protocol.stateless.decisions import Decision, parse_decisions
from responses_app.runs.plan.plan import Origin
from responses_app.web.endpoint import Endpoint
from responses_app.web.http import caller_of, read_json, request_id_of, span_of
from responses_app.wiring.site import get_site


async def _create(request: HttpRequest) -> Decision:
    """Answer questions about an input with probabilities."""
    site = get_site()
    decisions = await read_json(request, parse_decisions, site.reader)
    origin = Origin.of(caller_of(request), "json", request_id=request_id_of(request), span=span_of(request))
    return await site.decisions.decide(decisions, origin)


ENDPOINTS = (
    Endpoint(
        *("POST", "/v1/decisions", _create),
        *("createDecision", "Answer questions about an input with probabilities"),
        tag="Decisions",
        scope=Area.RESPONSES,  # a model generates, as for a response
        body="CreateDecision",
        errors=(404, 429),
    ),
)
