"""`PageCache`: pages that were read lately, so that scrolling and finding in them fetches nothing."""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from responses_app.tools.reading.pages import Page

MAX_BYTES = 32 * 1024 * 1024  # of one worker, about
SECONDS = 1800.0  # then a page is fetched anew, though it was shown


class PageCache:
    """Of one worker. Pages are kept by project and address: what one project has read, no other one sees."""

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, seconds: float = SECONDS, now: Callable[[], float] = monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._now = now
        self._pages: OrderedDict[tuple[str, str], tuple[float, int, Page]] = OrderedDict()
        self.bytes = 0

    def get(self, project: str, url: str) -> Page | None:
        """Return a page, None where it is not kept, or too old."""
        entry = self._pages.get((project, url))
        if entry is None:
            return None
        until, _, page = entry
        if until < self._now():
            self._drop((project, url))
            return None
        self._pages.move_to_end((project, url))
        return page

    def put(self, project: str, url: str, page: Page) -> None:
        """Keep a page; those that were not asked for the longest go first."""
        key, size = (project, url), _size(page)
        self._drop(key)
        if size > self._max_bytes:
            return
        self._pages[key] = (self._now() + self._seconds, size, page)
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: tuple[str, str]) -> None:
        entry = self._pages.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]


def _size(page: Page) -> int:
    """Return about how much memory a page takes."""
    overhead = 80  # of a text, and its place in a list
    return sum(len(line) + overhead for line in (*page.lines, *page.links)) + overhead
