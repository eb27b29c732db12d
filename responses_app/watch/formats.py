"""Numbers, times and states as the admin writes them."""

from datetime import UTC, datetime

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.protocol.requests.resources import Status
from responses_app.watch.text import visible

STATUSES = tuple(status.value for status in Status)
NONE = "–"
ADMIN_PAGE = "admin:responses_app_response_change"  # of a response


def pill(status: str) -> SafeString:
    """Return a status in its colour."""
    known = status if status in STATUSES else "unknown"
    return format_html('<span class="pill pill-{}">{}</span>', known, visible(status).replace("_", " "))


def milliseconds(value: int | None) -> str:
    """Return a duration."""
    if value is None:
        return NONE
    if value < 1_000:
        return f"{value} ms"
    if value < 60_000:
        return f"{value / 1_000:.1f} s"
    minutes, rest = divmod(round(value / 1_000), 60)
    return f"{minutes} min {rest:02d} s"


def short_number(value: float) -> str:
    """Return a number in a few characters: 950, 12.4 k, 3 M."""
    for unit, size in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:,.0f}"


def in_bytes(value: int) -> str:
    """Return a size in bytes."""
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:,} bytes"


def moment(at: datetime) -> SafeString:
    """Return a time, to the second."""
    at = at.astimezone(UTC)
    shown = at.strftime("%d %b %H:%M:%S" if at.year == datetime.now(UTC).year else "%d %b %Y %H:%M:%S")
    whole = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), whole, shown)


def ago(at: datetime, now: datetime) -> str:
    """Return how long ago a time was."""
    seconds = max(0, int((now - at).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def short_id(identifier: str) -> str:
    """Return an id's kind and its last characters, which are the random ones."""
    return identifier if len(identifier) <= 20 else f"{identifier.partition('_')[0]}_…{identifier[-8:]}"


def response_link(response_id: str, *, page: str = ADMIN_PAGE) -> SafeString:
    """Return a link to a response; `page` names the page."""
    return _link(page, response_id)


def conversation_link(conversation_id: str) -> SafeString:
    """Return a link to a conversation."""
    return _link("admin:responses_app_conversation_change", conversation_id)


def _link(page: str, identifier: str) -> SafeString:
    url = reverse(page, args=(identifier,))
    return format_html(
        '<a class="id" href="{}" title="{}">{}</a>', url, visible(identifier), visible(short_id(identifier))
    )
