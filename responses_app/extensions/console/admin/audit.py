"""The audit trail in the admin: a list with filters; what Django's own pages change, and who signs in, is recorded.

Nothing of the trail can be changed or deleted here, by nobody.
"""

import json
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models import Model, QuerySet
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.admin.auditing import actor_of, done
from responses_app.extensions.console.admin.filters import AgeFilter, OwnProjectFilter, ValuesFilter
from responses_app.extensions.console.admin.lists import ListOnlyAdmin, column
from responses_app.extensions.console.watch.text import NONE, moment, visible
from responses_app.resources.audit.chain import plain
from responses_app.resources.audit.fields import (
    Action,
    Actor,
    ActorKind,
    AuditEntry,
    AuditUnavailable,
    as_json,
    detail_of,
)
from responses_app.resources.audit.model import MAX_NAME, AuditRow
from responses_app.resources.audit.store import record
from responses_app.stores.database.sign_on import by_sign_on

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


class Audited(admin.ModelAdmin):
    """Records what Django's own pages change of users and groups."""

    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        """Record it, in the transaction of the change."""
        self._record(request, obj, "added")
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        """Record it, with the names of the fields."""
        parts = message if isinstance(message, list) else []
        changed = [part["changed"].get("fields", []) for part in parts if isinstance(part, dict) and "changed" in part]
        self._record(request, obj, "changed", fields=[name for names in changed for name in names][:50])
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Record them, before they are deleted."""
        for each in queryset:
            self._record(request, each, "deleted")
        return super().log_deletions(request, queryset)

    def _record(self, request: HttpRequest, obj: Model, what: str, **more: object) -> None:
        kind = str(self.opts.verbose_name)
        done(request, Action.ADMIN_CHANGED, str(obj), kind=kind, id=str(obj.pk), what=what, **more)


class AuditedUserAdmin(Audited, UserAdmin):
    """Django's page of users, with what was changed recorded."""


class AuditedGroupAdmin(Audited, GroupAdmin):
    """Django's page of groups, with what was changed recorded."""


admin.site.unregister((User, Group))
admin.site.register(User, AuditedUserAdmin)
admin.site.register(Group, AuditedGroupAdmin)


@receiver(user_logged_in)
def _signed_in(request: HttpRequest, user: Any, **kwargs: Any) -> None:
    try:
        detail = {"by": "single sign-on"} if by_sign_on(request.session) else {}
        record(AuditEntry(actor_of(request, user), Action.SIGNED_IN, user.get_username(), detail=detail))
    except AuditUnavailable:
        request.session.flush()  # else the session would be kept with the page that says so
        raise


@receiver(user_logged_out)
def _signed_out(request: HttpRequest, user: Any, **kwargs: Any) -> None:
    if user is not None:
        record(AuditEntry(actor_of(request, user), Action.SIGNED_OUT, user.get_username()))


@receiver(user_login_failed)
def _sign_in_failed(credentials: dict[str, Any], request: Any = None, **kwargs: Any) -> None:
    """Record a failure; of those while it is locked none, so that nobody fills the trail by guessing on.

    django-axes hears of it first, and marks the request.
    """
    is_locked = bool(getattr(request, "axes_locked_out", False))
    if request is None or (is_locked and getattr(request, "axes_failures_since_start", None) is None):
        return
    address = actor_of(request).address
    detail = {"locked": True} if is_locked else {}
    name = str(credentials.get("username") or "")
    record(AuditEntry(Actor(ActorKind.NOBODY, address=address), Action.SIGN_IN_FAILED, name, detail=detail))
