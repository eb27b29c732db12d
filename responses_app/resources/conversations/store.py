"""Conversations in Django's database, SQLite or PostgreSQL. One thread writes, and a few read.

Whoever changes a conversation locks its row first (on SQLite the transaction itself is the lock), so positions are
contiguous and in the order of the changes. Every change may be executed twice: a commit whose answer got lost is tried
again. What writes rows runs inside a transaction, on a writer's thread, that of responses too.
"""

import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from responses_app.kit.clock import unix, utc
from responses_app.kit.errors import StoreError, UnknownCursor
from responses_app.kit.places import leave, place_of
from responses_app.kit.retention import Retentions
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import can_be_known, part_of
from responses_app.kit.threads import DatabaseReaders
from responses_app.kit.writer import CoalescingWriter
from responses_app.protocol.errors import JsonObject
from responses_app.resources.conversations.appending import insert_items, locked
from responses_app.resources.conversations.fields import ConversationEntry, ConversationRecord
from responses_app.resources.conversations.model import Conversation, ConversationItem
from responses_app.stores.stores import BaseConversationStore

Result = TypeVar("Result")


CREATION_LOCK = 0x72657370  # the space of the locks of projects


def conversation_row(project: str, record: ConversationRecord) -> Conversation:
    """Return a new conversation's row."""
    return Conversation(
        id=record.id,
        project=project,
        created_at=utc(record.created_at),
        title=record.title,
        status=record.status,
        metadata=dict(record.metadata),
    )


def record_of(row: Conversation) -> ConversationRecord:
    """Return the conversation that a row holds."""
    return ConversationRecord(
        id=row.pk,
        created_at=unix(row.created_at),
        metadata=row.metadata,
        title=row.title,
        status=row.status,
        head=row.head,
        head_position=row.head_position,
        version=row.version,
    )


def entry_of(row: ConversationItem) -> ConversationEntry:
    """Return the item that a row holds."""
    return ConversationEntry(position=row.position, item=row.item, created_at=unix(row.created_at))


class ConversationFull(StoreError):
    """A project has as many conversations as it may have."""


@dataclass(slots=True, eq=False)
class _Change(Generic[Result]):
    """A write, and what came of it. An earlier attempt may have been committed, and its answer lost."""

    conversation_id: str
    act: Callable[[Result | None], Result]  # runs in a transaction; gets `result`
    creates: bool = False  # creations come first in a batch: they have no row to lock
    result: Result | None = None  # of the last attempt


class DatabaseConversationStore(BaseConversationStore):
    """Keeps conversations in the database `using`, at most `max_entries` of each project (0: any number).

    `timeout` bounds, in seconds, whatever waits for the database. `now` is Unix time, by which `retentions` tell what
    is past its time: a conversation goes as a whole, by its own age.
    """

    def __init__(
        self,
        *,
        using: str = "default",
        max_entries: int = 0,
        timeout: float = math.inf,
        now: Callable[[], float] = time.time,
        retentions: Retentions | None = None,
    ) -> None:
        self._using = using
        self._now = now
        self._retentions = retentions or Retentions()
        self._max_entries = max_entries
        self._writer: CoalescingWriter[_Change[Any]] = CoalescingWriter(self._commit, using=using, timeout=timeout)
        self._readers = DatabaseReaders(using, timeout=timeout)

    async def start(self) -> None:
        """Get ready. Raises `StoreError`."""
        self._writer.start()

    async def aclose(self) -> None:
        """Finish what was asked and let go of everything. Safe to call twice."""
        await self._writer.aclose()
        await self._readers.aclose()

    async def create(self, project: str, record: ConversationRecord, items: Sequence[JsonObject]) -> None:
        def act(_: bool | None) -> bool:
            if Conversation.objects.using(self._using).filter(pk=record.id).exists():
                return True  # an earlier attempt was committed after all
            if self._is_full(project):
                return False
            row = conversation_row(project, record)
            insert_items(self._using, row, items, seed="", at=row.created_at)
            row.save(using=self._using, force_insert=True)
            return True

        if not await self._write(record.id, act, creates=True):
            raise ConversationFull(f"{project} has {self._max_entries} conversations already")

    async def get(self, project: str, conversation_id: str) -> ConversationRecord | None:
        def read(connection: BaseDatabaseWrapper) -> ConversationRecord | None:
            row = _conversations(connection, conversation_id, self._mine(project)).first()
            return record_of(row) if row else None

        return await self._readers.run(read) if can_be_known(conversation_id) else None

    async def update(
        self, project: str, conversation_id: str, changes: Mapping[str, object]
    ) -> ConversationRecord | None:
        def act(_: ConversationRecord | None) -> ConversationRecord | None:
            row = locked(self._using, conversation_id, self._mine(project))
            if row is None:
                return None
            for name, value in changes.items():
                setattr(row, name, value)
            row.save(using=self._using, update_fields=list(changes))
            return record_of(row)

        return await self._write(conversation_id, act) if can_be_known(conversation_id) else None

    async def delete(self, project: str, conversation_id: str) -> bool:
        def act(before: bool | None) -> bool:
            row = locked(self._using, conversation_id, self._mine(project))
            if row is None:
                # It is gone: by an earlier attempt of this very call, or it was never there.
                return bool(before)
            ConversationItem.objects.using(self._using).filter(conversation_id=conversation_id).delete()
            row.delete(using=self._using)
            return True

        return can_be_known(conversation_id) and await self._write(conversation_id, act)

    async def append(
        self, project: str, conversation_id: str, items: Sequence[JsonObject]
    ) -> Sequence[ConversationEntry] | None:
        at, seed = datetime.now(UTC), uuid.uuid4().hex

        def act(before: list[ConversationItem] | None) -> list[ConversationItem] | None:
            conversation = locked(self._using, conversation_id, self._mine(project))
            if conversation is None:
                return None
            # The earlier attempt was committed: its items must not be appended twice.
            if before and self._stands(before[0]):
                return before
            rows = insert_items(self._using, conversation, items, seed=seed, at=at)
            if rows:
                conversation.version += 1
                conversation.save(using=self._using, update_fields=["version", "next_position"])
            return rows

        rows = await self._write(conversation_id, act) if can_be_known(conversation_id) else None
        return None if rows is None else [entry_of(row) for row in rows]

    async def entries(
        self, project: str, conversation_id: str, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[ConversationEntry] | None:
        if not can_be_known(conversation_id):
            return None
        if after is not None and not can_be_known(after):
            raise UnknownCursor(after)

        def read(connection: BaseDatabaseWrapper) -> Sequence[ConversationEntry] | None:
            if not _conversations(connection, conversation_id, self._mine(project)).exists():
                return None
            rows = ConversationItem.objects.using(connection.alias).filter(conversation_id=conversation_id)
            place = place_of(rows, after, named="item_id", key="position", left_in=(project, conversation_id))
            page = part_of(rows, after=place, descending=descending, limit=limit, key="position")
            return [entry_of(row) for row in page]

        return await self._readers.run(read)

    async def entries_since(self, project: str, conversation_id: str, position: int) -> Sequence[ConversationEntry]:
        def read(connection: BaseDatabaseWrapper) -> Sequence[ConversationEntry]:
            rows = _items(connection, conversation_id, self._mine(project)).filter(position__gt=position)
            return [entry_of(row) for row in rows.order_by("position")]

        return await self._readers.run(read) if can_be_known(conversation_id) else []

    async def entry(self, project: str, conversation_id: str, item_id: str) -> ConversationEntry | None:
        def read(connection: BaseDatabaseWrapper) -> ConversationEntry | None:
            row = _items(connection, conversation_id, self._mine(project)).filter(item_id=item_id).first()
            return entry_of(row) if row else None

        known = can_be_known(conversation_id) and can_be_known(item_id)
        return await self._readers.run(read) if known else None

    async def remove(self, project: str, conversation_id: str, item_id: str) -> bool:
        def act(before: bool | None) -> bool:
            conversation = locked(self._using, conversation_id, self._mine(project))
            rows = ConversationItem.objects.using(self._using).filter(conversation_id=conversation_id, item_id=item_id)
            row = rows.first() if conversation else None
            if conversation is None or row is None:
                return bool(before)
            leave(self._using, project, conversation_id, {item_id: row.position}, at=datetime.now(UTC))
            row.delete(using=self._using)
            # The head's chain has the item in it: it must not be continued any more.
            if row.position <= conversation.head_position:
                conversation.head, conversation.head_position = "", 0
            conversation.version += 1
            conversation.save(using=self._using, update_fields=["version", "head", "head_position"])
            return True

        known = can_be_known(conversation_id) and can_be_known(item_id)
        return known and await self._write(conversation_id, act)

    def _mine(self, project: str) -> dict[str, object]:
        """Return what the conversations of a project have that are not past its retention."""
        since = self._retentions.oldest(project, self._now())
        young = {} if since < 0 else {"created_at__gt": utc(since)}
        return {"project": project, **young}

    async def _write(
        self, conversation_id: str, act: Callable[[Result | None], Result], *, creates: bool = False
    ) -> Result:
        change = _Change(conversation_id, act, creates)
        await self._writer.write(change)
        return change.result  # type: ignore[return-value]

    # What follows runs on the writer's thread, in a transaction.

    def _commit(self, batch: Sequence[_Change[Any]]) -> None:
        """Make the changes; in an order that all processes share, so that none waits for another in a circle."""
        for change in sorted(batch, key=lambda change: (not change.creates, change.conversation_id)):
            change.result = change.act(change.result)

    def _is_full(self, project: str) -> bool:
        if not self._max_entries:
            return False
        one_at_a_time(connections[self._using], CREATION_LOCK, project)
        return Conversation.objects.using(self._using).filter(project=project).count() >= self._max_entries

    def _stands(self, row: ConversationItem) -> bool:
        """Whether a row that an earlier attempt wrote was committed."""
        return (
            ConversationItem.objects.using(self._using)
            .filter(
                conversation_id=row.conversation_id,
                item_id=row.item_id,
                position=row.position,
                created_at=row.created_at,
            )
            .exists()
        )


def _conversations(
    connection: BaseDatabaseWrapper, conversation_id: str, mine: Mapping[str, object]
) -> QuerySet[Conversation]:
    return Conversation.objects.using(connection.alias).filter(pk=conversation_id, **mine)


def _items(
    connection: BaseDatabaseWrapper, conversation_id: str, mine: Mapping[str, object]
) -> QuerySet[ConversationItem]:
    items = ConversationItem.objects.using(connection.alias)
    of_mine = {f"conversation__{name}": value for name, value in mine.items()}
    return items.filter(conversation_id=conversation_id, **of_mine)
