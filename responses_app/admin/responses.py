"""Stored responses: a list with filters, and each as the conversation it was."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
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
from responses_app.admin.lists import (
    HELP,
    AgeFilter,
    ModelFilter,
    ProjectFilter,
    ReadOnlyAdmin,
    StatusFilter,
    TransportFilter,
    column,
    found_ids,
)
from responses_app.models import Response
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

BULKY = ("body", "input_items", "request")  # columns of megabytes
MAX_NAMED = 20  # of the responses that are to be deleted, on the page that asks


@admin.register(Response)
class ResponseAdmin(ReadOnlyAdmin):
    """Responses, the newest first."""

    list_display = ("identifier", "state", "model_name", "created", "tokens", "first_token", "duration", "way", "links")
    identifier = column(
        "response", lambda row: format_html('<span class="id" title="{}">{}</span>', row.pk, short_id(row.pk))
    )
    state = column("status", lambda row: pill(row.status))
    model_name = column("model", lambda row: visible(row.model))
    created = column("created", lambda row: moment(row.created_at))
    first_token = column("first token", lambda row: milliseconds(row.first_token_ms))
    duration = column("duration", lambda row: milliseconds(row.duration_ms))
    list_filter = (
        StatusFilter,
        AgeFilter,
        ModelFilter,
        ("background", admin.BooleanFieldListFilter),
        TransportFilter,
        ProjectFilter,
    )
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    search_fields = ("id",)
    search_help_text = HELP
    actions = (export, compare, cancel, delete_selected)

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Response]":
        """Leave out what is long: lists never show it."""
        return super().get_queryset(request).defer(*BULKY)

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[Response]", search_term: str
    ) -> "tuple[QuerySet[Response], bool]":
        """Search by ids."""
        return (queryset.filter(pk__in=found_ids(search_term)) if search_term.strip() else queryset), False

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

    @admin.display(description="tokens in → out")
    def tokens(self, response: Response) -> SafeString:
        """What it read and what it said."""
        cached = f"{response.cached_tokens:,} of them cached"
        return format_html(
            '<span title="{}">{} → {}</span>', cached, f"{response.input_tokens:,}", f"{response.output_tokens:,}"
        )

    @admin.display(description="transport")
    def way(self, response: Response) -> SafeString:
        """The transport, and the project where it is not the only one's name."""
        names = [response.transport or NONE]
        names += ["background"] if response.background and response.transport != "background" else []
        names += [response.project] if response.project != "default" else []
        return format_html_join(" ", '<span class="chip">{}</span>', ((visible(name),) for name in names))

    @admin.display(description="continues")
    def links(self, response: Response) -> SafeString | str:
        """What it goes on from."""
        links = [conversation_link(response.conversation_id)] if response.conversation_id else []
        links += [response_link(response.previous_response_id)] if response.previous_response_id else []
        return format_html_join(" ", "{}", ((link,) for link in links)) or NONE
