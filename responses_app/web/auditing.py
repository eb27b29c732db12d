"""What users of the admin are shown and delete over the API is recorded in the audit trail.

Only theirs: who comes with an API key does with it what it was made for. Lists and things by their ids count as
content, and so do searches in files.
"""

from collections.abc import Awaitable, Callable, Mapping

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from responses_app.protocol.api_keys import Area, Caller
from responses_app.stores.audit import Action, AuditUnavailable
from responses_app.web.endpoint import Endpoint, Route
from responses_app.web.idempotency import close_stream
from responses_app.wiring.site import get_site

CONTENT = (
    Area.RESPONSES,
    Area.CONVERSATIONS,
    Area.CONTAINERS,
    Area.FILES,
    Area.VECTOR_STORES,
    Area.SKILLS,
    Area.ROLLOUTS,
)


async def answer_audited(
    request: HttpRequest, route: Route, named: Mapping[str, str], answer: Callable[[], Awaitable[HttpResponseBase]]
) -> HttpResponseBase:
    """Return the answer, recorded where it has to be: a view before it is sent, a deletion before it is done.

    Raises `AuditUnavailable` where that is not possible, and what `answer` raises.
    """
    caller: Caller = request.caller  # type: ignore[attr-defined]
    endpoint = route.endpoint(str(request.method)) if caller.session else None
    if endpoint is None or endpoint.scope not in CONTENT:
        return await answer()
    audit = get_site().audit
    subject = "/".join(named.values()) or request.path_info
    address = str(request.META.get("REMOTE_ADDR") or "")
    if endpoint.method == "DELETE":
        await audit.record(caller, address, Action.CONTENT_DELETED, subject=subject, path=request.path_info)
    response = await answer()
    if response.status_code < 400 and _shows(endpoint):
        try:
            await audit.record_view(caller, address, subject=subject, path=request.path_info)
        except AuditUnavailable:
            close_stream(response)
            raise
    return response


def _shows(endpoint: Endpoint) -> bool:
    return endpoint.method == "GET" or (endpoint.only_asks and endpoint.scope is Area.VECTOR_STORES)
