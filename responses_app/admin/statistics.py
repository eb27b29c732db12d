"""What the dashboard shows, counted in SQL: one scan of one index, however long the bodies are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import BooleanField, Count, Func, QuerySet

from responses_app.admin.filters import newest_since
from responses_app.models import Response, Worker
from responses_app.stores.database.response_sql import RESPONSES
from responses_app.stores.database.response_sql import RUNNING as RUNNING_SQL

MAX_COUNTED = 300_000  # responses a chart looks at: the newest
MAX_WORKERS = 50
STEPS = ((50, 1), (200, 5), (1_000, 20), (5_000, 100), (20_000, 500))  # up to: to what times are rounded, milliseconds
LAST_STEP = 2_000
_ROUNDED = " ".join(
    [
        "CASE",
        *(f"WHEN first_token_ms < {most} THEN first_token_ms / {step} * {step}" for most, step in STEPS),
        f"ELSE first_token_ms / {LAST_STEP} * {LAST_STEP} END",
    ]
)
_COUNTED = (
    f"SELECT {{index}}, status, {_ROUNDED}, COUNT(*), SUM(input_tokens), SUM(cached_tokens), SUM(output_tokens) "
    f"FROM {RESPONSES} WHERE created_at >= %s AND created_at < %s GROUP BY 2, 3"
)


@dataclass(slots=True)
class Bin:
    """An hour, or several: responses by status, tokens, and how often the first token took how long (milliseconds)."""

    start: datetime
    statuses: Counter[str] = field(default_factory=Counter)
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_tokens: Counter[int] = field(default_factory=Counter)

    @property
    def responses(self) -> int:
        """All of them."""
        return self.statuses.total()

    def add(self, other: "Bin") -> None:
        """Add another one's numbers."""
        self.statuses += other.statuses
        self.input_tokens += other.input_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.first_tokens += other.first_tokens

    def first_token(self, share: float) -> int | None:
        """Return the time within which this share of the first tokens came; exact to the step of `STEPS`."""
        wanted = share * self.first_tokens.total()
        seen = 0
        for time, count in sorted(self.first_tokens.items()):
            seen += count
            if seen >= wanted:
                return time
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A span of time in bins. `since` is later than the span's start where it holds more than can be counted."""

    bins: Sequence[Bin]
    total: Bin
    since: datetime
    complete: bool


class _Running(Func):
    """Whether a response runs, literally as in the condition of the index `response_running`: SQLite compares text."""

    output_field = BooleanField()
    template = f"status IN {RUNNING_SQL}"


def statistics(now: datetime, *, hours: int, hours_a_bin: int) -> Statistics:
    """Count the responses of the last hours."""
    last = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    last -= timedelta(hours=last.hour % hours_a_bin)
    bins = [Bin(last - timedelta(hours=offset)) for offset in range(hours - hours_a_bin, -1, -hours_a_bin)]
    first = bins[0].start
    since = newest_since(MAX_COUNTED, first) or first
    with connection.cursor() as cursor:
        cursor.execute(*counting(bins, since, timedelta(hours=hours_a_bin)))
        for index, status, first_token, count, tokens_in, cached, tokens_out in cursor.fetchall():
            counted = bins[index]
            counted.statuses[status] += count
            counted.input_tokens += tokens_in
            counted.cached_tokens += cached
            counted.output_tokens += tokens_out
            if first_token is not None:
                counted.first_tokens[first_token] += count
    total = Bin(first)
    for counted in bins:
        total.add(counted)
    return Statistics(bins=bins, total=total, since=since, complete=since == first)


def counting(bins: Sequence[Bin], since: datetime, length: timedelta) -> tuple[str, list[Any]]:
    """Return the query, and its parameters, that counts each bin by status and time to the first token.

    It is a union of bins, each a range of the index: to group by a bin that is computed would sort all rows.
    """
    ranges = [(max(each.start, since), each.start + length) for each in bins]
    selects = (_COUNTED.format(index=index) for index in range(len(bins)))
    return " UNION ALL ".join(selects), [connection.ops.adapt_datetimefield_value(at) for pair in ranges for at in pair]


def running() -> dict[tuple[str, str], int]:
    """Count what runs and what waits: (worker, status) → responses."""
    return {(worker, status): count for worker, status, count in _running_query()}


def _running_query() -> "QuerySet[Response, tuple[Any, ...]]":
    rows = Response.objects.filter(_Running()).order_by()
    return rows.values_list("worker", "status").annotate(count=Count("*"))


def workers() -> list[Worker]:
    """Return the workers, the one seen last first."""
    return list(Worker.objects.order_by("-seen_at")[:MAX_WORKERS])
