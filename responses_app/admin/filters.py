"""The filters of the admin's lists. What is chosen stands in the address, so that a view can be sent to a colleague.

Those of the list of responses are answered by the index that it is sorted by, or, for a key, by that of its project;
`ValuesFilter` by an index of its own column.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db.models import CharField, F, Func, QuerySet
from django.http import HttpRequest

from responses_app.models import ApiKey, Response
from responses_app.models.audit import MAX_NAME
from responses_app.protocol.api_keys import BY_SESSION
from responses_app.stores.database.audit_chain import plain
from responses_app.watch.text import STATUSES, visible

MAX_VALUES = 200  # that a filter offers
NEWEST = 20_000  # responses whose projects, models and transports can be chosen
AGES = {"hour": ("Last hour", 3_600), "day": ("Last 24 hours", 86_400), "week": ("Last 7 days", 7 * 86_400)}


class StatusFilter(admin.SimpleListFilter):
    """A filter by status."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the choices."""
        return [(status, status.replace("_", " ")) for status in STATUSES]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Response]") -> "QuerySet[Response]":
        """Narrow."""
        return queryset.filter(status=self.value()) if self.value() else queryset


class AgeFilter(admin.SimpleListFilter):
    """A filter by time until now, beside the dates to drill into."""

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
    """A filter by a column, with the values that the newest responses have, beside the one that is chosen."""

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return self.choices_of(request, self.value() or "")

    @classmethod
    def choices_of(cls, request: HttpRequest, chosen: str) -> list[tuple[str, str]]:
        values = {row[str(cls.parameter_name)] for row in _seen(request)} | {chosen}
        return [(value, visible(value)[:60]) for value in sorted(values) if value]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1 or bool(self.value())

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Response]") -> "QuerySet[Response]":
        return queryset.filter(**{str(self.parameter_name): cut(str(self.value()))}) if self.value() else queryset


class ModelFilter(_SeenFilter):
    """A filter by model."""

    title = "model"
    parameter_name = "model"


class TransportFilter(_SeenFilter):
    """A filter by API: responses by their transport, chats, messages, lines of batches."""

    title = "API"
    parameter_name = "transport"


class ProjectFilter(_SeenFilter):
    """A filter by project."""

    title = "project"
    parameter_name = "project"


class ValuesFilter(admin.SimpleListFilter):
    """A filter by a column that an index of the listed table begins with, with the values that it has."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the choices."""
        # One seek in the index for each value, however many rows there are.
        found: list[str] = []
        column = str(self.parameter_name)
        rows = model_admin.model._default_manager.order_by(column).values_list(column, flat=True)
        while len(found) < MAX_VALUES:
            value = rows.filter(**{f"{column}__gt": found[-1] if found else ""}).first()
            if value is None:
                break
            found.append(value)
        return [(value, visible(value)[:60]) for value in found]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> "QuerySet[Any]":
        """Narrow."""
        value = plain(self.value() or "", MAX_NAME)
        return queryset.filter(**{str(self.parameter_name): value}) if value else queryset


class OwnProjectFilter(ValuesFilter):
    """A filter by project, of those that the listed table has."""

    title = "project"
    parameter_name = "project"


def newest_since(most: int, since: datetime | None = None, rows: "QuerySet[Response] | None" = None) -> datetime | None:
    """Return the time from which on there are at most `most` responses, or `since` if that is later."""
    rows = Response.objects.all() if rows is None else rows
    times = rows.order_by("-created_at").values_list("created_at", flat=True)
    if since is not None:
        times = times.filter(created_at__gte=since)
    # The first that is one too many.
    beyond = times[most : most + 1]
    oldest = next(iter(beyond), None)
    return since if oldest is None else oldest


def _seen(request: Any) -> list[dict[str, str]]:
    """Return what the newest responses have in the columns that are filtered by, read once a page."""
    if not hasattr(request, "seen_values"):
        columns = (ModelFilter.parameter_name, TransportFilter.parameter_name, ProjectFilter.parameter_name)
        since = newest_since(NEWEST)
        rows = Response.objects.filter(created_at__gte=since) if since else Response.objects.all()
        request.seen_values = list(rows.order_by().values(*columns).distinct())
    return request.seen_values  # type: ignore[no-any-return]


MAX_KEYS = 40  # that the filter offers: those that were used last


class _Plain(Func):
    """A column that no index of its own is asked for."""

    output_field = CharField()
    template = "COALESCE(%(expressions)s, '')"


class KeyFilter(admin.SimpleListFilter):
    """A filter by API key, or by the user of the admin who asked without one."""

    title = "key"
    parameter_name = "key"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the choices."""
        return self.choices_of(request, self.value() or "")

    @classmethod
    def choices_of(cls, request: HttpRequest, chosen: str) -> list[tuple[str, str]]:
        """Return the keys that were used last, of the project that is chosen."""
        keys = ApiKey.objects.order_by(F("last_used_at").desc(nulls_last=True))
        if project := request.GET.get(ProjectFilter.parameter_name):
            keys = keys.filter(project_id=cut(project))
        projects = dict(keys.values_list("pk", "project_id")[:MAX_KEYS])
        ids = list(projects)
        if chosen and chosen not in ids:
            ids.append(cut(chosen))
        named = key_names(ids)
        count = Counter(named.values())  # keys of several projects often have the same name
        return [
            (key_id, f"{name} ({visible(projects.get(key_id, key_id))})" if count[name] > 1 else name)
            for key_id, name in named.items()
        ]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Response]") -> "QuerySet[Response]":
        """Narrow."""
        if not self.value():
            return queryset
        key_id = cut(str(self.value()))
        project = ApiKey.objects.filter(pk=key_id).values_list("project_id", flat=True).first()
        if project is None:  # a user, who has few, or nobody: by the index of keys
            return queryset.filter(key_id=key_id)
        # By the index of the project, which is in the order of time and has the keys. That of keys would be sorted.
        return queryset.filter(project=project).alias(asked_with=_Plain("key_id")).filter(asked_with=key_id)


def key_names(key_ids: "list[str]") -> dict[str, str]:
    """Return how keys are shown: by their names, or their beginnings; and users of the admin by theirs."""
    keys = ApiKey.objects.filter(pk__in=key_ids).values_list("pk", "name", "prefix")
    named = {key_id: visible(name or f"{prefix}…") for key_id, name, prefix in keys}
    users = {key_id.partition(":")[2]: key_id for key_id in key_ids if key_id.startswith(BY_SESSION)}
    if numbers := [int(user) for user in users if user.isascii() and user.isdecimal() and len(user) < 10]:
        found = get_user_model()._default_manager.filter(pk__in=numbers).values_list("pk", "username")
        named |= {users[str(number)]: visible(name) for number, name in found}
    return {key_id: named.get(key_id, visible(key_id)) for key_id in key_ids}


def cut(value: str) -> str:
    """Return what stands in an address as a column may have it: PostgreSQL refuses a NUL."""
    return value[:256].replace("\0", "")
