"""Batches, the newest first, with how far they are."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from responses_app.admin.filters import OwnProjectFilter
from responses_app.admin.lists import ListOnlyAdmin, column
from responses_app.admin.searching import beginning_with
from responses_app.models.batches import Batch
from responses_app.watch.text import moment, visible

if TYPE_CHECKING:
    from django.db.models import Model


@admin.register(Batch)
class BatchAdmin(ListOnlyAdmin):
    """Batches of both APIs. Clients cancel them, and `respsite manage forget` erases those of a project."""

    list_display = ("identifier", "project_name", "served_by", "state", "answered", "failing", "unrun", "created")
    identifier = column("batch", lambda row: format_html('<span class="id">{}</span>', row.pk))
    project_name = column("project", lambda row: visible(row.project))
    served_by = column("endpoint", lambda row: row.endpoint)
    state = column("status", lambda row: row.status)
    answered = column("succeeded", lambda row: f"{row.completed:,} of {row.total:,}")
    failing = column("failed", lambda row: f"{row.failed:,}")
    unrun = column("not run", lambda row: f"{row.cancelled + row.expired:,}")  # cancelled, or expired before
    created = column("created", lambda row: moment(row.created_at))
    list_filter = (OwnProjectFilter,)
    ordering = ("-created_at",)
    search_fields = ("id",)
    search_help_text = "Finds a batch by its id or the beginning of it."
    actions = None

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[Batch]", search_term: str
    ) -> "tuple[QuerySet[Batch], bool]":
        """Search by the id."""
        term = search_term.strip()
        return (beginning_with(queryset, term) if term else queryset), False

    def has_delete_permission(self, request: HttpRequest, obj: "Model | Any" = None) -> bool:
        """Nobody: one that runs would be lost without a word to its client."""
        return False
