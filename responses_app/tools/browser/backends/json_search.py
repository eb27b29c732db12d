"""Search backends that answer with JSON over HTTP: a SearXNG of the operator's, or the server that comes with `ddgs`.

    SEARCH_URL=http://searxng:8080         GET /search?q=…&format=json   {"results": [{"url", "title", "content"}]}
    SEARCH_URL=ddgs+http://127.0.0.1:8000  GET /search/text?query=…      {"results": [{"href", "title", "body"}]}

The operator names the server, so it may be anywhere; a redirect of it may not lead elsewhere in the operator's network.
"""

from collections.abc import Mapping
from typing import ClassVar

import orjson

from responses_app.tools.browser.searching import MAX_RESULTS, BaseSearch, SearchFailed, SearchResult, result_of
from responses_app.tools.fetching import Fetched, Fetcher, FetchLimits
from responses_app.tools.network import AllowedHosts, Network, NetworkError

LIMITS = FetchLimits(seconds=20, max_bytes=2 * 1024 * 1024, max_redirects=2, whole=True)
DDGS = "ddgs+"  # before the URL of a server of `ddgs`


class JsonSearch(BaseSearch):
    """A search over HTTP. What it is asked, and which fields of a result are which, is its subclasses' to say."""

    path: ClassVar[str]
    fields: ClassVar[tuple[str, str, str]]  # of a result: address, title and text

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/").removesuffix(self.path) + self.path
        self._fetcher = Fetcher(Network("SEARCH_URL", AllowedHosts.of_url(url)))

    async def search(self, query: str, *, count: int) -> list[SearchResult]:
        try:
            fetched = await self._fetcher.get(
                self._url, LIMITS, params=self.parameters(query, count), accept="application/json"
            )
        except NetworkError as problem:
            raise SearchFailed(f"The search failed. {problem}") from None
        if fetched.status != 200:
            raise SearchFailed(self.refusal(fetched.status))
        return self._results(fetched)[:count]

    async def aclose(self) -> None:
        await self._fetcher.aclose()

    def parameters(self, query: str, count: int) -> Mapping[str, str]:
        """Return what is asked."""
        raise NotImplementedError

    def refusal(self, status: int) -> str:
        """Say what a status means that is not 200."""
        return f"The search failed: the search server (SEARCH_URL) answered with status {status}."

    def _results(self, fetched: Fetched) -> list[SearchResult]:
        try:
            answer = orjson.loads(fetched.body)
        except orjson.JSONDecodeError:
            raise SearchFailed("The search failed: the search server (SEARCH_URL) did not answer with JSON.") from None
        found = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(found, list):
            raise SearchFailed("The search failed: the answer of the search server (SEARCH_URL) has no 'results'.")
        address, title, text = self.fields
        told = (each for each in found if isinstance(each, dict))
        results = (result_of(each.get(address), each.get(title), each.get(text)) for each in told)
        return [result for result in results if result is not None]


class SearxngSearch(JsonSearch):
    """A SearXNG."""

    path = "/search"
    fields = ("url", "title", "content")

    def parameters(self, query: str, count: int) -> Mapping[str, str]:
        return {"q": query, "format": "json"}

    def refusal(self, status: int) -> str:
        if status == 403:
            return (
                "The search failed: SearXNG answered with status 403. Its settings.yml must have 'json' among "
                "'search.formats'."
            )
        if status == 429:
            return (
                "The search failed: SearXNG answered with status 429. Its limiter must let this server in "
                "('server.limiter' in its settings.yml)."
            )
        return super().refusal(status)


class DdgsSearch(JsonSearch):
    """The server that comes with the package `ddgs`."""

    path = "/search/text"
    fields = ("href", "title", "body")

    def parameters(self, query: str, count: int) -> Mapping[str, str]:
        return {"query": query, "max_results": str(min(count, MAX_RESULTS))}


def json_search(url: str) -> JsonSearch:
    """Return what searches at a SEARCH_URL."""
    return DdgsSearch(url.removeprefix(DDGS)) if url.startswith(DDGS) else SearxngSearch(url)
