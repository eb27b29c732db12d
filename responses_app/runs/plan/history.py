"""What a request continues: a chain with its tokens, a conversation with its items, replayed and referenced items.

All of it is read in the format of the request's model, and a conversation may have begun with a model of another one.
Token ids of one vocabulary mean other text in another. So a message of another format is told (`PlainMessage`: who says
what to whom), and rendered anew; its tokens are used no more. The same message gives the same tokens each time, so what
follows finds its own prompt in the engine's cache. What is already in the model's own format stays as it was sampled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.formats.base import MessageKind, ModelFormat, RenderedMessage
from responses_app.protocol import ids
from responses_app.protocol.api_keys import READS_CONVERSATIONS, missing_scope
from responses_app.protocol.errors import (
    JsonObject,
    conversation_not_found,
    invalid_request,
    previous_response_in_progress,
    previous_response_not_found,
    unsupported_parameter,
)
from responses_app.protocol.events.dialects import OPENAI, Dialect
from responses_app.protocol.fields import missing
from responses_app.protocol.ids import PublicId, TurnLeg, leg_to_continue
from responses_app.protocol.items.calls import CLIENT_KINDS, answered_calls, comes_back, written_calls
from responses_app.protocol.items.client_tools import late_tools
from responses_app.protocol.items.items import (
    Exact,
    InputItem,
    ItemReference,
    NamelessCall,
    OpenedCompaction,
    SampledInput,
    SampledMessage,
    parse_input,
)
from responses_app.protocol.items.media import ReadDocument, files_in, images_in
from responses_app.protocol.items.resources import input_item_resource
from responses_app.protocol.prompt.chain import ChainLink, rewritten
from responses_app.protocol.prompt.rendering import Items, is_of_user, places_replaced, text_of, with_results
from responses_app.protocol.prompt.replaying import KnownTurn, PlacedTurn, keys_of, sampled_items, turns_of_items
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.protocol.requests.resources import RUNNING, Status
from responses_app.protocol.requests.server_tools import is_image_by_id
from responses_app.protocol.sealing import Sealer
from responses_app.runs.plan.pictures import PictureReading, ShownPictures
from responses_app.runs.plan.plan import Origin
from responses_app.runs.plan.reading import FileReading, Unsealing, is_sealed, no_reader
from responses_app.runs.plan.served import Tell
from responses_app.runs.plan.stores import Stores

if TYPE_CHECKING:
    from responses_app.resources.conversations.model import Conversation

LONG_INPUT = 20_000  # bytes of JSON; so much is opened and rendered in 5 ms at most

_NOTHING = Items()
Recall = Callable[[str], ChainLink | None]  # what a connection itself remembers, by response id
RecallTurns = Callable[[Sequence[bytes]], Awaitable[Mapping[bytes, KnownTurn]]]  # see `KnownTurns.recall`


@dataclass(slots=True, kw_only=True)
class Context:
    """What the model is to read: a chain, then the items of its conversation, then the request's own."""

    parent: ChainLink | None  # the chain; None for a new one
    before: Items  # those of the conversation that the chain does not have
    own: Items  # the request's
    sampled: Mapping[str, SampledMessage]  # what this server knows of the items, by their ids
    # What clients call the response if it goes on with the turn of `parent`; None: its own id
    next_leg: PublicId | None = None
    conversation: "Conversation | None" = None  # that the response is added to
    shows_files: bool = False  # files stand in the items, of any size
    pictures: ShownPictures  # that the model is shown

    raw: Sequence[JsonObject] = ()  # all items as JSON
    late_tools: Sequence[JsonObject] = ()  # that the items of the conversation declare, the latest last


class History:
    """What requests continue: a chain is looked for in the connection first, then among what runs, then in the store.

    `runs` says whether a response of a project runs here.
    """

    def __init__(
        self,
        stores: Stores,
        *,
        runs: Callable[[str, str], bool],
        sealer: Sealer,
        read_document: ReadDocument = no_reader,
        pictures: PictureReading,
    ) -> None:
        self._store = stores.responses
        self._conversations = stores.conversations
        self._runs = runs
        self._sealer = sealer
        self._files = FileReading(stores.files, read_document)
        self.pictures = pictures

    async def context(
        self,
        origin: Origin,
        request: CreateRequest,
        recall: Recall,
        *,
        dialect: Dialect = OPENAI,
        model_format: ModelFormat,
        named_pictures: Mapping[str, str] = MappingProxyType({}),
    ) -> Context:
        """Return what a request continues, as the model of this format reads and sees it.

        `named_pictures` are those that its response was shown before (`ShownPictures.named`).
        Raises `ApiError` for what cannot be found, or cannot be shown, and `StoreError`.
        """
        project, own = origin.project, await self._resolved(origin, request)
        pictures = self.pictures.shown(project, named_pictures)
        context = Context(parent=None, before=_NOTHING, own=own, sampled={}, pictures=pictures)
        if request.previous_response_id is not None:
            completed = dialect.completed_calls_are_answered
            answered = answered_calls(own.raw, completed=completed)
            parent, next_leg = await self._continued(project, request.previous_response_id, recall, answered)
            context.parent, context.next_leg = parent, next_leg
            if completed and any(map(comes_back, own.raw)):
                context.own = with_results(own, await self._awaited(project, parent))
        elif request.conversation_id is not None:
            await self._put_conversation_before(project, request.conversation_id, context)
        for index, item in enumerate(context.own.parsed):
            if isinstance(item, NamelessCall) and not item.name:
                raise missing(f"input[{index}].name")
        await self._read(project, request, context, sees=model_format.sees)
        parsed = [*context.before.parsed, *context.own.parsed]
        replayed = {item.id for item in parsed if item.id and item.id.startswith(_OWN_PREFIXES)}
        if replayed:
            context.sampled = await self._store.sampled_items(project, replayed)
        context.raw = [*context.before.raw, *context.own.raw]
        context.late_tools = late_tools(context.raw)
        if context.parent is not None:
            context.late_tools = [*context.parent.all_late_tools(), *context.late_tools]
        return context

    async def _read(self, project: str, request: CreateRequest, context: Context, *, sees: bool) -> None:
        """Open what is sealed in the items, and read their files and pictures, as far as the model `sees` any."""
        if any(each.parsed and is_sealed(each) for each in (context.before, context.own)):
            await self._open(project, request, context)
        context.shows_files = any(files_in([*context.before.parsed, *context.own.parsed]))
        if context.shows_files:
            see = partial(self.pictures.of_file, project, context.pictures) if sees else None
            context.before, context.own = await self._files.read(project, context.before, context.own, see=see)
        if not sees:
            for source in images_in(context.own.parsed, context.own.raw):
                path = f"input{source.path}"
                if self.pictures.settings.refuse_images:
                    raise unsupported_parameter(path, "The model cannot see images (REFUSE_IMAGES=on). Leave it out.")
                request.note_ignored(path)
            return
        # Images of the request, and those in memory that only its connection knows.
        for link in context.parent.unstored() if context.parent else ():
            context.pictures.hold(link.pictures)
        read = self.pictures.read(project, context.before, context.own, context.pictures)
        context.before, context.own = await read

    async def said_before(self, project: str, parent: ChainLink | None) -> list[tuple[str, JsonObject]]:
        """Return the user's messages, as text and as items, for which a compaction that a chain begins with stands.

        The chain has no tokens of them; what its first response was asked has them, where that is kept. Raises
        `StoreError`.
        """
        if parent is None:
            return []
        kept = await self._store.input_items(project, parent.root_id)
        if not kept:
            return []
        items = await asyncio.to_thread(self._parsed, project, kept)
        if any(files_in(items.parsed)):
            items, _ = await self._files.read(project, items, _NOTHING)
        return await asyncio.to_thread(_replaced_of_user, items)

    def _parsed(self, project: str, kept: Sequence[JsonObject]) -> Items:
        return Unsealing(self._sealer, project).opened(Items(*parse_input(list(kept))), named=False)

    async def _awaited(self, project: str, parent: ChainLink) -> dict[str, JsonObject]:
        """Return what the calls that a chain waits for called, and with what, by their ids."""
        kept = None if parent.waiting else await self._store.response(project, parent.response_id)
        written = parent.waiting if kept is None else written_calls(kept["output"])
        return {call_id: written.get(call_id, {}) for call_id in parent.awaited}

    async def _open(self, project: str, request: CreateRequest, context: Context) -> None:
        """Open the seals of a conversation's items and of the request's own. Raises `ApiError` for a broken one."""
        note = request.note_ignored if request.ignored is not None and request.ignored.foreign_seals else None
        unsealing, before, own = Unsealing(self._sealer, project, note=note), context.before, context.own

        def opened() -> tuple[Items, Items]:
            return unsealing.opened(before, named=False), unsealing.opened(own, named=True)

        is_long = _is_long(request, before, own)
        context.before, context.own = await asyncio.to_thread(opened) if is_long else opened()

    async def _continued(
        self, project: str, named: str, recall: Recall, answered: Set[str]
    ) -> tuple[ChainLink, PublicId | None]:
        """Return the chain that a request continues, and what the next leg of its turn is called, if it is one's.

        The request has `named` the response, by its own or its public id, and says what came of the calls `answered`.
        """
        # First the connection, which also has what is not stored; then own ids; then names of turns.
        known = recall(named)
        if known is not None and known.public is None:
            return known, None
        if known is None and (link := await self._ended(project, named)) is not None:
            return link, None
        return await self._turn(project, named, known, answered)

    async def _turn(
        self, project: str, name: str, known: ChainLink | None, answered: Set[str]
    ) -> tuple[ChainLink, PublicId]:
        """Return the leg of a turn that a request continues, and what the next leg is called.

        `known` is one that the connection remembers; of those that are kept, others may have made more.
        """
        lineage = known.lineage() if known is not None else ()
        links = {link.response_id: link for link in lineage if link.public is not None and link.public.name == name}
        if known is None or known.stored:
            # Another connection may have gone on with a stored turn: the store knows all its legs.
            legs = await self._store.legs(project, name)
        else:
            legs = [_as_leg(link) for link in links.values()]
        if any(leg.status in RUNNING for leg in legs):
            raise previous_response_in_progress(name)
        leg = leg_to_continue(legs, answered)
        link = None
        if leg is not None:
            link = links.get(leg.response_id) or await self._leg(project, name, leg)
        if link is None:
            raise previous_response_not_found(name)
        # The newest leg comes first: the next one gets the number behind it, whichever leg is continued.
        return link, PublicId(name, legs[0].number).next_leg

    async def _leg(self, project: str, name: str, leg: TurnLeg) -> ChainLink | None:
        """Return the chain of a leg that is kept, None if it has gone meanwhile."""
        link = await self._store.chain(project, leg.response_id)
        kept = await self._store.response(project, leg.response_id) if link is not None else None
        if link is None or kept is None:
            return None
        return replace(link, public=PublicId(name, leg.number), continues=kept["previous_response_id"])

    async def _ended(self, project: str, response_id: str) -> ChainLink | None:
        """Return the chain of a response by its own id, None where it cannot be continued.

        Raises `ApiError` for one that still runs.
        """
        if self._runs(project, response_id):
            raise previous_response_in_progress(response_id)
        # Asked after `_runs`: what ends here in between is in the store by now.
        link = await self._store.chain(project, response_id)
        if link is None:
            kept = await self._store.response(project, response_id)
            if kept is not None and kept["status"] in RUNNING:  # another worker runs it
                raise previous_response_in_progress(response_id)
        return link

    async def _put_conversation_before(self, project: str, conversation_id: str, context: Context) -> None:
        """Put the conversation before the request's items: the chain of its head, and what was added since."""
        record = await self._conversations.get(project, conversation_id)
        if record is None:
            raise conversation_not_found(conversation_id, param="conversation")
        head = await self._store.chain(project, record.head) if record.head else None
        # Where the head's chain is gone, all items of the conversation are read anew.
        covered = record.head_position if head else 0
        rows = await self._conversations.items_since(project, conversation_id, covered)
        context.before = Items(*parse_input([row.item for row in rows]))
        context.parent, context.conversation = head, record

    async def _resolved(self, origin: Origin, request: CreateRequest) -> Items:
        """Return a request's items with the items that it names by their ids.

        Those of conversations are for keys that may read conversations.
        """
        reads_all = not origin.scopes or READS_CONVERSATIONS in origin.scopes
        if not reads_all:
            await self._check_images(origin.project, request.input_json)
        named = {item.id for item in request.input if isinstance(item, ItemReference)}
        if not named:
            return Items(request.input, request.input_json)
        known = await self._store.items(origin.project, named, conversations=reads_all)
        for index, item in enumerate(request.input):
            if isinstance(item, ItemReference) and item.id not in known:
                if not reads_all:
                    raise missing_scope(READS_CONVERSATIONS, param=f"input[{index}].id")
                param = f"input[{index}].id"
                message = f"Item with id '{item.id}' not found ('{param}'). Send the item itself."
                raise invalid_request(message, param=param)
        whole = [
            known[item.id] if isinstance(item, ItemReference) else raw
            for item, raw in zip(request.input, request.input_json, strict=True)
        ]
        return Items(*parse_input(whole))

    async def _check_images(self, project: str, items: Sequence[JsonObject]) -> None:
        """Raise `ApiError` (403) where an image is named by its id alone, and only conversations have it."""
        places = {str(item.get("id")): place for place, item in enumerate(items) if is_image_by_id(item)}
        if not places:
            return
        # An image of a response may be read by any key; only what no response has can be a conversation's.
        of_responses = await self._store.items(project, places, conversations=False)
        known = await self._store.items(project, places.keys() - of_responses.keys())
        if known:
            raise missing_scope(READS_CONVERSATIONS, param=f"input[{min(places[each] for each in known)}].id")


async def with_known_turns(request: CreateRequest, context: Context, recall: RecallTurns) -> Context:
    """Return what a request continues with its turns as they were sampled, as far as `recall` knows them."""
    parts = (context.before, context.own)

    def placed() -> list[list[PlacedTurn]]:
        parent, sampled = context.parent, context.sampled
        return [
            turns_of_items(each.parsed, each.raw, parent=parent, sampled=sampled) if each.parsed else []
            for each in parts
        ]

    turns = await asyncio.to_thread(placed) if _is_long(request, *parts) else placed()
    known = await recall(keys) if (keys := keys_of(turn.seen for each in turns for turn in each)) else {}
    if not known:
        return context
    before, own = (
        Items(sampled_items(items.parsed, each, known.get), items.raw) for items, each in zip(parts, turns, strict=True)
    )
    return replace(context, before=before, own=own)


def _is_long(request: CreateRequest, before: Items, own: Items) -> bool:
    """Whether reading a request's items may hold up the event loop."""
    # Items from the store or a conversation may be of any size.
    # `own.raw` is another list where items were named by their ids, and came from the store.
    return request.size > LONG_INPUT or bool(before.parsed) or own.raw is not request.input_json


def _as_leg(link: ChainLink) -> TurnLeg:
    """Return a leg that only a connection remembers: one that can be continued."""
    assert link.public is not None, "it is a leg"
    return TurnLeg(link.response_id, link.public.leg, Status.COMPLETED.value, link.awaited.keys())


def _replaced_of_user(items: Items) -> list[tuple[str, JsonObject]]:
    replaced = [(items.parsed[place], items.raw[place]) for place in sorted(places_replaced(items.parsed))]
    return [(text_of(item.content), input_item_resource(each)) for item, each in replaced if is_of_user(item)]


_OWN_PREFIXES = (
    ids.MESSAGE,
    ids.REASONING,
    ids.FUNCTION_CALL,
    ids.CUSTOM_TOOL_CALL,
    *(kind.prefix for kind in CLIENT_KINDS.values()),
)


_OF_THE_MODEL = (MessageKind.ANALYSIS, MessageKind.COMMENTARY, MessageKind.FINAL)


class _Unreadable(ValueError):
    """A message that nobody can read."""


class _Rewrite:
    """Messages of any format → those of one. Raises `_Unreadable`."""

    def __init__(self, model_format: ModelFormat, told: Tell) -> None:
        self._format = model_format
        self._told = told

    @property
    def name(self) -> str:
        """The format's."""
        return self._format.name

    def is_own(self, message: RenderedMessage) -> bool:
        """Whether a message stays as it is."""
        return not message.tokens or self._format.wrote(message.tokens[0])

    def __call__(self, message: RenderedMessage) -> Sequence[RenderedMessage]:
        """Return a message as this format writes it."""
        if self.is_own(message):
            return [message]
        parts = self._told(message)
        if parts is None:
            raise _Unreadable
        made = [self._format.render_plain(each) for each in parts]
        # What stands for no message of the user keeps its kind; whether a thought is dropped later is the format's.
        return made if message.kind in _OF_THE_MODEL else [replace(each, kind=message.kind) for each in made]


def is_foreign(parent: ChainLink | None, model_format: ModelFormat) -> bool:
    """Whether a chain has a message of another format."""
    links = parent.lineage() if parent is not None else ()
    return not all(model_format.wrote(token) for token in {token for link in links for token in link.own.beginnings()})


def in_format(context: Context, model_format: ModelFormat, told: Tell) -> Context:
    """Return what a request continues with all its messages in one format. Raises `ApiError` where that fails."""
    parsed = (*context.before.parsed, *context.own.parsed)
    if (
        context.parent is None
        and not context.sampled
        and not any(
            isinstance(each, OpenedCompaction) or (isinstance(each, SampledInput) and each.exact is not None)
            for each in parsed
        )
    ):
        return context  # nothing is known of how a model has written it
    rewrite = _Rewrite(model_format, told)
    try:
        return replace(
            context,
            parent=_chain(context.parent, rewrite) if is_foreign(context.parent, model_format) else context.parent,
            before=_items(context.before, rewrite),
            own=_items(context.own, rewrite),
            sampled=_sampled(context.sampled, rewrite),
        )
    except _Unreadable:
        raise invalid_request(
            "The conversation before this request was with a model that is written to in another format, and cannot be "
            "read here. Send the conversation as items of 'input'.",
            param="model",
            code="invalid_value",
        ) from None


def _chain(link: ChainLink | None, rewrite: _Rewrite) -> ChainLink | None:
    """Return a chain whose links have the same messages in one format."""
    made: ChainLink | None = None
    # From the root on: each link is made with its new parent.
    for each in reversed(list(link.lineage() if link is not None else ())):
        made = rewritten(each, parent=made, rewrite=rewrite)
    return made


def _items(items: Items, rewrite: _Rewrite) -> Items:
    """Return items of which those that a seal tells of, and compactions, have their messages in one format."""
    parsed: list[InputItem] = []
    is_written = False  # what the item before was sampled as is written in this format
    for item in items.parsed:
        exact = item.exact if isinstance(item, SampledInput) else None
        if is_written and exact is not None and not exact.messages:
            # The first item of its turn stands for it, too: see `sampled_items`.
            assert isinstance(item, SampledInput), "it was sampled"
            parsed.append(item.with_exact(Exact(rewrite.name, ())))
            continue
        parsed.append(_item(item, rewrite))
        is_written = parsed[-1] is not item
    return items if all(map(is_, parsed, items.parsed)) else Items(parsed, items.raw)


def _item(item: InputItem, rewrite: _Rewrite) -> InputItem:
    if isinstance(item, OpenedCompaction) and not all(map(rewrite.is_own, item.compacted.kept)):
        kept = [made for message in item.compacted.kept for made in rewrite(message)]
        return replace(item, compacted=replace(item.compacted, kept=kept))
    if not isinstance(item, SampledInput) or item.exact is None or all(map(rewrite.is_own, item.exact.messages)):
        return item
    try:
        made = [made for message in item.exact.messages for made in rewrite(message)]
        return item.with_exact(Exact(rewrite.name, made))
    except _Unreadable:
        return item  # it is of a format by another name, and so is read as what is seen of it


def _sampled(sampled: Mapping[str, SampledMessage], rewrite: _Rewrite) -> Mapping[str, SampledMessage]:
    """Return what is known of items; what is not one message in this format is rendered from its item."""
    if all(rewrite.is_own(known.message) for known in sampled.values()):
        return sampled
    made: dict[str, SampledMessage] = {}
    for name, known in sampled.items():
        # `_Unreadable`, or not exactly one message: both are a `ValueError`.
        with suppress(ValueError):
            [message] = rewrite(known.message)
            made[name] = replace(known, message=message)
    return made
