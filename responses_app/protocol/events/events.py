"""The events of one response, in OpenAI's names (OpenAPI spec 2.3.0), with their one serialisation; and frames.

The reference is made of the sentences that say what each event and frame tells, and of what it holds. Every event has
`type` and `sequence_number`, and on a WebSocket's named lane `stream_id`; those are left out there. Events of an item
hold `item_id` (but for those of a shell's commands) and `output_index`, which is the item's place in the response's
output.

The WebSocket's own frames, which no response has as events, are errors, answers to steering, and two that no SDK knows
(every client tried ignores them). Every other frame is an event, byte for byte as on SSE, with its lane's `stream_id`
added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine import orjson
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.json_text import dumps
from responses_app.protocol.usage import as_read


class EventType(StrEnum):
    """Every event this server sends."""

    CREATED = "response.created"
    QUEUED = "response.queued"
    IN_PROGRESS = "response.in_progress"
    COMPLETED = "response.completed"
    INCOMPLETE = "response.incomplete"
    FAILED = "response.failed"
    ITEM_ADDED = "response.output_item.added"
    ITEM_DONE = "response.output_item.done"
    ITEM_INTERRUPTED = "response.output_item.interrupted"  # only to who asked for it: the SDKs do not know it
    PART_ADDED = "response.content_part.added"
    PART_DONE = "response.content_part.done"
    TEXT_DELTA = "response.output_text.delta"
    TEXT_DONE = "response.output_text.done"
    ANNOTATION_ADDED = "response.output_text.annotation.added"
    REASONING_DELTA = "response.reasoning_text.delta"
    REASONING_DONE = "response.reasoning_text.done"
    SUMMARY_ADDED = "response.reasoning_summary_part.added"
    SUMMARY_DELTA = "response.reasoning_summary_text.delta"
    SUMMARY_TEXT_DONE = "response.reasoning_summary_text.done"
    SUMMARY_DONE = "response.reasoning_summary_part.done"
    ARGUMENTS_DELTA = "response.function_call_arguments.delta"
    ARGUMENTS_DONE = "response.function_call_arguments.done"
    CUSTOM_INPUT_DELTA = "response.custom_tool_call_input.delta"
    CUSTOM_INPUT_DONE = "response.custom_tool_call_input.done"
    COMPACTING = "response.compaction.compacting"
    MCP_CALL_IN_PROGRESS = "response.mcp_call.in_progress"
    MCP_ARGUMENTS_DELTA = "response.mcp_call_arguments.delta"
    MCP_ARGUMENTS_DONE = "response.mcp_call_arguments.done"
    MCP_CALL_COMPLETED = "response.mcp_call.completed"
    MCP_CALL_FAILED = "response.mcp_call.failed"
    MCP_LIST_IN_PROGRESS = "response.mcp_list_tools.in_progress"
    MCP_LIST_COMPLETED = "response.mcp_list_tools.completed"
    MCP_LIST_FAILED = "response.mcp_list_tools.failed"
    CODE_IN_PROGRESS = "response.code_interpreter_call.in_progress"
    CODE_DELTA = "response.code_interpreter_call_code.delta"
    CODE_DONE = "response.code_interpreter_call_code.done"
    CODE_INTERPRETING = "response.code_interpreter_call.interpreting"
    CODE_COMPLETED = "response.code_interpreter_call.completed"
    WEB_SEARCH_IN_PROGRESS = "response.web_search_call.in_progress"
    WEB_SEARCH_SEARCHING = "response.web_search_call.searching"
    WEB_SEARCH_COMPLETED = "response.web_search_call.completed"
    IMAGE_IN_PROGRESS = "response.image_generation_call.in_progress"
    IMAGE_GENERATING = "response.image_generation_call.generating"
    IMAGE_PARTIAL = "response.image_generation_call.partial_image"
    IMAGE_COMPLETED = "response.image_generation_call.completed"
    FILE_SEARCH_IN_PROGRESS = "response.file_search_call.in_progress"
    FILE_SEARCH_SEARCHING = "response.file_search_call.searching"
    FILE_SEARCH_COMPLETED = "response.file_search_call.completed"
    SHELL_COMMAND_ADDED = "response.shell_call_command.added"
    SHELL_COMMAND_DELTA = "response.shell_call_command.delta"
    SHELL_COMMAND_DONE = "response.shell_call_command.done"
    SHELL_OUTPUT_DELTA = "response.shell_call_output_content.delta"
    SHELL_OUTPUT_DONE = "response.shell_call_output_content.done"


PendingEvents = list[tuple[EventType, JsonObject]]  # event type and its fields beside item_id and output_index
TERMINAL = frozenset((EventType.COMPLETED, EventType.INCOMPLETE, EventType.FAILED))


@dataclass(slots=True)
class Event:
    """One event of a response."""

    type: EventType
    sequence_number: int  # from 0 on, without gaps
    fields: JsonObject  # all but `type` and `sequence_number`; never empty, and the event's own from now on

    def as_json(self, *, usage_per_turn: bool = False) -> bytes:
        """Serialise: one JSON object, the same bytes on every transport; its response is as `usage.as_read` has it.

        What orjson returns keeps a buffer of 4 KiB for as long as it lives, so a journal must never hold that itself.
        """
        shown = self.fields
        if self.type in TERMINAL and isinstance(response := shown.get("response"), dict):  # nothing is counted before
            shown = {**shown, "response": as_read(response, usage_per_turn=usage_per_turn)}
        # Without the braces, so that the type comes first and the number last: `DeltaTemplate` and dialects rely on
        # it.
        fields = dumps(shown)[1:-1]
        return b'{"type":"%b",%b,"sequence_number":%d}' % (self.type.encode(), fields, self.sequence_number)


class DeltaTemplate:
    """The JSON of an item's deltas, of which only text and number change."""

    def __init__(self, type: EventType, before: JsonObject, after: JsonObject) -> None:
        # Fields before and behind the text; `head` and `tail` are the same as bytes, up to the text and the number.
        self.type, self.before, self.after = type, before, after
        head, tail = dumps({"type": type, **before}), dumps(after)
        self.head, self.tail = b'%b,"delta":' % head[:-1], b',%b,"sequence_number":' % tail[1:-1]


class Delta(Event):
    """More text of the open item: nearly every event is one, so it is written by its item's template."""

    # `fields` of `Event` is a slot, and stays empty: the property below stands in its place.
    __slots__ = ("_template", "_text")

    def __init__(self, template: DeltaTemplate, sequence_number: int, text: str) -> None:
        self.type, self.sequence_number = template.type, sequence_number
        self._template, self._text = template, text

    @property
    def fields(self) -> JsonObject:  # type: ignore[override]
        """Everything but `type` and `sequence_number`."""
        return {**self._template.before, "delta": self._text, **self._template.after}

    @property
    def template(self) -> DeltaTemplate:
        """What it is written with."""
        return self._template

    def moved(self, template: DeltaTemplate, sequence_number: int) -> "Delta":
        """Return the same text at another place of a stream."""
        return Delta(template, sequence_number, self._text)

    def as_json(self, *, usage_per_turn: bool = False) -> bytes:
        template = self._template
        return b"%b%b%b%d}" % (template.head, dumps(self._text), template.tail, self.sequence_number)


About = tuple[str, str]  # when it comes; what it holds

_RESPONSE = "`response`"
_ITEM = "`output_index`, `item`"
_OF_ITEM = "`item_id`, `output_index`"
_OF_PART = f"{_OF_ITEM}, `content_index`"
_OF_COMMAND = "`output_index`, `command_index`"
_OF_SUMMARY = f"{_OF_ITEM}, `summary_index`"

EVENTS: Mapping[EventType, About] = {
    EventType.CREATED: ("The response has its id, and is kept. Always the first event.", _RESPONSE),
    EventType.QUEUED: ("It has to wait for the engine, or for a place in the background.", _RESPONSE),
    EventType.IN_PROGRESS: ("The engine has a turn for it.", _RESPONSE),
    EventType.COMPLETED: ("It has ended as it should. One of three last events.", _RESPONSE),
    EventType.INCOMPLETE: ("It was ended early; `incomplete_details` says why. One of three last events.", _RESPONSE),
    EventType.FAILED: ("It broke; `error` says how. One of three last events.", _RESPONSE),
    EventType.ITEM_ADDED: ("An item of the output begins.", _ITEM),
    EventType.ITEM_DONE: ("An item is whole; what it holds is what came in its deltas.", _ITEM),
    EventType.ITEM_INTERRUPTED: (
        "An item was cut by an interrupt that asked to be told of it.",
        f"`response_id`, {_OF_ITEM}",
    ),
    EventType.PART_ADDED: ("A part of a message, or of a thought, begins.", f"{_OF_PART}, `part`"),
    EventType.PART_DONE: ("A part is whole.", f"{_OF_PART}, `part`"),
    EventType.TEXT_DELTA: ("More text of an answer.", f"{_OF_PART}, `delta`, `logprobs`"),
    EventType.TEXT_DONE: ("The text of a part is whole.", f"{_OF_PART}, `text`, `logprobs`"),
    EventType.ANNOTATION_ADDED: ("The text cites something.", f"{_OF_PART}, `annotation_index`, `annotation`"),
    EventType.REASONING_DELTA: ("More of what the model thinks.", f"{_OF_PART}, `delta`"),
    EventType.REASONING_DONE: ("A thought is whole.", f"{_OF_PART}, `text`"),
    EventType.SUMMARY_ADDED: ("A summary of a thought begins.", f"{_OF_SUMMARY}, `part`"),
    EventType.SUMMARY_DELTA: ("More of a summary.", f"{_OF_SUMMARY}, `delta`"),
    EventType.SUMMARY_TEXT_DONE: ("The text of a summary is whole.", f"{_OF_SUMMARY}, `text`"),
    EventType.SUMMARY_DONE: ("A summary is whole.", f"{_OF_SUMMARY}, `part`"),
    EventType.ARGUMENTS_DELTA: ("More of a function call's arguments.", f"{_OF_ITEM}, `delta`"),
    EventType.ARGUMENTS_DONE: ("The arguments are whole.", f"{_OF_ITEM}, `name`, `arguments`"),
    EventType.CUSTOM_INPUT_DELTA: ("More of a custom tool's input.", f"{_OF_ITEM}, `delta`"),
    EventType.CUSTOM_INPUT_DONE: ("The input is whole.", f"{_OF_ITEM}, `input`"),
    EventType.COMPACTING: ("What came before is being summed up.", _OF_ITEM),
    EventType.MCP_CALL_IN_PROGRESS: ("A tool of an MCP server is called.", _OF_ITEM),
    EventType.MCP_ARGUMENTS_DELTA: ("More of that call's arguments.", f"{_OF_ITEM}, `delta`"),
    EventType.MCP_ARGUMENTS_DONE: ("Its arguments are whole.", f"{_OF_ITEM}, `arguments`"),
    EventType.MCP_CALL_COMPLETED: ("The tool has answered.", _OF_ITEM),
    EventType.MCP_CALL_FAILED: ("The call failed; the item has the error.", _OF_ITEM),
    EventType.MCP_LIST_IN_PROGRESS: ("An MCP server is asked for its tools.", _OF_ITEM),
    EventType.MCP_LIST_COMPLETED: ("Its tools are known.", _OF_ITEM),
    EventType.MCP_LIST_FAILED: ("They could not be listed; the item has the error.", _OF_ITEM),
    EventType.CODE_IN_PROGRESS: ("The model calls the code interpreter.", _OF_ITEM),
    EventType.CODE_DELTA: ("More of its code.", f"{_OF_ITEM}, `delta`"),
    EventType.CODE_DONE: ("The code is whole.", f"{_OF_ITEM}, `code`"),
    EventType.CODE_INTERPRETING: ("The code runs.", _OF_ITEM),
    EventType.CODE_COMPLETED: ("The code has ended.", f"{_OF_ITEM}, `outputs` where an `include` asks for them"),
    EventType.WEB_SEARCH_IN_PROGRESS: ("The model searches the web, or opens a page.", _OF_ITEM),
    EventType.WEB_SEARCH_SEARCHING: ("The search is under way.", _OF_ITEM),
    EventType.WEB_SEARCH_COMPLETED: ("It has ended.", _OF_ITEM),
    EventType.IMAGE_IN_PROGRESS: ("The model asks for an image.", _OF_ITEM),
    EventType.IMAGE_GENERATING: ("The image is being made.", _OF_ITEM),
    EventType.IMAGE_PARTIAL: ("A first version of it.", f"{_OF_ITEM}, `partial_image_index`, `partial_image_b64`"),
    EventType.IMAGE_COMPLETED: ("The image is there.", _OF_ITEM),
    EventType.FILE_SEARCH_IN_PROGRESS: ("The model searches files.", _OF_ITEM),
    EventType.FILE_SEARCH_SEARCHING: ("The search is under way.", _OF_ITEM),
    EventType.FILE_SEARCH_COMPLETED: ("It has ended.", _OF_ITEM),
    EventType.SHELL_COMMAND_ADDED: ("The model begins to write a command.", f"{_OF_COMMAND}, `command`"),
    EventType.SHELL_COMMAND_DELTA: ("More of that command.", f"{_OF_COMMAND}, `delta`"),
    EventType.SHELL_COMMAND_DONE: ("The command is whole.", f"{_OF_COMMAND}, `command`"),
    EventType.SHELL_OUTPUT_DELTA: (
        "A command that runs has printed something.",
        f"`item_id`, {_OF_COMMAND}, `delta` with `stdout`, `stderr`, or both",
    ),
    EventType.SHELL_OUTPUT_DONE: ("A command has ended.", f"`item_id`, {_OF_COMMAND}, `output`"),
}

_STEER = "`steer` with its `id` and `previous_response_id`"

FRAMES: Mapping[str, About] = {
    "error": ("A request was refused, or the connection ends.", "`status`, `error`, `headers` where waiting helps"),
    "connection_expiring": ("The end of the connection's life comes near.", "`message`, `seconds_left`, `closes_at`"),
    "response.ping": ("A stream is silent; only with `ping-events`.", "`timestamp`, `response` (empty)"),
    "response.steer.accepted": ("Steering was taken, and is not applied yet.", _STEER),
    "response.steer.pending": (
        "Steering waits for outputs that the client has to give.",
        f"`required_input`, {_STEER}",
    ),
    "response.steer.failed": ("Steering is not applied; it comes back.", f"`error`, {_STEER} and `input`"),
    "response.inject.created": ("Outputs of tools were taken; the response has them.", "`response_id`"),
    "response.inject.failed": ("None of the outputs was taken; they come back.", "`response_id`, `input`, `error`"),
    "response.interrupt.accepted": ("The response ends now.", "`response_id`"),
    "response.interrupt.failed": ("The interrupt changes nothing.", "`response_id`, `error`"),
}


ERROR_HEAD = '{"type":"error",'  # of every frame of an error


def error_frame(error: ApiError, stream_id: str | None = None) -> str:
    """Return the frame of an error: `status` and nested `error`, without which Codex waits for its idle timeout.

    Headers stand at the top level, where Codex reads them, and inside `error`, where OpenAI's types have them.
    """
    body = error.body()
    frame: JsonObject = {"type": "error", "status": error.status, "error": body}
    if stream_id is not None:
        frame["stream_id"] = stream_id
    if error.headers:
        frame["headers"] = error.headers
        frame["error"] = {**body, "headers": error.headers}
    return dumps(frame).decode()


def event_bytes(json: bytes, suffix: bytes | None) -> bytes:
    """Return an event's frame; `suffix` is what `lane_suffix` made of its lane."""
    # The suffix replaces the closing brace: an event is serialised once for all its readers.
    return json if suffix is None else json[:-1] + suffix


def with_headers(frame: bytes, headers: Mapping[str, str]) -> bytes:
    """Return an event's frame with what HTTP would say in the head of the answer, where errors have theirs, too."""
    return b'%b,"headers":%b}' % (frame[:-1], dumps(headers))


def lane_suffix(stream_id: str | None) -> bytes | None:
    """Return what replaces an event's closing brace on this lane, None on the default lane."""
    return None if stream_id is None else b',"stream_id":%b}' % dumps(stream_id)


def ping(last_number: int, timestamp: float) -> bytes:
    """Return the heartbeat of a silent stream. It takes no number of its own; `timestamp` is in Unix seconds."""
    frame = {"type": "response.ping", "sequence_number": last_number, "timestamp": timestamp, "response": {}}
    return dumps(frame)


def connection_expiring(seconds_left: int, closes_at: int) -> str:
    """Return the warning before a connection's end. No error frame: those break running turns."""
    in_minutes = seconds_left == 60 or seconds_left >= 120  # nearer the end, minutes say too little
    number, unit = (round(seconds_left / 60), "minute") if in_minutes else (seconds_left, "second")
    frame = {
        "type": "connection_expiring",
        "message": f"Connection will close in {number} {unit}{'' if number == 1 else 's'}",
        "seconds_left": seconds_left,
        "closes_at": closes_at,
    }
    return dumps(frame).decode()


def reply_frame(reply: JsonObject, last_number: int, stream_id: str | None = None) -> str:
    """Return what answers a client's word on a response that runs: a frame of the connection, no event of the response.

    As with a heartbeat, its number is that of the last event that was sent: a stream that is picked up again has no gap
    where it was.
    """
    # There may be no event yet, and so no number: then it is 0.
    frame = {"type": reply["type"], "sequence_number": max(0, last_number), **reply}
    if stream_id is not None:
        frame["stream_id"] = stream_id
    try:
        return dumps(frame).decode()
    except orjson.JSONEncodeError:  # nested deeper than orjson writes, which is less deep than it reads
        return dumps({**frame, "steer": {"previous_response_id": "", "input": ""}}).decode()


def steer_accepted(steer_id: str, response_id: str) -> JsonObject:
    """Return the answer to steering that was taken: this server has the input now, and has not applied it yet."""
    return {"type": "response.steer.accepted", "steer": {"id": steer_id, "previous_response_id": response_id}}


def steer_pending(steer_id: str, response_id: str, required: Sequence[JsonObject]) -> JsonObject:
    """Return what is said of steering whose response has ended, and waits for what its client has to give."""
    return {
        "type": "response.steer.pending",
        "reason": "waiting_for_required_input",
        "required_input": list(required),
        "steer": {"id": steer_id, "previous_response_id": response_id},
    }


def steer_failed(
    code: str, message: str, response_id: object, input: object, steer_id: str | None = None
) -> JsonObject:
    """Return why steering is not applied, with its input; `steer_id` is that of one that was accepted."""
    # OpenAI's types have texts there, whatever the client has sent.
    target = response_id if isinstance(response_id, str) else ""
    steer: JsonObject = {"previous_response_id": target, "input": "" if input is None else input}
    if steer_id is not None:
        steer["id"] = steer_id
    return {"type": "response.steer.failed", "error": _refusal(code, message), "steer": steer}


def interrupt_accepted(response_id: str) -> JsonObject:
    """Return the answer to an interrupt that ends a response."""
    return {"type": "response.interrupt.accepted", "response_id": response_id}


def interrupt_failed(code: str, message: str, response_id: object) -> JsonObject:
    """Return why an interrupt changes nothing: the response, if there is one, goes on."""
    target = response_id if isinstance(response_id, str) else ""
    return {"type": "response.interrupt.failed", "response_id": target, "error": _refusal(code, message)}


def inject_created(response_id: str) -> JsonObject:
    """Return the answer to outputs that were taken: all of them are kept with the response."""
    return {"type": "response.inject.created", "response_id": response_id}


def inject_failed(code: str, message: str, response_id: str, input: object) -> JsonObject:
    """Return why none of the outputs was taken, with what was sent."""
    error = {"code": code, "message": message}
    return {"type": "response.inject.failed", "response_id": response_id, "input": input, "error": error}


def _refusal(code: str, message: str) -> JsonObject:
    return {"type": "invalid_request_error", "code": code, "message": message}
