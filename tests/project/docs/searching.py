"""Asks the search of the built pages in a browser, as a reader does."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote_plus

from tests.kit.browser import chromium, opened

FIRST = 3  # results that one looks at
_DONE = """() => {
    const told = document.querySelector(".search-summary")?.innerText ?? "";
    return /^(Search finished|Your search did not match)/.test(told);
}"""
_PAGES = "links => links.map(link => link.getAttribute('href').split(/[?#]/)[0].replace(/\\.html$/, ''))"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


@contextmanager
def _served(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def first_pages(site: Path, questions: Iterable[str]) -> Mapping[str, list[str]]:
    """Return the first pages that the search finds for each question."""
    found = {}
    with _served(site) as url, chromium() as browser, opened(browser) as page:
        for question in questions:
            page.goto(f"{url}/search.html?q={quote_plus(question)}")
            page.wait_for_function(_DONE)
            pages = page.eval_on_selector_all("#search-results ul.search li > a", _PAGES)
            found[question] = list(dict.fromkeys(pages))[:FIRST]
    return found
