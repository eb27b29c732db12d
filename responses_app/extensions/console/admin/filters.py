"""How the admin's lists are narrowed: by filters, and by a search.

The filters that are chosen stand in the address, so that a view can be sent to a colleague.

Those of the list of responses are answered by the index that it is sorted by, or, for a key, by that of its project;
`ValuesFilter` by an index of its own column.

Responses are searched by ids, and, for who may see content, by what was asked and answered. A search by content is a
look at content, so it is recorded in the audit trail: that there was one, its filters and how many it found. The words
are not: they are likely to be a user's.
"""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db import connection, connections
from django.db.models import CharField, F, Func, Model, QuerySet
from django.http import HttpRequest

from responses_app.admin.auditing import done
from responses_app.extensions.console.watch.text import STATUSES, visible
from responses_app.kit.table import can_be_known
from responses_app.models import ID_LENGTH, ChainPart, PublicName, Response
from responses_app.protocol.api_keys import BY_SESSION
from responses_app.protocol.items.words import MAX_SEARCH, phrases_of
from responses_app.resources.audit.chain import plain
from responses_app.resources.audit.fields import Action
from responses_app.resources.audit.model import MAX_NAME
from responses_app.resources.conversations.model import ConversationItem
from responses_app.resources.projects.model import ApiKey
from responses_app.stores.database.words import SearchTooSlow, WordsQuery, find, is_behind

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


HELP = (
    "Finds a response by its id or the beginning of it, the responses that clients know by another id, those that "
    "continue one by its whole id, and those of a conversation by its whole id. "
)
CONTENT_HELP = (
    'Anything else is looked for in what was asked and answered: words that are all there, "words next to each other", '
    "and begin* for a beginning. Such a search is recorded in the audit trail."
)
NO_CONTENT_HELP = "What was asked and answered is not searched: your permissions do not include the content."
MAX_FOUND = 1_000  # of each kind
SEARCH_SECONDS = 2.0  # that a search by content may take
_IS_ID = re.compile(r"[a-z]+[_-][0-9A-Za-z]{8,}")


def found_ids(term: str) -> list[str]:
    """Return the ids of the responses that a search is for."""
    term = term.strip()
    if not can_be_known(term):
        return []
    ids = list(beginning_with(Response.objects.all(), term).order_by("-pk").values_list("pk", flat=True)[:MAX_FOUND])
    ids += PublicName.objects.filter(name=term).order_by("-leg").values_list("pk", flat=True)[:MAX_FOUND]
    ids += ChainPart.objects.filter(parent_id=term).values_list("pk", flat=True)[:MAX_FOUND]
    appended = ConversationItem.objects.filter(conversation_id=term).exclude(response_id="")
    ids += appended.order_by().values_list("response_id", flat=True).distinct()[:MAX_FOUND]
    return ids


def beginning_with(queryset: "QuerySet[Model]", beginning: str) -> "QuerySet[Model]":
    """Return the rows whose id begins so, by the index on it; none where no id can.

    PostgreSQL has one for LIKE. SQLite's LIKE knows no case and so no index; its order of text is that of code points.
    """
    if not can_be_known(beginning):
        return queryset.none()
    if connections[queryset.db].vendor == "sqlite":
        # From "resp_1" to before "resp_2": all that begins with "resp_1".
        return queryset.filter(pk__gte=beginning, pk__lt=beginning[:-1] + chr(ord(beginning[-1]) + 1))
    return queryset.filter(pk__startswith=beginning)


class SearchedById(admin.ModelAdmin):
    """A list that is searched by the id of its rows, or the beginning of it."""

    search_fields = ("id",)

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[Any]", search_term: str
    ) -> "tuple[QuerySet[Any], bool]":
        """Search by the id."""
        term = search_term.strip()
        return (beginning_with(queryset, term) if term else queryset), False


def said_ids(request: HttpRequest, term: str) -> tuple[list[str], str]:
    """Return the ids of the newest responses in which this was said, and what there is to say about the search.

    Projects and dates that are chosen narrow the search itself, other filters what it finds.
    Raises `AuditUnavailable`.
    """
    term = term.strip()
    if not term or _IS_ID.fullmatch(term):
        return [], ""
    phrases = phrases_of(term)
    if not phrases:
        return [], "A search needs letters or digits: there is nothing to look for in this one."
    since, until = _dates(request.GET)
    project = cut(request.GET.get(ProjectFilter.parameter_name, ""))
    query = WordsQuery(
        phrases=phrases, project=project, since=since, until=until, limit=MAX_FOUND, seconds=SEARCH_SECONDS
    )
    try:
        ids = find(connection, query)
    except SearchTooSlow:
        _record(request, project, found="ended after its time")
        return [], (
            f"The search was ended after {SEARCH_SECONDS:g} s. Choose a project or dates, or look for rarer words."
        )
    _record(request, project, found=len(ids))
    notes = []
    if len(ids) == MAX_FOUND:
        notes.append(
            f"These are the newest {MAX_FOUND:,} with these words. Choose a project or dates to look further back."
        )
    if len(term) > MAX_SEARCH:
        notes.append(f"Only the first {MAX_SEARCH:,} characters were looked for.")
    if is_behind(connection):
        notes.append("Older responses are not in the index yet: the server still reads them.")
    return ids, " ".join(notes)


def _record(request: HttpRequest, project: str, *, found: int | str) -> None:
    narrowed = {name: cut(value)[:ID_LENGTH] for name, value in sorted(request.GET.items()) if name not in ("q", "p")}
    done(request, Action.CONTENT_SEARCHED, "list of responses", project=project, found=found, filters=narrowed)


def _dates(asked: Mapping[str, str]) -> tuple[datetime | None, datetime | None]:
    """Return the time that the dates of an address stand for: since, and until. What cannot be read is left out."""
    year, month, day = (asked.get(f"created_at__{part}") for part in ("year", "month", "day"))
    since = until = None
    try:
        if year:
            since = datetime(int(year), int(month or 1), int(day or 1), tzinfo=UTC)
            next_month = (since.replace(day=28) + timedelta(days=4)).replace(day=1)
            until = since + timedelta(days=1) if day else next_month if month else since.replace(year=since.year + 1)
    except (ValueError, OverflowError):
        since = until = None
    age = asked.get(str(AgeFilter.parameter_name), "")
    if age in AGES:
        from_then = datetime.now(UTC) - timedelta(seconds=AGES[age][1])
        since = max(since, from_then) if since else from_then
    return since, until
