"""`Steering`: what a client says to the responses that run on its connection: new input, an interrupt, a cancellation.

    response.steer ─> accepted ─> the response ends, at a safe boundary or by itself ─> a successor, by the server
                                                      │
                                                      └─ with calls for the client ─> pending ─> the client's create
                                                                                      has it in front of its input

The response is `incomplete` with the reason `steered` where it was ended, and its successor has the same settings. What
cannot be applied comes back in `response.steer.failed`; so input that was accepted is never lost while the connection
lives. New input is messages of the user, and nothing else. Like the session, which owns it, this is pure: frames in,
commands out.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from responses_app.protocol.errors import ApiError, JsonObject, invalid_value, response_not_found
from responses_app.protocol.events.events import (
    error_frame,
    inject_failed,
    interrupt_accepted,
    interrupt_failed,
    steer_accepted,
    steer_failed,
    steer_pending,
)
from responses_app.protocol.fields import missing, wrong_type
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import CONTINUABLE, Status
from responses_app.protocol.response.calls import required_input
from responses_app.protocol.response.steps import StopReason

INJECTED = ("function_call_output", "custom_tool_call_output")  # types of items that a `response.inject` may have
_ENDED = "The response has ended. Continue it with 'response.create'."
_STEER_FIELDS = frozenset(("type", "previous_response_id", "input"))  # of a `response.steer`
_MESSAGE_FIELDS = frozenset(("type", "role", "content"))  # of each of its messages
_PARTS: Mapping[str, str | None] = {"input_text": "text", "input_image": None, "input_file": None}  # and what they need


class SteerRefused(Exception):
    """A word to a response that changes nothing: its code and a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # OpenAI's, such as `response_not_found`
        self.message = message  # what its client is told


def user_messages(frame: JsonObject) -> list[JsonObject]:
    """Return the messages of a `response.steer`, as items. Raises `SteerRefused`."""
    extra = sorted(frame.keys() - _STEER_FIELDS)
    if extra:
        message = f"A steer takes 'type', 'previous_response_id' and 'input' only, not '{extra[0][:80]}'."
        raise SteerRefused("invalid_input", message)
    if not isinstance(frame.get("previous_response_id"), str):
        raise SteerRefused("invalid_input", "'previous_response_id' must be the id of the response to steer.")
    content = frame.get("input")
    if not isinstance(content, str | list) or not content:
        raise SteerRefused("invalid_input", "'input' must be a string that says something, or an array of messages.")
    # A text is one message, as in a create.
    if isinstance(content, str):
        content = [{"role": "user", "content": content}]
    for index, message in enumerate(content):
        if not _is_of_user(message):
            raise SteerRefused(
                "invalid_input",
                f"'input[{index}]' must be a message of the user: 'role' and 'content' (a string, or parts of type "
                "'input_text', 'input_image' or 'input_file').",
            )
    return [{**message, "type": "message"} for message in content]


def _is_of_user(message: object) -> bool:
    # Unknown fields are refused: what has no effect in a steer would be lost silently.
    if not isinstance(message, dict) or message.keys() - _MESSAGE_FIELDS:
        return False
    if message.get("role") != "user" or message.get("type", "message") != "message":
        return False
    content = message.get("content")
    if isinstance(content, str):
        return bool(content)
    return isinstance(content, list) and bool(content) and all(map(_is_part, content))


def _is_part(part: object) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str) or part["type"] not in _PARTS:
        return False
    # None: what else such a part needs is checked with the create of the successor.
    text = _PARTS[part["type"]]
    return text is None or isinstance(part.get(text), str)


MAX_REMEMBERED = 64  # ended responses, of which a late word is told what became of them
_NOT_INHERITED = ("request_id", "previous_input_messages")  # a successor has an id of its own, and continues the chain
_OVER = "The connection's time is over, so nothing is started on it any more. Continue the response on a new one."


@dataclass(frozen=True, slots=True)
class Steer:
    """Input that was accepted."""

    id: str
    given: object  # as the client sent it: a failure gives it back
    messages: Sequence[JsonObject]  # the same as items
    size: int  # bytes of its frame


@dataclass(frozen=True, slots=True)
class Create:
    """A `response.create` on its lane."""

    lane: str | None  # None: the default one
    fields: JsonObject  # its frame
    size: int  # bytes
    parent: ChainLink | None  # bound when it arrives, if the connection knows it then
    steers: tuple[Steer, ...] = ()  # its input begins with that of these
    is_successor: bool = False  # its input is theirs alone, and this server made it

    @property
    def previous_response_id(self) -> str | None:
        """The response it continues, as the client named it."""
        value = self.fields.get("previous_response_id")
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Send:
    """Send this text frame."""

    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this frame about a response of a lane, with the number of the last event of that."""

    frame: JsonObject
    lane: str | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the response that runs on a lane; then send `accepted`, or `failed` if its end was decided already."""

    lane: str | None
    reason: StopReason
    accepted: JsonObject | None = None  # sent once it is known that this ends the response
    failed: JsonObject | None = None  # sent where its end was decided already


@dataclass(frozen=True, slots=True)
class Inject:
    """Give outputs of its client's tools to the response that runs on a lane: all of them, or none."""

    lane: str | None
    response_id: str
    input: list[JsonObject]  # as it was sent


Answer = Send | Reply | Stop | Inject


@dataclass(slots=True)
class _Target:
    """A response that runs, and what was said to it."""

    response_id: str
    create: Create
    steers: list[Steer] = field(default_factory=list)  # in their order; the first one asked for the end
    interrupted: bool = False  # it ends now, and takes nothing more

    @property
    def unsupported(self) -> str | None:
        """Why it cannot be steered."""
        fields = self.create.fields
        cached, agents = fields.get("prompt_cache_options"), fields.get("multi_agent")
        if fields.get("conversation") is not None:
            return "A response of a conversation cannot be steered."
        if isinstance(agents, dict) and agents.get("enabled"):
            return "A response with agents cannot be steered. Give it outputs of tools by 'response.inject'."
        if fields.get("context_management"):
            return "A response with automatic compaction cannot be steered."
        if fields.get("generate") is False or (isinstance(cached, dict) and cached.get("prewarm")):
            return "A warm-up generates nothing that could be steered."
        return None


@dataclass(frozen=True, slots=True)
class _Parked:
    """Input whose response has ended with calls; it waits for the create that says what came of them."""

    response_id: str
    steers: tuple[Steer, ...]


class Steering:
    """The steering of one connection."""

    def __init__(self, new_id: Callable[[], str], *, max_steers: int, max_bytes: int) -> None:
        self._new_id = new_id
        self._max_steers = max_steers  # for one response; over it no more is accepted
        self._max_bytes = max_bytes  # for all together, likewise
        self._running: dict[str | None, _Target] = {}  # by lanes
        self._parked: dict[str | None, _Parked] = {}  # by lanes
        self._ended: OrderedDict[str, Status] = OrderedDict()  # by responses, the oldest first: see `MAX_REMEMBERED`

    # What the client says.

    def steer(self, frame: JsonObject, size: int, *, over: bool) -> list[Answer]:
        """Take a `response.steer` of `size` bytes; `over`: nothing is started on the connection any more."""
        response_id, content = frame.get("previous_response_id"), frame.get("input")
        target = self._target(response_id)
        lane = target.create.lane if target else None
        try:
            messages = user_messages(frame)
            if target is None:
                raise self._absent(response_id)
            self._check(target, size, over=over)
        except SteerRefused as refused:
            return [Reply(steer_failed(refused.code, refused.message, response_id, content), lane)]
        steer = Steer(self._new_id(), content, messages, size)
        target.steers.append(steer)
        accepted = Reply(steer_accepted(steer.id, target.response_id), lane)
        # The first one asks for the end; those that follow only wait for it.
        return [accepted] if len(target.steers) > 1 else [accepted, Stop(lane, StopReason.STEERED)]

    def interrupt(self, frame: JsonObject) -> list[Answer]:
        """Take a `response.interrupt`: the response ends now, and can be continued."""
        response_id, mode = frame.get("response_id"), frame.get("mode")
        target = self._target(response_id)
        lane = target.create.lane if target else None
        try:
            if not isinstance(response_id, str):
                raise SteerRefused("invalid_input", "'response_id' must be the id of a response.")
            if mode not in (None, "discard_partial_items"):
                raise SteerRefused("invalid_input", "'mode' is either left out or 'discard_partial_items'.")
            if target is None:
                raise self._absent(response_id)
            if target.interrupted:
                raise SteerRefused("response_not_active", "The response was interrupted already.")
        except SteerRefused as refused:
            return [Reply(interrupt_failed(refused.code, refused.message, response_id), lane)]
        target.interrupted = True
        reason = StopReason.DISCARDED if mode else StopReason.INTERRUPTED
        failed = interrupt_failed("response_already_completed", "The response is ending by itself.", response_id)
        return [Stop(lane, reason, interrupt_accepted(response_id), failed)]

    def inject(self, frame: JsonObject) -> list[Answer]:
        """Take a `response.inject`: outputs of the client's tools, with which agents of a response go on."""
        response_id, items = frame.get("response_id"), frame.get("input")
        if not isinstance(response_id, str):
            return [_no_id(response_id)]
        if items is None:
            return [Send(error_frame(missing("input")))]
        if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
            return [Send(error_frame(invalid_value("input", "it must be an array of items, one at least.")))]
        for index, item in enumerate(items):
            if item.get("type") not in INJECTED:
                known = ", ".join(INJECTED)
                error = invalid_value(f"input[{index}].type", f"outputs of the client's tools are taken: {known}.")
                return [Send(error_frame(error))]
        target = self._target(response_id)
        if target is not None:
            return [Inject(target.create.lane, response_id, items)]
        if response_id in self._ended:
            return [Reply(inject_failed("response_already_completed", _ENDED, response_id, items), None)]
        message = "No response of this connection has this id."
        return [Reply(inject_failed("response_not_found", message, response_id, items), None)]

    def cancel(self, frame: JsonObject) -> list[Answer]:
        """Take a `response.cancel`, which some clients know from other APIs; of one that has ended nothing is said."""
        response_id = frame.get("response_id")
        if not isinstance(response_id, str):
            return [_no_id(response_id)]
        target = self._target(response_id)
        if target is not None:
            return [Stop(target.create.lane, StopReason.CANCELLED)]
        return [] if response_id in self._ended else [Send(error_frame(response_not_found(response_id)))]

    # What becomes of responses.

    def started(self, create: Create, response_id: str) -> None:
        """A create has its response: what was said for it before is applied."""
        self._running[create.lane] = _Target(response_id, create)

    def ended(
        self, create: Create, status: Status, link: ChainLink | None, output: Sequence[JsonObject]
    ) -> tuple[list[Answer], Create | None]:
        """A response has ended; return what is to be said, and the create that applies what was said to it."""
        target = self._running.pop(create.lane, None)
        if target is None:
            return [], None
        self._ended[target.response_id] = status
        if len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)
        # From here on, what was said to it has to go somewhere: into a failure, a successor, or a wait.
        if not target.steers:
            return [], None
        if status not in CONTINUABLE or link is None:
            sentence = f"The response is {status.value}, and such a response cannot be continued."
            return list(_failed(target.steers, target.response_id, create.lane, sentence)), None
        required = required_input(output)
        if not required:
            return [], _successor(target, link)
        answers: list[Answer] = [
            Reply(steer_pending(steer.id, target.response_id, required), create.lane) for steer in target.steers
        ]
        return [*self._park(target.response_id, create.lane, target.steers), *answers], None

    def refused(self, create: Create, error: ApiError) -> list[Answer] | None:
        """A create could not start; return what is to be said of a successor, None where its client sent it.

        What was said for such a one waits for another.
        """
        # `steers` moved into the create when it was joined: a create that fails must not take them with it.
        if not create.steers:
            return None
        parent = create.previous_response_id or ""
        if create.is_successor:
            return list(_failed(create.steers, parent, create.lane, f"No successor could be created: {error.message}"))
        self._park(parent, create.lane, create.steers)
        return None

    def joined(self, create: Create) -> Create:
        """Return a create with what waits for it in front of its input."""
        parked = self._parked.get(create.lane)
        # Only a create that continues that very response: any other one on the lane goes on with something else.
        if parked is None or parked.response_id != create.previous_response_id:
            return create
        del self._parked[create.lane]
        messages = [message for steer in parked.steers for message in steer.messages]
        fields = {**create.fields, "input": [*messages, *_as_items(create.fields.get("input"))]}
        size = create.size + sum(steer.size for steer in parked.steers)
        return replace(create, fields=fields, size=size, steers=parked.steers)

    def give_up(self, successor: Create) -> list[Answer]:
        """Return what is said of a successor that is not started: the connection's time is over."""
        return list(_failed(successor.steers, successor.previous_response_id or "", successor.lane, _OVER))

    def _target(self, response_id: object) -> _Target | None:
        # There are few: at most `max_in_flight`.
        return next((target for target in self._running.values() if target.response_id == response_id), None)

    def _absent(self, response_id: object) -> SteerRefused:
        status = self._ended.get(response_id) if isinstance(response_id, str) else None
        if status is None:
            return SteerRefused("response_not_found", "No response of this connection has this id.")
        if status is Status.COMPLETED:
            message = "The response has completed. Continue it with 'response.create'."
            return SteerRefused("response_already_completed", message)
        return SteerRefused("response_not_active", f"The response is {status.value}, and takes no more input.")

    def _check(self, target: _Target, size: int, *, over: bool) -> None:
        """Refuse what cannot be applied to a response that runs."""
        if target.unsupported:
            raise SteerRefused("steering_not_supported", target.unsupported)
        if target.interrupted:
            raise SteerRefused("response_not_active", "The response was interrupted, and takes no more input.")
        if over:
            raise SteerRefused("successor_creation_failed", _OVER)
        size += sum(steer.size for parked in self._parked.values() for steer in parked.steers)
        size += sum(steer.size for running in self._running.values() for steer in running.steers)
        if len(target.steers) >= self._max_steers or size > self._max_bytes:
            message = "Too much input waits for this response. Wait for its successor."
            raise SteerRefused("too_many_pending_steers", message)

    def _park(self, response_id: str, lane: str | None, steers: Sequence[Steer]) -> list[Answer]:
        """Let input wait for a create; one response a lane, so what waited for an older one comes back."""
        before = self._parked.get(lane)
        self._parked[lane] = _Parked(response_id, tuple(steers))
        if before is None:
            return []
        sentence = "Another response of its lane waits for required input now."
        return list(_failed(before.steers, before.response_id, lane, sentence, code="response_not_active"))


def _failed(
    steers: Sequence[Steer],
    response_id: str,
    lane: str | None,
    message: str,
    *,
    code: str = "successor_creation_failed",
) -> Iterator[Answer]:
    for steer in steers:
        yield Reply(steer_failed(code, message, response_id, steer.given, steer.id), lane)


def _successor(target: _Target, link: ChainLink) -> Create:
    """Return the create that continues a response with what was said to it, and with the same settings."""
    create, steers = target.create, tuple(target.steers)
    messages = [message for steer in steers for message in steer.messages]
    settings = {name: value for name, value in create.fields.items() if name not in _NOT_INHERITED}
    return replace(
        create,
        fields={**settings, "previous_response_id": target.response_id, "input": messages},
        size=create.size + sum(steer.size for steer in steers),
        parent=link,
        steers=steers,
        is_successor=True,
    )


def _no_id(value: object) -> Send:
    """Say that a frame names no response."""
    error = missing("response_id") if value is None else wrong_type("response_id", "a string", value)
    return Send(error_frame(error))


def _as_items(value: object) -> list[object]:
    """Return the input of a create as items; what is wrong with it is found where the create is read."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    return [{"type": "message", "role": "user", "content": value}]
