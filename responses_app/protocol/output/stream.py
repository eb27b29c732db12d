"""`ResponseStream`: what the model says in, Responses events out: items, numbers, status.

    QUEUED ── start() or leave_queue() ──> IN_PROGRESS ── finish() ──> COMPLETED | INCOMPLETE | FAILED | CANCELLED

It is the only place that makes items (with builders), numbers the events, and keeps the output; so the JSON body, the
stored response and the streamed one are one object at different times. What happens between two turns is
`ResponseMachine`'s. Its laws, held by property tests: any chunking of the same tokens gives the same items and texts;
numbers run 0..n; every `added` has one `done` with the same id and index, but for the item that a failure cuts and a
compaction that anything cuts; joined deltas equal the `done` text; the terminal `output` equals the `done` items. An
item that is discarded says so in place of its `done`, and the next one has its index.

`Called` knows which item each call becomes, and what later turns ask about them. A tool is the client's, or this server
runs it (hosted), or it is not there; then what the model wrote is kept as a thought.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from engine.formats.base import ItemEnded, ItemKind, ItemStarted, RenderedMessage, Text, TextLogprob, TurnEvent
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import Delta, DeltaTemplate, Event, EventType, PendingEvents
from responses_app.protocol.items.client_tools import NO_CLIENT_TOOLS, ClientTools, read_tools
from responses_app.protocol.items.items import SampledMessage, fingerprint
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.items.resources import ItemStatus
from responses_app.protocol.output.builders import (
    CompactionBuilder,
    ItemBuilder,
    NewId,
    ReasoningBuilder,
    SilentReasoningBuilder,
    message_builder,
)
from responses_app.protocol.output.calls import CallBuilder, call_builder
from responses_app.protocol.output.citations import ProducedFiles, Sources
from responses_app.protocol.output.hosted_items import ApprovalRequestBuilder, HostedBuilder, HostedCall, builder_of
from responses_app.protocol.requests.resources import NEXT, Ending, ResponseObject, Status, as_known, known_id
from responses_app.protocol.requests.server_tools import WEB_SEARCH


class LocalProtocolError(Exception):
    """This server asked for something that cannot be: a bug, never the client's fault."""


class Seals(Protocol):
    """What makes the seals of one response's items: `ItemSeals`, which knows prompts; this floor does not."""

    def note(self, index: int, message: RenderedMessage) -> None:
        """Remember what the model reads for an output item, or right behind it."""

    def of_reasoning(self, item: JsonObject, message: RenderedMessage) -> str:
        """Return what a reasoning item carries: the tokens of its `message`."""

    def of_others(self, item_id: str, output: Sequence[JsonObject], *, objects: bool) -> str | None:
        """Return what one more reasoning item is to carry of all other items; None where nothing is to be carried.

        `objects`: the arguments of calls come back as objects.
        """


HostedTools = Mapping[str, Callable[[NewId], ItemBuilder]]  # by the names of the tools
SEARCH_NAMES = "browser."  # how the names begin by which models know the web search
NO_SEARCH = "Nothing searches the web here: the operator has set neither SEARCH_URL nor SEARCH_MCP."


class Called:
    """What one response calls, and which item each call becomes."""

    def __init__(
        self, new_id: NewId, tools: ClientTools | None, hosted: HostedTools | None, *, searches: bool = False
    ) -> None:
        self._new_id = new_id
        self._tools = NO_CLIENT_TOOLS if tools is None else tools  # they make the items of calls that clients answer
        self._hosted = dict(hosted or {})  # what makes the items of calls, by the names of the tools
        self.hosts = bool(self._hosted)  # the server runs any tools for this response
        self._searches = searches  # the request declares a web search, perhaps one that nothing runs here
        self.offered: dict[str, OfferedTool] = {}  # this server's tools that the response may use, by name
        self.max_hosted: int | None = None  # how many calls of them it may make
        self.made = 0  # and how many it has made
        self.asks = False  # the user is asked to approve one
        self.anything = False  # that is there was called
        self.background: list[str] = []  # names that the model has called and goes on without
        self.unknown: list[str] = []  # names that it has called and that are not there
        self.last_unknown: str | None = None  # what the last item called, where that is not there
        self.waits_for_client = False  # a call wants an output
        self.misfits = 0  # calls that do not fit: see `CallBuilder.fits`

    @property
    def may_host(self) -> bool:
        """Whether one more of this server's tools may be called."""
        return self.max_hosted is None or self.made < self.max_hosted

    def offer(self, tools: Iterable[OfferedTool]) -> None:
        """Take tools of this server that the model may call."""
        for tool in tools:
            self.offered[tool.name] = tool
            self._hosted[tool.name] = partial(builder_of, tool)
        self.hosts = bool(self._hosted)

    def share(self, other: "Called") -> None:
        """Take the tools of another agent of the same response."""
        self._tools, self.max_hosted, self._searches = other._tools, other.max_hosted, other._searches
        self.offer(other.offered.values())

    def learn(self, tools: Sequence[JsonObject], offered: Iterable[OfferedTool]) -> None:
        """Take what a search has found: tools of the client's, and of this server."""
        self.declare(tools)
        self.offer(offered)

    def knows(self, name: str) -> bool:
        """Whether there is a tool of this server of this name, whether it may be called or not."""
        return name in self._hosted

    def is_hosted(self, name: str) -> bool:
        """Whether the server runs the tool of this name when it is called now."""
        return name in self._hosted and self.may_host

    def shown(self, functions: Collection[str]) -> list[str]:
        """Return those of the client's tools that the model is shown, among the names of all that it can call."""
        hidden = set(self._tools.names).difference(tool.called for tool in self._tools.shown())
        return [name for name in functions if name not in hidden]

    def declare(self, tools: Sequence[JsonObject]) -> Collection[str]:
        """Take further tools of the client's; return the names of all that the model can call."""
        self._tools = self._tools.joined(read_tools(list(tools)))
        return self._tools.names

    def builder(self, call: ItemStarted) -> ItemBuilder:
        """Return what writes the item of a call that begins."""
        name = call.name or ""
        if call.kind is ItemKind.CALL:
            self.anything = True
            return call_builder(self._tools, name, self._new_id)
        if self.is_hosted(name):
            self.anything = True
            offered = self.offered.get(name)
            # A call that asks for approval is not made in this response.
            self.made += not (offered and offered.asks)
            return self._hosted[name](self._new_id)
        self.unknown.append(name)
        self.last_unknown = name
        if self._searches and name.startswith(SEARCH_NAMES) and name not in self._hosted:
            unserved = builder_of(OfferedTool(name=name, item="web_search_call"), self._new_id)
            assert isinstance(unserved, HostedBuilder), "nobody is asked to approve it"
            unserved.unserved = {"type": "web_search_error", "message": NO_SEARCH}
            return unserved
        return ReasoningBuilder(self._new_id)

    def note(self, name: str, call: CallBuilder, status: ItemStatus) -> None:
        """Take a call of the client's that has ended."""
        self.misfits += not call.fits
        if call.is_async:
            self.background.append(name)
        # A call that was cut is not run by anybody.
        elif status == "completed":
            self.waits_for_client = True


class ResponseStream:
    """One response from `created` to its terminal event.

    After `start()` and until `finish()` feed it every event of every turn, in order.
    """

    def __init__(
        self,
        response: ResponseObject,  # as `new_response` made it
        *,
        new_id: NewId,  # makes an id from a prefix
        tools: ClientTools | None = None,  # make the items of calls that clients answer
        hosted: HostedTools | None = None,  # make those of this server's tools, by their names
        seals: Seals | None = None,  # where the request asks for them
    ) -> None:
        self.status = Status.QUEUED
        self.output: list[JsonObject] = []  # the items that are done; the open one is not among them
        self.messages: list[RenderedMessage] = []  # what was sampled, as it is fed back in the next turn
        self.sampled: list[SampledMessage] = []  # the output items with their messages
        declared = [str(tool["type"]) for tool in response["tools"]]
        self.called = Called(new_id, tools, hosted, searches=any(kind in WEB_SEARCH for kind in declared))
        self.hosted_call: HostedCall | None = None  # what is to be run before the next turn
        self.sources: Sources | None = None  # that messages may cite
        self.files: ProducedFiles | None = None  # and files
        self._response = response  # without output and status: `kept` adds them
        self.new_id = new_id  # of an item that is to be added
        self._offered_seals = seals  # used once `wants` asks for them
        self._seals: Seals | None = None
        self._summarised = False  # what the model thinks has a summary
        self._objects = False  # the arguments of calls come back as objects
        self._message: RenderedMessage | None = None  # what the model reads of the open item
        self._next_number = 0  # of the next event; there are no gaps
        self._open: ItemBuilder | None = None  # one item at a time
        self._template: DeltaTemplate | None = None  # of the open item, once it has a delta
        self._name = ""  # what the open item calls
        self.agent: JsonObject | None = None  # whose items these are, as they say it; None: there are no agents

    @property
    def has_begun(self) -> bool:
        """Whether `created` was said."""
        return self._next_number > 0

    @property
    def shows_messages(self) -> bool:
        """Whether the request asks for what the model says in its own words."""
        return "output_messages" in self._response

    @property
    def known_as(self) -> str:
        """The id by which clients know the response."""
        return known_id(self._response)

    @property
    def said_tokens(self) -> int:
        """How many tokens the response has added to its prompt so far."""
        return sum(len(each.tokens) for each in self.messages)

    @property
    def is_open(self) -> bool:
        """Whether an item is being said."""
        return self._open is not None

    @property
    def is_growing(self) -> bool:
        """Whether an item is being said, and text of it."""
        return self._open is not None and self._template is not None

    def wants(self, *, sealed: bool, summarised: bool, objects: bool = False) -> None:
        """Note what the request wants of its items, before anything is said; see `OutputOptions`."""
        self._seals = self._offered_seals if sealed else None
        self._objects = objects
        self._summarised = summarised

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction has begun and not ended."""
        return isinstance(self._open, CompactionBuilder)

    def start(self, *, warm_up: bool = False) -> list[Event]:
        """Begin at once: `created` and `in_progress`; a warm-up, which generates nothing, only says `created`."""
        # Before the snapshot, which has the status.
        self._move(Status.IN_PROGRESS)
        created = self._event(EventType.CREATED, {"response": self.snapshot()})
        if warm_up:
            return [created]
        return [created, self._event(EventType.IN_PROGRESS, {"response": self.snapshot()})]

    def enqueue(self) -> list[Event]:
        """Begin by waiting: `created` and `queued`; `leave_queue` follows."""
        # `QUEUED` is the status from the beginning, so there is nothing to move.
        return [self._event(type, {"response": self.snapshot()}) for type in (EventType.CREATED, EventType.QUEUED)]

    def leave_queue(self) -> list[Event]:
        """Go on: `in_progress`."""
        self._move(Status.IN_PROGRESS)
        return [self._event(EventType.IN_PROGRESS, {"response": self.snapshot()})]

    def receive_all(self, turn_events: Iterable[TurnEvent]) -> list[Event]:
        """Take all that the model did since the last time."""
        events: list[Event] = []
        for each in turn_events:
            item = self._open
            if isinstance(each, Text) and item is not None and not item.holds_back:  # nearly always
                events.append(self._grow(item, each.text, each.logprobs))
            else:
                events += self.receive(each)
        return events

    def receive(self, event: TurnEvent) -> Sequence[Event]:
        """Take what the model did next."""
        # A driver that feeds tokens behind the end would number events that nobody may have.
        if self.status is not Status.IN_PROGRESS:
            raise LocalProtocolError(f"{event!r} in a response that is {self.status.value}")
        match event:
            case Text():
                return self._delta(event)
            case ItemStarted():
                return self._open_item(event)
            case ItemEnded():
                return self._complete_item(event)
        raise LocalProtocolError(f"unknown event {event!r}")

    def open_own(self, item: ItemBuilder) -> list[Event]:
        """Begin an item of this server's own, which no token goes into; `close_own` follows."""
        if self.status is not Status.IN_PROGRESS or self._open is not None:
            raise LocalProtocolError("an item of the server's began inside an item, or outside of a running response")
        return self._open_builder(item)

    def close_own(self) -> list[Event]:
        """Finish an item of this server's own."""
        return self._close_item("completed")

    def begin_compaction(self) -> list[Event]:
        """Announce a compaction."""
        return self.open_own(CompactionBuilder(self.new_id))

    def end_compaction(self, sealed: str) -> list[Event]:
        """Finish the compaction that has begun."""
        if not isinstance(self._open, CompactionBuilder):
            raise LocalProtocolError("no compaction has begun")
        self._open.sealed = sealed
        return self._close_item("completed")

    def hold_reasoning(self, event: ItemEnded) -> list[Event]:
        """End what the model thinks, and leave its item open for a summary; `end_reasoning` follows."""
        item = self._open
        if not isinstance(item, ReasoningBuilder):
            raise LocalProtocolError("no thought is open")
        self._take_message(event.message)
        return self._emit(item, item.said())

    def sum_up(self, text: str) -> list[Event]:
        """Add to the summary of what the model thought; no text is nothing."""
        item = self._open
        if not isinstance(item, ReasoningBuilder):
            raise LocalProtocolError("a summary of no thought")
        return self._emit(item, item.sum_up(text)) if text else []

    def end_reasoning(self) -> list[Event]:
        """Finish an item that was held open for its summary."""
        message = self._message
        if message is None:
            raise LocalProtocolError("no thought was held open")
        # `_close_item` reads the message for the item's seal, so it is still set.
        events = self._close_item("completed")
        self.note_sampled(message)
        return events

    def seal_others(self) -> list[Event]:
        """Add the item whose seal carries what no other item does, if there is anything: the last item of a response.

        See `replaying`.
        """
        if self._seals is None or self._open is not None:
            return []
        item = SilentReasoningBuilder(self.new_id)
        sealed = self._seals.of_others(item.id, self.output, objects=self._objects)
        if sealed is None:
            return []
        return [*self._open_builder(item), *self._close_item("completed", sealed)]

    def open_call(self, item: HostedBuilder, name: str, arguments: str) -> list[Event]:
        """Begin a call of a tool of this server that the model has asked for in an earlier response."""
        events = self.open_own(item)
        if arguments:
            events.append(self._grow(item, arguments))
        self.hosted_call = HostedCall(name, arguments, item.id, sampled=False)
        return [*events, *self._emit(item, item.called())]

    def progress_call(self, fields: JsonObject) -> list[Event]:
        """Say how far the tool of this server is that runs."""
        if self.hosted_call is None or not isinstance(self._open, HostedBuilder):
            raise LocalProtocolError("no tool of this server runs")
        return self._emit(self._open, self._open.progressed(fields))

    def end_call(self, shown: JsonObject, *, failed: bool) -> list[Event]:
        """Finish the call of a tool that the server ran; `shown` is what it shows of what it gave back."""
        if self.hosted_call is None or not isinstance(self._open, HostedBuilder):
            raise LocalProtocolError("no tool of this server runs")
        self.hosted_call = None
        self._open.returned(shown, failed=failed)
        return self._close_item("failed" if failed else "completed")

    def end_asking(self) -> list[Event]:
        """Finish a call whose output stands in an item of its own: clients give it back, and it is read as sampled."""
        message = self._message
        if message is None:
            raise LocalProtocolError("nothing was asked for")
        events = self.end_call({}, failed=False)
        self.note_sampled(message)
        return events

    def add_call(self, item: CallBuilder, arguments: str) -> list[Event]:
        """Add a call that a program has made, and the client answers; the model does not read it."""
        events, self._name = self.open_own(item), item.name
        return [*events, self._grow(item, arguments), *self._close_item("completed")]

    def add_output(self, item: JsonObject, *messages: RenderedMessage) -> list[Event]:
        """Add what came of a call as an item of its own, whole; `messages` are what the model reads of it."""
        if self.status is not Status.IN_PROGRESS or self._open is not None:
            raise LocalProtocolError("an output came inside an item, or outside of a running response")
        item = self._signed(item)
        place = {"output_index": len(self.output), "item": item}
        self.output.append(item)
        for message in messages:
            self.add_note(message)
        return [self._event(type, dict(place)) for type in (EventType.ITEM_ADDED, EventType.ITEM_DONE)]

    def discard(self) -> list[Event]:
        """Drop an item that is still open, as if it had never been said."""
        item, self._open = self._open, None
        if item is None:
            return []
        if self.hosted_call is not None:
            # The model said the call in this response. Else another response said it, and this one has no message for
            # it.
            # An item of its own that says what came of the call is dropped without it.
            if self.hosted_call.sampled and self.hosted_call.item_id == item.id:
                self.messages.pop()  # the call, which is whole
            self.hosted_call = None
        # The place is not taken: the next item has the same index.
        place = {"response_id": self._response["id"], "item_id": item.id, "output_index": len(self.output)}
        return [self._event(EventType.ITEM_INTERRUPTED, place)]

    def close(self) -> list[Event]:
        """Close an item that is still open, as incomplete; a compaction that was cut is worth nothing, and is gone."""
        # Nobody hears of its end, and it is in no output.
        if isinstance(self._open, CompactionBuilder):
            self._open = None
        return self._close_item("incomplete") if self._open else []

    def outcome(self, ending: Ending) -> ResponseObject:
        """Return the response object as it will be after this ending: what a store commits before clients see it."""
        return ending.of(self._response, self.output)

    def finish(self, ending: Ending) -> list[Event]:
        """End: the terminal event, after the events of an item that was still open.

        A failure says nothing of an open item: clients act on a call that is done, and retry what failed (Codex ran a
        command twice: measured).
        """
        events = [] if ending.status is Status.FAILED else self.close()
        # A failure leaves it open until here, and without a `done`.
        self._open = None
        self._move(ending.status)
        self._response = self.outcome(ending)
        return [*events, self._event(ending.event, {"response": self.snapshot()})]

    def add_note(self, message: RenderedMessage) -> None:
        """Put a message of this server between two turns: the model reads it, the client does not."""
        self.messages.append(message)
        if self._seals is not None:
            self._seals.note(len(self.output) - 1, message)

    def snapshot(self) -> ResponseObject:
        """Return the response object as it stands, as clients know it: the sum of what was emitted."""
        return as_known(self.kept())

    def kept(self) -> ResponseObject:
        """Return the response object as it stands, as stores keep it."""
        return {**self._response, "status": self.status.value, "output": list(self.output)}

    def _open_item(self, event: ItemStarted) -> list[Event]:
        if self._open is not None:
            raise LocalProtocolError("an item began inside an item")
        self.called.last_unknown = None
        self._name = event.name or ""
        match event.kind:
            case ItemKind.CALL | ItemKind.HOSTED_CALL:
                return self._open_builder(self.called.builder(event))
            case ItemKind.REASONING:
                return self._open_builder(ReasoningBuilder(self.new_id, summarised=self._summarised))
        return self._open_builder(message_builder(self.new_id, event.kind, self.sources, self.files))

    def _open_builder(self, item: ItemBuilder) -> list[Event]:
        self._open, self._template, self._message = item, None, None
        # Such an item is added when it is done: until then it is not known of which type it is.
        return [] if item.at_once else self._added(item)

    def _added(self, item: ItemBuilder) -> list[Event]:
        added: JsonObject = {"output_index": len(self.output), "item": self._signed({**item.item("in_progress")})}
        return [self._event(EventType.ITEM_ADDED, added), *self._emit(item, item.opened())]

    def _delta(self, delta: Text) -> Sequence[Event]:
        item = self._open
        if item is None:
            raise LocalProtocolError("text outside of a message")
        if not item.holds_back:
            return (self._grow(item, delta.text, delta.logprobs),)
        text = item.told(delta.text)
        if not text:
            item.grow("", delta.logprobs)  # which come with the next text
            return self._emit(item, item.heard())
        return [self._grow(item, text, delta.logprobs), *self._emit(item, item.noted())]

    def _grow(self, item: ItemBuilder, text: str, logprobs: Sequence[TextLogprob] = ()) -> Event:
        # Made with the first delta: an item without text needs none.
        template = self._template = self._template or item.delta_template(len(self.output))
        own = None
        if logprobs or item.holds_back:
            own = item.grow(text, logprobs)
        else:  # nearly always
            item.texts.append(text)
        event = Delta(template, self._next_number, text)
        self._next_number += 1
        # Fields of its own (log probabilities) are not in the template: then it is written as any other event.
        return event if own is None else Event(event.type, event.sequence_number, {**event.fields, **own})

    def _complete_item(self, event: ItemEnded) -> list[Event]:
        item = self._open
        if item is None:
            raise LocalProtocolError("an item ended that had not begun")
        # Also of a call that stays open: the model has said all of it, and reads it in the next turn.
        self._take_message(event.message)
        if isinstance(item, HostedBuilder) and item.unserved is not None and not event.truncated:
            called = self._emit(item, item.called())
            item.returned({"error": item.unserved}, failed=True)
            events = [*called, *self._close_item("failed")]
            self.note_sampled(event.message)
            return events
        if isinstance(item, HostedBuilder) and not event.truncated:
            self.hosted_call = HostedCall(self._name, item.text, item.id)
            events, output = self._emit(item, item.called()), item.output_builder()
            if output is not None:
                events += [*self._close_item("completed"), *self._open_builder(output)]
            return events
        events = self._close_item("incomplete" if event.truncated else "completed")
        self.note_sampled(event.message)
        return events

    def _take_message(self, message: RenderedMessage) -> None:
        """Keep how the model reads the open item in a later turn."""
        self._message = message
        self.messages.append(message)
        if self._seals is not None:
            self._seals.note(len(self.output), message)

    def note_sampled(self, message: RenderedMessage) -> None:
        """Remember what the model reads of the last item."""
        item = self.output[-1]
        self.sampled.append(SampledMessage(str(item["id"]), fingerprint(item), message))

    def _close_item(self, status: ItemStatus, sealed: str | None = None) -> list[Event]:
        item = self._open
        if item is None:
            raise LocalProtocolError("no item is open")
        events: list[Event] = []
        # `settled` may give another builder: one that shows what the item's own type cannot hold.
        if item.at_once:
            item = item.settled(status)
            events += self._added(item)
        # What was held back comes before the events that end the text, or their `text` would have more than the
        # deltas.
        if rest := item.rest():
            events.append(self._grow(item, rest))
        if isinstance(item, CallBuilder):
            self.called.note(self._name, item, status)
        elif isinstance(item, ApprovalRequestBuilder):
            self.called.asks = True
        events += self._emit(item, item.closed())
        finished = self._signed({**item.item(status)})
        if self._seals is not None and self._message is not None and finished["type"] == "reasoning":
            sealed = self._seals.of_reasoning(finished, self._message)
        if sealed is not None:
            finished["encrypted_content"] = sealed
        events.append(self._event(EventType.ITEM_DONE, {"output_index": len(self.output), "item": finished}))
        self.output.append(finished)
        self._open = None
        return events

    def _signed(self, item: JsonObject) -> JsonObject:
        """Return an item that says whose it is, where there are agents; a message of an agent says it itself."""
        return item if self.agent is None or "agent" in item else {**item, "agent": self.agent}

    def _emit(self, item: ItemBuilder, pending: PendingEvents) -> list[Event]:
        place: JsonObject = {"output_index": len(self.output)}
        if item.events_name_it:
            place = {"item_id": item.id, **place}
        return [self._event(type, {**place, **fields}) for type, fields in pending]

    def _event(self, type: EventType, fields: JsonObject) -> Event:
        event = Event(type, self._next_number, fields)
        self._next_number += 1
        return event

    def _move(self, status: Status) -> None:
        if status not in NEXT[self.status]:
            raise LocalProtocolError(f"{self.status.value} -> {status.value}")
        self.status = status
