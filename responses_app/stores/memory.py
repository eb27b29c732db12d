"""A store that forgets with the process: for tests, and for servers that want no database writes."""

from collections.abc import Collection, Mapping

from responses_app.protocol.chain import ChainLink
from responses_app.protocol.items import SampledItem
from responses_app.stores.base import BaseResponseStore, StoredResponse


class MemoryResponseStore(BaseResponseStore):
    """Keeps at most `max_entries` responses; the oldest go first."""

    def __init__(self, *, max_entries: int = 10_000) -> None:
        self._max_entries = max_entries
        self._responses: dict[tuple[str, str], StoredResponse] = {}
        self._items: dict[tuple[str, str], SampledItem] = {}

    async def save(self, stored: StoredResponse) -> None:
        self._responses[stored.project, str(stored.response["id"])] = stored
        for sampled in stored.sampled:
            self._items[stored.project, sampled.id] = sampled
        while len(self._responses) > self._max_entries:
            oldest = self._responses.pop(next(iter(self._responses)))
            for sampled in oldest.sampled:
                self._items.pop((oldest.project, sampled.id), None)

    async def chain(self, project: str, response_id: str) -> ChainLink | None:
        stored = self._responses.get((project, response_id))
        return stored.link if stored else None

    async def sampled_items(self, project: str, item_ids: Collection[str]) -> Mapping[str, SampledItem]:
        found = ((item_id, self._items.get((project, item_id))) for item_id in item_ids)
        return {item_id: sampled for item_id, sampled in found if sampled}

    async def check(self) -> str | None:
        return None
