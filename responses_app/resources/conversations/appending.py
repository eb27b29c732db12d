"""How items come into a conversation: those of requests, and those of a response, in the transaction that ends it."""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime

from responses_app.kit.sql import in_parts
from responses_app.kit.table import can_be_known
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.items import PREFIXES
from responses_app.resources.conversations.fields import ConversationAppend
from responses_app.resources.conversations.model import Conversation, ConversationItem


def append_response(using: str, project: str, append: ConversationAppend, *, response_id: str, at: datetime) -> None:
    """Append what a response was asked and said; once, however often this is called.

    The response becomes the conversation's head if it read all that came before, else there is no head any more. A
    conversation that is gone is not an error. Where one transaction appends to several conversations, it has to do so
    in the order of their ids: another process might wait for their locks the other way round.
    """
    rows = Conversation.objects.using(using).select_for_update()
    conversation = rows.filter(pk=append.conversation_id, project=project).first()
    if conversation is None or _was_appended(using, append, response_id):
        return
    insert_items(using, conversation, append.items, seed=response_id, at=at, response_id=response_id)
    read_all = conversation.version == append.read_version
    conversation.version += 1
    conversation.head = response_id if read_all else ""
    # Positions begin with 1, so 0 means that the head covers nothing.
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
        # Two items of one append may have the same id, too.
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


def _was_appended(using: str, append: ConversationAppend, response_id: str) -> bool:
    """Whether this very append was committed before; asked by ids, which have an index."""
    own = [item_id for item in append.items if can_be_known(item_id := str(item.get("id") or ""))]
    made = [_made_id(append.conversation_id, response_id, index, item) for index, item in enumerate(append.items)]
    # Any one of its rows will do: they were all written in one transaction.
    rows = ConversationItem.objects.using(using).filter(conversation_id=append.conversation_id, response_id=response_id)
    return any(rows.filter(item_id__in=part).exists() for part in in_parts([*own, *made]))


def _taken(using: str, conversation_id: str, item_ids: Iterable[str]) -> set[str]:
    """Return which of these ids the conversation has already."""
    known_ids = [item_id for item_id in item_ids if can_be_known(item_id)]
    rows = ConversationItem.objects.using(using).filter(conversation_id=conversation_id)
    known = rows.values_list("item_id", flat=True)
    return {item_id for part in in_parts(known_ids) for item_id in known.filter(item_id__in=part)}


def _made_id(conversation_id: str, seed: str, index: int, item: JsonObject) -> str:
    origin = f"{conversation_id} {seed} {index}".encode()
    return PREFIXES.get(str(item.get("type")), ids.ITEM) + hashlib.blake2b(origin, digest_size=16).hexdigest()
