"""The dashboard: the last day or week as charts, and the workers that share this database.

What the charts show is counted in SQL, by one scan of one index, however long the bodies of the responses are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.db.models import BooleanField, Count, Func, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html

from responses_app.extensions.console.admin.charts import Chart, ChartPlan, Series, bar_chart, line_chart
from responses_app.extensions.console.admin.filters import KeyFilter, ModelFilter, ProjectFilter, cut, newest_since
from responses_app.extensions.console.admin.lists import ListOnlyAdmin, column
from responses_app.extensions.console.admin.panels import errors, here, slowest, stores
from responses_app.extensions.console.admin.usage import UsageRow, money
from responses_app.extensions.console.watch.text import ago, milliseconds, short_id, short_number
from responses_app.models import Response, Worker
from responses_app.protocol.api_keys import BY_SESSION
from responses_app.protocol.requests.resources import Status
from responses_app.resources.projects.model import ApiKey
from responses_app.resources.usage.fields import UsageQuery
from responses_app.resources.usage.store import sums
from responses_app.stores.database.response_sql import RESPONSES
from responses_app.stores.database.response_sql import RUNNING as RUNNING_SQL
from responses_app.stores.database.roles import sees_figures

if TYPE_CHECKING:
    pass

MAX_COUNTED = 300_000  # responses a chart looks at: the newest
MAX_OF_KEY = 10_000  # of one key
MAX_WORKERS = 50
STEPS = ((50, 1), (200, 5), (1_000, 20), (5_000, 100), (20_000, 500))  # up to: to what times are rounded, milliseconds
LAST_STEP = 2_000
_ROUNDED = " ".join(
    [
        "CASE",
        *(f"WHEN first_token_ms < {most} THEN first_token_ms / {step} * {step}" for most, step in STEPS),
        # Integer division, in both databases: it rounds down.
        f"ELSE first_token_ms / {LAST_STEP} * {LAST_STEP} END",
    ]
)
_COUNTED = (
    f"SELECT {{index}}, status, {_ROUNDED}, COUNT(*), SUM(input_tokens), SUM(cached_tokens), SUM(output_tokens) "
    f"FROM {RESPONSES} WHERE created_at >= %s AND created_at < %s {{further}} GROUP BY 2, 3"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Whose responses are shown; "" for all."""

    project: str = ""
    model: str = ""
    key: str = ""

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> "Chosen":
        """Return what an address asks for."""
        return cls(**{each.name: cut(asked.get(each.name, "")) for each in fields(cls)})

    @property
    def columns(self) -> Mapping[str, str]:
        """The values that columns have to have."""
        named = {"project": self.project, "model": self.model, "key_id": self.key}
        return {column: value for column, value in named.items() if value}

    @property
    def address(self) -> Mapping[str, str]:
        """What is chosen, as an address has it."""
        return {name: value for name, value in asdict(self).items() if value}


EVERYBODY = Chosen()


@dataclass(slots=True)
class Bin:
    """An hour, or several."""

    start: datetime  # at a full hour
    statuses: Counter[str] = field(default_factory=Counter)  # how many responses have which
    input_tokens: int = 0
    cached_tokens: int = 0  # of the input
    output_tokens: int = 0
    first_tokens: Counter[int] = field(default_factory=Counter)  # how often the first one took so many milliseconds

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
        rank = share * self.first_tokens.total()
        seen = 0
        for time, count in sorted(self.first_tokens.items()):
            seen += count
            if seen >= rank:
                return time
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A time until now, in bins."""

    bins: Sequence[Bin]
    total: Bin
    since: datetime  # later than the first bin's start where there is more than can be counted
    complete: bool  # all of it was counted


class _RunningCondition(Func):
    """Whether a response runs, literally as in the condition of the index `response_running`: SQLite compares text."""

    output_field = BooleanField()
    template = f"status IN {RUNNING_SQL}"


def statistics(now: datetime, *, hours: int, hours_a_bin: int, chosen: Chosen = EVERYBODY) -> Statistics:
    """Count the responses of the last hours."""
    last = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    # Bins begin at the same hours every day, so that marks stand at midnight.
    last -= timedelta(hours=last.hour % hours_a_bin)
    bins = [Bin(last - timedelta(hours=offset)) for offset in range(hours - hours_a_bin, -1, -hours_a_bin)]
    first = bins[0].start
    # Beyond so many responses the oldest bins stay empty, and the page says so.
    since = newest_since(MAX_COUNTED, first) or first
    if chosen.key:  # which is not in the index that is scanned
        since = newest_since(MAX_OF_KEY, since, Response.objects.filter(**chosen.columns)) or since
    with connection.cursor() as cursor:
        cursor.execute(*counting(bins, since, timedelta(hours=hours_a_bin), chosen))
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


def counting(
    bins: Sequence[Bin], since: datetime, length: timedelta, chosen: Chosen = EVERYBODY
) -> tuple[str, list[Any]]:
    """Return the query, and its parameters, that counts each bin by status and time to the first token.

    It is a union of bins, each a range of the index: to group by a bin that is computed would sort all rows.
    """
    ranges = [(max(each.start, since), each.start + length) for each in bins]
    further = " ".join(f"AND {column} = %s" for column in chosen.columns)
    selects = (_COUNTED.format(index=index, further=further) for index in range(len(bins)))
    adapt = connection.ops.adapt_datetimefield_value
    parameters = [value for pair in ranges for value in (*map(adapt, pair), *chosen.columns.values())]
    return " UNION ALL ".join(selects), parameters


def running() -> dict[tuple[str, str], int]:
    """Count what runs and what waits: (worker, status) → responses."""
    return {(worker, status): count for worker, status, count in _running_query()}


def _running_query() -> "QuerySet[Response, tuple[Any, ...]]":
    rows = Response.objects.filter(_RunningCondition()).order_by()
    return rows.values_list("worker", "status").annotate(count=Count("*"))


def workers() -> list[Worker]:
    """Return the workers, the one seen last first."""
    return list(Worker.objects.order_by("-seen_at")[:MAX_WORKERS])


def is_alive(worker: Worker, now: datetime) -> bool:
    """Whether a worker was seen within its lease: after it others take over what it left."""
    return worker.seen_at >= now - timedelta(seconds=settings.RESPSITE.worker_lease_seconds)


@admin.register(Worker)
class WorkerAdmin(ListOnlyAdmin):
    """Workers, the one seen last first. They remove each other."""

    list_display = ("identifier", "alive", "last_seen", "started", "connections", "in_flight")
    identifier = column("worker", lambda row: format_html('<span class="id">{}</span>', row.pk))
    alive = column(
        "state",
        lambda row: format_html(
            '<span class="pill pill-{0}">{0}</span>', "alive" if is_alive(row, datetime.now(UTC)) else "gone"
        ),
    )
    last_seen = column("last seen", lambda row: ago(row.seen_at, datetime.now(UTC)))
    started = column("started", lambda row: ago(row.started_at, datetime.now(UTC)))
    ordering = ("-seen_at",)


@dataclass(frozen=True, slots=True)
class Period:
    """A time until now that can be looked at."""

    label: str
    hours: int  # how long it is
    hours_a_bin: int
    every: int  # how many bins lie between two marks of the axis
    written: str  # how a mark is written, as strftime has it


PERIODS = {
    "day": Period("24 hours", 24, 1, 4, "%H:%M"),
    "week": Period("7 days", 7 * 24, 4, 6, "%d %b"),
}
_SHOWN = (Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED, Status.IN_PROGRESS, Status.QUEUED)


def first_page(request: HttpRequest) -> HttpResponse:
    """Lead to the dashboard whoever may see it; show all others the tables that they may see."""
    if sees_figures(request.user):
        return redirect("dashboard")
    return admin.site.index(request)


def dashboard(request: HttpRequest) -> HttpResponse:
    """Show it to whoever may see responses."""
    if not sees_figures(request.user):
        raise PermissionDenied
    name = request.GET.get("span", "day")
    name = name if name in PERIODS else "day"
    chosen = Chosen.of(request.GET)
    if chosen.key and not chosen.project and (row := ApiKey.objects.filter(pk=chosen.key).first()):
        chosen = replace(chosen, project=row.project_id)  # by whose index the key's responses are found

    def address(**changes: str) -> str:
        return "?" + urlencode({"span": name, **chosen.address, **changes})

    from responses_app.wiring.site import get_site

    context = {
        **admin.site.each_context(request),
        **page(datetime.now(UTC), PERIODS[name], chosen),
        "here": here(get_site()),
        "title": "Dashboard",
        "chosen": name,
        "spans": [(address(span=key), period.label, key == name) for key, period in PERIODS.items()],
        "filters": _filters(request, chosen),
        "is_narrowed": bool(chosen.address),
        "whole": f"?span={name}",
        "link": f"{reverse('admin:responses_app_response_changelist')}?{urlencode({'age': name, **chosen.address})}",
    }
    return TemplateResponse(request, "admin/respsite/dashboard.html", context)


def _filters(request: HttpRequest, chosen: Chosen) -> list[tuple[str, str, list[tuple[str, str, bool]]]]:
    """Return what can be chosen: a title, a name, and the choices, each with whether it is the present one."""
    of_list = [(ProjectFilter, chosen.project), (ModelFilter, chosen.model), (KeyFilter, chosen.key)]
    shown = []
    for kind, value in of_list:
        choices = kind.choices_of(request, value)
        shown.append((kind.title, str(kind.parameter_name), [(each, text, each == value) for each, text in choices]))
    return shown


def page(now: datetime, period: Period, chosen: Chosen = EVERYBODY) -> dict[str, Any]:
    """Return what the template needs."""
    counted = statistics(now, hours=period.hours, hours_a_bin=period.hours_a_bin, chosen=chosen)
    present, known = running(), workers()
    alive = [worker for worker in known if is_alive(worker, now)]
    rows = Response.objects.filter(created_at__gte=counted.since, **chosen.columns).order_by()
    kept, whole = stores(connection)
    return {
        "span": period,
        "statistics": counted,
        "tiles": [
            *_tiles(counted.total, present, connections=sum(worker.connections for worker in alive)),
            *_cost(now, period, chosen),
        ],
        "charts": _charts(counted, period),
        "errors": errors(rows),
        "slowest": slowest(rows),
        "stores": kept,
        "database": whole,
        "workers": _worker_rows(known, present, now),
        "alive": len(alive),
    }


def _cost(now: datetime, period: Period, chosen: Chosen) -> list[tuple[str, str, str]]:
    """Return the tile with the costs, where there are prices: of all requests, stored or not."""
    prices = settings.RESPSITE.prices
    if not prices:
        return []
    wanted: dict[str, Any] = {f"{name}s": [value] for name, value in chosen.address.items()}
    if chosen.key.startswith(BY_SESSION):
        wanted |= {"keys": (), "users": [chosen.key.partition(":")[2]]}
    end = int(now.timestamp())
    used = sums(connection, UsageQuery(start=end - period.hours * 3600, end=end + 1, groups=("model",), **wanted))
    total = UsageRow("")
    for each in used:
        total.add(each, prices.get(each.model))
    return [("Cost", total.cost_text if used else money(Decimal(0)), total.cost_note or "stored or not")]


def _tiles(total: Bin, present: dict[tuple[str, str], int], *, connections: int) -> list[tuple[str, str, str]]:
    """Return the totals: a name, a value, a remark."""
    failed = total.statuses[Status.FAILED.value]
    ended = sum(total.statuses[status.value] for status in _SHOWN[:4])
    cached = f"{total.cached_tokens / total.input_tokens:.0%} cached" if total.input_tokens else ""
    # Of all workers together.
    now = {status: sum(n for (_, each), n in present.items() if each == status) for _, status in present}
    return [
        ("Responses", short_number(total.responses), f"{failed / ended:.1%} failed" if ended else ""),
        ("Tokens in", short_number(total.input_tokens), cached),
        ("Tokens out", short_number(total.output_tokens), ""),
        ("First token", milliseconds(total.first_token(0.5)), f"p95 {milliseconds(total.first_token(0.95))}"),
        ("Running now", f"{now.get(Status.IN_PROGRESS.value, 0):,}", f"{now.get(Status.QUEUED.value, 0):,} queued"),
        ("Open connections", f"{connections:,}", ""),
    ]


def _charts(counted: Statistics, period: Period) -> list[Chart]:
    bins, total = counted.bins, counted.total
    marks = [
        (index, each.start.strftime(period.written))
        for index, each in enumerate(bins)
        if (each.start.hour // period.hours_a_bin) % period.every == 0
    ]
    plan = partial(ChartPlan, names=[each.start.strftime("%a %d %b %H:%M") for each in bins], marks=marks)
    every = "hour" if period.hours_a_bin == 1 else f"{period.hours_a_bin} hours"
    responses = plan(
        key="responses",
        title=f"Responses per {every}",
        summary=f"{total.responses:,} in the last {period.label}, {total.statuses['failed']:,} of them failed.",
        series=[
            Series(status.value, status.value.replace("_", " "), [each.statuses[status.value] for each in bins])
            for status in _SHOWN
            if total.statuses[status.value] or status is Status.COMPLETED
        ],
        write=lambda value: f"{value:,.0f}" if value == int(value) else f"{value:,.1f}",
    )
    tokens = plan(
        key="tokens",
        title=f"Tokens per {every}",
        summary=f"{total.input_tokens:,} in and {total.output_tokens:,} out in the last {period.label}.",
        series=[
            Series("tokens-cached", "in, cached", [each.cached_tokens for each in bins]),
            Series("tokens-in", "in", [each.input_tokens - each.cached_tokens for each in bins]),
            Series("tokens-out", "out", [each.output_tokens for each in bins]),
        ],
        write=short_number,
    )
    first_token = plan(
        key="first-token",
        title="Time to first token",
        summary=f"Half of them within {milliseconds(total.first_token(0.5))} in the last {period.label}.",
        series=[
            Series("median", "median", [each.first_token(0.5) for each in bins]),
            Series("p95", "95th percentile", [each.first_token(0.95) for each in bins]),
        ],
        write=lambda value: milliseconds(round(value)),
    )
    return [bar_chart(responses), bar_chart(tokens), line_chart(first_token)]


def _worker_rows(known: list[Any], present: dict[tuple[str, str], int], now: datetime) -> list[dict[str, Any]]:
    """Return the workers with the lengths of their bars, in percent of the longest."""
    most = max((max(worker.connections, worker.in_flight) for worker in known), default=0) or 1
    return [
        {
            "id": worker.pk,
            "short": short_id(worker.pk),
            "alive": is_alive(worker, now),
            "seen": ago(worker.seen_at, now),
            "connections": worker.connections,
            "connections_bar": round(100 * worker.connections / most),
            "in_flight": worker.in_flight,
            "in_flight_bar": round(100 * worker.in_flight / most),
            "stored": sum(count for (name, _), count in present.items() if name == worker.pk),
        }
        for worker in known
    ]
