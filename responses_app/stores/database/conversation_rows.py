"""Rows of conversations, as both stores write them; all of this runs inside a transaction, on a writer's thread.

Whoever changes a conversation locks its row first (on SQLite the transaction itself is the lock), so positions are
contiguous and in the order of the changes. Every change may be executed twice: a commit whose answer got lost is tried
again.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from responses_app.models import ID_LENGTH, Conversation, ConversationItem
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.identified import PREFIXES
from responses_app.stores.base import ConversationAppend
from responses_app.stores.conversations import ConversationEntry, ConversationRecord
from responses_app.stores.database.response_sql import in_parts


def can_be_known(identifier: str) -> bool:
    """Whether an id that a client sent can be one of ours; no database takes every string (NUL, surrogates)."""
    return 0 < len(identifier) <= ID_LENGTH and identifier.isascii() and identifier.isprintable()


def locked(using: str, project: str, conversation_id: str) -> Conversation | None:
    """Return a conversation that nobody else changes until this transaction ends, None if there is none."""
    rows = Conversation.objects.using(using).select_for_update().filter(pk=conversation_id, project=project)
    return next(iter(rows), None)


def append_response(using: str, project: str, append: ConversationAppend, *, response_id: str, at: datetime) -> None:
    """Append what a response was asked and said; once, however often this is called.

    The response becomes the conversation's head if it read all that came before, else there is no head any more. A
    conversation that is gone is not an error. Where one transaction appends to several conversations, it has to do so
    in the order of their ids: another process might wait for their locks the other way round.
    """
    conversation = locked(using, project, append.conversation_id)
    if conversation is None or _was_appended(using, append, response_id):
        return
    insert_items(using, conversation, append.items, seed=response_id, at=at, response_id=response_id)
    read_all = conversation.version == append.read_version
    conversation.version += 1
    conversation.head = response_id if read_all else ""
    conversation.head_position = conversation.next_position - 1 if read_all else 0
    conversation.save(using=using, update_fields=["version", "head", "head_position", "next_position"])


def insert_items(
    using: str,
    conversation: Conversation,
    items: Sequence[JsonObject],
    *,
    seed: str,
    at: datetime,
    response_id: str = "",
) -> list[ConversationItem]:
    """Put items behind all others, and return their rows; the caller saves the conversation's `next_position`.

    An id that the conversation has already, or that is not an id, is replaced by one made of `seed`, which no other
    append has: executed again, this makes the same ids.
    """
    conversation_id = conversation.pk
    taken = _taken(using, conversation_id, (str(item.get("id") or "") for item in items))
    rows = []
    for index, item in enumerate(items):
        item_id = str(item.get("id") or "")
        if item_id in taken or not can_be_known(item_id):
            item_id = _made_id(conversation_id, seed, index, item)
        taken.add(item_id)
        rows.append(
            ConversationItem(
                conversation_id=conversation_id,
                item_id=item_id,
                position=conversation.next_position + index,
                created_at=at,
                item={**item, "id": item_id},
                response_id=response_id,
            )
        )
    ConversationItem.objects.using(using).bulk_create(rows)
    conversation.next_position += len(rows)
    return rows


def conversation_row(project: str, record: ConversationRecord) -> Conversation:
    """Return a new conversation's row."""
    return Conversation(
        id=record.id,
        project=project,
        created_at=datetime.fromtimestamp(record.created_at, UTC),
        title=record.title,
        status=record.status,
        metadata=dict(record.metadata),
    )


def record_of(row: Conversation) -> ConversationRecord:
    """Return the conversation that a row holds."""
    return ConversationRecord(
        id=row.pk,
        created_at=int(row.created_at.timestamp()),
        metadata=row.metadata,
        title=row.title,
        status=row.status,
        head=row.head,
        head_position=row.head_position,
        version=row.version,
    )


def entry_of(row: ConversationItem) -> ConversationEntry:
    """Return the item that a row holds."""
    return ConversationEntry(position=row.position, item=row.item, created_at=int(row.created_at.timestamp()))


def _was_appended(using: str, append: ConversationAppend, response_id: str) -> bool:
    """Whether this very append was committed before; asked by ids, which have an index."""
    own = [item_id for item in append.items if can_be_known(item_id := str(item.get("id") or ""))]
    made = [_made_id(append.conversation_id, response_id, index, item) for index, item in enumerate(append.items)]
    rows = ConversationItem.objects.using(using).filter(conversation_id=append.conversation_id, response_id=response_id)
    return any(rows.filter(item_id__in=part).exists() for part in in_parts([*own, *made]))


def _taken(using: str, conversation_id: str, item_ids: Iterable[str]) -> set[str]:
    """Return which of these ids the conversation has already."""
    wanted = [item_id for item_id in item_ids if can_be_known(item_id)]
    rows = ConversationItem.objects.using(using).filter(conversation_id=conversation_id)
    known = rows.values_list("item_id", flat=True)
    return {item_id for part in in_parts(wanted) for item_id in known.filter(item_id__in=part)}


def _made_id(conversation_id: str, seed: str, index: int, item: JsonObject) -> str:
    origin = f"{conversation_id} {seed} {index}".encode()
    return PREFIXES.get(str(item.get("type")), ids.ITEM) + hashlib.blake2b(origin, digest_size=16).hexdigest()
