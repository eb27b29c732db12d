"""The checks of both APIs of batches before one is created, and their refusal."""

from responses_app.protocol.errors import invalid_request, invalid_value
from responses_app.protocol.rollouts.requests import HEADER, METADATA
from responses_app.resources.batches.lines import too_many_batches
from responses_app.resources.batches.records import TooManyBatches
from responses_app.web.endpoint import Refusals, in_batches
from responses_app.web.http import ApiRequest
from responses_app.wiring.site import get_site

REFUSALS: Refusals = {TooManyBatches: lambda *_: too_many_batches(get_site().settings.batches_max_open)}


def check_can_run(request: ApiRequest, endpoint: str) -> None:
    """Raise `ApiError` where batches cannot be run here, or not by who asks, or not as it is asked."""
    site = get_site()
    if not site.settings.responses_store:
        raise invalid_request(
            "A batch needs a server that stores responses, and this one stores none (RESPONSES_STORE=off). Send the "
            "requests one by one.",
            code="invalid_value",
        )
    if HEADER in request.headers:
        raise invalid_value(
            HEADER,
            "a batch is part of no roll-out, and this header (or a base URL of a roll-out) would say nothing of its "
            f"lines. Name the roll-out of each line in its body: 'metadata': {{'{METADATA}': …}}.",
        )
    area = in_batches()[endpoint].scope
    request.caller.check_scope(area.scope(writes=True) if area is not None else None)
