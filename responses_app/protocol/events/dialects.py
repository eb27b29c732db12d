"""Dialects: how this server words what it sends, for clients that want it otherwise than today's spec.

A dialect is a set of independent switches; presets are sets with a name. `RESPONSES_DIALECT` chooses one for the
server, the header `Respsite-Dialect` one for a request or a connection. Events keep their numbers and their order, so a
stream can be picked up again in another dialect. A dialect gives an event another name, or puts another event before or
behind it; `RULES` says all of it.

    an event of the journal ── Wording.of() ──> [what comes before,] the event by its name [, what comes behind]

An event of a dialect's own has no number of its own, but that of the last event which its reader has had by then. So
whoever picks a stream up behind any number gets every event of the journal behind it, and what is put beside those. Who
had an event that was put, and no more, gets it again: with its type and its number, by which it is known. Example:
`response.error` before the `response.failed` number 7 has the number 6, and is told to whoever goes on with 7.

What is told again must not be lost, nor often come twice. So nearly all is put before the event that it tells of: twice
comes only what was cut between the two. What is put behind is told again at every start behind that event; that is for
what may be told any number of times.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache, partial
from hashlib import shake_128
from typing import NamedTuple

from engine import orjson
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request
from responses_app.protocol.json_text import dumps
from responses_app.protocol.usage import as_read

DIALECT_HEADER = "Respsite-Dialect"


class Switch(StrEnum):
    """What can be had otherwise, each by itself."""

    TURN_ID = "turn-id"  # one response id for a whole turn, tool outputs included
    COMPLETED_CALLS = "completed-calls"  # a call that comes back `completed` and without an output gave nothing back
    REASONING_NAMES = "reasoning-names"  # `response.reasoning.*` for `response.reasoning_text.*`
    SUMMARY_NAMES = "summary-names"  # `response.reasoning.summary.*` for `response.reasoning_summary_*`
    REASONING_PARTS = "reasoning-parts"  # `response.reasoning_part.*` for a reasoning item's `content_part.*`
    TOOL_DELTAS = "tool-deltas"  # `response.tool_call.delta` besides the deltas of a call
    TOOL_DELTA_OBJECTS = "tool-delta-objects"  # the same with objects, where `tool-deltas` has JSON in strings
    ERROR_EVENTS = "error-events"  # `response.error` before `response.failed`
    CONTEXT_EVENTS = "context-events"  # `response.additional_context` behind items that carry sealed content or sources
    RATE_LIMIT_EVENTS = "rate-limit-events"  # `response.rate_limits.updated`, where there are limits
    PING_EVENTS = "ping-events"  # heartbeats are events, for clients that count nothing else as a sign of life
    USAGE_PER_TURN = "usage-per-turn"  # lists of each turn's tokens beside the sums
    OBFUSCATION = "obfuscation"  # deltas are filled up, so that their size says little of their text


PRESETS: Mapping[str, frozenset[Switch]] = {
    "openai": frozenset(),
    "open-responses": frozenset((Switch.REASONING_NAMES,)),
    "codex-turn": frozenset((Switch.TURN_ID, Switch.COMPLETED_CALLS, Switch.REASONING_NAMES)),
    "legacy-events": frozenset(
        (
            Switch.REASONING_NAMES,
            Switch.SUMMARY_NAMES,
            Switch.REASONING_PARTS,
            Switch.TOOL_DELTAS,
            Switch.ERROR_EVENTS,
            Switch.CONTEXT_EVENTS,
            Switch.RATE_LIMIT_EVENTS,
        )
    ),
}
OBFUSCATED_TO = 64  # bytes: the size of a delta is a multiple of it
_FIELD = b',"obfuscation":"'
KNOWN = f"the presets {', '.join(PRESETS)}; the switches {', '.join(Switch)}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """A set of switches."""

    switches: frozenset[Switch] = frozenset()

    @property
    def pings_are_events(self) -> bool:
        """Whether a heartbeat is an event; else it is what every client ignores by itself."""
        return Switch.PING_EVENTS in self.switches

    @property
    def one_id_a_turn(self) -> bool:
        """Whether a response that goes on with a turn has the id of the one before it."""
        return Switch.TURN_ID in self.switches

    @property
    def completed_calls_are_answered(self) -> bool:
        """Whether a call that comes back `completed` and without an output gave nothing back; else it is an echo."""
        return Switch.COMPLETED_CALLS in self.switches

    @property
    def usage_per_turn(self) -> bool:
        """Whether a response's usage has lists of each turn's tokens."""
        return Switch.USAGE_PER_TURN in self.switches

    @property
    def hiding(self) -> "Dialect":
        """The same, with sizes hidden."""
        return _dialect_of(self.switches | {Switch.OBFUSCATION})

    def response(self, response: Mapping[str, object]) -> Mapping[str, object]:
        """Return a response object as this dialect has it, of one as it is stored."""
        return as_read(response, usage_per_turn=Switch.USAGE_PER_TURN in self.switches)


OPENAI = Dialect()


def parse_dialect(text: str) -> Dialect:
    """Return the dialect that names of presets and switches, separated by commas, make together.

    Raises `ValueError` with the first name that is not known, "" where there is no name at all.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("")
    return _dialect_of(frozenset(_switches(names)))


def requested_dialect(header: str | None, default: Dialect, *, usage_per_turn: bool = False) -> Dialect:
    """Return the dialect that a request's header asks for, else the default; `usage_per_turn`: in any case with that.

    Raises `ApiError` (400) for one that is not known.
    """
    dialect = default
    if header is not None and header.strip(" ,"):
        try:
            dialect = parse_dialect(header)
        except ValueError as error:
            raise unknown_dialect(str(error)) from None
    return _dialect_of(dialect.switches | {Switch.USAGE_PER_TURN}) if usage_per_turn else dialect


def unknown_dialect(name: str) -> ApiError:
    """A request asks for a dialect that this server does not have (400)."""
    return invalid_request(
        f"Unknown value in the header '{DIALECT_HEADER}': {name[:80]!r}. Known are {KNOWN}; separate several by "
        "commas.",
        param=DIALECT_HEADER,
        code="invalid_value",
    )


def _switches(names: Iterable[str]) -> Iterable[Switch]:
    for name in names:
        if name in PRESETS:
            yield from PRESETS[name]
        else:
            try:
                yield Switch(name)
            except ValueError:
                raise ValueError(name) from None


@lru_cache(maxsize=64)
def _dialect_of(switches: frozenset[Switch]) -> Dialect:
    """Return the one object of a set."""
    return Dialect(switches)


FAILED = "response.failed"
ENDS = ("response.completed", "response.incomplete", FAILED)
CALL_DELTAS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
CALL_ENDS = {"response.function_call_arguments.done": "arguments", "response.custom_tool_call_input.done": "input"}
CALLS = (*CALL_DELTAS, *CALL_ENDS)
REASONING = "reasoning_text"
TOOL_DELTA = "response.tool_call.delta"
RATE_LIMITS = "response.rate_limits.updated"
CONTEXT = "response.additional_context"
_ERROR_TYPES = {"rate_limit_exceeded": "rate_limit_error", "invalid_prompt": "invalid_request_error"}  # by codes

Worded = tuple[str, bytes]  # an event's type and its JSON


class CallNames(NamedTuple):
    """What a client needs to know of a call, which its deltas do not say."""

    call_id: str
    name: str


class Scene(NamedTuple):
    """What an event does not say itself, and rules need."""

    response_id: str
    calls: Mapping[str, CallNames]  # those of the response, by the ids of their items
    rate_limits: Callable[[], Sequence[JsonObject]]  # as they are now, hence a function
    images: Sequence[str] = ()  # URLs of those in the request's input, where its reader asks for them


class EventPlace(Enum):
    """Where what a rule makes of an event goes."""

    INSTEAD = ""
    BEFORE = "before"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a switch makes of an event: it is called `becomes`, or an event of that type is put before or behind it.

    An event that is put has no number of its own: see the top of this file.
    """

    switch: Switch
    event: str  # the type that it is about
    becomes: str  # the type that it gets, or that of the event that is put
    place: EventPlace = EventPlace.INSTEAD
    # The fields of an event that is put, made of the JSON of the one beside it; None where there is nothing to say. A
    # rule without it renames.
    make: Callable[[bytes, Scene], JsonObject | None] | None = None
    part: str = ""  # the type of the part that a renamed event must be about; "": of any
    unless: Switch | None = None  # a switch that takes the place of this one

    def holds(self, switches: Collection[Switch]) -> bool:
        """Whether the rule is one of a dialect with these switches."""
        return self.switch in switches and self.unless not in switches


def _tool_delta(json: bytes, scene: Scene, *, as_text: bool) -> JsonObject | None:
    entry = _tool_call(json, scene)
    content = dumps(entry).decode() if as_text else entry
    return None if entry is None else {"response": {"id": scene.response_id}, "delta": {"content": [content]}}


def _tool_call(json: bytes, scene: Scene) -> JsonObject | None:
    """Return what a call's delta adds, or the end of a call that had no text: else nobody would be told of it."""
    event = orjson.loads(json)
    text = event.get("delta")
    if text is None:
        text = event[CALL_ENDS[event["type"]]]
        if text:
            return None
    call = scene.calls.get(event["item_id"])
    if call is None:
        return None
    named = {"id": event["item_id"], "call_id": call.call_id, "name": call.name}
    return {"type": "tool_call", **named, "arguments": text}


def _error(json: bytes, scene: Scene) -> JsonObject | None:
    error = orjson.loads(json)["response"]["error"]
    if error is None:
        return None
    kind = _ERROR_TYPES.get(error["code"], "server_error")
    return {"error": {"message": error["message"], "type": kind, "code": error["code"]}}


def _context(json: bytes, scene: Scene) -> JsonObject | None:
    item = orjson.loads(json)["item"]
    action = item.get("action")
    # Sources are a web search's; sealed content counts where it is a thought's: a compaction's is the answer itself.
    fields = {
        "sources": action.get("sources") if isinstance(action, dict) else None,
        "encrypted_content": item.get("encrypted_content") if item.get("type") == "reasoning" else None,
    }
    context = {name: value for name, value in fields.items() if value}
    return {"item_id": item["id"], "context": context} if context else None


def _images(json: bytes, scene: Scene) -> JsonObject | None:
    return {"context": {"image_urls": list(scene.images)}} if scene.images else None


def _rate_limits(json: bytes, scene: Scene) -> JsonObject | None:
    limits = scene.rate_limits()
    return {"rate_limits": list(limits)} if limits else None


RULES = (
    Rule(Switch.REASONING_NAMES, "response.reasoning_text.delta", "response.reasoning.delta"),
    Rule(Switch.REASONING_NAMES, "response.reasoning_text.done", "response.reasoning.done"),
    Rule(Switch.SUMMARY_NAMES, "response.reasoning_summary_part.added", "response.reasoning.summary.added"),
    Rule(Switch.SUMMARY_NAMES, "response.reasoning_summary_text.delta", "response.reasoning.summary.delta"),
    *(
        Rule(Switch.REASONING_PARTS, f"response.content_part.{end}", f"response.reasoning_part.{end}", part=REASONING)
        for end in ("added", "done")
    ),
    *(
        Rule(
            Switch.TOOL_DELTAS,
            event,
            TOOL_DELTA,
            EventPlace.BEFORE,
            partial(_tool_delta, as_text=True),
            unless=Switch.TOOL_DELTA_OBJECTS,
        )
        for event in CALLS
    ),
    *(
        Rule(Switch.TOOL_DELTA_OBJECTS, event, TOOL_DELTA, EventPlace.BEFORE, partial(_tool_delta, as_text=False))
        for event in CALLS
    ),
    Rule(Switch.ERROR_EVENTS, FAILED, "response.error", EventPlace.BEFORE, _error),
    Rule(Switch.CONTEXT_EVENTS, "response.output_item.done", CONTEXT, EventPlace.BEFORE, _context),
    Rule(Switch.CONTEXT_EVENTS, "response.in_progress", CONTEXT, EventPlace.BEHIND, _images),
    Rule(Switch.RATE_LIMIT_EVENTS, "response.in_progress", RATE_LIMITS, EventPlace.BEHIND, _rate_limits),
    *(Rule(Switch.RATE_LIMIT_EVENTS, end, RATE_LIMITS, EventPlace.BEFORE, _rate_limits) for end in ENDS),
)


class Wording:
    """How one reader hears the events of one response; `scene` has what the events do not say."""

    def __init__(self, dialect: Dialect, scene: Scene) -> None:
        self._rules = _rules_of(dialect.switches)  # by types of events
        self._scene = scene
        self._hides = Switch.OBFUSCATION in dialect.switches
        self.usage_per_turn = dialect.usage_per_turn

    def of(self, type: str, number: int, json: bytes) -> Sequence[Worded]:
        """Return an event as it is worded here, with what comes before and behind it, of what `Event.as_json` made."""
        rules = self._rules.get(type)
        if rules is None:
            return ((type, self._sized(type, number, json)),)
        before: list[Worded] = []
        name = type
        for rule in rules:
            if rule.make is None:
                is_meant = not rule.part or orjson.loads(json)["part"]["type"] == rule.part
                name = rule.becomes if is_meant else name
            elif rule.place is EventPlace.BEFORE and (fields := rule.make(json, self._scene)) is not None:
                # The number of the event before: what its reader has had by then.
                before.append(_put(rule.becomes, fields, number - 1))
        renamed = json
        if name is not type:  # `json` begins with `{"type":"…"`, as `Event.as_json` writes it: only that is exchanged
            renamed = b'{"type":"%b"%b' % (name.encode(), json[len('{"type":""') + len(type) :])
        itself = (name, self._sized(type, number, renamed))
        return (*before, itself, *self.behind(type, number, json))

    def _sized(self, type: str, number: int, json: bytes) -> bytes:
        """Return an event filled up to a size that says little of its text, where this reader asks for that."""
        if not self._hides or not type.endswith(".delta"):
            return json
        # The filling does not repeat, so that compression cannot take it out; and it is the same at every reading.
        size = 1 + -(len(json) + len(_FIELD) + 2) % OBFUSCATED_TO
        return b'%b%b%b"}' % (json[:-1], _FIELD, shake_128(b"%d" % number).hexdigest(size).encode()[:size])

    def behind(self, type: str, number: int, json: bytes) -> Sequence[Worded]:
        """Return what comes behind an event: also all that a reader hears of it which begins behind it."""
        return [
            _put(rule.becomes, fields, number)
            for rule in self._rules.get(type, ())
            if rule.place is EventPlace.BEHIND and rule.make and (fields := rule.make(json, self._scene)) is not None
        ]


def wording(dialect: Dialect, scene: Scene) -> Wording | None:
    """Return how a reader hears a response in a dialect; None where it hears every event as the journal has it."""
    # Two switches have no rule: they change how events are written.
    changes = dialect.switches & {Switch.USAGE_PER_TURN, Switch.OBFUSCATION} or _rules_of(dialect.switches)
    return Wording(dialect, scene) if changes else None


def no_limits() -> Sequence[JsonObject]:
    """There are no limits, so nothing is said of them."""
    return ()


@lru_cache(maxsize=64)
def _rules_of(switches: frozenset[Switch]) -> Mapping[str, Sequence[Rule]]:
    """Return a dialect's rules by the events they are about."""
    rules: dict[str, list[Rule]] = {}
    for rule in RULES:
        if rule.holds(switches):
            rules.setdefault(rule.event, []).append(rule)
    return rules


def _put(type: str, fields: JsonObject, number: int) -> Worded:
    return type, dumps({"type": type, **fields, "sequence_number": number})
