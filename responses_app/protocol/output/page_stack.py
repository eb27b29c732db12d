"""`PageStack`: the pages of the web that a chain was shown, by their cursors. It is state of the chain, kept as JSON.

What a page says is not kept, only how to have it again: so a chain goes on after a restart, and on other workers.
Citations need nothing else: which page, and what stood in that line of a list of results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from responses_app.protocol.errors import JsonObject

PAGES = "web_search_call"  # the type of items whose tool keeps it
MAX_BYTES = 48 * 1024  # of the state, about: older pages are gone, and the results of older searches before them
MAX_TITLE = 200  # characters


class Listed(NamedTuple):
    """A result of a search: the line of the list in which it begins, its address and its title."""

    line: int
    url: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page that was shown: one that was opened, what was found in one, or the results of a search.

    `kind` is "page", "source" (a page as it is written), "find" or "search". `url` is the page's, "" for results; of
    these `listed` are left, as long as they are not too old. `pattern` is what was looked for.
    """

    kind: str
    url: str
    title: str
    pattern: str = ""
    listed: Sequence[Listed] = ()

    def source(self, line: int) -> tuple[str, str] | None:
        """Return address and title of what a line shows, None where that is nothing in the web."""
        if self.url:
            return self.url, self.title
        above = [each for each in self.listed if each.line <= line]
        return (above[-1].url, above[-1].title) if above else None


@dataclass(slots=True)
class PageStack:
    """`first` is the cursor of the first of `pages`."""

    pages: list[Shown] = field(default_factory=list)
    first: int = 0

    @classmethod
    def from_json(cls, state: JsonObject | None) -> "PageStack":
        """Read what `as_json` has written."""
        known: dict[str, Any] = state or {"pages": [], "first": 0}
        pages = [
            Shown(kind=kind, url=url, title=title, pattern=pattern, listed=tuple(Listed(*each) for each in listed))
            for kind, url, title, pattern, listed in known["pages"]
        ]
        return cls(pages, known["first"])

    def as_json(self) -> JsonObject:
        """Return it as it is kept: the latest pages, as many as `MAX_BYTES` hold."""
        pages: list[object] = []
        left = MAX_BYTES
        for each in reversed(self.pages):
            listed = [list(one) for one in each.listed] if left > MAX_BYTES // 2 else []
            page: list[object] = [each.kind, each.url, each.title, each.pattern, listed]
            left -= len(str(page).encode())
            if left < 0 and pages:
                break
            pages.append(page)
        return {"pages": pages[::-1], "first": self.next_cursor - len(pages)}

    @property
    def next_cursor(self) -> int:
        """The cursor of the page that is shown next."""
        return self.first + len(self.pages)

    def push(self, shown: Shown) -> None:
        """Show a page."""
        self.pages.append(replace(shown, title=shown.title[:MAX_TITLE]))

    def at(self, cursor: int) -> Shown | None:
        """Return the page of a cursor; -1 is the latest. None where there is none, or none any more."""
        if cursor == -1:
            return self.pages[-1] if self.pages else None
        place = cursor - self.first
        return self.pages[place] if 0 <= place < len(self.pages) else None

    def source(self, cursor: int, line: int) -> tuple[str, str] | None:
        """Return address and title of what a citation names."""
        shown = self.at(cursor) if cursor >= 0 else None
        return shown.source(line) if shown else None
