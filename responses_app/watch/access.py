"""Who may watch what: the staff with the admin's permission all responses, everybody else what the API gives them."""

from asgiref.sync import async_to_sync
from django.contrib.auth.models import AbstractUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from responses_app.models import PublicName, Response
from responses_app.protocol.api_keys import Area, Caller, no_api_key
from responses_app.protocol.errors import ApiError, response_not_found
from responses_app.stores.database.conversation_rows import can_be_known
from responses_app.wiring.wiring import get_site

PERMISSION = "responses_app.view_response"


def project_of(request: HttpRequest, response_id: str) -> str:
    """Return the project in which a request may look for a response.

    Raises `ApiError`: 401 for who is to log in, 403 for a key without the scope, 404 for what staff cannot find; and
    `PermissionDenied` for a member of the staff without the permission, where the API is not open either.
    """
    if not can_be_known(response_id):
        raise response_not_found(response_id)
    if sees_everything(request):
        return _project(response_id)
    try:
        return async_to_sync(_caller)(request, response_id).project
    except ApiError as error:
        if error.status == no_api_key().status and request.user.is_authenticated:
            raise PermissionDenied from error
        raise


def sees_everything(request: HttpRequest) -> bool:
    """Whether the admin shows its user all responses."""
    user = request.user
    return isinstance(user, AbstractUser) and user.is_active and user.is_staff and user.has_perm(PERMISSION)


def _project(response_id: str) -> str:
    """Return the project of a response, by its own id or by what clients call it."""
    found: str | None = Response.objects.filter(pk=response_id).values_list("project", flat=True).first()
    found = found or PublicName.objects.filter(name=response_id).values_list("project", flat=True).first()
    if found is None:
        raise response_not_found(response_id)
    return found


async def _caller(request: HttpRequest, response_id: str) -> Caller:
    """Return who asks, as the API sees them; on the event loop of the server, as keys are found. Raises `ApiError`."""
    scope = getattr(request, "scope", None)
    if scope is None:
        raise no_api_key()
    caller = await get_site().door.caller(scope)
    caller.check_scope(Area.RESPONSES.scope(writes=False))
    return caller
