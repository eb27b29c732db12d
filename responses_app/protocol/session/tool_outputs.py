"""What clients say came of a call, while its response waits: `POST /v1/responses/{id}/tool_outputs`."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from responses_app.protocol.errors import ApiError, JsonObject, not_found
from responses_app.protocol.fields import ClientModel, validate
from responses_app.protocol.items.items import Content, MediaPart, Part
from responses_app.protocol.items.resources import part_resource
from responses_app.protocol.json_text import json_size
from responses_app.protocol.prompt.rendering import text_of
from responses_app.protocol.response.steps import OutputGiven

TOOL_MODE_HEADER = "Respsite-Tool-Mode"
COMPLETE, WAIT = "complete", "wait"  # a response ends with calls of the client's tools, or waits for their outputs
TOOL_MODE = "tool_mode"  # what says so in a request that is kept


class ToolOutput(ClientModel):
    """The body of a request: what came of the call of this `call_id`."""

    tool_call_id: str = Field(min_length=1, max_length=256)
    output: Content


class InjectedOutput(ClientModel):
    """What came of a call, as an item of a `response.inject`."""

    call_id: str = Field(min_length=1, max_length=256)
    output: Content


def parse_tool_output(data: Mapping[str, object], *, max_bytes: int) -> OutputGiven:
    """Validate the body of a request. Raises `ApiError`: 413 for an output of more than `max_bytes`."""
    _check_size(data.get("output"), max_bytes, "output")
    body = validate(ToolOutput, data)
    return _given(body.tool_call_id, data["output"], body.output)


def parse_injected(item: JsonObject, index: int, *, max_bytes: int) -> OutputGiven:
    """Validate an item of a `response.inject`: what came of a call. Raises `ApiError` as `parse_tool_output` does."""
    at = f"input[{index}]"
    _check_size(item.get("output"), max_bytes, f"{at}.output")
    # The other fields of an item say nothing here.
    read = validate(InjectedOutput, {name: item[name] for name in ("call_id", "output") if name in item}, at=at)
    return _given(read.call_id, item["output"], read.output)


def _check_size(output: object, max_bytes: int, at: str) -> None:
    # Before it is read: reading a large one would take the event loop's time.
    size = json_size({"output": output})
    if size > max_bytes:
        raise output_too_large(size, max_bytes, at)


def _given(call_id: str, raw: object, read: Sequence[Part]) -> OutputGiven:
    parts: list[JsonObject] = raw if isinstance(raw, list) else []
    # As OpenAI's types have the parts of an output: what a client read from somewhere is what the model is given.
    kept: list[JsonObject] = [
        part_resource(part) if isinstance(each, MediaPart) else {"type": "input_text", "text": text_of([each])}
        for part, each in zip(parts, read, strict=False)  # a text has one part here, and none in `parts`
    ]
    return OutputGiven(call_id, raw if isinstance(raw, str) else kept, text_of(read))


def as_json(output: OutputGiven) -> JsonObject:
    """Return an output as another worker is told of it; `from_json` reads it."""
    return {"call_id": output.call_id, "output": output.output, "text": output.text}


def from_json(data: Mapping[str, object]) -> OutputGiven:
    """Read what `as_json` wrote."""
    output = data["output"]
    return OutputGiven(str(data["call_id"]), output if isinstance(output, list) else str(output), str(data["text"]))


def output_too_large(size: int, limit: int, at: str) -> ApiError:
    """The output, which stands in the field `at`, has more bytes than this server takes (413)."""
    message = f"The '{at}' has {size} bytes; this server takes {limit} (RESPONSES_MAX_TOOL_OUTPUT_BYTES)."
    return ApiError(message, status=413, code="request_too_large", param=at)


def call_not_found(call_id: str, at: str) -> ApiError:
    """The response has made no such call as the field `at` says, or is still making it (404)."""
    message = f"The response has no call with the '{at}' '{call_id[:80]}' that its client is to answer."
    return not_found(message, param=at)


def answered_already(call_id: str, at: str) -> ApiError:
    """The call of the field `at` has its output (409)."""
    message = f"The call with the '{at}' '{call_id[:80]}' has its output already."
    return ApiError(message, status=409, type="conflict_error", param=at)


def not_waiting(response_id: str) -> ApiError:
    """The response does not wait for outputs: it was not asked to, or is ending (409)."""
    message = (
        f"Response '{response_id[:80]}' does not wait for outputs of tools, or has them all. Continue it with "
        f"'previous_response_id'; responses wait that are created with the header '{TOOL_MODE_HEADER}: {WAIT}'."
    )
    return ApiError(message, status=409, type="conflict_error", param="response_id")
