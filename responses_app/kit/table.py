"""`Store`: the base of stores in Django's database. `Table`: one whose rows are found by project and id.

A store's methods are plain functions over Django's ORM. `reads` and `writes` make them awaitable: they run on one of
the store's threads, where `connections[using]` is the connection that the thread was lent.

    class Webhooks(Table[WebhookEndpoint, WebhookSettings]):
        model = WebhookEndpoint

        @writes
        def rename(self, project: str, endpoint_id: str, name: str) -> WebhookEndpoint | None:
            row = self.locked(project, endpoint_id)
            if row is not None and (changed := assign(row, {"name": name})):
                row.save(using=self._using, update_fields=changed)
            return row

A method may be executed twice, where a connection broke in between: what it wrote is then there already.
"""

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model, QuerySet

from responses_app.kit.clock import StoreClock, utc
from responses_app.kit.columns import ID_LENGTH
from responses_app.kit.retention import Retentions
from responses_app.kit.threads import DatabaseReaders

Own = TypeVar("Own")  # settings
Row = TypeVar("Row", bound=Model)
Keeper = TypeVar("Keeper", bound="Store[Any]")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Store(Generic[Own]):
    """A store in the database `using` whose readers write, too: its writes are too rare to be gathered.

    `timeout` bounds, in seconds, whatever waits for the database. `now` is Unix time. `shared` are the readers of
    several stores that are asked seldom, in place of `using` and `timeout`: each has threads. `polls` are those of
    all stores that are asked every second, whether there is anything to do.
    """

    unlimited: Own  # the settings of a store that is given none

    def __init__(  # noqa: PLR0913 - all that stores are made of
        self,
        *,
        using: str = "default",
        settings: Own | None = None,
        now: Callable[[], float] | None = None,
        timeout: float = math.inf,
        retentions: Retentions | None = None,
        shared: DatabaseReaders | None = None,
        polls: DatabaseReaders | None = None,
    ) -> None:
        self._using = using if shared is None else shared.using
        self._settings = self.unlimited if settings is None else settings
        self._now = now or StoreClock()
        self._retentions = retentions or Retentions()
        self._threads = (shared or DatabaseReaders(using, timeout=timeout)).held()
        self._polls = (polls or self._threads).held()
        self._closed = False

    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
        if not self._closed:
            self._closed = True
            await self._polls.aclose()
            await self._threads.aclose()

    def _since(self, project: str) -> float:
        """Return the time, in Unix seconds, from which on things of a project are known; below 0 for all of them."""
        return self._retentions.oldest(project, self._now())

    def _mine(self, project: str, *, dated: str = "created_at") -> dict[str, object]:
        """Return what rows of a project have that are not past its retention; `dated` tells how old one is."""
        since = self._since(project)
        young = {} if since < 0 else {f"{dated}__gt": utc(since)}
        return {"project": project, **young}

    @property
    def _db(self) -> BaseDatabaseWrapper:
        """The connection that this thread was lent."""
        return connections[self._using]

    def _at(self, seconds: float = 0.0) -> datetime:
        """Return the time so many seconds from now."""
        return utc(self._now() + seconds)


def reads(
    method: Callable[Concatenate[Keeper, Arguments], Result],
) -> Callable[Concatenate[Keeper, Arguments], Coroutine[Any, Any, Result]]:
    """Run a store's method on one of its threads, in no transaction but those that it begins itself.

    Called, it raises `StoreError` where the database fails.
    """

    @wraps(method)
    async def run(store: Keeper, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return await store._threads.run(lambda _: method(store, *args, **kwargs))

    return run


def writes(
    method: Callable[Concatenate[Keeper, Arguments], Result],
) -> Callable[Concatenate[Keeper, Arguments], Coroutine[Any, Any, Result]]:
    """Run a store's method on one of its threads, in one transaction. Called, it raises `StoreError` as `reads`."""

    @wraps(method)
    async def run(store: Keeper, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        def within_transaction(connection: BaseDatabaseWrapper) -> Result:
            with transaction.atomic(using=connection.alias):
                return method(store, *args, **kwargs)

        return await store._threads.run(within_transaction)

    return run


class Table(Store[Own], Generic[Row, Own]):
    """The rows of a model that belong to projects, in the order of their ids, which grow with time.

    The model's `kept` says by which column a project's retention judges a row: from then on nobody knows it.
    """

    model: type[Row]

    def rows(self, project: str) -> "QuerySet[Row]":
        """Return the rows of a project that are known; for methods that run on a thread."""
        kept: Any = self.model.kept
        mine = self._mine(project, dated=kept.dated) if kept.dated else {"project": project}
        return self.model._default_manager.using(self._using).filter(**mine)

    @reads
    def get(self, project: str, row_id: str) -> Row | None:
        """Return a row, None if there is none. Raises `StoreError`."""
        return self.rows(project).filter(pk=row_id).first() if can_be_known(row_id) else None

    @reads
    def page(self, project: str, *, after: str | None, descending: bool, limit: int) -> Sequence[Row]:
        """Return up to `limit` rows behind the id `after`, whose row may be gone. Raises `StoreError`."""
        return part_of(self.rows(project), after=after, descending=descending, limit=limit)

    @writes
    def delete(self, project: str, row_id: str) -> bool:
        """Remove a row and what is its own; return whether there was one. Raises `StoreError`."""
        row = self.locked(project, row_id)
        if row is not None:
            self.remove(row)
        return row is not None

    # For methods that run on a thread.

    def locked(self, project: str, row_id: str) -> Row | None:
        """Return a row that nobody else changes until this transaction ends, None if there is none."""
        return self.rows(project).select_for_update().filter(pk=row_id).first() if can_be_known(row_id) else None

    def remove(self, row: Row) -> None:
        """Remove a row. What else is to go with it, a store removes here."""
        self.model._default_manager.using(self._using).filter(pk=row.pk).delete()


def assign(row: Model, values: Mapping[str, object]) -> list[str]:
    """Give a row values by the names of its columns; return those that have another value now."""
    changed = [name for name, value in values.items() if getattr(row, name) != value]
    for name in changed:
        setattr(row, name, values[name])
    return changed


def part_of(
    rows: "QuerySet[Row]",
    *,
    descending: bool,
    limit: int,
    after: object = None,
    before: object = None,
    key: str = "pk",
) -> "list[Row]":
    """Return up to `limit` rows in the order of `key`: those behind `after` and before `before`, where these are given.

    With `before` alone they are those next to it.
    """
    behind, ahead = ("lt", "gt") if descending else ("gt", "lt")
    if after is not None:
        rows = rows.filter(**{f"{key}__{behind}": after})
    if before is not None:
        rows = rows.filter(**{f"{key}__{ahead}": before})
    backwards = before is not None and after is None
    page = list(rows.order_by(f"-{key}" if descending != backwards else key)[:limit])
    return page[::-1] if backwards else page


def can_be_known(identifier: str) -> bool:
    """Whether an id that a client sent can be one of ours; no database takes every string (NUL, surrogates)."""
    return 0 < len(identifier) <= ID_LENGTH and identifier.isascii() and identifier.isprintable()
