"""Webhooks: endpoints, and what was or is to be sent to them; what was parked is sent again by an action.

Endpoints are made by clients, who are shown the secret. Here they are disabled, enabled and deleted.
"""

from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.admin.auditing import done, done_to
from responses_app.extensions.console.admin.lists import ListOnlyAdmin, column
from responses_app.extensions.console.watch.text import NONE, moment, visible
from responses_app.resources.audit.fields import Action
from responses_app.resources.webhooks.model import DELIVERED, PARKED, WAITING, WebhookDelivery, WebhookEndpoint
from responses_app.resources.webhooks.store import send_again

MAX_SENT_AGAIN = 1_000  # by one action


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(ListOnlyAdmin):
    """Endpoints, the newest first."""

    list_display = (
        "identifier",
        "named",
        "url_shown",
        "project_name",
        "state",
        "events",
        "sent",
        "left_out",
        "at",
    )
    identifier = column("endpoint", lambda row: format_html('<span class="id">{}</span>', row.pk))
    named = column("name", lambda row: visible(row.name))
    url_shown = column("URL", lambda row: visible(row.url)[:200])
    project_name = column("project", lambda row: visible(row.project))
    events = column("events", lambda row: ", ".join(row.event_types))
    sent = column("waiting, parked", lambda row: f"{row.waiting:,}, {row.parked:,}")
    left_out = column("not sent", lambda row: f"{row.dropped:,}" if row.dropped else NONE)  # since too many waited
    at = column("created", lambda row: moment(row.created_at))
    ordering = ("-id",)
    search_fields = ("id", "name", "url", "project")
    search_help_text = "Finds endpoints by their id, name, URL or project."
    actions = ("enable", "disable")

    def get_queryset(self, request: HttpRequest) -> "QuerySet[WebhookEndpoint]":
        """Count with them what waits."""
        counted = {name: Count("deliveries", filter=Q(deliveries__status=name)) for name in (WAITING, PARKED)}
        return super().get_queryset(request).annotate(**counted)

    def has_switch_permission(self, request: HttpRequest) -> bool:
        """Django's permission to change, though nothing else can be changed."""
        return bool(request.user.has_perm("responses_app.change_webhookendpoint"))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Clients delete them: Django would load all that waits, to show what goes with one."""
        return False

    @admin.action(permissions=["switch"], description="Enable the selected endpoints")
    def enable(self, request: HttpRequest, queryset: "QuerySet[WebhookEndpoint]") -> None:
        """Send to them again, at once."""
        self._switch(request, queryset, enabled=True)

    @admin.action(permissions=["switch"], description="Disable the selected endpoints")
    def disable(self, request: HttpRequest, queryset: "QuerySet[WebhookEndpoint]") -> None:
        """Send nothing to them; what waits, waits."""
        self._switch(request, queryset, enabled=False)

    def _switch(self, request: HttpRequest, queryset: "QuerySet[WebhookEndpoint]", *, enabled: bool) -> None:
        rows = WebhookEndpoint.objects.filter(pk__in=list(queryset.values_list("pk", flat=True)))
        now = datetime.now(UTC)
        for row in rows:
            done(request, Action.WEBHOOK_CHANGED, row.pk, project=row.project, enabled=enabled)
        changed = rows.exclude(enabled=enabled).update(enabled=enabled, paused_until=None, failures=0, updated_at=now)
        self.message_user(request, f"{changed} endpoints were {'enabled' if enabled else 'disabled'}.")

    @admin.display(description="state")
    def state(self, endpoint: WebhookEndpoint) -> SafeString:
        """Whether anything is sent there, and arrives."""
        now = datetime.now(UTC)
        if not endpoint.enabled:
            return _pill("disabled", good=False)
        if endpoint.paused_until is not None and endpoint.paused_until > now:
            return _pill(f"fails, paused until {moment(endpoint.paused_until)}", good=False)
        return _pill("enabled", good=True)


class DeliveryStatusFilter(admin.SimpleListFilter):
    """A filter by status."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Return the choices."""
        return [(status, status) for status in (PARKED, WAITING, DELIVERED)]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[WebhookDelivery]") -> "QuerySet[WebhookDelivery]":
        """Narrow."""
        return queryset.filter(status=self.value()) if self.value() else queryset


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(ListOnlyAdmin):
    """What was sent, is to be sent, or was given up, the newest first."""

    list_display = ("identifier", "kind", "about", "to", "status_shown", "tried", "answer", "next_try", "happened")
    identifier = column("event", lambda row: format_html('<span class="id">{}</span>', row.event_id))
    kind = column("type", lambda row: row.type)
    about = column("of", lambda row: format_html('<span class="id">{}</span>', visible(row.object_id)))
    to = column("endpoint", lambda row: format_html('<span class="id">{}</span>', row.endpoint_id))
    status_shown = column("status", lambda row: _pill(row.status, good=row.status != PARKED))
    tried = column("attempts", lambda row: f"{row.attempts:,}")
    answer = column("last answer", lambda row: visible(row.problem) or row.status_code or NONE)
    next_try = column("next attempt", lambda row: moment(row.due_at) if row.status == WAITING else NONE)
    happened = column("happened", lambda row: moment(row.created_at))
    ordering = ("-id",)
    list_filter = (DeliveryStatusFilter,)
    search_fields = ("event_id", "object_id", "endpoint__id")
    search_help_text = "Finds deliveries by the id of the event, of what it is about, or of the endpoint."
    actions = ("resend",)

    def has_resend_permission(self, request: HttpRequest) -> bool:
        """Django's permission to change, though nothing else can be changed."""
        return bool(request.user.has_perm("responses_app.change_webhookdelivery"))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """They go by themselves, or with their endpoint."""
        return False

    @admin.action(permissions=["resend"], description="Send the selected deliveries again")
    def resend(self, request: HttpRequest, queryset: "QuerySet[WebhookDelivery]") -> None:
        """Send them once more, with their own ids, and try as long as with new ones."""
        keys = list(queryset.values_list("pk", flat=True)[:MAX_SENT_AGAIN])
        rows = WebhookDelivery.objects.filter(pk__in=keys)
        done_to(request, Action.WEBHOOK_CHANGED, list(rows.values_list("event_id", "project")))
        number = send_again(rows, retry_seconds=settings.RESPSITE.webhook_retry_seconds)
        level = messages.SUCCESS if number else messages.WARNING
        self.message_user(request, f"{number} will be sent again; {len(keys) - number} wait to be sent already.", level)


def _pill(text: str, *, good: bool) -> SafeString:
    return format_html('<span class="pill pill-{}">{}</span>', "alive" if good else "gone", text)
