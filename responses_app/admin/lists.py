"""What all lists of the admin share: nothing is added or changed, and no page costs more as the tables grow.

The filters of the list of responses are answered by the index that it is sorted by. Its search reads indexes only,
never the bodies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property

from responses_app.models import ID_LENGTH, ChainPart, ConversationItem, PublicName, Response
from responses_app.stores.database.roles import sees_content
from responses_app.watch.auditing import viewed
from responses_app.watch.text import STATUSES, visible

MAX_FILTERED = 100_000  # rows that filters look through, the newest of the dates that are chosen
MAX_COUNTED = 10_000  # rows of a list that are counted and can be paged to; filters reach the others


class CappedPaginator(Paginator):
    """Counts no further than `MAX_COUNTED`."""

    @cached_property
    def found(self) -> int:
        """How many there are; one more than `MAX_COUNTED` stands for any number."""
        ordered_by = self.object_list.query.order_by[0].lstrip("-")  # it is in an index, which may be all that is read
        return int(self.object_list.order_by().values(ordered_by)[: MAX_COUNTED + 1].count())

    @cached_property
    def count(self) -> int:
        """How many can be paged through."""
        return min(self.found, MAX_COUNTED)

    @property
    def has_more(self) -> bool:
        """Whether there are more than can be paged through."""
        return self.found > MAX_COUNTED


@dataclass(frozen=True, slots=True)
class Drill:
    """The way into the dates."""

    choices: Sequence[tuple[str, str]] = ()  # texts, each with the link that narrows
    back: tuple[str, str] | None = None  # the one that widens
    here: str = ""  # the date that is shown


class BoundedChangeList(ChangeList):
    """Django's list, with dates to drill into that cost one seek in an index instead of a look at every row."""

    filters_look_through = f"{MAX_FILTERED:,}"
    filtered_since: datetime | None = None  # filters looked no further back

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.title = str(self.opts.verbose_name_plural).capitalize()

    def url_for_result(self, result: Model) -> str:
        """Return a page's address with the id as it is: our ids need none of Django's quoting."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=(result.pk,))

    def get_filters(self, request: HttpRequest) -> Any:
        """Remember the dates, and whether anything else narrows the list."""
        narrowing = super().get_filters(request)
        # Django's `get_filters` returns a tuple: [2] are the parameters that are no filters' own, [4] whether any is
        # active.
        dates = {name: value for name, value in narrowing[2].items() if name.startswith(f"{self.date_hierarchy}__")}
        self._of_dates = self.root_queryset.filter(**{name: value[-1] for name, value in dates.items()})
        self._is_narrowed = bool(narrowing[4])
        return narrowing

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Return what is listed; filters look through `MAX_FILTERED` rows: what is rare would be looked for in all."""
        rows = super().get_queryset(request, exclude_parameters)
        self.filtered_since = None
        if self._is_narrowed and not self.query:
            times = self._of_dates.order_by("-created_at").values_list("created_at", flat=True)
            # One seek in the index: the time of the row behind the last one that is looked at.
            self.filtered_since = next(iter(times[MAX_FILTERED : MAX_FILTERED + 1]), None)
            if self.filtered_since is not None:
                rows = rows.filter(created_at__gt=self.filtered_since)
        return rows

    @cached_property
    def drill(self) -> Drill | None:
        """The years, months or days there may be something in, from the oldest row to now."""
        oldest = self.root_queryset.order_by("created_at").values_list("created_at", flat=True).first()
        if oldest is None:
            return None
        return self._drill(oldest.astimezone(UTC).date(), datetime.now(UTC).date())

    def _drill(self, first: date, last: date) -> Drill:
        year, month, day = (self._chosen(part) for part in ("year", "month", "day"))
        if year and month and day:
            whole_month = (date(year, month, 1).strftime("%B %Y"), self._narrowed(year, month))
            return Drill(back=whole_month, here=date(year, month, day).strftime("%d %B %Y"))
        if year and month:
            return Drill(self._days(year, month, first, last), (str(year), self._narrowed(year)))
        if year:
            return Drill(self._months(year, first, last), ("All dates", self._narrowed()))
        if (first.year, first.month) == (last.year, last.month):
            return Drill(self._days(first.year, first.month, first, last))
        if last - first < timedelta(days=366):
            months = [m for year in sorted({first.year, last.year}) for m in self._months(year, first, last)]
            return Drill(months)
        return Drill([(str(year), self._narrowed(year)) for year in range(first.year, last.year + 1)])

    def _months(self, year: int, first: date, last: date) -> list[tuple[str, str]]:
        months = [date(year, month, 1) for month in range(1, 13)]
        return [
            (month.strftime("%B %Y"), self._narrowed(year, month.month))
            for month in months
            if first.replace(day=1) <= month <= last
        ]

    def _days(self, year: int, month: int, first: date, last: date) -> list[tuple[str, str]]:
        start = date(year, month, 1)
        days = (start + timedelta(days=number) for number in range(31))
        return [
            (day.strftime("%d %b"), self._narrowed(year, month, day.day))
            for day in days
            if day.month == month and first <= day <= last
        ]

    def _chosen(self, part: str) -> int:
        return int(self.params.get(f"{self.date_hierarchy}__{part}", 0))  # get_filters has read it as a number already

    def _narrowed(self, *parts: int) -> str:
        names = (f"{self.date_hierarchy}__{name}" for name in ("year", "month", "day"))
        return self.get_query_string(dict(zip(names, parts, strict=False)), [f"{self.date_hierarchy}__"])


def column(head: str, shown: Callable[[Any], object]) -> Callable[[object, Any], object]:
    """Return a column of a list, by what it shows of a row."""

    @admin.display(description=head)
    def shown_of(model_admin: object, row: Any) -> object:
        return shown(row)

    return shown_of


class ReadOnlyAdmin(admin.ModelAdmin):
    """A list, and pages to read."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 50
    sortable_by = ()
    content_columns: tuple[str, ...] = ()  # with words of users: for those who may see content, which is recorded

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """Show the list."""
        if self.content_columns and self.sees_content(request):
            viewed(request, f"list of {self.opts.verbose_name_plural}")
        return super().changelist_view(request, extra_context)

    def sees_content(self, request: HttpRequest) -> bool:
        """Whether its user is shown what people wrote and models answered, of what they may see here."""
        return self.has_view_permission(request) and sees_content(request.user)

    def need_content(self, request: HttpRequest) -> None:
        """Refuse who may not see it. Raises `PermissionDenied`."""
        if not self.sees_content(request):
            raise PermissionDenied

    def get_list_display(self, request: HttpRequest) -> Sequence[Any]:
        """Leave out the columns that this user may not see."""
        columns = super().get_list_display(request)
        if self.sees_content(request):
            return columns
        return [each for each in columns if each not in self.content_columns]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Bound what a page costs."""
        return BoundedChangeList

    def find(self, request: HttpRequest, object_id: str) -> Model | None:
        """Return what a page is about; where there is no such thing, the next page says so.

        Raises `PermissionDenied`.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        item = self.get_object(request, unquote(object_id))
        if item is None:
            text = f"The {self.opts.verbose_name} {visible(object_id)[:80]} is not kept, or not any more."
            self.message_user(request, text, messages.WARNING)
        return item

    def to_list(self) -> HttpResponseRedirect:
        """Send to the list."""
        return HttpResponseRedirect(reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Clients add."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """A chain that was changed would not be what the model said."""
        return False


class ListOnlyAdmin(ReadOnlyAdmin):
    """A list that says all there is: nothing leads from it, and a page of one thing leads to it."""

    list_display_links = None

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: object = None
    ) -> HttpResponseRedirect:
        """Send to the list."""
        return self.to_list()


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
        values = {row[self.parameter_name] for row in _seen(request)} | {self.value() or ""}
        return [(value, visible(value)[:60]) for value in sorted(values) if value]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1 or bool(self.value())

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Response]") -> "QuerySet[Response]":
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.value() else queryset


class ModelFilter(_SeenFilter):
    """A filter by model."""

    title = "model"
    parameter_name = "model"


class TransportFilter(_SeenFilter):
    """A filter by transport."""

    title = "transport"
    parameter_name = "transport"


class ProjectFilter(_SeenFilter):
    """A filter by project."""

    title = "project"
    parameter_name = "project"


def newest_since(most: int, since: datetime | None = None) -> datetime | None:
    """Return the time from which on there are at most `most` responses, or `since` if that is later."""
    times = Response.objects.order_by("-created_at").values_list("created_at", flat=True)
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


HELP = (
    "Finds a response by its id or the beginning of it, the responses that clients know by another id, those that "
    "continue one by its whole id, and those of a conversation by its whole id."
)
MAX_FOUND = 1_000  # of each kind


def found_ids(term: str) -> list[str]:
    """Return the ids of the responses that a search is for."""
    term = term.strip()
    if not 0 < len(term) <= ID_LENGTH or not term.isascii() or not term.isprintable():
        return []
    ids = list(beginning_with(Response.objects.all(), term).order_by("-pk").values_list("pk", flat=True)[:MAX_FOUND])
    ids += PublicName.objects.filter(name=term).order_by("-leg").values_list("pk", flat=True)[:MAX_FOUND]
    ids += ChainPart.objects.filter(parent_id=term).values_list("pk", flat=True)[:MAX_FOUND]
    appended = ConversationItem.objects.filter(conversation_id=term).exclude(response_id="")
    ids += appended.order_by().values_list("response_id", flat=True).distinct()[:MAX_FOUND]
    return ids


def beginning_with(queryset: "QuerySet[Model]", beginning: str) -> "QuerySet[Model]":
    """Return the rows whose id begins so, by the index on it.

    PostgreSQL has one for LIKE. SQLite's LIKE knows no case and so no index; its order of text is that of code points.
    """
    if connections[queryset.db].vendor == "sqlite":
        # From "resp_1" to before "resp_2": all that begins with "resp_1".
        return queryset.filter(pk__gte=beginning, pk__lt=beginning[:-1] + chr(ord(beginning[-1]) + 1))
    return queryset.filter(pk__startswith=beginning)
