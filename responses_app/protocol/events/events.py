"""The events of one response, in OpenAI's names (OpenAPI spec 2.3.0), and their one serialisation."""

from dataclasses import dataclass
from enum import StrEnum

import orjson

from responses_app.protocol.errors import JsonObject
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


TERMINAL = frozenset((EventType.COMPLETED, EventType.INCOMPLETE, EventType.FAILED))


@dataclass(slots=True)
class Event:
    """One event. `fields` is everything but `type` and `sequence_number`, never empty, and the event's from now on."""

    type: EventType
    sequence_number: int
    fields: JsonObject

    def as_json(self, *, usage_per_turn: bool = False) -> bytes:
        """Serialise: one JSON object, the same bytes on every transport; its response is as `usage.as_read` has it.

        What orjson returns keeps a buffer of 4 KiB for as long as it lives, so a journal must never hold that itself.
        """
        shown = self.fields
        if self.type in TERMINAL and isinstance(response := shown.get("response"), dict):  # nothing is counted before
            shown = {**shown, "response": as_read(response, usage_per_turn=usage_per_turn)}
        fields = orjson.dumps(shown)[1:-1]
        return b'{"type":"%b",%b,"sequence_number":%d}' % (self.type.encode(), fields, self.sequence_number)


class DeltaTemplate:
    """The JSON of an item's deltas, whose text and number alone change; `before` and `after` stand around the text."""

    def __init__(self, type: EventType, before: JsonObject, after: JsonObject) -> None:
        self.type, self.before, self.after = type, before, after
        head, tail = orjson.dumps({"type": type, **before}), orjson.dumps(after)
        self.head, self.tail = b'%b,"delta":' % head[:-1], b',%b,"sequence_number":' % tail[1:-1]


class Delta(Event):
    """More text of the open item: nearly every event is one, so it is written by its item's template."""

    __slots__ = ("_template", "_text")

    def __init__(self, template: DeltaTemplate, sequence_number: int, text: str) -> None:
        self.type, self.sequence_number = template.type, sequence_number
        self._template, self._text = template, text

    @property
    def fields(self) -> JsonObject:  # type: ignore[override]
        """Everything but `type` and `sequence_number`."""
        return {**self._template.before, "delta": self._text, **self._template.after}

    def as_json(self, *, usage_per_turn: bool = False) -> bytes:
        template = self._template
        return b"%b%b%b%d}" % (template.head, orjson.dumps(self._text), template.tail, self.sequence_number)
