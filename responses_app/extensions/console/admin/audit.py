"""The audit trail in the admin: a list with filters.

Nothing of the trail can be changed or deleted here, by nobody.
"""

import json

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.admin.auditing import done
from responses_app.extensions.console.admin.filters import AgeFilter, OwnProjectFilter, ValuesFilter
from responses_app.extensions.console.admin.lists import ListOnlyAdmin, column
from responses_app.extensions.console.watch.text import NONE, moment, visible
from responses_app.resources.audit.chain import plain
from responses_app.resources.audit.fields import Action, ActorKind, as_json, detail_of
from responses_app.resources.audit.model import MAX_NAME, AuditRow

MAX_EXPORTED = 20_000  # entries of one file: some 8 MB


class ActionFilter(admin.SimpleListFilter):
    """A filter by what was done."""

    title = "action"
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the choices."""
        return [(str(action), str(action).replace("_", " ")) for action in Action]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[AuditRow]") -> "QuerySet[AuditRow]":
        """Narrow."""
        return queryset.filter(action=plain(self.value() or "", 64)) if self.value() else queryset


class ActorFilter(ValuesFilter):
    """A filter by who did it."""

    title = "who"
    parameter_name = "actor_name"


@admin.register(AuditRow)
class AuditAdmin(ListOnlyAdmin):
    """The trail, the newest first."""

    list_display = ("entry", "at", "who", "what", "about", "project_name", "came_from", "more")
    entry = column("entry", lambda row: f"{row.pk:,}")
    at = column("time", lambda row: moment(row.created_at))
    about = column("subject", lambda row: format_html('<span class="id">{}</span>', visible(row.subject) or NONE))
    project_name = column("project", lambda row: visible(row.project) or NONE)
    came_from = column("address", lambda row: visible(row.address) or NONE)
    list_filter = (ActionFilter, AgeFilter, ActorFilter, OwnProjectFilter)
    date_hierarchy = "created_at"
    ordering = ("-number",)
    search_fields = ("subject",)
    search_help_text = "Finds the entries of a subject: the whole id of a response or a key, or a user name."
    actions = ("export",)

    @admin.action(permissions=["view"], description="Export the selected entries as JSON lines")
    def export(self, request: HttpRequest, queryset: "QuerySet[AuditRow]") -> HttpResponse | None:
        """Send a file with one entry a line, the oldest first, as `respsite audit export` writes it."""
        rows = list(queryset.order_by("number").values()[: MAX_EXPORTED + 1])
        if len(rows) > MAX_EXPORTED:
            text = f"Select {MAX_EXPORTED:,} entries at most, or use `respsite audit export`."
            self.message_user(request, text, messages.WARNING)
            return None
        first, last = (rows[0]["number"], rows[-1]["number"]) if rows else (0, 0)
        done(request, Action.AUDIT_EXPORTED, first=first, last=last, entries=len(rows))
        answer = HttpResponse(content_type="application/jsonl")
        answer["Content-Disposition"] = 'attachment; filename="audit.jsonl"'
        answer.writelines(f"{json.dumps(as_json(row), default=str)}\n" for row in rows)
        return answer

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[AuditRow]", search_term: str
    ) -> "tuple[QuerySet[AuditRow], bool]":
        """Search by the whole subject, or by who did it."""
        term = plain(search_term.strip(), MAX_NAME)
        return (queryset.filter(subject=term) if term else queryset), False

    @admin.display(description="who")
    def who(self, row: AuditRow) -> str:
        """The user's name, or what it was if it was not a user."""
        name = visible(row.actor_name)
        return name if row.actor_kind == ActorKind.USER else f"{row.actor_kind} {name}".strip()

    @admin.display(description="action")
    def what(self, row: AuditRow) -> SafeString:
        """What was done, with its sentence."""
        about = next((action.about for action in Action if action == row.action), "")
        return format_html('<span title="{}">{}</span>', about, visible(row.action).replace("_", " "))

    @admin.display(description="more")
    def more(self, row: AuditRow) -> str:
        """What is told beside."""
        detail = detail_of(row.detail)
        pairs = detail.items() if isinstance(detail, dict) else []
        return visible(", ".join(f"{name}: {value}" for name, value in pairs))[:300] or NONE
