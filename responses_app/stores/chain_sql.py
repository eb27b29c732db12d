"""A whole chain in one query: the parts of a response and of all it continues, on SQLite and PostgreSQL alike.

The recursion walks ids alone, one primary key lookup a step, and the parts' tokens are read once it is done: carried
through the recursion they would be copied from step to step.
"""

from collections.abc import Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models import ChainPart, Response

MAX_PARTS = 100_000  # ends a walk that a damaged table would send in circles

PART_COLUMNS = ("id", "parent_id", "started_on", "calls", "kinds", "lengths", "tokens", "settles", "ends_final")

_CHAIN = """
WITH RECURSIVE chain (id, parent_id, depth) AS (
    SELECT part.id, part.parent_id, 0
    FROM {parts} AS part JOIN {responses} AS response ON response.id = part.id
    WHERE part.id = %s AND part.project = %s AND response.project = %s
    UNION ALL
    SELECT part.id, part.parent_id, chain.depth + 1
    FROM chain JOIN {parts} AS part ON part.id = chain.parent_id
    WHERE part.project = %s AND chain.depth < %s
)
SELECT {columns}
FROM chain JOIN {parts} AS part ON part.id = chain.id
ORDER BY chain.depth DESC
""".format(
    parts=ChainPart._meta.db_table,
    responses=Response._meta.db_table,
    columns=", ".join(f"part.{name}" for name in PART_COLUMNS),
)


def chain_rows(connection: BaseDatabaseWrapper, project: str, response_id: str) -> Sequence[Sequence[Any]]:
    """Return the rows (`PART_COLUMNS`) of the chain that ends in this response, the oldest first.

    Only a response that is kept can be continued; of what came before it, the parts are enough. No rows: there is
    nothing to continue. A first row with a parent: the chain is broken, or longer than `MAX_PARTS`.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CHAIN, [response_id, project, project, project, MAX_PARTS])
        return cursor.fetchall()
