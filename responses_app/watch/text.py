"""Text as the pages show it: what models and clients wrote, made fit for a page, and numbers, times, states and links.

What cannot be seen is shown, and what is too long is cut.

Templates escape HTML; this is about the rest. A lone surrogate cannot be encoded, a NUL ends documents early, controls
of direction turn what stands beside them around, and tag characters say what nobody sees. All are shown as escapes.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.protocol.requests.resources import Status
from responses_app.watch.pictures import MOST, PictureRoom

_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters but tab, line feed and carriage return
    "\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff"  # separators, embeddings, overrides and isolates, the BOM
    "\ud800-\udfff"  # lone surrogates
    "\U000e0000-\U000e007f]"  # tags
)
SHOWN, FOLDED = 1_500, 30_000  # characters of a text that a page shows at once, and that can be unfolded
CUT_BACK = 200  # a text is cut at a line or a word, if there is one this close


@dataclass(frozen=True, slots=True)
class Clipped:
    """A text as a page shows it."""

    shown: str  # its beginning
    folded: str  # what can be unfolded
    lost: int  # how many characters only the JSON has
    number: int  # of its page's texts; a page that grows keeps it

    @property
    def folded_length(self) -> str:
        """How much can be unfolded."""
        return f"{len(self.folded):,}"

    @property
    def lost_length(self) -> str:
        """How much is left out."""
        return f"{self.lost:,}"


class Room:
    """What is left of a page: texts that come after it is full show their beginning alone."""

    def __init__(self, characters: int = 1_000_000, *, pictures: int = MOST) -> None:
        self._left = characters
        self._clipped = 0  # texts so far: the last one's number
        self.pictures = PictureRoom(pictures)

    def clip(self, text: str, *, shown: int = SHOWN, folded: int = FOLDED) -> Clipped:
        """Return a text as the page shows it; it is only folded where that saves something."""
        # On a full page a text still shows its beginning.
        most = min(shown + folded, max(self._left, SHOWN))
        shown = min(shown, most)
        seen, lost = visible(text[:most]), max(0, len(text) - most)
        cut = _cut(seen, shown) if len(seen) > shown + CUT_BACK else len(seen)
        self._left -= len(seen)
        self._clipped += 1
        return Clipped(seen[:cut], seen[cut:], lost, self._clipped)


def visible(text: object) -> str:
    """Return a text with everything that cannot be seen, or encoded, as an escape."""
    return _UNSEEN.sub(_escape, str(text))


def pretty(value: object) -> str:
    """Return JSON to read; what is nested too deeply to indent stays on one line."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        return json.dumps(value, ensure_ascii=False)


def _escape(match: "re.Match[str]") -> str:
    code = ord(match[0])
    # As Python writes them; tags lie above the first 65,536 characters.
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(text: str, at: int) -> int:
    """Return where to cut: behind the last line, or word, before `at`."""
    for mark in "\n ":
        place = text.rfind(mark, max(0, at - CUT_BACK), at)
        if place >= 0:
            return place + 1
    return at


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
