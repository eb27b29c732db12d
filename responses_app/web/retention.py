"""What a project that keeps nothing cannot ask for: see `Endpoint.keeps`."""

from django.http import HttpRequest

from responses_app.protocol.retention import keeps_nothing
from responses_app.runs.plan.failures import store_errors
from responses_app.web.http import project_of
from responses_app.wiring.site import get_site

ANSWER_KEPT = (
    "With an 'Idempotency-Key' the answer is kept, to be given again",
    "Send the request without this header.",
)


async def check_keeps(request: HttpRequest, keeps: tuple[str, str]) -> None:
    """Refuse what would be kept, in a project that keeps nothing. Raises `ApiError`; 503 where nobody knows that."""
    with store_errors():
        retentions = await get_site().service.retention.current()
    if retentions.keeps_nothing(project_of(request)):
        what, instead = keeps
        raise keeps_nothing(what, instead)
