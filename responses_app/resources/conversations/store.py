"""`Conversations`: conversations in Django's database, SQLite or PostgreSQL. One thread writes, and a few read.

Whoever changes a conversation locks its row first (on SQLite the transaction itself is the lock), so positions are
contiguous and in the order of the changes. Every change may be executed twice: a commit whose answer got lost is tried
again, and gets what came of the attempt before.
"""

import math
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from django.db.models import QuerySet

from responses_app.kit.errors import StoreError, UnknownCursor
from responses_app.kit.places import leave, place_of
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Table, assign, can_be_known, part_of, reads
from responses_app.kit.writer import CoalescingWriter
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.pages import ListQuery
from responses_app.resources.conversations.appending import insert_items
from responses_app.resources.conversations.fields import ConversationSettings
from responses_app.resources.conversations.model import Conversation, ConversationItem

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

CREATION_LOCK = 0x72657370  # the space of the locks of projects


class ConversationsFull(StoreError):
    """A project has as many conversations as it may have."""


@dataclass(slots=True, eq=False)
class _Change(Generic[Result]):
    """A write, and what came of it. An earlier attempt may have been committed, and its answer lost."""

    conversation_id: str
    act: Callable[[Result | None], Result]  # runs in a transaction; gets `result`
    creates: bool = False  # creations come first in a batch: they have no row to lock
    result: Result | None = None  # of the last attempt


def changes(
    method: Callable[Concatenate["Conversations", Result | None, str, str, Arguments], Result],
) -> Callable[Concatenate["Conversations", str, str, Arguments], Coroutine[Any, Any, Result]]:
    """Run a method on the writer's thread, in a transaction; it gets what an earlier attempt at this call returned.

    What follows are the project and the conversation's id.
    """

    @wraps(method)
    async def run(
        store: "Conversations", project: str, conversation_id: str, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return await store._write(
            conversation_id, lambda before: method(store, before, project, conversation_id, *args, **kwargs)
        )

    return run


class Conversations(Table[Conversation, ConversationSettings]):
    """The conversations of projects. Every method raises `StoreError`.

    A conversation goes as a whole, by its own age.
    """

    model = Conversation
    unlimited = ConversationSettings()

    def __init__(self, *, timeout: float = math.inf, **more: Any) -> None:
        super().__init__(timeout=timeout, **more)
        self._writer: CoalescingWriter[_Change[Any]] = CoalescingWriter(
            self._commit, using=self._using, timeout=timeout
        )

    async def start(self) -> None:
        """Get ready. Raises `StoreError`."""
        self._writer.start()

    async def aclose(self) -> None:
        """Finish what was begun and let go of everything. Safe to call twice."""
        await self._writer.aclose()
        await super().aclose()

    async def create(self, row: Conversation, items: Sequence[JsonObject]) -> None:
        """Keep a new conversation with its first items, each of which has an id. Raises `ConversationsFull`."""
        if not await self._write(row.pk, lambda _: self._create(row, items), creates=True):
            most = self._settings.conversations_max_entries
            raise ConversationsFull(f"{row.project} has {most} conversations already")

    @changes
    def update(
        self, _: Conversation | None, project: str, conversation_id: str, columns: Mapping[str, object]
    ) -> Conversation | None:
        """Change columns of a conversation; return it, None if there is none."""
        row = self.locked(project, conversation_id)
        if row is not None and (changed := assign(row, columns)):
            row.save(using=self._using, update_fields=changed)
        return row

    @changes
    def delete(self, before: bool | None, project: str, conversation_id: str) -> bool:
        """Remove a conversation and its items; return whether there was one."""
        row = self.locked(project, conversation_id)
        if row is None:
            # It is gone: by an earlier attempt of this very call, or it was never there.
            return bool(before)
        self._all_items(conversation_id).delete()
        row.delete(using=self._using)
        return True

    async def append(
        self, project: str, conversation_id: str, items: Sequence[JsonObject]
    ) -> Sequence[ConversationItem] | None:
        """Add items, all at once and in order; one whose id the conversation has already gets another.

        Return them as they stand, None if there is no such conversation.
        """
        return await self._append(project, conversation_id, items, datetime.now(UTC), uuid.uuid4().hex)

    @changes
    def _append(
        self,
        before: Sequence[ConversationItem] | None,
        project: str,
        conversation_id: str,
        items: Sequence[JsonObject],
        *origin: Any,
    ) -> Sequence[ConversationItem] | None:
        conversation = self.locked(project, conversation_id)
        if conversation is None:
            return None
        # The earlier attempt was committed: its items must not be appended twice.
        if before:
            same = {name: getattr(before[0], name) for name in ("item_id", "position", "created_at")}
            if self._all_items(conversation_id).filter(**same).exists():
                return before
        at, seed = origin
        rows = insert_items(self._using, conversation, items, seed=seed, at=at)
        if rows:
            conversation.version += 1
            conversation.save(using=self._using, update_fields=["version", "next_position"])
        return rows

    @reads
    def items(self, project: str, conversation_id: str, page: ListQuery) -> Sequence[ConversationItem] | None:
        """Return a part of a conversation's items, and one more; that which `after` names may be gone.

        None if the conversation is unknown. Raises `UnknownCursor` where `after` is no id.
        """
        if not can_be_known(conversation_id):
            return None
        if page.after is not None and not can_be_known(page.after):
            raise UnknownCursor(page.after)
        if not self.rows(project).filter(pk=conversation_id).exists():
            return None
        rows = self._all_items(conversation_id)
        place = place_of(rows, page.after, named="item_id", key="position", left_in=(project, conversation_id))
        return part_of(rows, after=place, descending=page.descending, limit=page.limit + 1, key="position")

    @reads
    def items_since(self, project: str, conversation_id: str, position: int) -> Sequence[ConversationItem]:
        """Return all items behind a position, oldest first."""
        return list(self._items(project, conversation_id).filter(position__gt=position).order_by("position"))

    @reads
    def item(self, project: str, conversation_id: str, item_id: str) -> ConversationItem | None:
        """Return one item."""
        known = can_be_known(item_id)
        return self._items(project, conversation_id).filter(item_id=item_id).first() if known else None

    @changes
    def remove_item(self, before: bool | None, project: str, conversation_id: str, item_id: str) -> bool:
        """Remove one item; return whether there was one. The conversation's head goes with an item it covers."""
        conversation = self.locked(project, conversation_id)
        known = conversation is not None and can_be_known(item_id)
        row = self._all_items(conversation_id).filter(item_id=item_id).first() if known else None
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

    async def _write(
        self, conversation_id: str, act: Callable[[Result | None], Result], *, creates: bool = False
    ) -> Result:
        change = _Change(conversation_id, act, creates)
        await self._writer.write(change)
        return change.result  # type: ignore[return-value]

    # What follows runs on a thread.

    def _commit(self, batch: Sequence[_Change[Any]]) -> None:
        """Make the changes; in an order that all processes share, so that none waits for another in a circle."""
        for change in sorted(batch, key=lambda change: (not change.creates, change.conversation_id)):
            change.result = change.act(change.result)

    def _create(self, row: Conversation, items: Sequence[JsonObject]) -> bool:
        """Keep a conversation; return whether there is room for it."""
        rows = Conversation.objects.using(self._using)
        if rows.filter(pk=row.pk).exists():
            return True  # an earlier attempt was committed after all
        if most := self._settings.conversations_max_entries:
            one_at_a_time(self._db, CREATION_LOCK, row.project)
            if rows.filter(project=row.project).count() >= most:
                return False
        row.next_position = 1  # also where an earlier attempt has counted on
        insert_items(self._using, row, items, seed="", at=row.created_at)
        row.save(using=self._using, force_insert=True)
        return True

    def _all_items(self, conversation_id: str) -> "QuerySet[ConversationItem]":
        return ConversationItem.objects.using(self._using).filter(conversation_id=conversation_id)

    def _items(self, project: str, conversation_id: str) -> "QuerySet[ConversationItem]":
        """Return the items of a conversation that is known."""
        rows = self._all_items(conversation_id)
        mine = {f"conversation__{name}": value for name, value in self._mine(project).items()}
        return rows.filter(**mine) if can_be_known(conversation_id) else rows.none()
