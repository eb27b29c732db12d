"""Stored responses: a list with filters, and each as the conversation it was."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Substr
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from responses_app.admin.actions import (
    cancel,
    compare,
    delete_responses,
    delete_selected,
    export,
    json_lines,
    subjects_of,
)
from responses_app.admin.filters import (
    AgeFilter,
    KeyFilter,
    ModelFilter,
    ProjectFilter,
    StatusFilter,
    TransportFilter,
    key_names,
)
from responses_app.admin.lists import BoundedChangeList, ReadOnlyAdmin, column
from responses_app.admin.searching import CONTENT_HELP, HELP, NO_CONTENT_HELP, found_ids, said_ids
from responses_app.admin.usage import money
from responses_app.models import Response
from responses_app.models.words import FIRST_WORDS, ResponseWords
from responses_app.protocol.items.words import words_of_json
from responses_app.stores.audit import Action
from responses_app.watch.auditing import done, done_to, viewed
from responses_app.watch.text import (
    NONE,
    conversation_link,
    milliseconds,
    moment,
    pill,
    response_link,
    short_id,
    visible,
)

BEGINNING = 4_096  # characters of the input of a response that is not in the index yet
BULKY = ("body", "input_items", "request")  # columns of megabytes
MAX_NAMED = 20  # of the responses that are to be deleted, on the page that asks


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
    project_name = column("project", lambda row: visible(row.project))
    key_name = column("key", lambda row: row.key_name)
    tokens_out = column("out", lambda row: f"{row.output_tokens:,}")
    model_name = column("model", lambda row: visible(row.model))
    created = column("created", lambda row: moment(row.created_at))
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
        from responses_app.watch.page import (
            ADMIN,  # here, since every command of respsite manage loads the admin
            shown_to_staff,
        )
        from responses_app.watch.views import shown_page

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
