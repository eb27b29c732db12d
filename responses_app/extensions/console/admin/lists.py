"""The base of all lists of the admin: nothing is added or changed, and no page costs more as the tables grow.

A count is exact up to `MAX_COUNTED`, and beyond that the page says that there are more. What can be filtered by is in
`filters`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.text import capfirst

from responses_app.admin.auditing import viewed
from responses_app.extensions.console.watch.text import moment, visible
from responses_app.stores.database.roles import sees_content

MAX_FILTERED = 100_000  # rows that filters look through, the newest of the dates that are chosen
MOST_OF_DATES = {"year": 9_998, "month": 12, "day": 31}  # there is a year after each
MAX_CHANGED = 500  # responses or conversations that one action deletes, or cancels
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
    def shown(self) -> str:
        """How many there are, as the page says it."""
        return f"more than {self.count:,}" if self.has_more else f"{self.count:,}"

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
    search_note = ""  # what there is to say about the search

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.title = capfirst(str(self.opts.verbose_name_plural))

    def url_for_result(self, result: Model) -> str:
        """Return a page's address with the id as it is: our ids need none of Django's quoting."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=(result.pk,))

    def get_filters(self, request: HttpRequest) -> Any:
        """Remember the dates, and whether anything else narrows the list.

        Raises `IncorrectLookupParameters`, which leads to the list without any filter.
        """
        self._check_dates()
        try:
            narrowing = super().get_filters(request)
        except DisallowedModelAdminLookup as refused:
            raise IncorrectLookupParameters from refused
        # Django's `get_filters` returns a tuple: [2] are the parameters that are no filters' own, [4] whether any is
        # active.
        dates = {name: value for name, value in narrowing[2].items() if name.startswith(f"{self.date_hierarchy}__")}
        self._of_dates = self.root_queryset.filter(**{name: value[-1] for name, value in dates.items()})
        self._is_narrowed = bool(narrowing[4])
        return narrowing

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Return what is listed; filters look through `MAX_FILTERED` rows: what is rare would be looked for in all."""
        rows = super().get_queryset(request, exclude_parameters)
        self.search_note = getattr(request, "search_note", "")
        self.filtered_since = None
        if self._is_narrowed and not self.query:
            column = rows.query.order_by[0].lstrip("-")  # what the list is sorted by is in an index
            places = self._of_dates.order_by(f"-{column}").values_list(column, "created_at")
            # One seek in the index: the row behind the last one that is looked at.
            for place, self.filtered_since in places[MAX_FILTERED : MAX_FILTERED + 1]:
                rows = rows.filter(**{f"{column}__gt": place})
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

    def _check_dates(self) -> None:
        """Raise `IncorrectLookupParameters` for what is not a year, month or day: Django reads some not at all."""
        if not self.date_hierarchy:
            return
        try:
            are_dates = all(0 <= self._chosen(part) <= most for part, most in MOST_OF_DATES.items())
        except ValueError as error:
            raise IncorrectLookupParameters from error
        if not are_dates:
            raise IncorrectLookupParameters

    def _chosen(self, part: str) -> int:
        return int(self.params.get(f"{self.date_hierarchy}__{part}", 0))

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
    project_name = column("project", lambda row: visible(row.project))
    created = column("created", lambda row: moment(row.created_at))

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

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow what the page's own filters and dates put into the address.

        Django allows any lookup in any column of the table. Whether `body__contains` finds a response would tell what
        is in it, letter by letter, and so would the secret of a webhook.
        """
        allowed = (
            {f"{self.date_hierarchy}__{part}" for part in ("year", "month", "day")} if self.date_hierarchy else set()
        )
        for each in self.get_list_filter(request):
            # A class of its own, or a field with Django's class for it.
            allowed |= {f"{each[0]}__exact", f"{each[0]}__isnull"} if isinstance(each, tuple) else {each.parameter_name}
        return lookup in allowed

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

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes from it."""
        return False
