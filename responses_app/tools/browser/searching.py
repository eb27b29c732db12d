"""The contract of a search backend, and the page that shows its results."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from responses_app.protocol.output.page_stack import Listed
from responses_app.tools.network import AddressRefused, normal_host
from responses_app.tools.reading.pages import Page, domain_of, escaped, link, one_line, wrapped

MAX_QUERY = 1000  # characters
MAX_SNIPPET = 400  # characters of what a result says of its page
MAX_URL = 2048  # characters
MAX_RESULTS = 20
_FEW = 5  # domains that a query can name
_URL = re.compile(r"https?://[^\s\x00-\x1f\x7f]+", re.IGNORECASE)


class SearchFailed(Exception):
    """The backend gave no results; the text is for the model and the client, and may name a setting."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A page that was found. `snippet` is a little of its text."""

    url: str
    title: str
    snippet: str = ""


class BaseSearch(ABC):
    """Searches the web. Belongs to one event loop, which closes it."""

    @abstractmethod
    async def search(self, query: str, *, count: int) -> list[SearchResult]:
        """Return what was found, best first: about `count`, any number is right. Raises `SearchFailed`."""

    async def aclose(self) -> None:
        """Close connections."""
        return None


def result_of(url: object, title: object, snippet: object) -> SearchResult | None:
    """Return a result that a backend tells of, None where it is not one: backends may tell anything."""
    if not isinstance(url, str) or len(url) > MAX_URL or not _URL.fullmatch(url) or not domain_of(url):
        return None
    shown = escaped(one_line(title)) if isinstance(title, str) else ""
    said = escaped(one_line(snippet))[:MAX_SNIPPET] if isinstance(snippet, str) else ""
    return SearchResult(url, shown or domain_of(url), said)


def within(query: str, domains: Collection[str]) -> str:
    """Return a query for pages of these domains only, where they are few enough to be named."""
    if not 0 < len(domains) <= _FEW:
        return query
    return f"{query} {' OR '.join(f'site:{domain}' for domain in domains)}"


def is_within(url: str, domains: Collection[str]) -> bool:
    """Whether a URL is of one of these domains, or of one below them; no domains are all."""
    host = normal_domain(domain_of(url))
    return not domains or any(host == domain or host.endswith(f".{domain}") for domain in domains)


def normal_domain(domain: str) -> str:
    """Return a domain in the form in which domains are compared: that of the name system."""
    try:
        return normal_host(domain)
    except AddressRefused:
        return domain.lower()


def results_page(query: str, results: Iterable[SearchResult]) -> tuple[Page, Sequence[Listed]]:
    """Return the page that shows results, and where on it each stands."""
    lines, listed, links = ["# Search Results", ""], [], []
    for number, result in enumerate(results):
        listed.append(Listed(len(lines), result.url, result.title))
        links.append(result.url)
        shown = link(number, result.title, domain_of(result.url))
        lines += [
            f"    {line}" if place else f"  * {line}" for place, line in enumerate(wrapped(f"{shown} {result.snippet}"))
        ]
    if not links:
        lines.append("Nothing was found.")
    return Page(url="", title=escaped(one_line(query)), lines=lines, links=links, is_list=True), listed
