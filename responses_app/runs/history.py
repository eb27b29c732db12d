"""What a request continues: `previous_response_id` → the chain with its tokens, and replayed items → theirs."""

from collections.abc import Callable, Mapping

from responses_app.protocol import ids
from responses_app.protocol.chain import ChainLink
from responses_app.protocol.errors import (
    ApiError,
    invalid_request,
    overloaded,
    previous_response_in_progress,
    previous_response_not_found,
)
from responses_app.protocol.items import ItemReference, SampledItem
from responses_app.protocol.requests import CreateRequest
from responses_app.runs.registry import RunRegistry
from responses_app.stores.base import BaseResponseStore, StoreError

Recall = Callable[[str], ChainLink | None]  # what a connection itself remembers, by response id


class History:
    """Resolves first in the connection, then among what runs, then in the store."""

    def __init__(self, store: BaseResponseStore, registry: RunRegistry) -> None:
        self._store = store
        self._registry = registry

    async def parent(self, project: str, response_id: str | None, recall: Recall) -> ChainLink | None:
        """Return the chain that ends in `response_id`. Raises `ApiError` if there is none to continue."""
        if response_id is None:
            return None
        known = recall(response_id)
        if known is not None:
            return known
        running = self._registry.get(response_id)
        if running is not None and running.plan.origin.project == project:
            raise previous_response_in_progress(response_id)
        try:
            link = await self._store.chain(project, response_id)
        except StoreError as error:
            raise _store_away() from error
        if link is None:
            raise previous_response_not_found(response_id)
        return link

    async def sampled_items(self, project: str, request: CreateRequest) -> Mapping[str, SampledItem]:
        """Return what this server knows of the items a request replays.

        Raises `ApiError` for an `item_reference`: they are resolved once conversations are built.
        """
        for index, item in enumerate(request.input):
            if isinstance(item, ItemReference):
                raise _unresolved_reference(index, item.id)
        replayed = {item.id for item in request.input if item.id and item.id.startswith(_OWN_PREFIXES)}
        if not replayed:
            return {}
        try:
            return await self._store.sampled_items(project, replayed)
        except StoreError as error:
            raise _store_away() from error


_OWN_PREFIXES = (ids.MESSAGE, ids.REASONING, ids.FUNCTION_CALL)


def _unresolved_reference(index: int, item_id: str) -> ApiError:
    param = f"input[{index}].id"
    return invalid_request(f"Item with id '{item_id}' not found ('{param}'). Send the item itself.", param=param)


def _store_away() -> ApiError:
    return overloaded("The response store cannot be reached. Try again shortly.", retry_after=2)
