"""Stored responses: a list with filters, each as the conversation it was, and actions: cancel, delete, export, compare.

Each action is bounded, and says so where it stops. The admin's views run on threads, and runs belong to the server's
event loop: they are cancelled and forgotten there.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin import actions as django_actions
from django.db import connection, transaction
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Substr
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from responses_app.admin.auditing import done, done_to, viewed
from responses_app.extensions.console.admin.filters import (
    CONTENT_HELP,
    HELP,
    NO_CONTENT_HELP,
    AgeFilter,
    KeyFilter,
    ModelFilter,
    ProjectFilter,
    StatusFilter,
    TransportFilter,
    found_ids,
    key_names,
    said_ids,
)
from responses_app.extensions.console.admin.lists import MAX_CHANGED, BoundedChangeList, ReadOnlyAdmin, column
from responses_app.extensions.console.admin.usage import money
from responses_app.extensions.console.watch.text import (
    NONE,
    conversation_link,
    milliseconds,
    pill,
    response_link,
    short_id,
    visible,
)
from responses_app.models import Response
from responses_app.models.words import FIRST_WORDS, ResponseWords
from responses_app.protocol.items.words import words_of_json
from responses_app.protocol.requests.resources import RUNNING
from responses_app.resources.audit.fields import Action
from responses_app.runs.by_id import Cancelled
from responses_app.stores.database.responses.removal import remove

BEGINNING = 4_096  # characters of the input of a response that is not in the index yet
BULKY = ("body", "input_items", "request")  # columns of megabytes
MAX_NAMED = 20  # of the responses that are to be deleted, on the page that asks

CANCELLED = "it was cancelled in the admin"
DELETED = "it was deleted in the admin"


def cancel_responses(running: Mapping[str, bool]) -> Cancelled:
    """Cancel responses: their ids, and whether they are background ones, the only ones others can be asked about.

    What runs elsewhere and cannot be asked about, and what has just ended, is left as it is.
    """

    async def cancel_all() -> Cancelled:
        return await _site().responses.cancel_all(running, reason=CANCELLED)

    return async_to_sync(cancel_all)()


def forget_runs(response_ids: Collection[str]) -> None:
    """Tell all workers that these responses were deleted: what runs of them ends, their streams go."""

    async def forget() -> None:
        await _site().forgetting.everywhere(response_ids, reason=DELETED)

    async_to_sync(forget)()


def _site() -> "Site":
    from responses_app.wiring.site import get_site

    return get_site()


MAX_EXPORTED = 1_000
MAX_EXPORTED_BYTES = 64 << 20


@admin.action(permissions=["cancel"], description="Cancel the selected responses")
def cancel(model_admin: Any, request: HttpRequest, queryset: "QuerySet[Response]") -> None:
    """Cancel what runs."""
    # Read before anything is cancelled: what ends meanwhile must not be counted as cancelled.
    rows = queryset.filter(status__in=RUNNING).order_by().values_list("pk", "background")[:MAX_CHANGED]
    running = dict(rows)
    if not running:
        model_admin.message_user(request, "None of the selected responses is running.", messages.WARNING)
        return
    done_to(request, Action.RESPONSE_CANCELLED, subjects_of(running))
    done = cancel_responses(running)
    left = len(running) - done.here - done.asked
    results = [
        (done.here, "cancelled.", messages.SUCCESS),
        (done.asked, "given to the workers that run them, to be cancelled.", messages.SUCCESS),
        (left, "not cancelled: another worker runs them, or they have just ended.", messages.WARNING),
    ]
    for number, text, level in results:
        if number:
            counted = f"{number:,} response was" if number == 1 else f"{number:,} responses were"
            model_admin.message_user(request, f"{counted} {text}", level)


@admin.action(permissions=["delete"], description="Delete the selected responses")
def delete_selected(model_admin: Any, request: HttpRequest, queryset: "QuerySet[Response]") -> HttpResponseBase | None:
    """Delete them, after a page that asks."""
    return django_actions.delete_selected(model_admin, request, queryset[:MAX_CHANGED])


@admin.action(permissions=["export"], description="Export the selected responses as JSON lines")
def export(model_admin: Any, request: HttpRequest, queryset: "QuerySet[Response]") -> HttpResponse:
    """Send a file with one response a line, each with its input items."""
    ids = list(queryset.values_list("pk", flat=True)[:MAX_EXPORTED])
    done_to(request, Action.CONTENT_EXPORTED, subjects_of(ids))
    answer = HttpResponse(content_type="application/jsonl")
    answer["Content-Disposition"] = 'attachment; filename="responses.jsonl"'
    # Bytes that may still be written; the file ends with a whole line.
    left = MAX_EXPORTED_BYTES
    for line in json_lines(ids):
        left -= len(line)
        if left < 0:
            break
        answer.write(line)
    return answer


@admin.action(permissions=["view"], description="Compare the two selected responses")
def compare(model_admin: Any, request: HttpRequest, queryset: "QuerySet[Response]") -> HttpResponse | None:
    """Show two responses side by side, the older one on the left."""
    ids = list(queryset.order_by("created_at").values_list("pk", flat=True)[:3])
    if len(ids) != 2:
        model_admin.message_user(request, "Select two responses to compare them.", messages.WARNING)
        return None
    return redirect(f"{reverse('watch-compare')}?{urlencode(dict(zip(('left', 'right'), ids, strict=True)))}")


def json_lines(ids: Sequence[str], *, at_once: int = 20) -> Iterator[bytes]:
    """Yield a line for each of these responses, in this order, as JSON that is never parsed here."""
    for start in range(0, len(ids), at_once):
        some = ids[start : start + at_once]
        texts = Response.objects.filter(pk__in=some).values_list("pk", _text("body"), _text("input_items"))
        rows = {pk: (body, items) for pk, body, items in texts}
        for body, items in (rows[pk] for pk in some if pk in rows):
            # Both columns are JSON as text already.
            yield f'{{"response":{body},"input_items":{items}}}\n'.encode()


def subjects_of(ids: Collection[str]) -> list[tuple[str, str]]:
    """Return responses with their projects, as the audit trail names them."""
    return list(Response.objects.filter(pk__in=list(ids)).order_by("pk").values_list("pk", "project"))


def delete_responses(response_ids: Collection[str]) -> None:
    """Delete responses as clients do: what of their chains others still need stays."""
    # Committed before the workers hear of it: they may look it up at once.
    with transaction.atomic():
        remove(connection, list(response_ids))
    forget_runs(response_ids)


def _text(column: str) -> Cast:
    return Cast(column, TextField())


class ResponseChangeList(BoundedChangeList):
    """The list, with what its rows show beside read for all of them together."""

    def get_results(self, request: HttpRequest) -> None:
        """Hand it to the rows."""
        super().get_results(request)
        self.result_list = list(self.result_list)
        ids = [row.pk for row in self.result_list]
        keys = key_names(sorted({row.key_id for row in self.result_list if row.key_id}))
        sees_content = self.model_admin.sees_content(request)
        self.search_help_text = HELP + (CONTENT_HELP if sees_content else NO_CONTENT_HELP)
        words = first_words(ids) if sees_content else {}
        for row in self.result_list:
            row.key_name = keys.get(row.key_id, NONE)
            row.first_words = words.get(row.pk, "")


def first_words(ids: Sequence[str]) -> dict[str, str]:
    """Return the first words of what these responses were asked; of those that are not read yet, of its beginning."""
    found = dict(ResponseWords.objects.filter(response_id__in=ids).values_list("response_id", "first_words"))
    unread = [response_id for response_id in ids if response_id not in found]
    if unread:
        beginnings = Response.objects.filter(pk__in=unread).values_list("pk", Substr("input_items", 1, BEGINNING))
        found |= {response_id: words_of_json(text, FIRST_WORDS - 1) for response_id, text in beginnings}
    return found


@admin.register(Response)
class ResponseAdmin(ReadOnlyAdmin):
    """Responses, the newest first."""

    list_display = (
        *("identifier", "words", "state", "project_name", "key_name", "model_name", "created", "tokens_in"),
        *("tokens_out", "cost", "first_token", "duration", "way", "links"),
    )
    identifier = column(
        "response", lambda row: format_html('<span class="id" title="{}">{}</span>', row.pk, short_id(row.pk))
    )
    words = column("first words", lambda row: visible(row.first_words) or NONE)
    state = column("status", lambda row: pill(row.status))
    key_name = column("key", lambda row: row.key_name)
    tokens_out = column("out", lambda row: f"{row.output_tokens:,}")
    model_name = column("model", lambda row: visible(row.model))
    first_token = column("first token", lambda row: milliseconds(row.first_token_ms))
    duration = column("duration", lambda row: milliseconds(row.duration_ms))
    list_filter = (
        StatusFilter,
        AgeFilter,
        ProjectFilter,
        KeyFilter,
        ModelFilter,
        TransportFilter,
        ("background", admin.BooleanFieldListFilter),
    )
    content_columns = ("words",)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    search_fields = ("id",)
    actions = (export, compare, cancel, delete_selected)

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Response]":
        """Leave out what is long: lists never show it."""
        return super().get_queryset(request).defer(*BULKY)

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[Response]", search_term: str
    ) -> "tuple[QuerySet[Response], bool]":
        """Search by ids, and for who may see content, by what was said."""
        if not search_term.strip():
            return queryset, False
        ids = found_ids(search_term)
        if self.sees_content(request):
            if not hasattr(request, "said"):  # an action on all that is found asks once more
                request.said = said_ids(request, search_term)  # type: ignore[attr-defined]
            said, request.search_note = request.said  # type: ignore[attr-defined]
            ids += said
        return queryset.filter(pk__in=ids), False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedChangeList]:
        """Show more of each row."""
        return ResponseChangeList

    def get_list_display(self, request: HttpRequest) -> Sequence[Any]:
        """Leave out the costs where there are no prices."""
        columns = super().get_list_display(request)
        return [each for each in columns if each != "cost" or settings.RESPSITE.prices]

    def get_urls(self) -> list[URLPattern]:
        """Add the download."""
        download = path("<path:object_id>/json/", self.admin_site.admin_view(self.download), name="response_json")
        return [download, *super().get_urls()]

    def has_export_permission(self, request: HttpRequest) -> bool:
        """Whoever may see the content."""
        return self.sees_content(request)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Cancelling is Django's permission to change, though nothing else can be changed."""
        return bool(request.user.has_perm("responses_app.change_response"))

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a response."""
        from responses_app.extensions.console.watch.page import ADMIN, shown_to_staff
        from responses_app.extensions.console.watch.views import shown_page

        response = self.find(request, object_id)
        if not isinstance(response, Response):
            return self.to_list()
        may = {"has_delete_permission": self.has_delete_permission(request, response)}
        shown = shown_to_staff(response)
        if self.sees_content(request):
            viewed(request, response.pk, project=response.project)
        else:
            shown = shown.shape()
        return shown_page(request, shown, ADMIN, "admin/respsite/response.html", **may)

    def download(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send a response and its input items as one JSON object."""
        self.need_content(request)
        response = self.find(request, object_id)
        if not isinstance(response, Response):
            return self.to_list()
        done(request, Action.CONTENT_EXPORTED, response.pk, project=response.project)
        answer = HttpResponse(json_lines([response.pk]), content_type="application/json")
        answer["Content-Disposition"] = f'attachment; filename="{response.pk}.json"'
        return answer

    def get_deleted_objects(
        self, objs: "QuerySet[Response] | Sequence[Response]", request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """Name what is to be deleted without loading it."""
        ids = [str(each) for each in objs]
        more = [f"and {len(ids) - MAX_NAMED:,} more"] if len(ids) > MAX_NAMED else []
        return [*ids[:MAX_NAMED], *more], {"responses": len(ids)}, set(), []

    def delete_model(self, request: HttpRequest, obj: Response) -> None:
        """Delete one."""
        done(request, Action.CONTENT_DELETED, obj.pk, project=obj.project)
        delete_responses([obj.pk])

    def delete_queryset(self, request: HttpRequest, queryset: "QuerySet[Response]") -> None:
        """Delete some."""
        ids = [response.pk for response in queryset]
        done_to(request, Action.CONTENT_DELETED, subjects_of(ids))
        delete_responses(ids)

    @admin.display(description="in")
    def tokens_in(self, response: Response) -> SafeString:
        """What it read."""
        cached = f"{response.cached_tokens:,} of them cached"
        return format_html('<span title="{}">{}</span>', cached, f"{response.input_tokens:,}")

    @admin.display(description="cost")
    def cost(self, response: Response) -> str:
        """What that costs, by the prices of today."""
        price = settings.RESPSITE.prices.get(response.model)
        if price is None:
            return NONE
        used = {"input": response.input_tokens, "cached": response.cached_tokens, "output": response.output_tokens}
        return money(price.cost(**used))

    @admin.display(description="API")
    def way(self, response: Response) -> SafeString:
        """The transport."""
        names = [response.transport or NONE]
        names += ["background"] if response.background and response.transport != "background" else []
        return format_html_join(" ", '<span class="chip">{}</span>', ((visible(name),) for name in names))

    @admin.display(description="continues")
    def links(self, response: Response) -> SafeString | str:
        """What it goes on from."""
        links = [conversation_link(response.conversation_id)] if response.conversation_id else []
        links += [response_link(response.previous_response_id)] if response.previous_response_id else []
        return format_html_join(" ", "{}", ((link,) for link in links)) or NONE


if TYPE_CHECKING:
    from responses_app.wiring.site import Site
