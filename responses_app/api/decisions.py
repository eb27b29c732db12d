"""`POST /v1/decisions`."""

from responses_app.protocol.api_keys import Area
from responses_app.protocol.stateless.decisions import Decision, parse_decisions
from responses_app.web.endpoint import Endpoint
from responses_app.web.http import ApiRequest, read_json
from responses_app.wiring.site import get_site


async def _create(request: ApiRequest) -> Decision:
    """Answer questions about an input with probabilities."""
    site = get_site()
    decisions = await read_json(request, parse_decisions, site.reader)
    return await site.decisions.decide(decisions, request.origin("json"))


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/decisions",
        _create,
        "createDecision",
        "Answer questions about an input with probabilities",
        tag="Decisions",
        scope=Area.RESPONSES,  # a model generates, as for a response
        body="CreateDecision",
        errors=(404, 429),
    ),
)
