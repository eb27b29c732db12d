"""`DatabaseStaff`: users of the admin, found by their sessions."""

import math
from types import SimpleNamespace
from typing import Any

from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app import models
from responses_app.protocol.api_keys import DEFAULT_PROJECT, Caller
from responses_app.protocol.errors import ApiError
from responses_app.stores.database.api_keys import limited_in
from responses_app.stores.database.readers import DatabaseReaders
from responses_app.stores.staff import SCOPES, BaseStaff, SessionPass

PERMISSION = "responses_app.add_response"  # a superuser has it; others are given it in the admin
MAX_CHOICE = 500  # projects that a page offers


class DatabaseStaff(BaseStaff):
    """Reads Django's sessions and users; `timeout` bounds, in seconds, whatever waits for the database."""

    def __init__(self, *, timeout: float = math.inf) -> None:
        self._readers = DatabaseReaders("default", timeout=timeout)

    async def caller(self, given: SessionPass) -> Caller | None:
        def read(_: BaseDatabaseWrapper) -> Caller | None:
            user: Any = get_user(SimpleNamespace(session=SessionStore(given.key)))  # type: ignore[arg-type]
            if not may_come_in(user):
                return None
            project = given.project or DEFAULT_PROJECT
            row = models.Project.objects.filter(pk=project).first()
            if project != DEFAULT_PROJECT and (row is None or not user.is_superuser):
                raise _no_project()
            return Caller(project=project, session=given.key, own_scopes=SCOPES, own_limited=limited_in(row))

        return await self._readers.run(read)

    async def aclose(self) -> None:
        await self._readers.aclose()


def may_come_in(user: Any) -> bool:
    """Whether a user of Django's may use the API by a session: one of the staff who may make responses."""
    return bool(user.is_authenticated and user.is_active and user.is_staff and user.has_perm(PERMISSION))


def projects_of(user: Any) -> list[str]:
    """Return the projects that a user may choose from, the one that counts without a choice first."""
    if not user.is_superuser:
        return [DEFAULT_PROJECT]
    names = models.Project.objects.exclude(pk=DEFAULT_PROJECT).order_by("pk").values_list("pk", flat=True)
    return [DEFAULT_PROJECT, *names[:MAX_CHOICE]]


def _no_project() -> ApiError:
    return ApiError(
        "You may not work in this project. Choose another one; superusers may choose among all.",
        status=403,
        type="permission_error",
        code="project_not_allowed",
    )
