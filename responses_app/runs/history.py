"""What a request continues: a chain with its tokens, a conversation with its items, replayed and referenced items."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from responses_app.protocol import ids
from responses_app.protocol.chain import ChainLink
from responses_app.protocol.client_kinds import CLIENT_KINDS
from responses_app.protocol.compaction import PURPOSE, Compacted
from responses_app.protocol.errors import (
    ApiError,
    JsonObject,
    conversation_not_found,
    invalid_encrypted_content,
    invalid_request,
    overloaded,
    previous_response_in_progress,
    previous_response_not_found,
)
from responses_app.protocol.item_resources import input_item_resource
from responses_app.protocol.items import (
    Compaction,
    InputItem,
    ItemReference,
    OpenedCompaction,
    SampledItem,
    parse_input,
)
from responses_app.protocol.prompt import Items, is_of_user, places_replaced, text_of
from responses_app.protocol.requests import CreateRequest
from responses_app.protocol.resources import RUNNING
from responses_app.protocol.sealing import SealBroken, Sealer
from responses_app.runs.registry import RunRegistry
from responses_app.stores.base import ConversationRecord, StoreError, Stores

logger = logging.getLogger("respsite.runs")

Recall = Callable[[str], ChainLink | None]  # what a connection itself remembers, by response id


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the model is to read: the chain of `parent`, then the items of its conversation, then the request's `own`.

    `before` has those of the conversation that the chain does not have. `sampled` is what this server knows of the
    items.
    """

    parent: ChainLink | None
    before: Items
    own: Items
    sampled: Mapping[str, SampledItem]
    conversation: ConversationRecord | None = None

    @property
    def raw(self) -> list[JsonObject]:
        """All items as JSON."""
        return [*self.before.raw, *self.own.raw]


class History:
    """Finds a chain first in the connection, then among what runs, then in the store."""

    def __init__(self, stores: Stores, registry: RunRegistry, *, sealer: Sealer) -> None:
        self._store = stores.responses
        self._conversations = stores.conversations
        self._registry = registry
        self._sealer = sealer

    async def context(self, project: str, request: CreateRequest, recall: Recall) -> Context:
        """Return what a request continues. Raises `ApiError` for what cannot be found."""
        try:
            return await self._context(project, request, recall)
        except StoreError as error:
            raise store_away() from error

    async def said_before(self, project: str, parent: ChainLink | None) -> list[tuple[str, JsonObject]]:
        """Return the user's messages, as text and as items, for which a compaction that a chain begins with stands.

        The chain has no tokens of them; what its first response was asked has them, where that is kept. Raises
        `ApiError` where the store is away.
        """
        if parent is None:
            return []
        try:
            kept = await self._store.input_items(project, parent.root_id)
        except StoreError as error:
            raise store_away() from error
        return await asyncio.to_thread(self._replaced_of_user, project, kept) if kept else []

    def _replaced_of_user(self, project: str, kept: Sequence[JsonObject]) -> list[tuple[str, JsonObject]]:
        parsed, raw = parse_input(list(kept))
        items = self._opened(project, Items(parsed, raw), named=False).parsed
        replaced = [(items[place], raw[place]) for place in sorted(places_replaced(items))]
        return [(text_of(item.content), input_item_resource(each)) for item, each in replaced if is_of_user(item)]

    async def _context(self, project: str, request: CreateRequest, recall: Recall) -> Context:
        own = await self._resolved(project, request)
        context = Context(parent=None, before=Items(), own=own, sampled={})
        if request.previous_response_id is not None:
            parent = await self._parent(project, request.previous_response_id, recall)
            context = replace(context, parent=parent)
        elif request.conversation_id is not None:
            context = await self._in_conversation(project, request.conversation_id, context)
        before, own = self._opened(project, context.before, named=False), self._opened(project, own, named=True)
        sampled = await self._sampled(project, [*before.parsed, *own.parsed])
        return replace(context, before=before, own=own, sampled=sampled)

    def _opened(self, project: str, items: Items, *, named: bool) -> Items:
        """Open the seals of compactions.

        Raises `ApiError` for a broken one in a request, whose items are `named` in errors. A conversation keeps what it
        was given: there a broken one stays as it is, and the model reads a note.
        """
        parsed = [
            self._open(project, item, index if named else None) if isinstance(item, Compaction) else item
            for index, item in enumerate(items.parsed)
        ]
        return Items(parsed, items.raw)

    def _open(self, project: str, item: Compaction, index: int | None) -> InputItem:
        try:
            data = self._sealer.open(PURPOSE, project, item.encrypted_content)
            return OpenedCompaction(Compacted.from_bytes(data), item.id)
        except SealBroken as problem:
            if index is not None:
                raise invalid_encrypted_content(
                    item.encrypted_content, f"input[{index}].encrypted_content"
                ) from problem
            logger.warning("compaction %s of a conversation cannot be read: %s", item.id, problem)
            return item

    async def _parent(self, project: str, response_id: str, recall: Recall) -> ChainLink:
        known = recall(response_id)
        if known is not None:
            return known
        running = self._registry.get(response_id)
        if running is not None and running.plan.origin.project == project:
            raise previous_response_in_progress(response_id)
        link = await self._store.chain(project, response_id)
        if link is None:
            kept = await self._store.response(project, response_id)
            if kept is not None and kept["status"] in RUNNING:  # another worker runs it
                raise previous_response_in_progress(response_id)
            raise previous_response_not_found(response_id)
        return link

    async def _in_conversation(self, project: str, conversation_id: str, context: Context) -> Context:
        """Put the conversation before the request's items: the chain of its head, and what was added since."""
        record = await self._conversations.get(project, conversation_id)
        if record is None:
            raise conversation_not_found(conversation_id, param="conversation")
        head = await self._store.chain(project, record.head) if record.head else None
        covered = record.head_position if head else 0
        entries = await self._conversations.entries_since(project, conversation_id, covered)
        before = Items(*parse_input([entry.item for entry in entries]))
        return replace(context, parent=head, before=before, conversation=record)

    async def _resolved(self, project: str, request: CreateRequest) -> Items:
        """Return a request's items with the items that it names by their ids."""
        named = {item.id for item in request.input if isinstance(item, ItemReference)}
        if not named:
            return Items(request.input, request.input_json)
        known = await self._store.items(project, named)
        for index, item in enumerate(request.input):
            if isinstance(item, ItemReference) and item.id not in known:
                raise _unresolved_reference(index, item.id)
        whole = [
            known[item.id] if isinstance(item, ItemReference) else raw
            for item, raw in zip(request.input, request.input_json, strict=True)
        ]
        return Items(*parse_input(whole))

    async def _sampled(self, project: str, items: Sequence[InputItem]) -> Mapping[str, SampledItem]:
        replayed = {item.id for item in items if item.id and item.id.startswith(_OWN_PREFIXES)}
        return await self._store.sampled_items(project, replayed) if replayed else {}


_OWN_PREFIXES = (
    ids.MESSAGE,
    ids.REASONING,
    ids.FUNCTION_CALL,
    ids.CUSTOM_TOOL_CALL,
    *(kind.prefix for kind in CLIENT_KINDS.values()),
)


def _unresolved_reference(index: int, item_id: str) -> ApiError:
    param = f"input[{index}].id"
    return invalid_request(f"Item with id '{item_id}' not found ('{param}'). Send the item itself.", param=param)


def store_away() -> ApiError:
    """The store fails; the log says why."""
    return overloaded("The response store cannot be reached. Try again shortly.", retry_after=2)
