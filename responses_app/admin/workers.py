"""The server processes that share this database."""

from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.admin.lists import ReadOnlyAdmin
from responses_app.models import Worker
from responses_app.watch.formats import ago


def is_alive(worker: Worker, now: datetime) -> bool:
    """Whether a worker was seen within its lease: after it others take over what it left."""
    return worker.seen_at >= now - timedelta(seconds=settings.RESPSITE.worker_lease_seconds)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Workers, the one seen last first."""

    list_display = ("identifier", "alive", "last_seen", "started", "connections", "in_flight")
    list_display_links = None
    ordering = ("-seen_at",)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Workers remove each other."""
        return False

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: object = None
    ) -> HttpResponseRedirect:
        """The list says all there is."""
        return self.to_list()

    @admin.display(description="worker")
    def identifier(self, worker: Worker) -> SafeString:
        """The id."""
        return format_html('<span class="id">{}</span>', worker.pk)

    @admin.display(description="state")
    def alive(self, worker: Worker) -> SafeString:
        """Whether it lives."""
        alive = is_alive(worker, datetime.now(UTC))
        return format_html('<span class="pill pill-{}">{}</span>', *(("alive", "alive") if alive else ("gone", "gone")))

    @admin.display(description="last seen")
    def last_seen(self, worker: Worker) -> str:
        """When it last said that it lives."""
        return ago(worker.seen_at, datetime.now(UTC))

    @admin.display(description="started")
    def started(self, worker: Worker) -> str:
        """When it started."""
        return ago(worker.started_at, datetime.now(UTC))
