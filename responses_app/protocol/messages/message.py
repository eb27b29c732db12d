"""A whole message of Anthropic's API, of the response that it is.

    reasoning       thinking, whose `signature` is the item's seal; redacted_thinking where nothing of it is to be seen
    message         text
    function_call   tool_use
    calls of this server's tools    two blocks each (`server_blocks`)

`encoder` says the same in events: what both decide stands here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from engine import orjson
from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.spelling import canonical
from responses_app.protocol.messages.request import MessagesRequest
from responses_app.protocol.messages.server_blocks import (
    CALLED,
    SEARCH,
    listing_block,
    object_of,
    result_block,
    use_begun,
    use_input,
)
from responses_app.protocol.prompt.replaying import BETWEEN, SeenTurn
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.stop_strings import StopStrings

StopCause = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_FASTER = ("priority", "fast", "ultrafast", "scale")  # tiers that are called priority here


class ThoughtDetails(TypedDict):
    """What the output tokens were."""

    thinking_tokens: int


class ServerCallCounts(TypedDict):
    """How often the web was used."""

    web_search_requests: int
    web_fetch_requests: int


class MessageContainer(TypedDict):
    """Where code ran. It is kept until then, and longer if it is used."""

    id: str
    expires_at: str  # RFC 3339


class MessageUsage(TypedDict):
    """The tokens of a message. Those of the prompt are `input_tokens` and what was read from the engine's cache.

    Nothing is written into the cache on request, since the engine keeps every prefix by itself.
    """

    input_tokens: int
    cache_creation_input_tokens: int  # always 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[ThoughtDetails]
    server_tool_use: NotRequired[ServerCallCounts]  # where it was used
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
    container: NotRequired[MessageContainer]  # where code ran


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


def whole_message(response: ResponseObject, asked: MessagesRequest, prompt_tokens: int = 0) -> MessageObject:
    """Return the message that a response is; `prompt_tokens` as for `usage_of`."""
    content, matched = _content(response["output"], asked)
    whole: MessageObject = {
        **begun_message(response, 0),
        "content": content,
        "stop_reason": stop_cause(response, asked, matched, calls=any(each["type"] == "tool_use" for each in content)),
        "stop_sequence": matched,
        "usage": {**usage_of(response, prompt_tokens), "service_tier": _tier(response)},
    }
    container = container_of(response, asked)
    return {**whole, "container": container} if container is not None else whole


def container_of(response: Mapping[str, Any], asked: MessagesRequest) -> MessageContainer | None:
    """Return where the code of a response that has ended ran; None where none ran, or nothing is kept."""
    used = [item["container_id"] for item in response["output"] if item["type"] == "code_interpreter_call"]
    if not used or asked.container_until is None:
        return None
    return {"id": used[-1], "expires_at": asked.container_until(response["completed_at"] or response["created_at"])}


def usage_of(response: Mapping[str, Any], prompt_tokens: int) -> MessageUsage:
    """Return the tokens of a response that has ended; one without a turn, a warm-up, has those of its prompt."""
    used = response["usage"]
    cached = used["input_tokens_details"]["cached_tokens"] if used else 0
    web = [use_begun(item)["name"] for item in response["output"] if item["type"] == "web_search_call"]
    searches = web.count(SEARCH)
    counts: ServerCallCounts = {"web_search_requests": searches, "web_fetch_requests": len(web) - searches}
    usage: MessageUsage = {
        "input_tokens": used["input_tokens"] - cached if used else prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": used["output_tokens"] if used else 0,
        "output_tokens_details": {"thinking_tokens": used["output_tokens_details"]["reasoning_tokens"] if used else 0},
    }
    return {**usage, "server_tool_use": counts} if web else usage


def _tier(response: Mapping[str, Any]) -> Literal["standard", "priority"]:
    return "priority" if response["service_tier"] in _FASTER else "standard"


def stop_cause(response: Mapping[str, Any], asked: MessagesRequest, matched: str | None, *, calls: bool) -> StopCause:
    """Return why a message ended: at a stop sequence, at its length, with calls, or because the model was done."""
    if matched is not None:
        return "stop_sequence"
    details = response["incomplete_details"]
    if asked.create.warm_up or (details is not None and details.get("reason") == "max_output_tokens"):
        return "max_tokens"
    return "tool_use" if calls else "end_turn"


def seen_turn_of(response: Mapping[str, Any]) -> SeenTurn:
    """Return what a client has seen of a whole response, as `blocks.seen_turn` finds it in what it gives back."""
    texts, thoughts, calls = [], [], []
    for item in response["output"]:
        match item["type"]:
            case "message":
                texts.append(text_of(item))
            case "reasoning":
                thoughts.append(text_of(item))
            case "function_call":
                calls.append((item["call_id"], item["name"], canonical(item["arguments"])))
            case kind if kind in CALLED:
                use = use_begun(item)
                calls.append((use["id"], use["name"], canonical(orjson.dumps(use_input(item)).decode())))
    return SeenTurn(BETWEEN.join(filter(None, texts)), BETWEEN.join(filter(None, thoughts)), tuple(calls))


def _content(output: Sequence[Mapping[str, Any]], asked: MessagesRequest) -> tuple[list[JsonObject], str | None]:
    """Return the blocks of a message, and the stop sequence behind which there are none."""
    content: list[JsonObject] = []
    for item in output:
        match item["type"]:
            case "message":
                watched = StopStrings(asked.stops)
                text = watched.feed(text_of(item)) + watched.rest()
                content += [{"type": "text", "text": text, **_cited(item, asked)}] if text else []
                if watched.matched is not None:
                    return content, watched.matched
            case "function_call":
                content.append({**call_begun(item), "input": object_of(item["arguments"])})
            case kind if kind in CALLED:
                content.append({**use_begun(item), "input": use_input(item)})
                result = result_block(item)
                content += [result] if result is not None else []
            case _:
                block = own_block(item, asked)
                content += [block] if block is not None else []
    return content, None


def _cited(item: Mapping[str, Any], asked: MessagesRequest) -> JsonObject:
    """Return the pages that a text cites; a text that a stop sequence may have cut says none."""
    if asked.stops:
        return {}
    annotations = (each for part in item["content"] for each in part.get("annotations") or ())
    citations = [citation for each in annotations if (citation := citation_of(each)) is not None]
    return {"citations": citations} if citations else {}


def citation_of(annotation: Mapping[str, Any]) -> JsonObject | None:
    """Return what a text cites; None for what is not a page of the web. The text has a link to it at that place."""
    if annotation["type"] != "url_citation":
        return None
    page = {"url": annotation["url"], "title": annotation["title"]}
    return {"type": "web_search_result_location", **page, "cited_text": "", "encrypted_index": ""}


def text_of(item: Mapping[str, Any]) -> str:
    """Return the text of an item."""
    return "".join(part.get("text", "") for part in item.get("content") or ())


def own_block(item: Mapping[str, Any], asked: MessagesRequest) -> JsonObject | None:
    """Return the block of an item that is one block and comes whole; None where there is nothing to be given back.

    A thought whose text is not shown is only shown for its seal.
    """
    match item["type"]:
        case "mcp_list_tools" if asked.lists_tools:
            return listing_block(item)
        case "reasoning":
            text, seal = text_of(item), item.get("encrypted_content") or ""
            if text and asked.shows_thinking:
                return {"type": "thinking", "thinking": "" if asked.omits_thoughts else text, "signature": seal}
            return {"type": "redacted_thinking", "data": seal} if seal else None
    return None


def call_begun(item: Mapping[str, Any]) -> JsonObject:
    """Return the block of a call whose arguments are still to come."""
    return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": {}}
