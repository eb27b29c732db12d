"""What can be done with chosen responses: cancel, delete, export. Each is bounded, and says so where it stops.

The admin's views run on threads, and runs belong to the server's event loop: they are cancelled and forgotten there.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from asgiref.sync import async_to_sync
from django.contrib import admin, messages
from django.contrib.admin import actions as django_actions
from django.db import connection, transaction
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from responses_app.models import Response
from responses_app.protocol.requests.resources import RUNNING
from responses_app.runs.by_id import Cancelled
from responses_app.stores.audit import Action
from responses_app.stores.database.responses.removal import remove
from responses_app.watch.auditing import done_to

if TYPE_CHECKING:
    from responses_app.wiring.site import Site

CANCELLED = "it was cancelled in the admin"
DELETED = "it was deleted in the admin"


def cancel_responses(running: Mapping[str, bool]) -> Cancelled:
    """Cancel responses: their ids, and whether they are background ones, the only ones others can be asked about.

    What runs elsewhere and cannot be asked about, and what has just ended, is left as it is.
    """

    async def cancel_all() -> Cancelled:
        return await _site().responses.cancel_all(running, reason=CANCELLED)

    return async_to_sync(cancel_all)()


def forget_runs(response_ids: Collection[str]) -> None:
    """Tell all workers that these responses were deleted: what runs of them ends, their streams go."""

    async def forget() -> None:
        await _site().forgetting.everywhere(response_ids, reason=DELETED)

    async_to_sync(forget)()


def _site() -> "Site":
    from responses_app.wiring.site import get_site

    return get_site()


MAX_CHANGED = 500  # responses that one action deletes or cancels
MAX_EXPORTED = 1_000
MAX_EXPORTED_BYTES = 64 << 20


@admin.action(permissions=["cancel"], description="Cancel the selected responses")
def cancel(model_admin: Any, request: HttpRequest, queryset: "QuerySet[Response]") -> None:
    """Cancel what runs."""
    # Read before anything is cancelled: what ends meanwhile must not be counted as cancelled.
    rows = queryset.filter(status__in=RUNNING).order_by().values_list("pk", "background")[:MAX_CHANGED]
    running = dict(rows)
    if not running:
        model_admin.message_user(request, "None of the selected responses is running.", messages.WARNING)
        return
    done_to(request, Action.RESPONSE_CANCELLED, subjects_of(running))
    done = cancel_responses(running)
    left = len(running) - done.here - done.asked
    results = [
        (done.here, "cancelled.", messages.SUCCESS),
        (done.asked, "given to the workers that run them, to be cancelled.", messages.SUCCESS),
        (left, "not cancelled: another worker runs them, or they have just ended.", messages.WARNING),
    ]
    for number, text, level in results:
        if number:
            model_admin.message_user(request, f"{_counted(number)} {text}", level)


@admin.action(permissions=["delete"], description="Delete the selected responses")
def delete_selected(model_admin: Any, request: HttpRequest, queryset: "QuerySet[Response]") -> HttpResponseBase | None:
    """Delete them, after a page that asks."""
    return django_actions.delete_selected(model_admin, request, queryset[:MAX_CHANGED])


@admin.action(permissions=["export"], description="Export the selected responses as JSON lines")
def export(model_admin: Any, request: HttpRequest, queryset: "QuerySet[Response]") -> HttpResponse:
    """Send a file with one response a line, each with its input items."""
    ids = list(queryset.values_list("pk", flat=True)[:MAX_EXPORTED])
    done_to(request, Action.CONTENT_EXPORTED, subjects_of(ids))
    answer = HttpResponse(content_type="application/jsonl")
    answer["Content-Disposition"] = 'attachment; filename="responses.jsonl"'
    # Bytes that may still be written; the file ends with a whole line.
    left = MAX_EXPORTED_BYTES
    for line in json_lines(ids):
        left -= len(line)
        if left < 0:
            break
        answer.write(line)
    return answer


@admin.action(permissions=["view"], description="Compare the two selected responses")
def compare(model_admin: Any, request: HttpRequest, queryset: "QuerySet[Response]") -> HttpResponse | None:
    """Show two responses side by side, the older one on the left."""
    ids = list(queryset.order_by("created_at").values_list("pk", flat=True)[:3])
    if len(ids) != 2:
        model_admin.message_user(request, "Select two responses to compare them.", messages.WARNING)
        return None
    return redirect(f"{reverse('watch-compare')}?{urlencode(dict(zip(('left', 'right'), ids, strict=True)))}")


def json_lines(ids: Sequence[str], *, at_once: int = 20) -> Iterator[bytes]:
    """Yield a line for each of these responses, in this order, as JSON that is never parsed here."""
    for start in range(0, len(ids), at_once):
        some = ids[start : start + at_once]
        texts = Response.objects.filter(pk__in=some).values_list("pk", _text("body"), _text("input_items"))
        rows = {pk: (body, items) for pk, body, items in texts}
        for body, items in (rows[pk] for pk in some if pk in rows):
            # Both columns are JSON as text already.
            yield f'{{"response":{body},"input_items":{items}}}\n'.encode()


def subjects_of(ids: Collection[str]) -> list[tuple[str, str]]:
    """Return responses with their projects, as the audit trail names them."""
    return list(Response.objects.filter(pk__in=list(ids)).order_by("pk").values_list("pk", "project"))


def delete_responses(response_ids: Collection[str]) -> None:
    """Delete responses as clients do: what of their chains others still need stays."""
    # Committed before the workers hear of it: they may look it up at once.
    with transaction.atomic():
        remove(connection, list(response_ids))
    forget_runs(response_ids)


def _text(column: str) -> Cast:
    return Cast(column, TextField())


def _counted(number: int) -> str:
    return f"{number:,} response was" if number == 1 else f"{number:,} responses were"
