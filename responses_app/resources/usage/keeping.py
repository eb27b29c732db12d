"""Rows of usage, which the transaction that ends a response writes, too; and how they are exported."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db.backends.utils import CursorWrapper

from responses_app.kit.columns import json_text
from responses_app.kit.kept import writes_lines
from responses_app.kit.sql import Writing, columns, placeholders
from responses_app.protocol.api_keys import DEFAULT_PROJECT
from responses_app.resources.projects.model import Project
from responses_app.resources.usage.fields import TOKENS, WHOSE, UsageEntry
from responses_app.resources.usage.model import Usage

TABLE, COLUMNS = Usage._meta.db_table, columns(Usage)
# Only of projects that are there: what ends behind `respsite manage forget` leaves nothing. The default one needs no
# row.
_KEEP = Writing(
    f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) SELECT {placeholders(COLUMNS)} "
    f"WHERE %s = '{DEFAULT_PROJECT}' OR EXISTS (SELECT 1 FROM {Project._meta.db_table} WHERE name = %s) "
    "ON CONFLICT (id) DO NOTHING",
    [*COLUMNS, "project", "project"],
)


def keep_entries(cursor: CursorWrapper, entries: Sequence[UsageEntry]) -> None:
    """Write the usage of requests; an entry that is known already stays as it is."""
    _KEEP.run(
        cursor,
        [
            {
                **{name: getattr(entry, name) for name in ("id", "at", *WHOSE)},
                **{f"{name}_tokens": getattr(entry.tokens, name) for name in TOKENS},
                "seconds": 0,
                "requests": 1,
            }
            for entry in entries
        ],
    )


@writes_lines(Usage)
def _lines(row: Usage, head: Mapping[str, Any], using: str) -> Iterator[str]:
    tokens = {name: getattr(row, f"{name}_tokens") for name in TOKENS}
    yield json_text({"usage": {**head["usage"], "tokens": tokens}})
