"""What the pages show: text and pictures of models and clients, made fit for a page; numbers, times, states and links.

What cannot be seen is shown, and what is too long is cut. Of pictures a page shows those that an item holds itself, as
a data URL of a known type; it never asks another server for one.

Templates escape HTML; this is about the rest. A lone surrogate cannot be encoded, a NUL ends documents early, controls
of direction turn what stands beside them around, and tag characters say what nobody sees. All are shown as escapes.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.protocol.requests.resources import Status

if TYPE_CHECKING:
    from responses_app.resources.rollouts.model import Rollout

_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters but tab, line feed and carriage return
    "\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff"  # separators, embeddings, overrides and isolates, the BOM
    "\ud800-\udfff"  # lone surrogates
    "\U000e0000-\U000e007f]"  # tags
)
SHOWN, FOLDED = 1_500, 30_000  # characters of a text that a page shows at once, and that can be unfolded
CUT_BACK = 200  # a text is cut at a line or a word, if there is one this close

# For example `data:image/png;base64,iVBORw0K…`. SVG is left out: it may hold scripts.
_PICTURE = re.compile("data:image/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")
MAX_PICTURES = 4_000_000  # characters of data URLs that all pictures of a page may have

PictureOf = Callable[[Mapping[str, Any]], str | None]  # a part of an item → its picture as a data URL, if it has one


class ShownPicture(NamedTuple):
    """A picture on a page."""

    url: str  # a data URL
    alt: str  # what stands for it where it is not seen
    number: int  # of its page's pictures; a page that grows keeps it


def own_picture(part: Mapping[str, Any]) -> str | None:
    """Return what a part holds itself, as OpenAI's API and MCP have images; whether it is one, `hang` finds out."""
    match part:
        case {"type": "input_image" | "computer_screenshot", "image_url": str(url)}:
            pass
        case {"type": "input_file", "file_data": str(url)}:
            pass
        case {"type": "image", "url": str(url)}:  # of the code interpreter
            pass
        case {"type": "image", "mimeType": str(kind), "data": str(data)}:  # of MCP
            url = f"data:{kind};base64,{data}"
        case _:
            return None
    return url if url.startswith("data:") else None


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


class PageRoom:
    """The space left on a page: texts that come after it is full show their beginning alone."""

    def __init__(self, characters: int = 1_000_000, *, pictures: int = MAX_PICTURES) -> None:
        self._left = characters
        self._left_for_pictures = pictures
        self._clipped = 0  # texts so far: the last one's number
        self._hung = 0  # pictures so far

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

    def hang(self, url: str, alt: str) -> ShownPicture | None:
        """Return a picture as the page shows it; None where there is no room, or where it is none of a known type."""
        if len(url) > self._left_for_pictures or not _PICTURE.fullmatch(url):
            return None
        self._left_for_pictures -= len(url)
        self._hung += 1
        return ShownPicture(url, alt, self._hung)


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


@dataclass(frozen=True, slots=True)
class Places:
    """The addresses of roll-outs. Members of the staff see all projects, so their links say which one they mean."""

    is_staff: bool

    def rollout(self, rollout: "Rollout", **query: object) -> str:
        """Return the address of a roll-out's page."""
        return self._with(reverse("watch-rollout", args=(rollout.name,)), rollout.project, query)

    def group(self, rollout: "Rollout", **query: object) -> str:
        """Return the address of the table of a roll-out's group."""
        return self._with(reverse("watch-rollouts"), rollout.project, {"group": rollout.group, **query})

    def _with(self, url: str, project: str, query: Mapping[str, object]) -> str:
        named = {name: value for name, value in query.items() if value is not None}
        if self.is_staff:
            named = {"project": project, **named}
        return f"{url}?{urlencode(named)}" if named else url
