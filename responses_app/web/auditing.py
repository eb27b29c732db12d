"""What users of the admin are shown and delete over the API is recorded in the audit trail.

Only theirs: who comes with an API key does with it what it was made for. Lists and things by their ids count as
content, and so do searches in files, and what is asked of the model: it may tell what it was told before. A WebSocket
counts as one view, when it is opened.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from django.http.response import HttpResponseBase

from responses_app.protocol.api_keys import Area, Caller
from responses_app.protocol.errors import ApiError
from responses_app.resources.audit.fields import Action, AuditUnavailable
from responses_app.web.endpoint import Route
from responses_app.web.http import ApiRequest
from responses_app.web.idempotency import close_stream

if TYPE_CHECKING:
    from responses_app.resources.audit.store import AuditTrail

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
    audit: "AuditTrail",
    request: ApiRequest,
    route: Route,
    named: Mapping[str, str],
    answer: Callable[[], Awaitable[HttpResponseBase]],
) -> HttpResponseBase:
    """Return the answer, recorded where it has to be: a view before it is sent, a deletion before it is done.

    Raises `AuditUnavailable` where that is not possible, and what `answer` raises.
    """
    caller: Caller = request.caller
    endpoint = route.endpoint(str(request.method)) if caller.session else None
    if endpoint is None or endpoint.scope not in CONTENT:
        return await answer()
    subject = "/".join(named.values()) or request.path_info
    address = str(request.META.get("REMOTE_ADDR") or "")
    if endpoint.method == "DELETE":
        deleting = partial(audit.record, caller, address, Action.CONTENT_DELETED, subject=subject)
        return await _delete(answer, partial(deleting, path=request.path_info))
    viewing = partial(audit.record_view, caller, address, subject=subject, path=request.path_info)
    if endpoint.method == "POST" and endpoint.scope is Area.RESPONSES:
        # Before the model is asked: what it answers must not be lost.
        await viewing()
        return await answer()
    response = await answer()
    shows = endpoint.method == "GET" or (endpoint.only_asks and endpoint.scope is Area.VECTOR_STORES)
    if shows and response.status_code < 400:
        try:
            await viewing()
        except AuditUnavailable:
            close_stream(response, request.serving.keys)
            raise
    return response


async def record_connection(audit: "AuditTrail", scope: Any, caller: Caller) -> None:
    """Record that a user of the admin opens a WebSocket, which may show content. Raises `AuditUnavailable`."""
    if caller.session:
        path, (address, *_) = str(scope["path"]), scope.get("client") or ("",)
        await audit.record_view(caller, str(address), subject=path, path=path, transport="websocket")


async def _delete(
    answer: Callable[[], Awaitable[HttpResponseBase]], record: Callable[..., Awaitable[None]]
) -> HttpResponseBase:
    """Record a deletion, do it, and record it too if it failed; what failed stays as it was."""
    await record()
    failed = 500
    try:
        response = await answer()
        failed = response.status_code if response.status_code >= 400 else 0
    except ApiError as error:
        failed = error.status
        raise
    finally:
        if failed:
            # Who asked hears why it failed; that this cannot be recorded, the log says.
            with suppress(AuditUnavailable):
                await record(failed=failed)
    return response
