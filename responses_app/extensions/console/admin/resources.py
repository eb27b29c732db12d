"""Lists of what clients keep: batches with how far they are, versions of skills, and files, without their content."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from responses_app.extensions.console.admin.filters import OwnProjectFilter, SearchedById
from responses_app.extensions.console.admin.lists import ListOnlyAdmin, column
from responses_app.extensions.console.watch.text import NONE, in_bytes, moment, visible
from responses_app.resources.batches.model import Batch
from responses_app.resources.files.model import StoredFile
from responses_app.resources.skills.model import SkillVersion


@admin.register(Batch)
class BatchAdmin(SearchedById, ListOnlyAdmin):
    """Batches of both APIs. Clients cancel them, and `respsite manage forget` erases those of a project.

    One that runs would be lost without a word to its client, if it were deleted here.
    """

    list_display = ("identifier", "project_name", "served_by", "state", "answered", "failing", "unrun", "created")
    identifier = column("batch", lambda row: format_html('<span class="id">{}</span>', row.pk))
    served_by = column("endpoint", lambda row: row.endpoint)
    state = column("status", lambda row: row.status)
    answered = column("succeeded", lambda row: f"{row.completed:,} of {row.total:,}")
    failing = column("failed", lambda row: f"{row.failed:,}")
    unrun = column("not run", lambda row: f"{row.cancelled + row.expired:,}")  # cancelled, or expired before
    list_filter = (OwnProjectFilter,)
    ordering = ("-created_at",)
    search_help_text = "Finds a batch by its id or the beginning of it."
    actions = None


@admin.register(SkillVersion)
class SkillVersionAdmin(ListOnlyAdmin):
    """Versions of skills, the newest first. Clients delete them, and `respsite manage forget` those of a project.

    The pieces of a bundle are unknown to the admin, so it deletes none.
    """

    list_display = ("identifier", "named", "number", "size", "project_name", "created")
    identifier = column("skill", lambda row: format_html('<span class="id">{}</span>', row.skill_id))
    named = column("name", lambda row: visible(row.name))
    number = column("version", lambda row: row.version)
    # One that is not whole is being uploaded, or on its way out.
    size = column("size", lambda row: f"{in_bytes(row.bytes)}{'' if row.is_whole else ', not whole'}")
    list_filter = (OwnProjectFilter,)
    ordering = ("-id",)  # in which they came
    search_fields = ("skill_id",)
    search_help_text = "Finds the versions of a skill by its whole id."
    content_columns = ("named",)
    actions = None

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[SkillVersion]", search_term: str
    ) -> "tuple[QuerySet[SkillVersion], bool]":
        """Search by the id of the skill."""
        term = search_term.strip()
        return (queryset.filter(skill_id=term) if term else queryset), False


@admin.register(StoredFile)
class StoredFileAdmin(SearchedById, ListOnlyAdmin):
    """Files, the newest first. Clients delete them, and `respsite manage forget` those of a project.

    The admin would read all that is in a file to say what goes with it, so it deletes none.
    """

    list_display = ("identifier", "named", "size", "purpose", "project_name", "created", "expires")
    identifier = column("file", lambda row: format_html('<span class="id">{}</span>', row.pk))
    named = column("name", lambda row: visible(row.filename))
    # One that is not whole is being uploaded, or on its way out.
    size = column("size", lambda row: f"{in_bytes(row.bytes)}{'' if row.is_whole else ', not whole'}")
    expires = column("expires", lambda row: NONE if row.expires_at is None else moment(row.expires_at))
    list_filter = (OwnProjectFilter,)
    ordering = ("-id",)  # in which they came
    search_help_text = "Finds a file by its id or the beginning of it."
    content_columns = ("named",)
    actions = None
