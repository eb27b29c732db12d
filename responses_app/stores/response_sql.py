"""How rows are written: by SQL that is made once, of the models' own columns, for SQLite and PostgreSQL alike.

Measured: 6 µs a row on SQLite and 20 µs on PostgreSQL, where Django's `bulk_create` takes 0.3 to 0.8 ms a call.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import Model

from responses_app.models import ChainPart, Response, SampledItem, Worker

Row = Mapping[str, object]  # column → value, as the driver takes it

RUNNING = "('queued', 'in_progress')"  # literally, as in the condition of the index `response_running`
IDS_A_QUERY = 500  # SQLite may be built for 999 parameters at most


class Writing:
    """A statement that writes one row of a table; `columns` are what a row needs to have."""

    def __init__(self, sql: str, columns: Sequence[str]) -> None:
        self._sql = sql
        self._values = itemgetter(*columns)

    def run(self, cursor: CursorWrapper, rows: Collection[Row]) -> int:
        """Write rows, PostgreSQL gets them in one go; return how many there are now (or were changed)."""
        if not rows:
            return 0
        cursor.executemany(self._sql, list(map(self._values, rows)))
        return cursor.rowcount


def _upsert(model: type[Model], *, only_if: str = "") -> Writing:
    """Insert a row, or replace the one that has its id (`only_if` that is so)."""
    columns = [field.column for field in model._meta.concrete_fields]
    table, key = model._meta.db_table, str(model._meta.pk.column)
    replaced = ", ".join(f"{column} = excluded.{column}" for column in columns if column != key)
    sql = (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))}) "
        f"ON CONFLICT ({key}) DO UPDATE SET {replaced}"
    )
    return Writing(f"{sql} WHERE {only_if}" if only_if else sql, columns)


def _update(model: type[Model], columns: Sequence[str]) -> Writing:
    """Change these columns of the row that has an id."""
    changes = ", ".join(f"{column} = %s" for column in columns)
    key = str(model._meta.pk.column)
    return Writing(f"UPDATE {model._meta.db_table} SET {changes} WHERE {key} = %s", [*columns, key])


RESPONSES = Response._meta.db_table
PARTS = ChainPart._meta.db_table
SAMPLED = SampledItem._meta.db_table
WORKERS = Worker._meta.db_table

OPEN_RESPONSE = _upsert(Response, only_if=f"{RESPONSES}.status IN {RUNNING}")
KEEP_RESPONSE = _upsert(Response)
END_RESPONSE = _update(
    Response,
    [
        *("status", "body", "worker", "request", "size", "input_tokens", "cached_tokens", "output_tokens"),
        *("first_token_ms", "duration_ms"),
    ],
)
CLAIM_RESPONSE = _update(Response, ["worker"])
FAIL_RESPONSE = _update(Response, ["status", "body", "worker", "request"])
KEEP_PART = _upsert(ChainPart)
KEEP_SAMPLED = _upsert(SampledItem)
KEEP_WORKER = _upsert(Worker)


def placeholders(values: Sequence[object]) -> str:
    """Return the parameters of an IN, which has at least one."""
    return ", ".join(["%s"] * len(values))


def in_parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide ids among statements."""
    return (ids[start : start + IDS_A_QUERY] for start in range(0, len(ids), IDS_A_QUERY))


def for_update(connection: BaseDatabaseWrapper, clause: str = "FOR UPDATE") -> str:
    """Return a SELECT's locking clause; on SQLite the whole transaction is the lock."""
    return clause if connection.features.has_select_for_update else ""
