"""`file_search` as requests declare it, and what of its results messages can cite.

    The shell is bone【0:2†turtles.pdf】.   ->   The shell is bone.   with a file_citation at its index

The first number counts the searches of a chain, the second the results of one. What was found is the tool's state, so
citations hold along a chain: `{"first", "found": [[[file id, name], …], …]}`, the newest last.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.fields import ClientModel, ToolModel
from responses_app.protocol.files.attribute_filters import Filter
from responses_app.protocol.files.vector_stores import DEFAULT_RESULTS, MAX_RESULTS
from responses_app.protocol.validation import validate

FOUND = "file_search_call"  # the type of items whose tool keeps it
MAX_STORES = 20
MAX_KEPT = 200  # results of a chain that can be cited
MAX_BYTES = 48 * 1024  # of what is kept of them, as JSON: but the latest search, which has `MAX_RESULTS`, always is
_MAX_ID = 64


class _HybridSearch(ClientModel):
    """How words count beside meanings: there are only words here."""

    embedding_weight: float
    text_weight: float

    idle: ClassVar = dict.fromkeys(("embedding_weight", "text_weight"), "There are only words here.")
    told: ClassVar = ("embedding_weight", "text_weight")


class _Ranking(ClientModel):
    """How results are ranked. There is one ranker here, whatever is asked for."""

    ranker: Literal["none", "auto", "default-2024-11-15"] | None = None
    score_threshold: float | None = Field(default=None, ge=0, le=1)
    hybrid_search: _HybridSearch | None = None

    idle: ClassVar = {"ranker": "There is one ranker."}


class FileSearch(ToolModel):
    """The tool."""

    vector_store_ids: list[str] = Field(min_length=1, max_length=MAX_STORES)
    max_num_results: int | None = Field(default=None, ge=1, le=MAX_RESULTS)
    filters: JsonObject | None = None
    ranking_options: _Ranking | None = None


def echoed_file_search(tool: JsonObject, at: str) -> JsonObject:
    """Validate a file search as a tool of a request; return it as it is echoed. Raises `ApiError`."""
    search = validate(FileSearch, tool, at=at)
    if search.filters is not None:
        Filter(search.filters, at=f"{at}.filters")
    ranking = search.ranking_options or _Ranking()
    hybrid = ranking.hybrid_search
    return {
        "type": "file_search",
        "vector_store_ids": search.vector_store_ids,
        "max_num_results": search.max_num_results or DEFAULT_RESULTS,
        "filters": search.filters,
        "ranking_options": {
            "ranker": ranking.ranker or "auto",
            "score_threshold": ranking.score_threshold or 0.0,
            **({} if hybrid is None else {"hybrid_search": hybrid.model_dump()}),
        },
    }


class FoundFiles:
    """What the searches of a chain have found: the id and the name of the file of each result."""

    def __init__(self, state: JsonObject | None) -> None:
        known: dict[str, Any] = state or {"first": 0, "found": []}
        self._first: int = known["first"]
        self._found: list[list[tuple[str, str]]] = [
            [(file_id, name) for file_id, name in search] for search in known["found"]
        ]

    @property
    def next_search(self) -> int:
        """The number of the search that comes next."""
        return self._first + len(self._found)

    def add(self, found: Sequence[tuple[str, str]]) -> None:
        """Take what a search has found; the oldest are forgotten."""
        self._found.append(list(found))
        while len(self._found) > 1 and self._are_too_many():
            del self._found[0]
            self._first += 1

    def as_json(self) -> JsonObject:
        """Return it as it is kept."""
        return {"first": self._first, "found": [[list(each) for each in search] for search in self._found]}

    def _are_too_many(self) -> bool:
        return sum(map(len, self._found)) > MAX_KEPT or len(orjson.dumps(self.as_json())) > MAX_BYTES

    def file(self, search: int, result: int) -> tuple[str, str] | None:
        """Return the id and the name of the file of a result."""
        place = search - self._first
        if not 0 <= place < len(self._found) or result >= len(self._found[place]):
            return None
        return self._found[place][result]
