"""Filters of the list of responses. All are answered by the index that the list is sorted by."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from responses_app.models import Response
from responses_app.watch.formats import STATUSES
from responses_app.watch.text import visible

NEWEST = 20_000  # responses whose projects, models and transports can be chosen
AGES = {"hour": ("Last hour", 3_600), "day": ("Last 24 hours", 86_400), "week": ("Last 7 days", 7 * 86_400)}


class StatusFilter(admin.SimpleListFilter):
    """By status."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the choices."""
        return [(status, status.replace("_", " ")) for status in STATUSES]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Response]") -> "QuerySet[Response]":
        """Narrow."""
        return queryset.filter(status=self.value()) if self.value() else queryset


class AgeFilter(admin.SimpleListFilter):
    """By time until now, beside the dates to drill into."""

    title = "age"
    parameter_name = "age"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the choices."""
        return [(name, text) for name, (text, _) in AGES.items()]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Response]") -> "QuerySet[Response]":
        """Narrow."""
        if self.value() not in AGES:
            return queryset
        return queryset.filter(created_at__gte=datetime.now(UTC) - timedelta(seconds=AGES[str(self.value())][1]))


class _SeenFilter(admin.SimpleListFilter):
    """By a column, with the values that the newest responses have, beside the one that is chosen."""

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        values = {row[self.parameter_name] for row in _seen(request)} | {self.value() or ""}
        return [(value, visible(value)[:60]) for value in sorted(values) if value]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1 or bool(self.value())

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Response]") -> "QuerySet[Response]":
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.value() else queryset


class ModelFilter(_SeenFilter):
    """By model."""

    title = "model"
    parameter_name = "model"


class TransportFilter(_SeenFilter):
    """By transport."""

    title = "transport"
    parameter_name = "transport"


class ProjectFilter(_SeenFilter):
    """By project."""

    title = "project"
    parameter_name = "project"


def newest_since(most: int, since: datetime | None = None) -> datetime | None:
    """Return the time from which on there are at most `most` responses, or `since` if that is later."""
    times = Response.objects.order_by("-created_at").values_list("created_at", flat=True)
    if since is not None:
        times = times.filter(created_at__gte=since)
    beyond = times[most : most + 1]
    found = next(iter(beyond), None)
    return since if found is None else found


def _seen(request: Any) -> list[dict[str, str]]:
    """Return what the newest responses have in the columns that are filtered by, read once a page."""
    if not hasattr(request, "seen_values"):
        columns = (ModelFilter.parameter_name, TransportFilter.parameter_name, ProjectFilter.parameter_name)
        since = newest_since(NEWEST)
        rows = Response.objects.filter(created_at__gte=since) if since else Response.objects.all()
        request.seen_values = list(rows.order_by().values(*columns).distinct())
    return request.seen_values  # type: ignore[no-any-return]
