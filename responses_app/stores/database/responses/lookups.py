"""What is read of responses, each with one query, on SQLite and PostgreSQL alike.

`since` is the time, in Unix seconds, from which on responses are known: older ones are past their time to live.

A chain is one query, too: the parts of a response and of all it continues. Each step is one lookup by primary key and
carries the whole part; the rows are put in order here. Measured on SQLite with parts of 40 KB, a walk over ids and a
join after it takes twice as long, and so does an ORDER BY.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from engine import orjson
from responses_app.kit.sql import in_parts, placeholders
from responses_app.models import ChainPart, Response
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import Leg, TurnLeg
from responses_app.protocol.items.items import SampledMessage
from responses_app.protocol.prompt.chain import ChainLink, LinkTokens, link_of
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.resources.conversations.model import Conversation, ConversationItem
from responses_app.stores.base import LogNews, StoredLog
from responses_app.stores.database.response_sql import BRIEF, LOGS, NAMES, PARTS, RESPONSES, SAMPLED
from responses_app.stores.database.responses.rows import read_calls, response_of, sampled_item, time_value, unpack

logger = logging.getLogger("respsite.stores")

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
        # The project twice: that of the name, and that of the response.
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
    for (text,) in _row(connection, "response.input_items", project, response_id, since):
        items: Sequence[JsonObject] = orjson.loads_kept(text)
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
    # A response without a log is one row, whose part is NULL.
    parts = [(start, bytes(data)) for _, start, data in rows if data is not None]
    return LogNews(rows[0][0], b"".join(data[max(0, position - start) :] for start, data in parts))


def sampled_items(
    connection: BaseDatabaseWrapper, project: str, item_ids: Sequence[str], *, since: float
) -> Mapping[str, SampledMessage]:
    """Return output items with their tokens, by id."""
    rows = _items(connection, "item.id, item.fingerprint, item.kind, item.tokens", project, item_ids, since)
    return {row[0]: sampled_item(*row) for row in rows}


def items(
    connection: BaseDatabaseWrapper, project: str, item_ids: Sequence[str], *, since: float, conversations: bool
) -> Mapping[str, JsonObject]:
    """Return output items of responses, by id, and those of conversations if they are wanted."""
    ids = set(item_ids)
    items_by_id: dict[str, JsonObject] = {}
    # An item is found in its response's output; several items of one response read its body once.
    bodies = dict(_items(connection, "response.id, response.body", project, item_ids, since))
    for body in bodies.values():
        items_by_id |= {item["id"]: item for item in orjson.loads_kept(body)["output"] if item.get("id") in ids}
    missing = [item_id for item_id in item_ids if item_id not in items_by_id] if conversations else []
    for some in in_parts(missing):
        with connection.cursor() as cursor:
            cursor.execute(_OF_CONVERSATIONS.format(ids=placeholders(some)), [*some, project])
            items_by_id |= {item_id: orjson.loads_kept(item) for item_id, item in cursor.fetchall()}
    return items_by_id


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


MAX_PARTS = 100_000  # ends a walk that a damaged table would send in circles

PART_COLUMNS = ("id", "parent_id", "started_on", "calls", "kinds", "lengths", "tokens", "settles", "ends_final")
_ID, _PARENT, _STARTED_ON, _CALLS, _, _, _, _SETTLES, _ = range(len(PART_COLUMNS))

# From the response to the root. The first SELECT also checks that the response itself is known.
_CHAIN = """
WITH RECURSIVE chain ({columns}, depth) AS (
    SELECT {part_columns}, 0
    FROM {parts} AS part JOIN {responses} AS response ON response.id = part.id
    WHERE part.id = %s AND part.project = %s AND response.project = %s AND response.created_at > %s
        AND NOT EXISTS (SELECT 1 FROM {brief} AS brief WHERE brief.id = response.id)
    UNION ALL
    SELECT {part_columns}, chain.depth + 1
    FROM chain JOIN {parts} AS part ON part.id = chain.parent_id
    WHERE part.project = %s AND chain.depth < %s
)
SELECT {columns}, depth FROM chain
""".format(
    parts=ChainPart._meta.db_table,
    responses=Response._meta.db_table,
    brief=BRIEF,
    columns=", ".join(PART_COLUMNS),
    part_columns=", ".join(f"part.{name}" for name in PART_COLUMNS),
)


def load_chain(connection: BaseDatabaseWrapper, project: str, response_id: str, *, since: float) -> ChainLink | None:
    """Return the chain that ends in this response, if it was created after `since` (Unix seconds).

    Only a response that is kept can be continued, and none with `store: false`; of what came before it, the parts are
    enough.
    """
    with _cursor(connection) as cursor:
        cursor.execute(_CHAIN, [response_id, project, project, time_value(connection, since), project, MAX_PARTS - 1])
        # By depth, the deepest first: the root is the oldest.
        rows = sorted(cursor.fetchall(), key=itemgetter(-1), reverse=True)
    if rows and rows[0][_PARENT] is not None:  # the chain is broken, or longer than `MAX_PARTS`
        logger.error("response %s cannot be continued: part %s of its chain is lost", response_id, rows[0][_PARENT])
        return None
    return replace(chain_of(rows), stored=True) if rows else None


def chain_of(rows: Sequence[Sequence[Any]]) -> ChainLink:
    """Return the chain that these rows make up, the oldest first: one link, or two.

    What the last part that settles had to settle is one link, without its analysis; that part and all behind it are
    the other. A link for each part would cost ten times as much, and take more memory.
    """
    # The last part that settles. Index 0 has nothing before it that could be settled.
    settling = next((index for index in range(len(rows) - 1, 0, -1) if rows[index][_SETTLES]), 0)
    settled, rest = rows[:settling], rows[settling:]
    before = _link(None, settled, _joined(settled).settled(), first=rows[0]) if settled else None
    return _link(before, rest, _joined(rest), first=rows[0])


def _link(
    before: ChainLink | None, rows: Sequence[Sequence[Any]], own: LinkTokens, *, first: Sequence[Any]
) -> ChainLink:
    link = link_of(
        before,
        response_id=rows[-1][_ID],
        started_on=first[_STARTED_ON],
        own=own,
        calls=_calls(rows),
        root_id=first[_ID],
    )
    further = [read_calls(row[_CALLS])[1] for row in rows]
    late_tools = [tool for each in further for tool in each.get("late_tools", ())]
    states: dict[str, Any] = {}
    for each in further:
        # Later parts replace what earlier ones kept for the same tool.
        states |= each.get("states", {})
    return replace(
        link,
        awaited=further[-1].get("awaited", {}),
        late_tools=late_tools,
        tool_items=[item for each in further for item in each.get("tool_items", ())],
        states=states,
    )


def _joined(rows: Sequence[Sequence[Any]]) -> LinkTokens:
    """Return what these parts say, as one that says it all."""
    # In the order of PART_COLUMNS, and the depth.
    _, _, _, _, kinds, lengths, tokens, settles, ends_final, _ = zip(*rows, strict=True)
    return LinkTokens(
        kinds="".join(kinds),
        lengths=unpack(*lengths),
        tokens=unpack(*tokens),
        settles=any(settles),
        ends_final=bool(ends_final[-1]),
    )


def _calls(rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    calls: dict[str, str] = {}
    for row in rows:
        calls |= read_calls(row[_CALLS])[0]
    return calls


def _cursor(connection: BaseDatabaseWrapper) -> CursorWrapper:
    """Return a cursor that gets bytes as they are: Django's own has PostgreSQL send them as hexadecimal digits."""
    if connection.vendor != "postgresql":
        return connection.cursor()
    from psycopg import Cursor
    from psycopg.pq import Format

    connection.close_if_health_check_failed()  # as `connection.cursor` does
    connection.ensure_connection()
    cursor = Cursor(connection.connection)
    cursor.format = Format.BINARY
    return connection.make_cursor(cursor)
