"""Conversations: a list, and each with its items."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any

from django.contrib import admin
from django.contrib.admin import actions as django_actions
from django.contrib.admin.views.main import ChangeList
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.views.decorators.http import require_safe

from responses_app.admin.auditing import done_to, viewed
from responses_app.extensions.console.admin.filters import OwnProjectFilter, SearchedById
from responses_app.extensions.console.admin.lists import MAX_CHANGED, BoundedChangeList, ReadOnlyAdmin, column
from responses_app.extensions.console.watch.text import NONE, response_link, short_id, visible
from responses_app.extensions.console.watch.transcript import Block, PageTranscript, as_dict
from responses_app.resources.audit.fields import Action
from responses_app.resources.conversations.model import Conversation, ConversationItem

AT_ONCE = 100  # items on a page


@dataclass(slots=True)
class ConversationStretch:
    """Items that came with one response, or without one."""

    response_id: str  # "" for items that a client added
    created_at: datetime  # of the first of them
    blocks: list[Block] = field(default_factory=list)


class ConversationChangeList(BoundedChangeList):
    """The list, with the items of its rows counted in one query."""

    @cached_property
    def item_counts(self) -> dict[str, int]:
        """How many items each conversation of this page has."""
        counted = ConversationItem.objects.filter(conversation_id__in=[each.pk for each in self.result_list])
        return dict(counted.values_list("conversation_id").annotate(Count("pk")).order_by())

    def get_results(self, request: HttpRequest) -> None:
        """Hand the counts to the rows."""
        super().get_results(request)
        self.result_list = list(self.result_list)
        for conversation in self.result_list:
            conversation.items_counted = self.item_counts.get(conversation.pk, 0)


@admin.register(Conversation)
class ConversationAdmin(SearchedById, ReadOnlyAdmin):
    """Conversations, the newest first."""

    list_display = ("identifier", "named", "items_counted", "created", "project_name", "head_link")
    identifier = column(
        "conversation", lambda row: format_html('<span class="id" title="{}">{}</span>', row.pk, short_id(row.pk))
    )
    named = column("title", lambda row: visible(row.title)[:100] or NONE)
    items_counted = column("items", lambda row: f"{row.items_counted:,}")
    head_link = column("latest response", lambda row: response_link(row.head) if row.head else NONE)
    list_filter = (OwnProjectFilter,)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    search_help_text = "Finds a conversation by its id or the beginning of it."
    content_columns = ("named",)
    actions = ("delete_selected",)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Count items beside."""
        return ConversationChangeList

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a conversation."""
        self.need_content(request)
        conversation = self.find(request, object_id)
        if not isinstance(conversation, Conversation):
            return self.to_list()
        viewed(request, conversation.pk, project=conversation.project)
        context = {
            **self.admin_site.each_context(request),
            **_page(conversation, after=_number(request.GET.get("after"))),
            "opts": self.opts,
            "has_delete_permission": self.has_delete_permission(request, conversation),
        }
        return TemplateResponse(request, "admin/respsite/conversation.html", context)

    def get_deleted_objects(
        self, objs: Sequence[Conversation], request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """Name what is to be deleted, its items not one by one."""
        return [str(each) for each in objs], {"conversations": len(objs)}, set(), []

    def delete_model(self, request: HttpRequest, obj: Conversation) -> None:
        """Delete one."""
        done_to(request, Action.CONTENT_DELETED, [(obj.pk, obj.project)])
        _delete([obj.pk])

    def delete_queryset(self, request: HttpRequest, queryset: "QuerySet[Conversation]") -> None:
        """Delete some."""
        rows = list(queryset)
        done_to(request, Action.CONTENT_DELETED, [(row.pk, row.project) for row in rows])
        _delete([row.pk for row in rows])

    @admin.action(permissions=["delete"], description="Delete the selected conversations")
    def delete_selected(self, request: HttpRequest, queryset: "QuerySet[Conversation]") -> HttpResponseBase | None:
        """Delete them, after a page that asks; their responses stay."""
        return django_actions.delete_selected(self, request, queryset[:MAX_CHANGED])


def _page(conversation: Conversation, *, after: int) -> dict[str, Any]:
    """Return what the template of the page needs: the items behind the position `after`."""
    kept = ConversationItem.objects.filter(conversation_id=conversation.pk, position__gt=after).order_by("position")
    rows = list(kept[: AT_ONCE + 1])
    transcript = PageTranscript()
    stretches = []
    for response_id, some in groupby(rows[:AT_ONCE], key=lambda row: row.response_id):
        group = list(some)
        blocks = transcript.read([row.item for row in group])
        if blocks:  # outputs stand with their calls, wherever those are
            stretches.append(ConversationStretch(response_id, group[0].created_at, blocks))
    return {
        "title": "Conversation",
        "conversation": conversation,
        "name": conversation.pk,
        "named": visible(conversation.title),
        "latest": response_link(conversation.head) if conversation.head else "",
        "status": visible(conversation.status),
        "metadata": [
            (visible(key), visible(value)) for key, value in list(as_dict(conversation.metadata).items())[:16]
        ],
        "stretches": stretches,
        "from_start": after == 0,
        "next_after": rows[AT_ONCE - 1].position if len(rows) > AT_ONCE else None,
    }


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else 0


def _delete(conversation_ids: Sequence[str]) -> None:
    """Delete conversations and their items, as clients do: the responses stay."""
    with transaction.atomic():
        ConversationItem.objects.filter(conversation_id__in=conversation_ids).delete()
        Conversation.objects.filter(pk__in=conversation_ids).delete()
