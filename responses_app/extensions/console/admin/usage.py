"""Usage and costs: who has used what, by project, key, model, user or day, as a page and as CSV.

All that is chosen stands in the address, so that a view can be sent to a colleague:

    /admin/usage/?by=key&since=2026-11-01&until=2026-11-27&project=team-a&csv=1

Costs are sums by model, of the prices that hold now. What has no price is shown without a cost, not as 0.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from responses_app.extensions.console.admin.charts import Chart, ChartPlan, Series, bar_chart
from responses_app.extensions.console.watch.text import short_number, visible
from responses_app.protocol.prices import Price, amount_text
from responses_app.resources.projects.model import ApiKey
from responses_app.resources.usage.fields import DAY, SOURCES, Group, UsageQuery, UsageSum
from responses_app.resources.usage.store import sums
from responses_app.stores.database.roles import sees_figures

BY: Mapping[str, str] = {  # what rows can be, and how their column is called
    "project": "Project",
    "key": "Key",
    "model": "Model",
    "user": "User",
    "source": "Kind",
    "day": "Day",
}
FILTERS = ("project", "key", "model", "user", "source")
DEFAULT_DAYS, MAX_DAYS = 30, 366
MAX_ROWS = 1_000  # of the table; CSV has up to `MAX_SUMS` sums
MAX_SUMS = 50_000  # by row and model, that one look reads
MAX_VALUE = 256  # characters of a filter
PERIODS = ((1, "Today"), (7, "7 days"), (30, "30 days"), (90, "90 days"))
NONE = {"key": "without a key", "user": "without a user"}  # how the empty value of a column is shown


@dataclass(frozen=True, slots=True)
class UsageView:
    """What is chosen."""

    by: str
    since: date
    until: date  # this day included
    filters: Mapping[str, str]

    @classmethod
    def of(cls, asked: Mapping[str, str], today: date) -> "UsageView":
        """Return what an address asks for; what cannot be read in it is as if it were left out."""
        by = asked.get("by", "")
        until = min(_date(asked.get("until")) or today, today + timedelta(days=1))
        since = _date(asked.get("since")) or until - timedelta(days=DEFAULT_DAYS - 1)
        since = max(min(since, until), until - timedelta(days=MAX_DAYS - 1))
        # A NUL, which PostgreSQL refuses, stands in no name.
        given = {name: asked.get(name, "")[:MAX_VALUE].replace("\0", "") for name in FILTERS}
        return cls(by if by in BY else "project", since, until, {name: value for name, value in given.items() if value})

    def query(self, *groups: Group, width: int | None = None) -> UsageQuery:
        """Return the query of it, by these groups."""
        chosen = {f"{name}s": [value] for name, value in self.filters.items()}
        if not set(chosen.get("sources", SOURCES)) <= set(SOURCES):
            chosen["sources"] = ["none"]  # nothing is of a kind that is not there
        start = int(datetime(self.since.year, self.since.month, self.since.day, tzinfo=UTC).timestamp())
        days = (self.until - self.since).days + 1
        return UsageQuery(
            start=start,
            end=start + days * DAY,
            width=width,
            groups=groups,
            limit=MAX_SUMS,
            **chosen,  # type: ignore[arg-type]
        )

    def address(self, **changes: str) -> str:
        """Return the address of this view with something else chosen; an empty value leaves a filter out."""
        now = {"by": self.by, "since": str(self.since), "until": str(self.until), **self.filters, **changes}
        return "?" + urlencode({name: value for name, value in now.items() if value})


@dataclass(slots=True)
class UsageRow:
    """A row of the table."""

    value: str  # of what the rows are by, as a filter takes it
    label: str = ""  # how it is shown
    requests: int = 0
    input: int = 0
    cached: int = 0  # of the input
    output: int = 0
    cost: Decimal | None = None  # None where nothing of it has a price
    unpriced: set[str] = field(default_factory=set)  # models of it that have none

    def add(self, used: UsageSum, price: Price | None) -> None:
        """Add what was used of one model."""
        tokens = used.tokens
        self.requests += used.requests
        self.input += tokens.input
        self.cached += tokens.cached
        self.output += tokens.output
        if price is None:
            self.unpriced.add(used.model or "")
        else:
            cost = price.cost(input=tokens.input, cached=tokens.cached, output=tokens.output)
            self.cost = cost if self.cost is None else self.cost + cost

    @property
    def numbers(self) -> Sequence[str]:
        """Its requests, and its tokens: the input, what of it was cached, and the output."""
        return [f"{number:,}" for number in (self.requests, self.input, self.cached, self.output)]

    @property
    def cost_text(self) -> str:
        """The cost of what has a price, with its currency."""
        return "no price" if self.cost is None else money(self.cost)

    @property
    def cost_note(self) -> str:
        """What there is to say about a cost in which some models are missing."""
        return "some models have no price" if self.cost is not None and self.unpriced else ""


def usage(request: HttpRequest) -> HttpResponse:
    """Show usage to whoever may see responses."""
    if not sees_figures(request.user):
        raise PermissionDenied
    view = UsageView.of(request.GET.dict(), datetime.now(UTC).date())
    rows, complete = table(view)
    if request.GET.get("csv"):
        return as_csv(view, rows)
    total = UsageRow("")
    for row in rows:
        add_up(total, row)
    context = {
        **admin.site.each_context(request),
        "title": "Usage",
        "view": view,
        "column": BY[view.by],
        "ways": [(label, view.address(by=name), name == view.by) for name, label in BY.items()],
        "periods": [(label, view.address(since=str(view.until - timedelta(days=days - 1)))) for days, label in PERIODS],
        "filters": [(BY[name], visible(value), view.address(**{name: ""})) for name, value in view.filters.items()],
        "rows": [
            (row, "" if view.by == "day" or not row.value else view.address(**{view.by: row.value}))
            for row in rows[:MAX_ROWS]
        ],
        "left_out": f"{len(rows) - MAX_ROWS:,}" if len(rows) > MAX_ROWS else "",
        "complete": complete,
        "total": total,
        "priced": bool(settings.RESPSITE.prices),
        "charts": [chart(view)],
        "csv": view.address(csv="1"),
    }
    return TemplateResponse(request, "admin/respsite/usage.html", context)


def table(view: UsageView) -> tuple[list[UsageRow], bool]:
    """Return the rows, the most expensive first, days in their order; and whether all was read."""
    groups: tuple[Group, ...] = ("model",) if view.by in ("day", "model") else (_group(view.by), "model")
    found = sums(connection, view.query(*groups, width=DAY if view.by == "day" else None))
    rows: dict[str, UsageRow] = {}
    prices = settings.RESPSITE.prices
    for used in found:
        value = str(_day(used.start)) if view.by == "day" else str(getattr(used, view.by))
        rows.setdefault(value, UsageRow(value)).add(used, prices.get(used.model))
    labels = _labels(view.by, list(rows)[:MAX_ROWS])
    for row in rows.values():
        row.label = labels.get(row.value) or visible(row.value) or NONE.get(view.by, "–")
    ordered = sorted(rows.values(), key=lambda row: row.value)
    if view.by != "day":
        ordered.sort(key=lambda row: (row.cost or Decimal(0), row.input + row.output), reverse=True)
    return ordered, len(found) < MAX_SUMS


def chart(view: UsageView) -> Chart:
    """Return the tokens of each day."""
    by_day = {_day(each.start): each.tokens for each in sums(connection, view.query(width=DAY))}
    days = [view.since + timedelta(days=number) for number in range((view.until - view.since).days + 1)]
    tokens = [by_day.get(day) for day in days]
    every = math.ceil(len(days) / 6)  # more marks would overlap on a phone
    total = [(each.input, each.output) for each in tokens if each]
    plan = partial(ChartPlan, names=[day.strftime("%a %d %b %Y") for day in days])
    return bar_chart(
        plan(
            key="usage",
            title="Tokens per day",
            summary=f"{sum(given for given, _ in total):,} in and {sum(output for _, output in total):,} out.",
            marks=[(number, day.strftime("%d %b")) for number, day in enumerate(days) if number % every == 0],
            series=[
                Series("tokens-cached", "in, cached", [each.cached if each else 0 for each in tokens]),
                Series("tokens-in", "in", [each.input - each.cached if each else 0 for each in tokens]),
                Series("tokens-out", "out", [each.output if each else 0 for each in tokens]),
            ],
            write=short_number,
        )
    )


def as_csv(view: UsageView, rows: Sequence[UsageRow]) -> HttpResponse:
    """Return rows as a file for a spreadsheet."""
    name = f"usage-by-{view.by}-{view.since}-{view.until}.csv"
    answer = HttpResponse(
        content_type="text/csv; charset=utf-8", headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
    writer, currency = csv.writer(answer), settings.RESPSITE.prices_currency
    tokens = ("input_tokens", "cached_tokens", "output_tokens")
    writer.writerow([view.by, "requests", *tokens, "cost", "currency", "models_without_price"])
    for row in rows:
        cost = "" if row.cost is None else f"{row.cost:f}"
        without = harmless(" ".join(sorted(row.unpriced)))
        writer.writerow([harmless(row.value), row.requests, row.input, row.cached, row.output, cost, currency, without])
    return answer


def harmless(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula: names are chosen by people."""
    return f"'{cell}" if cell.lstrip().startswith(("=", "+", "-", "@")) or cell[:1] in ("\t", "\r", "\n") else cell


def money(amount: Decimal) -> str:
    """Write a cost."""
    return amount_text(amount, settings.RESPSITE.prices_currency)


def add_up(total: UsageRow, row: UsageRow) -> None:
    """Add a row to the total."""
    total.requests += row.requests
    total.input += row.input
    total.cached += row.cached
    total.output += row.output
    total.unpriced |= row.unpriced
    if row.cost is not None:
        total.cost = row.cost + (total.cost or Decimal(0))


def _group(by: str) -> Group:
    return next(group for group in ("project", "key", "user", "source") if group == by)


def _labels(by: str, values: Sequence[str]) -> Mapping[str, str]:
    """Return names of keys and of users, as far as they are there."""
    named: Any
    if by == "key":
        named = ApiKey.objects.filter(pk__in=values).values_list("pk", "name")
        return {key: f"{visible(name)} ({key})" for key, name in named if name}
    if by == "user":
        known = [value for value in values if value.isdecimal() and len(value) < 10]
        named = get_user_model()._default_manager.filter(pk__in=known).values_list("pk", "username")
        return {str(number): visible(name) for number, name in named}
    return {}


def _day(start: int) -> date:
    return datetime.fromtimestamp(start, UTC).date()


def _date(value: str | None) -> date | None:
    try:
        read = date.fromisoformat(value or "")
    except ValueError:
        return None
    # Far from the ends of the calendar, so that days can be counted from it.
    return read if 1970 < read.year < 9000 else None
