"""The dashboard: the last day or week as charts, and the workers."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from responses_app.admin.charts import Chart, Plan, Series, bar_chart, line_chart
from responses_app.admin.statistics import Bin, Statistics, running, statistics, workers
from responses_app.admin.workers import is_alive
from responses_app.protocol.requests.resources import Status
from responses_app.watch.formats import ago, milliseconds, short_id, short_number


@dataclass(frozen=True, slots=True)
class Span:
    """A time that can be looked at: `every` is how many bins lie between two marks of the axis."""

    label: str
    hours: int
    hours_a_bin: int
    every: int
    written: str


SPANS = {
    "day": Span("24 hours", 24, 1, 4, "%H:%M"),
    "week": Span("7 days", 7 * 24, 4, 6, "%d %b"),
}
_SHOWN = (Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED, Status.IN_PROGRESS, Status.QUEUED)


def dashboard(request: HttpRequest) -> HttpResponse:
    """Show it to whoever may see responses."""
    if not request.user.has_perm("responses_app.view_response"):
        raise PermissionDenied
    name = request.GET.get("span", "day")
    name = name if name in SPANS else "day"
    context = {
        **admin.site.each_context(request),
        **page(datetime.now(UTC), SPANS[name]),
        "title": "Dashboard",
        "chosen": name,
        "spans": [(key, span.label, key == name) for key, span in SPANS.items()],
    }
    return TemplateResponse(request, "admin/respsite/dashboard.html", context)


def page(now: datetime, span: Span) -> dict[str, Any]:
    """Return what the template needs."""
    counted = statistics(now, hours=span.hours, hours_a_bin=span.hours_a_bin)
    present, known = running(), workers()
    alive = [worker for worker in known if is_alive(worker, now)]
    return {
        "span": span,
        "statistics": counted,
        "tiles": _tiles(counted.total, present, connections=sum(worker.connections for worker in alive)),
        "list": reverse("admin:responses_app_response_changelist"),
        "charts": _charts(counted, span),
        "workers": _worker_rows(known, present, now),
        "alive": len(alive),
    }


def _tiles(total: Bin, present: dict[tuple[str, str], int], *, connections: int) -> list[tuple[str, str, str]]:
    """Return the totals: a name, a value, a remark."""
    failed = total.statuses[Status.FAILED.value]
    ended = sum(total.statuses[status.value] for status in _SHOWN[:4])
    cached = f"{total.cached_tokens / total.input_tokens:.0%} cached" if total.input_tokens else ""
    now = {status: sum(n for (_, each), n in present.items() if each == status) for _, status in present}
    return [
        ("Responses", short_number(total.responses), f"{failed / ended:.1%} failed" if ended else ""),
        ("Tokens in", short_number(total.input_tokens), cached),
        ("Tokens out", short_number(total.output_tokens), ""),
        ("First token", milliseconds(total.first_token(0.5)), f"p95 {milliseconds(total.first_token(0.95))}"),
        ("Running now", f"{now.get(Status.IN_PROGRESS.value, 0):,}", f"{now.get(Status.QUEUED.value, 0):,} queued"),
        ("Open connections", f"{connections:,}", ""),
    ]


def _charts(counted: Statistics, span: Span) -> list[Chart]:
    bins, total = counted.bins, counted.total
    marks = [
        (index, each.start.strftime(span.written))
        for index, each in enumerate(bins)
        if (each.start.hour // span.hours_a_bin) % span.every == 0
    ]
    plan = partial(Plan, names=[each.start.strftime("%a %d %b %H:%M") for each in bins], marks=marks)
    every = "hour" if span.hours_a_bin == 1 else f"{span.hours_a_bin} hours"
    responses = plan(
        key="responses",
        title=f"Responses per {every}",
        summary=f"{total.responses:,} in the last {span.label}, {total.statuses['failed']:,} of them failed.",
        series=[
            Series(status.value, status.value.replace("_", " "), [each.statuses[status.value] for each in bins])
            for status in _SHOWN
            if total.statuses[status.value] or status is Status.COMPLETED
        ],
        write=_count,
    )
    tokens = plan(
        key="tokens",
        title=f"Tokens per {every}",
        summary=f"{total.input_tokens:,} in and {total.output_tokens:,} out in the last {span.label}.",
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
        summary=f"Half of them within {milliseconds(total.first_token(0.5))} in the last {span.label}.",
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


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
