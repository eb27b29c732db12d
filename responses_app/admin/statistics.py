"""What the dashboard shows, counted in SQL: one scan of one index, however long the bodies are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import BooleanField, Case, CharField, Count, F, Func, IntegerField, QuerySet, Sum, Value, When

from responses_app.admin.filters import newest_since
from responses_app.models import Response, Worker
from responses_app.stores.response_sql import RUNNING as RUNNING_SQL

MOST_COUNTED = 300_000  # responses a chart looks at: the newest
MOST_WORKERS = 50
STEPS = ((20, 1), (200, 5), (1_000, 25), (5_000, 100), (20_000, 500))  # up to: to what times are rounded, milliseconds
LAST_STEP = 2_000


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


class _Hour(Func):
    """The hour of a time, as text: a function of the database. Django's own is Python on SQLite, 10 µs a row."""

    output_field = CharField()
    template = "TO_CHAR(%(expressions)s AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24')"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="SUBSTR(%(expressions)s, 1, 13)", **context)


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
    since = newest_since(MOST_COUNTED, first) or first
    total = Bin(first)
    for counted in _hours(since):
        index = int((counted.start - first) / timedelta(hours=hours_a_bin))
        if 0 <= index < len(bins):  # a clock that went back leaves responses of the future
            bins[index].add(counted)
            total.add(counted)
    return Statistics(bins=bins, total=total, since=since, complete=since == first)


def _hours_query(since: datetime) -> "QuerySet[Response, tuple[Any, ...]]":
    return (
        Response.objects.filter(created_at__gte=since)
        .order_by()
        .values_list(_Hour("created_at"), "status", _rounded("first_token_ms"))
        .annotate(count=Count("*"), into=Sum("input_tokens"), cached=Sum("cached_tokens"), out=Sum("output_tokens"))
    )


def _hours(since: datetime) -> list[Bin]:
    """Count by hour, status and time to the first token, in one query."""
    bins: dict[str, Bin] = {}
    for hour, status, first_token, count, tokens_in, cached, tokens_out in _hours_query(since):
        if hour not in bins:
            bins[hour] = Bin(datetime.strptime(hour, "%Y-%m-%d %H").replace(tzinfo=UTC))
        counted = bins[hour]
        counted.statuses[status] += count
        counted.input_tokens += tokens_in
        counted.cached_tokens += cached
        counted.output_tokens += tokens_out
        if first_token is not None:
            counted.first_tokens[first_token] += count
    return list(bins.values())


def _rounded(column: str) -> Case:
    """Round a time down to its step."""
    value = F(column)
    steps = [When(**{f"{column}__lt": most}, then=value / Value(step) * Value(step)) for most, step in STEPS]
    known = When(**{f"{column}__isnull": False}, then=value / Value(LAST_STEP) * Value(LAST_STEP))
    return Case(*steps, known, default=Value(None), output_field=IntegerField())


def running() -> dict[tuple[str, str], int]:
    """Count what runs and what waits: (worker, status) → responses."""
    return {(worker, status): count for worker, status, count in _running_query()}


def _running_query() -> "QuerySet[Response, tuple[Any, ...]]":
    rows = Response.objects.filter(_Running()).order_by()
    return rows.values_list("worker", "status").annotate(count=Count("*"))


def workers() -> list[Worker]:
    """Return the workers, the one seen last first."""
    return list(Worker.objects.order_by("-seen_at")[:MOST_WORKERS])
