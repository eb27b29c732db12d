"""What both APIs of batches ask before one is created."""

from responses_app.protocol.api_keys import Caller
from responses_app.protocol.errors import invalid_request
from responses_app.protocol.files.batches import too_many_batches
from responses_app.stores.batches import TooManyBatches
from responses_app.web.endpoint import Refusals, in_batches
from responses_app.wiring.site import Site, get_site

REFUSALS: Refusals = {TooManyBatches: lambda *_: too_many_batches(get_site().settings.batches_max_open)}


def check_can_run(site: Site, caller: Caller, endpoint: str) -> None:
    """Raise `ApiError` where batches cannot be run here, or not by who asks."""
    if not site.settings.responses_store:
        raise invalid_request(
            "A batch needs a server that stores responses, and this one stores none (RESPONSES_STORE=off). Send the "
            "requests one by one.",
            code="invalid_value",
        )
    area = in_batches()[endpoint].scope
    caller.check_scope(area.scope(writes=True) if area is not None else None)
