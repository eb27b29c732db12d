"""Who may watch what: the staff with the admin's permissions everything, everybody else what the API gives them."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from responses_app.protocol.api_keys import Area, Caller, no_api_key
from responses_app.protocol.errors import ApiError
from responses_app.stores.database.roles import sees_content, sees_figures
from responses_app.wiring.site import get_site

UNAUTHORIZED = 401

View = Callable[..., HttpResponse]


def sees_everything(request: HttpRequest) -> bool:
    """Whether the admin shows its user what all projects have: the figures, and the content where `sees_content`."""
    return sees_figures(request.user)


def shows_content(request: HttpRequest) -> bool:
    """Whether its user is shown what was written and answered, and not only figures, of what they may see at all."""
    return not sees_everything(request) or sees_content(request.user)


def caller_of(request: HttpRequest, area: Area) -> Caller:
    """Return who asks, as the API sees them, where they may read in an area.

    Raises `ApiError`: 401 for who is to log in, 403 for a key without the scope; and `PermissionDenied` for a member of
    the staff without the permission, where the API is not open either.
    """
    try:
        return async_to_sync(_caller)(request, area)
    except ApiError as error:
        # Somebody who has logged in, and may not: the login page would send them round in a circle.
        if error.status == no_api_key().status and request.user.is_authenticated:
            raise PermissionDenied from error
        raise


async def _caller(request: HttpRequest, area: Area) -> Caller:
    """Look on the event loop of the server, as keys are found. Raises `ApiError`."""
    scope = getattr(request, "scope", None)
    if scope is None:
        raise no_api_key()
    caller = await get_site().door.caller(scope)
    caller.check_scope(area.scope(writes=False))
    return caller


def page(view: View) -> View:
    """Make a view that only reads, and tells on a page why it refuses; who is to log in is sent there."""

    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except ApiError as error:
            if error.status == UNAUTHORIZED:
                return redirect_to_login(request.get_full_path(), reverse("admin:login"))
            context = {**admin.site.each_context(request), "title": "Watch", "message": error.message}
            return TemplateResponse(request, "response/refused.html", context, status=error.status)

    return require_safe(answered)
