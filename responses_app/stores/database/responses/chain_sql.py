"""A whole chain in one query: the parts of a response and of all it continues, on SQLite and PostgreSQL alike.

Each step is one lookup by primary key and carries the whole part; the rows are put in order here. Measured on SQLite
with parts of 40 KB, a walk over ids and a join after it takes twice as long, and so does an ORDER BY.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from responses_app.models import ChainPart, Response
from responses_app.protocol.prompt.chain import ChainLink, LinkTokens, link_of
from responses_app.stores.database.responses.rows import read_calls, time_value, unpack

logger = logging.getLogger("respsite.stores")

MAX_PARTS = 100_000  # ends a walk that a damaged table would send in circles

PART_COLUMNS = ("id", "parent_id", "started_on", "calls", "kinds", "lengths", "tokens", "settles", "ends_final")
_ID, _PARENT, _STARTED_ON, _CALLS, _, _, _, _SETTLES, _ = range(len(PART_COLUMNS))

_CHAIN = """
WITH RECURSIVE chain ({columns}, depth) AS (
    SELECT {part_columns}, 0
    FROM {parts} AS part JOIN {responses} AS response ON response.id = part.id
    WHERE part.id = %s AND part.project = %s AND response.project = %s AND response.created_at > %s
    UNION ALL
    SELECT {part_columns}, chain.depth + 1
    FROM chain JOIN {parts} AS part ON part.id = chain.parent_id
    WHERE part.project = %s AND chain.depth < %s
)
SELECT {columns}, depth FROM chain
""".format(
    parts=ChainPart._meta.db_table,
    responses=Response._meta.db_table,
    columns=", ".join(PART_COLUMNS),
    part_columns=", ".join(f"part.{name}" for name in PART_COLUMNS),
)


def load_chain(connection: BaseDatabaseWrapper, project: str, response_id: str, *, since: float) -> ChainLink | None:
    """Return the chain that ends in this response, if it was created after `since` (Unix seconds).

    Only a response that is kept can be continued; of what came before it, the parts are enough.
    """
    with _cursor(connection) as cursor:
        cursor.execute(_CHAIN, [response_id, project, project, time_value(connection, since), project, MAX_PARTS - 1])
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
