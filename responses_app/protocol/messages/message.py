"""A whole message of Anthropic's API, of the response that it is.

    reasoning       thinking, whose `signature` is the item's seal; redacted_thinking where nothing of it is to be seen
    message         text
    function_call   tool_use

`encoder` says the same in events: what both decide stands here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

import orjson
from typing_extensions import TypedDict

from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.messages.request import MessagesRequest
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.stop_strings import StopStrings

StopCause = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_FASTER = ("priority", "fast", "ultrafast", "scale")  # tiers that are called priority here


class ThoughtDetails(TypedDict):
    """What the output tokens were."""

    thinking_tokens: int


class MessageUsage(TypedDict):
    """The tokens of a message. Those of the prompt are `input_tokens` and what was read from the engine's cache.

    Nothing is written into the cache on request, since the engine keeps every prefix by itself.
    """

    input_tokens: int
    cache_creation_input_tokens: int  # always 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[ThoughtDetails]
    service_tier: NotRequired[Literal["standard", "priority"]]


class MessageObject(TypedDict):
    """A message of the model. `stop_sequence` is the one that ended it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[JsonObject]
    stop_reason: StopCause | None  # None as long as it has not ended
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(TypedDict):
    """How long a prompt would be."""

    input_tokens: int


def message_id(response_id: str) -> str:
    """Return the id of the message that a response is."""
    return ids.MESSAGE + response_id.removeprefix(ids.RESPONSE)


def begun_message(response: ResponseObject, input_tokens: int) -> MessageObject:
    """Return what is known of a message before anything is said, with the tokens of its prompt."""
    return {
        "id": message_id(response["id"]),
        "type": "message",
        "role": "assistant",
        "model": response["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
            "service_tier": _tier(response),
        },
    }


def whole_message(response: ResponseObject, asked: MessagesRequest) -> MessageObject:
    """Return the message that a response is."""
    content, matched = _content(response["output"], asked)
    return {
        **begun_message(response, 0),
        "content": content,
        "stop_reason": stop_cause(response, matched, calls=any(each["type"] == "tool_use" for each in content)),
        "stop_sequence": matched,
        "usage": {**usage_of(response), "service_tier": _tier(response)},
    }


def usage_of(response: Mapping[str, Any]) -> MessageUsage:
    """Return the tokens of a response that has ended."""
    used = response["usage"]
    cached = used["input_tokens_details"]["cached_tokens"] if used else 0
    return {
        "input_tokens": used["input_tokens"] - cached if used else 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": used["output_tokens"] if used else 0,
        "output_tokens_details": {"thinking_tokens": used["output_tokens_details"]["reasoning_tokens"] if used else 0},
    }


def _tier(response: Mapping[str, Any]) -> Literal["standard", "priority"]:
    return "priority" if response["service_tier"] in _FASTER else "standard"


def stop_cause(response: Mapping[str, Any], matched: str | None, *, calls: bool) -> StopCause:
    """Return why a message ended: at a stop sequence, at its length, with calls, or because the model was done."""
    if matched is not None:
        return "stop_sequence"
    details = response["incomplete_details"]
    if details is not None and details.get("reason") == "max_output_tokens":
        return "max_tokens"
    return "tool_use" if calls else "end_turn"


def _content(output: Sequence[Mapping[str, Any]], asked: MessagesRequest) -> tuple[list[JsonObject], str | None]:
    """Return the blocks of a message, and the stop sequence behind which there are none."""
    content: list[JsonObject] = []
    for item in output:
        match item["type"]:
            case "reasoning" if asked.shows_thinking:
                block = thought_block(item, omits=asked.omits_thoughts)
                content += [block] if block is not None else []
            case "message":
                watched = StopStrings(asked.stops)
                text = watched.feed(text_of(item)) + watched.rest()
                content += [{"type": "text", "text": text}] if text else []
                if watched.matched is not None:
                    return content, watched.matched
            case "function_call":
                content.append({**call_begun(item), "input": _arguments(item["arguments"])})
    return content, None


def text_of(item: Mapping[str, Any]) -> str:
    """Return the text of an item."""
    return "".join(part.get("text", "") for part in item.get("content") or ())


def thought_block(item: Mapping[str, Any], *, omits: bool) -> JsonObject | None:
    """Return the block of a thought; `omits`: without its text. None where there is nothing to be given back."""
    text, seal = text_of(item), item.get("encrypted_content") or ""
    if not text:
        return {"type": "redacted_thinking", "data": seal} if seal else None
    return {"type": "thinking", "thinking": "" if omits else text, "signature": seal}


def call_begun(item: Mapping[str, Any]) -> JsonObject:
    """Return the block of a call whose arguments are still to come."""
    return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": {}}


def _arguments(text: str) -> object:
    """Return what a call was made with; nothing where it was cut off before it was JSON."""
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return arguments if isinstance(arguments, dict) else {}
