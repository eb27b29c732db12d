"""Projects: a list, and a form for the limits that all keys of one have together."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from responses_app.admin.lists import ReadOnlyAdmin
from responses_app.models import Project
from responses_app.protocol.rate_limits import LIMITS
from responses_app.watch.formats import NONE, moment
from responses_app.watch.text import visible


@admin.register(Project)
class ProjectAdmin(ReadOnlyAdmin):
    """Projects by their names. They are made with their first key, and erased by `respsite manage forget`."""

    list_display = ("named", "keys_counted", "limits", "created")
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = "Finds projects by their name."
    actions = None
    fields = ("name", *LIMITS)
    readonly_fields = ("name",)

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Project]":
        """Count the keys with them."""
        return super().get_queryset(request).annotate(key_count=Count("keys"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may change projects; a change of limits holds within 2 s."""
        return bool(request.user.has_perm("responses_app.change_project"))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What belongs to a project would stay."""
        return False

    @admin.display(description="project")
    def named(self, project: Project) -> str:
        """What people call it."""
        return visible(project.name)

    @admin.display(description="keys")
    def keys_counted(self, project: Any) -> int:
        """How many it has, revoked ones too."""
        count: int = project.key_count
        return count

    @admin.display(description="limits")
    def limits(self, project: Project) -> SafeString | str:
        """Those that it has."""
        given = [(name.replace("_", " "), value) for name in LIMITS if (value := getattr(project, name)) is not None]
        chips = ((f"{name}: {value:,}",) for name, value in given)
        return format_html_join(" ", '<span class="chip">{}</span>', chips) or NONE

    @admin.display(description="created")
    def created(self, project: Project) -> SafeString:
        """When its first key was made."""
        return moment(project.created_at)
