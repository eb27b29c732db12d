"""The events of one response, in OpenAI's names (OpenAPI spec 2.3.0), and their one serialisation.

The reference is made of the sentences that say what each event and frame tells, and of what it holds. Every event has
`type` and `sequence_number`, and on a WebSocket's named lane `stream_id`; those are left out there. Events of an item
hold `item_id` (but for those of a shell's commands) and `output_index`, which is the item's place in the response's
output.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from responses_app.protocol.errors import JsonObject
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
