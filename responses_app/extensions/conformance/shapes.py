"""Verdicts of a check, and the shapes of answers: for each object the fields that the SDKs' types require, and more.

The tables follow the types of OpenAI's and Anthropic's SDKs; a test compares them. A shape that does
not fit, like whatever else ends a check early, is raised as an `Unmet`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any


class CheckVerdict(StrEnum):
    """How a check ended, the worst first."""

    FAILED = "failed"
    ABSENT = "absent"  # the server does not have what is checked
    SKIPPED = "skipped"  # a precondition was not met
    PASSED = "passed"


class Unmet(Exception):
    """A check ends without having passed. The text says why."""

    verdict = CheckVerdict.FAILED


class RuleBroken(Unmet):
    """The server did other than the rule says."""


class Lost(RuleBroken):
    """No whole answer came: in time, or before the connection was lost."""


class Unreachable(Lost):
    """No connection was made."""


class Absent(Unmet):
    """The server does not have what is checked."""

    verdict = CheckVerdict.ABSENT


class Skipped(Unmet):
    """Nothing can be said about the rule here."""

    verdict = CheckVerdict.SKIPPED


def expect(is_so: object, came: str) -> None:
    """Raise `RuleBroken` with the text `came`, unless it is so."""
    if not is_so:
        raise RuleBroken(came)


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One request, or one frame that was sent, and what came back. Texts are bounded."""

    sent: str  # the method and the path, or `WebSocket`
    body: str  # "" for none
    status: int | None  # None where no answer came, and on a WebSocket
    came: str  # the beginning of what came


Json = dict[str, Any]
Kind = type | UnionType
Shape = Mapping[str, Kind]
NUMBER = int | float

RESPONSE: Shape = {
    "id": str,
    "object": str,
    "created_at": NUMBER,
    "model": str,
    "output": list,
    "parallel_tool_calls": bool,
    "tool_choice": str | dict,
    "tools": list,
}
# The SDK's type lets these be left out; OpenAI's specification requires them, though they may be null.
RESPONSE_NULLABLE = (
    *("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p"),
    *("status", "usage", "previous_response_id", "reasoning", "text", "truncation", "max_output_tokens"),
)
USAGE: Shape = {
    "input_tokens": int,
    "input_tokens_details": dict,
    "output_tokens": int,
    "output_tokens_details": dict,
    "total_tokens": int,
}
MESSAGE_ITEM: Shape = {"id": str, "type": str, "role": str, "status": str, "content": list}
OUTPUT_TEXT: Shape = {"type": str, "text": str, "annotations": list}
FUNCTION_CALL: Shape = {"type": str, "call_id": str, "name": str, "arguments": str}
CUSTOM_CALL: Shape = {"type": str, "call_id": str, "name": str, "input": str}
PATCH_CALL: Shape = {"id": str, "type": str, "call_id": str, "operation": dict, "status": str}
REASONING_ITEM: Shape = {"id": str, "type": str, "summary": list}
ITEM_LIST: Shape = {"object": str, "data": list, "first_id": str, "last_id": str, "has_more": bool}
COMPACTION: Shape = {"id": str, "object": str, "created_at": int, "output": list, "usage": dict}
MODEL: Shape = {"id": str, "object": str, "created": int, "owned_by": str}
CHAT: Shape = {"id": str, "object": str, "created": int, "model": str, "choices": list}
CHOICE: Shape = {"index": int, "finish_reason": str, "message": dict}
CHUNK: Shape = {"id": str, "object": str, "created": int, "model": str, "choices": list}
CHUNK_CHOICE: Shape = {"index": int, "delta": dict}
CHAT_USAGE: Shape = {"prompt_tokens": int, "completion_tokens": int, "total_tokens": int}
MESSAGE: Shape = {"id": str, "type": str, "role": str, "model": str, "content": list, "usage": dict}
MESSAGE_USAGE: Shape = {"input_tokens": int, "output_tokens": int}

_TO_RESPONSE: Shape = {"response": dict, "sequence_number": int}
_OF_ITEM: Shape = {"item_id": str, "output_index": int, "sequence_number": int}
_OF_PART: Shape = {**_OF_ITEM, "content_index": int}
_OF_SUMMARY: Shape = {**_OF_ITEM, "summary_index": int}
_OF_COMMAND: Shape = {"command_index": int, "output_index": int, "sequence_number": int}
EVENTS: Mapping[str, Shape] = {
    **{
        f"response.{name}": _TO_RESPONSE
        for name in ("created", "queued", "in_progress", "completed", "incomplete", "failed")
    },
    "response.output_item.added": {"item": dict, "output_index": int, "sequence_number": int},
    "response.output_item.done": {"item": dict, "output_index": int, "sequence_number": int},
    "response.content_part.added": {**_OF_PART, "part": dict},
    "response.content_part.done": {**_OF_PART, "part": dict},
    "response.output_text.delta": {**_OF_PART, "delta": str, "logprobs": list},
    "response.output_text.done": {**_OF_PART, "text": str, "logprobs": list},
    "response.output_text.annotation.added": {**_OF_PART, "annotation_index": int},
    "response.refusal.delta": {**_OF_PART, "delta": str},
    "response.refusal.done": {**_OF_PART, "refusal": str},
    "response.reasoning_text.delta": {**_OF_PART, "delta": str},
    "response.reasoning_text.done": {**_OF_PART, "text": str},
    "response.reasoning_summary_part.added": {**_OF_SUMMARY, "part": dict},
    "response.reasoning_summary_part.done": {**_OF_SUMMARY, "part": dict},
    "response.reasoning_summary_text.delta": {**_OF_SUMMARY, "delta": str},
    "response.reasoning_summary_text.done": {**_OF_SUMMARY, "text": str},
    "response.function_call_arguments.delta": {**_OF_ITEM, "delta": str},
    "response.function_call_arguments.done": {**_OF_ITEM, "arguments": str},
    "response.custom_tool_call_input.delta": {**_OF_ITEM, "delta": str},
    "response.custom_tool_call_input.done": {**_OF_ITEM, "input": str},
    "response.mcp_call_arguments.delta": {**_OF_ITEM, "delta": str},
    "response.mcp_call_arguments.done": {**_OF_ITEM, "arguments": str},
    "response.code_interpreter_call_code.delta": {**_OF_ITEM, "delta": str},
    "response.code_interpreter_call_code.done": {**_OF_ITEM, "code": str},
    **{
        f"response.{name}": _OF_ITEM
        for name in (
            *("code_interpreter_call.in_progress", "code_interpreter_call.interpreting"),
            *("code_interpreter_call.completed", "compaction.compacting"),
            *("file_search_call.in_progress", "file_search_call.searching", "file_search_call.completed"),
            *("web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed"),
            *("image_generation_call.in_progress", "image_generation_call.generating"),
            *("image_generation_call.completed", "mcp_call.in_progress", "mcp_call.completed", "mcp_call.failed"),
            *("mcp_list_tools.in_progress", "mcp_list_tools.completed", "mcp_list_tools.failed"),
        )
    },
    "response.image_generation_call.partial_image": {
        **_OF_ITEM,
        "partial_image_b64": str,
        "partial_image_index": int,
    },
    "response.shell_call_command.added": {**_OF_COMMAND, "command": str},
    "response.shell_call_command.delta": {**_OF_COMMAND, "delta": str},
    "response.shell_call_command.done": {**_OF_COMMAND, "command": str},
    "response.shell_call_output_content.delta": {**_OF_COMMAND, "item_id": str, "delta": dict},
    "response.shell_call_output_content.done": {**_OF_COMMAND, "item_id": str, "output": list},
    "response.audio.delta": {"delta": str, "sequence_number": int},
    "response.audio.done": {"sequence_number": int},
    "response.audio.transcript.delta": {"delta": str, "sequence_number": int},
    "response.audio.transcript.done": {"sequence_number": int},
    "error": {"message": str, "sequence_number": int},
}
MESSAGE_EVENTS: Mapping[str, Shape] = {
    "message_start": {"message": dict},
    "content_block_start": {"index": int, "content_block": dict},
    "content_block_delta": {"index": int, "delta": dict},
    "content_block_stop": {"index": int},
    "message_delta": {"delta": dict, "usage": dict},
    "message_stop": {},
    "ping": {},
    "error": {"error": dict},
}
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


def require(value: object, shape: Shape, what: str) -> Json:
    """Return an object that has every field of a shape. Raises `RuleBroken`, which names all that is wrong."""
    if not isinstance(value, dict):
        raise RuleBroken(f"{what} is {_kind(value)} and no object")
    wrong = [
        f"'{name}' is {_kind(value[name]) if name in value else 'missing'}"
        for name, kind in shape.items()
        if not _fits(value.get(name), kind)
    ]
    if wrong:
        raise RuleBroken(f"{what}: {', '.join(wrong)}")
    return value


def _fits(value: object, kind: Kind) -> bool:
    # To Python a bool is an int, to JSON it is not.
    return isinstance(value, kind) and (not isinstance(value, bool) or kind is bool)


def _kind(value: object) -> str:
    names = {NoneType: "null", str: "a string", bool: "a boolean", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")


def response_of(value: object) -> Json:
    """Return a response that has what checks need; whether it has all fields is a check of its own."""
    return require(value, {"id": str, "status": str, "output": list}, "the response")


def whole_response_of(value: object, what: str = "the response") -> Json:
    """Return a response that has the fields that OpenAI's specification requires."""
    response = require(value, RESPONSE, what)
    missing = [name for name in RESPONSE_NULLABLE if name not in response]
    if missing:
        raise RuleBroken(f"{what}: {', '.join(repr(name) for name in missing)} missing")
    if response["object"] != "response":
        raise RuleBroken(f"{what}: 'object' is {response['object']!r}")
    return response


def finished(response: Json) -> Json:
    """Return a response that was completed. What was cut at its most tokens says nothing of the rule."""
    if response.get("status") == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        raise Skipped(f"the answer ended early ({reason}), so the rule could not be tried")
    if response.get("status") != "completed":
        raise RuleBroken(f"status {response.get('status')!r}, error {response.get('error')!r}")
    return response


def items_of(response: Json, kind: str) -> list[Json]:
    """Return the output items of one type."""
    return [item for item in response["output"] if item["type"] == kind]


def text_of(response: Json) -> str:
    """Return what a response says."""
    parts = (part for item in items_of(response, "message") for part in item["content"])
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
