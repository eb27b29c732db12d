"""`DatabaseRetentions`: how long each project keeps what it stores, as operators have set it."""

from collections.abc import Mapping, Sequence

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from responses_app.kit.clock import utc
from responses_app.kit.kept import remove_some
from responses_app.kit.places import forget_places
from responses_app.kit.table import Store
from responses_app.kit.threads import Question
from responses_app.models import Response
from responses_app.resources.projects.model import Project
from responses_app.stores.database.transfer.erasure import dated_models, past

MAX_STEPS = 100  # of one kind of things and one project

_RETENTIONS = Question("name, retention_hours", f"FROM {Project._meta.db_table} WHERE retention_hours IS NOT NULL")


class DatabaseRetentions(Store[None]):
    """Reads it from the database `using`; `timeout` bounds, in seconds, whatever waits for it."""

    unlimited = None

    async def read(self) -> Mapping[str, int]:
        """Return the hours of all projects that have a retention of their own. Raises `StoreError`."""

        return dict(await self._polls.poll(_RETENTIONS))

    async def expire(self, project: str, oldest: float, *, nothing: bool) -> Sequence[str]:
        """Remove what a project has made until then (Unix seconds), and return the ids of responses that were removed.

        Responses that have ended go elsewhere. With `nothing` the running ones go here, too: the project keeps nothing.
        At most `MAX_STEPS` of each kind; what is left goes the next time. Raises `StoreError`.
        """
        gone: list[str] = []
        for model in dated_models():

            def step(db: BaseDatabaseWrapper, model: type[Model] = model) -> Sequence[str]:
                return remove_some(past(model, project, oldest, using=db.alias))

            for _ in range(MAX_STEPS if nothing or model is not Response else 0):
                ids = await self._threads.run(step)
                if not ids:
                    break
                gone += ids if model is Response else ()
        return gone

    async def forget_places(self) -> None:
        """Remove the places in lists of what is gone for long. Raises `StoreError`."""
        for _ in range(MAX_STEPS):
            if not await self._threads.run(lambda db: forget_places(db, now=utc(self._now()))):
                break
