"""`ResponseStream`: Harmony events in, Responses events out. The one state machine of a response.

    QUEUED ── start() or leave_queue() ──> IN_PROGRESS ── finish() ──> COMPLETED | INCOMPLETE | FAILED | CANCELLED

It is the only place that maps (channel, recipient) to an item, numbers the events, and keeps the output; so the JSON
body, the stored response and the streamed one are one object at different times. Its laws, held by property tests:
any chunking of the same tokens gives the same events; numbers run 0..n; every `added` has one `done` with the same id
and index, but for the item that a failure cuts and a compaction that anything cuts; joined deltas equal the `done`
text; the terminal `output` equals the `done` items.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from engine.harmony.header import ANALYSIS, COMMENTARY
from engine.harmony.parser import ContentDelta, HarmonyEvent, MessageCompleted, MessageStarted
from engine.harmony.prompt import RenderedMessage, sampled_message
from responses_app.protocol.builders import (
    CompactionBuilder,
    FunctionCallBuilder,
    ItemBuilder,
    ItemStatus,
    MessageBuilder,
    ReasoningBuilder,
    Said,
)
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events import Event, EventType
from responses_app.protocol.items import SampledItem, fingerprint, is_name
from responses_app.protocol.resources import NEXT, Status
from responses_app.protocol.tool_items import FUNCTIONS

_TERMINAL_EVENT = {
    Status.COMPLETED: EventType.COMPLETED,
    Status.INCOMPLETE: EventType.INCOMPLETE,
    Status.FAILED: EventType.FAILED,
    Status.CANCELLED: EventType.INCOMPLETE,  # the spec has no response.cancelled; the status inside says it
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a response ends.

    `completed_at` is in Unix seconds, `error` the `{code, message}` of a failed response, `reason` why an incomplete
    one is.
    """

    status: Status
    completed_at: int | None = None
    usage: JsonObject | None = None
    error: JsonObject | None = None
    reason: str | None = None


class LocalProtocolError(Exception):
    """This server asked for something that cannot be: a bug, never the client's fault."""


class ResponseStream:
    """One response from `created` to its terminal event.

    `response` is the object `resources.new_response` made; `functions` are the names the request declared, None where
    it forbids calls; `new_id` makes an id from a prefix. After `start()` and until `finish()` feed it every
    Harmony event, in order.
    """

    def __init__(
        self, response: JsonObject, *, functions: Collection[str] | None, new_id: Callable[[str], str]
    ) -> None:
        self.status = Status.QUEUED
        self.output: list[JsonObject] = []
        self.messages: list[RenderedMessage] = []  # what was sampled, as it is fed back in the next turn
        self.sampled: list[SampledItem] = []  # the output items with their messages
        self.calls = 0  # of functions, in the output
        self.unknown_tools: list[str] = []  # recipients this request does not have
        self._response = response
        self._functions = None if functions is None else frozenset(functions)
        self._new_id = new_id
        self._next_number = 0
        self._open: ItemBuilder | None = None
        self._started: MessageStarted | None = None

    def start(self, *, warm_up: bool = False) -> list[Event]:
        """Begin at once: `created` and `in_progress`; a warm-up, which generates nothing, only says `created`."""
        self._move(Status.IN_PROGRESS)
        created = self._event(EventType.CREATED, {"response": self.snapshot()})
        if warm_up:
            return [created]
        return [created, self._event(EventType.IN_PROGRESS, {"response": self.snapshot()})]

    def enqueue(self) -> list[Event]:
        """Begin by waiting: `created` and `queued`; `leave_queue` follows."""
        return [self._event(type, {"response": self.snapshot()}) for type in (EventType.CREATED, EventType.QUEUED)]

    def leave_queue(self) -> list[Event]:
        """Go on: `in_progress`."""
        self._move(Status.IN_PROGRESS)
        return [self._event(EventType.IN_PROGRESS, {"response": self.snapshot()})]

    def receive(self, event: HarmonyEvent) -> list[Event]:
        """Take what the model did next."""
        if self.status is not Status.IN_PROGRESS:
            raise LocalProtocolError(f"{event!r} in a response that is {self.status.value}")
        match event:
            case ContentDelta():
                return [self._delta(event)]
            case MessageStarted():
                return self._open_item(event)
            case MessageCompleted():
                return self._complete_item(event)
        raise LocalProtocolError(f"unknown event {event!r}")

    def begin_compaction(self) -> list[Event]:
        """Announce a compaction: an item of this server's own, which no token goes into."""
        if self.status is not Status.IN_PROGRESS or self._open is not None:
            raise LocalProtocolError("a compaction began inside an item, or outside of a running response")
        return self._open_builder(CompactionBuilder(self._new_id))

    def end_compaction(self, sealed: str, message: RenderedMessage) -> list[Event]:
        """Finish the compaction that has begun; `message` is what the model reads of it."""
        if not isinstance(self._open, CompactionBuilder):
            raise LocalProtocolError("no compaction has begun")
        self._open.sealed = sealed
        events = self._close_item("completed")
        self._note_sampled(message)
        return events

    def close(self) -> list[Event]:
        """Close an item that is still open, as incomplete; a compaction that was cut is worth nothing, and is gone."""
        if isinstance(self._open, CompactionBuilder):
            self._open = None
        return self._close_item("incomplete") if self._open else []

    def outcome(self, ending: "Ending") -> JsonObject:
        """Return the response object as it will be after this ending: what a store commits before clients see it."""
        return {
            **self._response,
            "status": ending.status.value,
            "output": list(self.output),
            "completed_at": ending.completed_at if ending.status is Status.COMPLETED else None,
            "usage": ending.usage,
            "error": ending.error,
            "incomplete_details": {"reason": ending.reason} if ending.reason else None,
        }

    def finish(self, ending: "Ending") -> list[Event]:
        """End: the terminal event, after the events of an item that was still open.

        A failure says nothing of an open item: clients act on a call that is done, and retry what failed (Codex ran a
        command twice: measured).
        """
        events = [] if ending.status is Status.FAILED else self.close()
        self._open = None
        self._move(ending.status)
        self._response = self.outcome(ending)
        return [*events, self._event(_TERMINAL_EVENT[ending.status], {"response": self.snapshot()})]

    def interject(self, message: RenderedMessage) -> None:
        """Put a message of this server between two turns: the model reads it, the client does not."""
        self.messages.append(message)

    def snapshot(self) -> JsonObject:
        """Return the response object as it stands: the sum of what was emitted."""
        return {**self._response, "status": self.status.value, "output": list(self.output)}

    def _builder_for(self, channel: str | None, recipient: str | None) -> ItemBuilder:
        """Decide what a message becomes: the only place that maps (channel, recipient) to an item type."""
        if recipient is not None:
            name = self._called(recipient)
            if name is not None:  # also on the analysis channel: a call is a call
                return FunctionCallBuilder(self._new_id, name)
            self.unknown_tools.append(recipient)
            return ReasoningBuilder(self._new_id)
        if channel == ANALYSIS:
            return ReasoningBuilder(self._new_id)
        return MessageBuilder(self._new_id, "commentary" if channel == COMMENTARY else "final_answer")

    def _called(self, recipient: str) -> str | None:
        """Return the function that a recipient names: a declared one, with or without its prefix; with it any one.

        Clients declare functions in ways that a server does not see.
        """
        name = recipient.removeprefix(FUNCTIONS)
        if self._functions is None:
            return None
        return name if name in self._functions or (name != recipient and is_name(name)) else None

    def _open_item(self, event: MessageStarted) -> list[Event]:
        if self._open is not None:
            raise LocalProtocolError("a message began inside a message")
        self._started = event
        return self._open_builder(self._builder_for(event.channel, event.recipient))

    def _open_builder(self, item: ItemBuilder) -> list[Event]:
        self._open = item
        added = {"output_index": len(self.output), "item": item.item("in_progress")}
        return [self._event(EventType.ITEM_ADDED, added), *self._emit(item, item.opened())]

    def _delta(self, delta: ContentDelta) -> Event:
        item = self._open
        if item is None:
            raise LocalProtocolError("text outside of a message")
        fields = item.delta(delta.text, delta.logprobs)
        fields["item_id"] = item.id
        fields["output_index"] = len(self.output)
        return self._event(item.delta_type, fields)

    def _complete_item(self, event: MessageCompleted) -> list[Event]:
        if self._open is None or self._started is None:
            raise LocalProtocolError("a message ended that had not begun")
        message = sampled_message(
            event, channel=self._started.channel, recipient=self._started.recipient, text=self._open.text
        )
        self.messages.append(message)
        events = self._close_item("incomplete" if event.truncated else "completed")
        self._note_sampled(message)
        return events

    def _note_sampled(self, message: RenderedMessage) -> None:
        item = self.output[-1]
        self.sampled.append(SampledItem(str(item["id"]), fingerprint(item), message))

    def _close_item(self, status: ItemStatus) -> list[Event]:
        item = self._open
        if item is None:
            raise LocalProtocolError("no item is open")
        events = self._emit(item, item.closed())
        finished = item.item(status)
        events.append(self._event(EventType.ITEM_DONE, {"output_index": len(self.output), "item": finished}))
        self.output.append(finished)
        self.calls += finished["type"] == "function_call"
        self._open = None
        return events

    def _emit(self, item: ItemBuilder, said: Said) -> list[Event]:
        place = {"item_id": item.id, "output_index": len(self.output)}
        return [self._event(type, {**place, **fields}) for type, fields in said]

    def _event(self, type: EventType, fields: JsonObject) -> Event:
        event = Event(type, self._next_number, fields)
        self._next_number += 1
        return event

    def _move(self, status: Status) -> None:
        if status not in NEXT[self.status]:
            raise LocalProtocolError(f"{self.status.value} -> {status.value}")
        self.status = status
