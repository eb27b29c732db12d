"""What is read of responses, each with one query; on SQLite and PostgreSQL alike.

`since` is the time, in Unix seconds, from which on responses are known: older ones are past their time to live.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models import Conversation, ConversationItem
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.items import SampledItem
from responses_app.protocol.public_ids import Leg, TurnLeg
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.stores.base import LogNews, StoredLog
from responses_app.stores.database.response_sql import LOGS, NAMES, PARTS, RESPONSES, SAMPLED, in_parts, placeholders
from responses_app.stores.database.responses.rows import read_calls, response_of, sampled_item, time_value

_FRESH = "response.project = %s AND response.created_at > %s"
_RESPONSE = f"SELECT {{columns}} FROM {RESPONSES} AS response WHERE response.id = %s AND {_FRESH}"
# A response may be megabytes long and have thousands of parts: its body comes with the first one only.
_LOG = f"""
SELECT CASE WHEN COALESCE(part.position, 0) = 0 THEN response.body END, response.status, part.data
FROM {RESPONSES} AS response LEFT JOIN {LOGS} AS part ON part.response_id = response.id
WHERE response.id = %s AND {_FRESH} ORDER BY part.position
"""
# From the part on in which the position lies: the index finds it, and no part before it is looked at.
_LOG_SINCE = f"""
SELECT response.status, part.position, part.data FROM {RESPONSES} AS response
LEFT JOIN {LOGS} AS part ON part.response_id = response.id AND part.position >= COALESCE(
    (SELECT MAX(before.position) FROM {LOGS} AS before WHERE before.response_id = %s AND before.position <= %s), 0)
WHERE response.id = %s AND {_FRESH} ORDER BY part.position
"""
# CROSS: SQLite would go through all responses of the project, as it has no statistics that tell how many there are.
_NEWEST_LEG = f"""
SELECT response.id, named.leg FROM {NAMES} AS named CROSS JOIN {RESPONSES} AS response
WHERE response.id = named.id AND named.name = %s AND named.project = %s AND {_FRESH} ORDER BY named.leg DESC LIMIT 1
"""
_LEGS = f"""
SELECT response.id, named.leg, response.status, part.calls FROM {NAMES} AS named CROSS JOIN {RESPONSES} AS response
LEFT JOIN {PARTS} AS part ON part.id = response.id
WHERE response.id = named.id AND named.name = %s AND named.project = %s AND {_FRESH} ORDER BY named.leg DESC
"""
_OF_RESPONSES = f"""
SELECT {{columns}} FROM {SAMPLED} AS item CROSS JOIN {RESPONSES} AS response
WHERE response.id = item.response_id AND item.id IN ({{ids}}) AND {_FRESH}
"""
_OF_CONVERSATIONS = f"""
SELECT item.item_id, item.item FROM {ConversationItem._meta.db_table} AS item
CROSS JOIN {Conversation._meta.db_table} AS conversation
WHERE conversation.id = item.conversation_id AND item.item_id IN ({{ids}}) AND conversation.project = %s
"""


def response(connection: BaseDatabaseWrapper, project: str, response_id: str, *, since: float) -> ResponseObject | None:
    """Return a response as clients read it. Begun ones are told by their row alone: their body still says queued."""
    for body, status in _row(connection, "response.body, response.status", project, response_id, since):
        return response_of(body, status)
    return None


def exists(connection: BaseDatabaseWrapper, project: str, response_id: str, *, since: float) -> bool:
    """Whether there is such a response."""
    return bool(_row(connection, "1", project, response_id, since))


def newest_leg(connection: BaseDatabaseWrapper, project: str, name: str, *, since: float) -> Leg | None:
    """Return the newest of the responses that clients call so."""
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST_LEG, [name, project, project, time_value(connection, since)])
        row = cursor.fetchone()
    return Leg(*row) if row else None


def legs(connection: BaseDatabaseWrapper, project: str, name: str, *, since: float) -> Sequence[TurnLeg]:
    """Return all responses that clients call so, the newest first; one that can be continued has a part of a chain."""
    with connection.cursor() as cursor:
        cursor.execute(_LEGS, [name, project, project, time_value(connection, since)])
        rows = cursor.fetchall()
    return [
        TurnLeg(response_id, number, status, None if calls is None else read_calls(calls)[1].get("awaited", {}).keys())
        for response_id, number, status, calls in rows
    ]


def input_items(
    connection: BaseDatabaseWrapper, project: str, response_id: str, *, since: float
) -> Sequence[JsonObject] | None:
    """Return what a response was asked."""
    for (asked,) in _row(connection, "response.input_items", project, response_id, since):
        items: Sequence[JsonObject] = json.loads(asked)
        return items
    return None


def log(connection: BaseDatabaseWrapper, project: str, response_id: str, *, since: float) -> StoredLog | None:
    """Return a response with its log; where nothing of it was kept, the log is empty."""
    with connection.cursor() as cursor:
        cursor.execute(_LOG, [response_id, project, time_value(connection, since)])
        rows = cursor.fetchall()
    if not rows:
        return None
    body, status = rows[0][:2]
    return StoredLog(response_of(body, status), b"".join(bytes(row[2]) for row in rows if row[2]))


def log_since(
    connection: BaseDatabaseWrapper, project: str, response_id: str, position: int, *, since: float
) -> LogNews | None:
    """Return what a response's log has behind a position, which may lie within a part."""
    with connection.cursor() as cursor:
        cursor.execute(_LOG_SINCE, [response_id, position, response_id, project, time_value(connection, since)])
        rows = cursor.fetchall()
    if not rows:
        return None
    parts = [(start, bytes(data)) for _, start, data in rows if data is not None]
    return LogNews(rows[0][0], b"".join(data[max(0, position - start) :] for start, data in parts))


def sampled_items(
    connection: BaseDatabaseWrapper, project: str, item_ids: Sequence[str], *, since: float
) -> Mapping[str, SampledItem]:
    """Return output items with their tokens, by id."""
    rows = _items(connection, "item.id, item.fingerprint, item.kind, item.tokens", project, item_ids, since)
    return {row[0]: sampled_item(*row) for row in rows}


def items(
    connection: BaseDatabaseWrapper, project: str, item_ids: Sequence[str], *, since: float, conversations: bool
) -> Mapping[str, JsonObject]:
    """Return output items of responses, by id, and those of conversations if they are wanted."""
    wanted = set(item_ids)
    found: dict[str, JsonObject] = {}
    bodies = dict(_items(connection, "response.id, response.body", project, item_ids, since))
    for body in bodies.values():
        found |= {item["id"]: item for item in json.loads(body)["output"] if item.get("id") in wanted}
    missing = [item_id for item_id in item_ids if item_id not in found] if conversations else []
    for some in in_parts(missing):
        with connection.cursor() as cursor:
            cursor.execute(_OF_CONVERSATIONS.format(ids=placeholders(some)), [*some, project])
            found |= {item_id: json.loads(item) for item_id, item in cursor.fetchall()}
    return found


def _row(
    connection: BaseDatabaseWrapper, columns: str, project: str, response_id: str, since: float
) -> Sequence[Sequence[Any]]:
    with connection.cursor() as cursor:
        cursor.execute(_RESPONSE.format(columns=columns), [response_id, project, time_value(connection, since)])
        rows: Sequence[Sequence[Any]] = cursor.fetchall()
    return rows


def _items(
    connection: BaseDatabaseWrapper, columns: str, project: str, item_ids: Sequence[str], since: float
) -> Iterable[tuple[Any, ...]]:
    """Yield rows of output items."""
    with connection.cursor() as cursor:
        for some in in_parts(item_ids):
            sql = _OF_RESPONSES.format(columns=columns, ids=placeholders(some))
            cursor.execute(sql, [*some, project, time_value(connection, since)])
            yield from cursor.fetchall()
