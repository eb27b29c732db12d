"""Which chat a response belongs to: it is decided when the response is accepted, and never changes.

    it is of a conversation              the conversation
    it goes on from a stored response    the chat of that one
    it says whose version it is          the chat of that one (`VERSION_OF`)
    anything else                        a chat of its own, which has its id

So a chat is a tree of responses, named by its root, and keeps its name where the root was deleted or is past its time.
Responses that run or have failed are in it like all others: a part of a chain is not needed for that.

What an older version accepted, or an import brought, belongs to no chat yet. `adopt` finds out where it belongs, in
small steps, the oldest first: by the chain it goes on from, which is kept as long as anything goes on from it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from responses_app.kit.sql import Row, for_update, in_parts, placeholders
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.stores.database.response_sql import NAMES, PARTS, RESPONSES

MADE_IN, PLAYGROUND = "made_in", "playground"  # in `metadata` of what the playground's page asks for
VERSION_OF = "version_of"  # a key of `metadata`: a response of the chat that a root belongs to
MAX_UP = 100_000  # links that are walked towards a root; ends a walk that a damaged table would send in circles
_KNOWN = f"SELECT id, project, chat_id, conversation_id FROM {RESPONSES} WHERE id IN ({{ids}})"
# From a link towards the root, up to the first response that belongs somewhere. Parameters: id, project twice, depth.
_UP = f"""
WITH RECURSIVE up (id, parent_id, chat_id, depth) AS (
    SELECT part.id, part.parent_id, COALESCE(NULLIF(response.chat_id, ''), response.conversation_id, ''), 0
    FROM {PARTS} AS part LEFT JOIN {RESPONSES} AS response ON response.id = part.id
    WHERE part.id = %s AND part.project = %s
    UNION ALL
    SELECT part.id, part.parent_id, COALESCE(NULLIF(response.chat_id, ''), response.conversation_id, ''), up.depth + 1
    FROM up JOIN {PARTS} AS part ON part.id = up.parent_id LEFT JOIN {RESPONSES} AS response ON response.id = part.id
    WHERE up.chat_id = '' AND part.project = %s AND up.depth < %s
)
SELECT id, chat_id FROM up ORDER BY depth DESC LIMIT 1
"""
# With what each goes on from, and the chat of that where it is known: the older one has found its own before.
_HOMELESS = f"""
SELECT response.id, response.project, response.conversation_id, response.previous_response_id, part.parent_id,
    parent.chat_id
FROM {RESPONSES} AS response LEFT JOIN {PARTS} AS part ON part.id = response.id
LEFT JOIN {RESPONSES} AS parent ON parent.id = part.parent_id AND parent.project = response.project
WHERE response.chat_id = '' ORDER BY response.created_at, response.id LIMIT %s {{lock}}
"""
_ADOPTED = f"UPDATE {RESPONSES} SET chat_id = %s WHERE id = %s"
# The leg before it, where it is a leg of the same turn.
_NAMED = f"""
SELECT named.id FROM {NAMES} AS named LEFT JOIN {NAMES} AS own ON own.id = %s AND own.name = named.name
WHERE named.name = %s AND named.project = %s AND (own.leg IS NULL OR named.leg < own.leg)
ORDER BY named.leg DESC LIMIT 1
"""


def made_in_playground(response: ResponseObject) -> bool:
    """Return whether the playground's page asked for a response."""
    return (response.get("metadata") or {}).get(MADE_IN) == PLAYGROUND


def version_of(response: ResponseObject) -> str:
    """Return the response whose chat a root says that it belongs to; "" for none."""
    named = (response.get("metadata") or {}).get(VERSION_OF, "")
    return named if named.startswith("resp_") and named.isidentifier() else ""


def in_chats(cursor: CursorWrapper, rows: Sequence[Row], parents: Mapping[str, str]) -> list[Row]:
    """Return new rows of responses with the chats they belong to; `parents` has what they go on from, by their ids."""
    asked = sorted({parents[str(row["id"])] for row in rows if parents.get(str(row["id"]))})
    known: dict[str, Row] = {}
    for some in in_parts(asked):
        cursor.execute(_KNOWN.format(ids=placeholders(some)), some)
        known |= {row[0]: {"project": row[1], "chat_id": row[2] or row[3]} for row in cursor.fetchall()}
    placed: list[Row] = []
    for row in rows:
        own_id, project = str(row["id"]), str(row["project"])
        parent = known.get(parents.get(own_id, ""))
        chat_id = str(row["conversation_id"] or "")
        if not chat_id and parent is not None and parent["project"] == project:
            chat_id = str(parent["chat_id"]) or _root(cursor, project, parents[own_id])
        placed.append({**row, "chat_id": chat_id or own_id})
        known[own_id] = placed[-1]  # another one of the same batch may go on from it
    return placed


def adopt(connection: BaseDatabaseWrapper, *, at_most: int) -> int:
    """Find out where responses belong that belong to no chat yet, in a transaction; return how many."""
    with connection.cursor() as cursor:
        cursor.execute(_HOMELESS.format(lock=for_update(connection, "FOR UPDATE OF response SKIP LOCKED")), [at_most])
        rows: list[Any] = list(cursor.fetchall())
        chats: dict[str, str] = {}
        for response_id, project, conversation_id, previous, parent, chat_id in rows:
            chat_id = conversation_id or chat_id or chats.get(parent)
            if not chat_id and (parent or previous):
                parent = parent or _own_id(cursor, project, previous, of=response_id)
                chat_id = chats.get(parent) or _root(cursor, project, parent)
            chats[response_id] = chat_id or response_id
        cursor.executemany(_ADOPTED, [(chat_id, response_id) for response_id, chat_id in chats.items()])
    return len(rows)


def _root(cursor: CursorWrapper, project: str, response_id: str) -> str:
    """Return the chat of a response, as far as its chain or its row tells; else ""."""
    cursor.execute(_UP, [response_id, project, project, MAX_UP])
    for root_id, chat_id in cursor.fetchall():
        return str(chat_id or root_id)
    cursor.execute(_KNOWN.format(ids="%s"), [response_id])
    found = (chat_id or conversation_id for _, owner, chat_id, conversation_id in cursor.fetchall() if owner == project)
    return next(found, "")


def _own_id(cursor: CursorWrapper, project: str, name: str, *, of: str) -> str:
    """Return the id of the response that clients call so, and that the response `of` goes on from."""
    cursor.execute(_NAMED, [of, name, project])
    row = cursor.fetchone()
    return str(row[0]) if row else name
