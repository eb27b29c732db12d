"""A message of Anthropic's API, of the response that it is: whole, and as the events of a stream.

    reasoning       thinking, whose `signature` is the item's seal; redacted_thinking where nothing of it is to be seen
    message         text
    function_call   tool_use
    calls of this server's tools    two blocks each (`server_blocks`)

`MessageEncoder` makes the events of a message of those of a response:

    response.output_item.added            message_start, once; content_block_start of a call
    response.reasoning_text.delta         thinking_delta, behind the content_block_start of the first one
    response.output_text.delta            text_delta, the same
    response.output_text.annotation.added      citations_delta
    response.function_call_arguments.delta     input_json_delta, and so for code and the arguments of MCP calls
    response.output_item.done             signature_delta of a thought; content_block_stop; the result of a call that
                                          the server has made, as a block of its own
    response.completed, incomplete        message_delta, message_stop

All other events say nothing here. As in `chat.encoder`, texts are cut out of an event's JSON as they stand, and put
between the fields around them: they are neither read nor written again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from engine import orjson
from responses_app.protocol import ids
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import TERMINAL, EventType
from responses_app.protocol.items.spelling import canonical
from responses_app.protocol.json_text import dumps
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
from responses_app.protocol.requests.resources import ResponseObject, has_failed
from responses_app.protocol.stop_strings import StopStrings

StopCause = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_FASTER = ("priority", "fast", "ultrafast", "scale")  # tiers that are called priority here
_DELTA = b'"delta":'  # before the text of a delta
_BEHIND_TEXT = b',"logprobs":['  # behind the text of an answer, as `MessageBuilder.delta_after` has it
_BEHIND = b',"item_id":"'  # behind that of a thought or a call, whose deltas have no log probabilities
_CODE_BEGINS, _CODE_ENDS = '{"code":"', '"}'
_TEXT: JsonObject = {"type": "text", "text": ""}
_THOUGHT: JsonObject = {"type": "thinking", "thinking": "", "signature": ""}
EVENT_TYPES = (
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop", "ping", "error"),
)
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


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
    """Return a message as it is before anything is said, with the tokens of its prompt."""
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
    """Return the turn that a client has seen in a whole response, as `blocks.seen_turn` finds it given back."""
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
    """Return the page that a text cites; None for any other source. The text has a link to it at that place."""
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


def event(fields: JsonObject) -> bytes:
    """Return a server-sent event, which is called as its data says."""
    return b"event: %b\ndata: %b\n\n" % (str(fields["type"]).encode(), dumps(fields))


class MessageEncoder:
    """Writes the events of one message: `begun` is its response at its beginning, `details` have its prompt."""

    def __init__(self, begun: ResponseObject, asked: MessagesRequest, details: EngineDetails) -> None:
        self.response: Mapping[str, Any] | None = None  # what it ended as; None as long as it has not
        # The stop sequence that has ended the message: what follows it is not said, and need not be generated.
        self.matched: str | None = None
        self._begun = begun
        self._asked = asked
        self._details = details
        self._has_started = False  # `message_start` was written
        self._index = 0  # of the block that is open, or is the next one
        self._is_open = False
        self._calls = False  # there is one
        self._stops: StopStrings | None = None  # of the text that is being said
        self._before = b""  # what of an event stands before the text of the open block
        self._of: Mapping[str, Callable[[bytes], bytes]] = {
            EventType.TEXT_DELTA: self._answered,
            EventType.REASONING_DELTA: self._reasoned,
            EventType.ARGUMENTS_DELTA: self._called,
            EventType.MCP_ARGUMENTS_DELTA: self._called,
            EventType.MCP_ARGUMENTS_DONE: lambda _: self._close(),
            EventType.CODE_DELTA: self._coded,
            EventType.CODE_DONE: lambda _: self._input(_CODE_ENDS) + self._close(),
            EventType.ANNOTATION_ADDED: self._cited,
            EventType.ITEM_ADDED: self._added,
            EventType.ITEM_DONE: self._done,
            **dict.fromkeys(TERMINAL, self._ended),
        }

    @property
    def failed(self) -> bool:
        """Whether it failed, or was cancelled."""
        return self.response is not None and has_failed(self.response)

    def encode(self, type: str, json: bytes) -> bytes:
        """Return an event as server-sent events: nearly always one, or none."""
        of = self._of.get(type)
        return b"" if of is None else of(json)

    def tokens(self) -> bytes:
        """Return what is said of tokens beside the texts: nothing, in this API."""
        return b""

    def _start(self) -> bytes:
        if self._has_started:
            return b""
        self._has_started = True
        begun = begun_message(self._begun, len(self._details.prompt_token_ids))
        return event({"type": "message_start", "message": begun})

    def _added(self, json: bytes) -> bytes:
        item = orjson.loads(json)["item"]
        self._stops = StopStrings(self._asked.stops) if item["type"] == "message" and self._asked.stops else None
        if item["type"] in CALLED:
            opened = self._start() + self._open(use_begun(item), b"input_json_delta", b"partial_json")
            return opened + (self._input(_CODE_BEGINS) if item["type"] == "code_interpreter_call" else b"")
        if item["type"] != "function_call":
            return self._start()
        self._calls = True
        return self._start() + self._open(call_begun(item), b"input_json_delta", b"partial_json")

    def _open(self, block: JsonObject, delta: bytes = b"", field: bytes = b"") -> bytes:
        """Begin a block, whose deltas are of this type and have this field."""
        self._is_open = True
        self._before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
            % (self._index, delta, field)
        )
        return event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        self._index += 1
        return event({"type": "content_block_stop", "index": self._index - 1})

    def _answered(self, json: bytes) -> bytes:
        # The first `"delta":` is the field's name: no text stands before it.
        start = json.find(_DELTA) + len(_DELTA)
        text = json[start : json.rfind(_BEHIND_TEXT)]
        if self._stops is not None:
            return self._release(self._stops.feed(orjson.loads(text)))
        if self._is_open:  # nearly always
            return b"%b%b}}\n\n" % (self._before, text)
        return b"%b%b%b}}\n\n" % (self._text_open(), self._before, text)

    def _text_open(self) -> bytes:
        return b"" if self._is_open else self._open(_TEXT, b"text_delta", b"text")

    def _release(self, text: str) -> bytes:
        """Say this text, and end the message where a stop sequence has come."""
        assert self._stops is not None
        delta = b"%b%b%b}}\n\n" % (self._text_open(), self._before, dumps(text)) if text else b""
        if self._stops.matched is None:
            return delta
        self.matched = self._stops.matched
        # The engine may still say some tokens before it is stopped: only its end counts now.
        self._of = dict.fromkeys(TERMINAL, self._ended)
        return delta + self._close()

    def _reasoned(self, json: bytes) -> bytes:
        if not self._asked.shows_thinking:
            return b""
        opened = b"" if self._is_open else self._open(_THOUGHT, b"thinking_delta", b"thinking")
        if self._asked.omits_thoughts:
            return opened
        start = json.find(_DELTA) + len(_DELTA)
        return b"%b%b%b}}\n\n" % (opened, self._before, json[start : json.rfind(_BEHIND)])

    def _called(self, json: bytes) -> bytes:
        start = json.find(_DELTA) + len(_DELTA)
        return b"%b%b}}\n\n" % (self._before, json[start : json.rfind(_BEHIND)])

    def _input(self, json: str) -> bytes:
        """Say more of the input of a call."""
        return b"%b%b}}\n\n" % (self._before, dumps(json))

    def _coded(self, json: bytes) -> bytes:
        # A piece of code is a piece of a text in JSON, and that is a text in JSON, too.
        start = json.find(_DELTA) + len(_DELTA)
        return self._input(json[start + 1 : json.rfind(_BEHIND) - 1].decode())

    def _cited(self, json: bytes) -> bytes:
        # Where a stop sequence may come, the text that cites may not have been said yet.
        citation = citation_of(orjson.loads(json)["annotation"]) if self._is_open and not self._asked.stops else None
        return b"" if citation is None else self._delta({"type": "citations_delta", "citation": citation})

    def _delta(self, delta: JsonObject) -> bytes:
        return event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _done(self, json: bytes) -> bytes:
        item = orjson.loads(json)["item"]
        if item["type"] in CALLED:
            # The call of a search of the web comes whole, with its input.
            said = self._input(dumps(use_input(item)).decode()) + self._close() if self._is_open else b""
            result = result_block(item)
            return said if result is None else said + self._open(result) + self._close()
        if self._is_open or self._stops is not None:
            # What was held back for a stop sequence is text after all, unless one has come.
            rest = self._release(self._stops.rest()) if self._stops is not None else b""
            self._stops = None
            seal = item.get("encrypted_content")
            signed = self._delta({"type": "signature_delta", "signature": seal}) if seal else b""
            return rest + signed + self._close()
        whole = own_block(item, self._asked)
        return b"" if whole is None else self._open(whole) + self._close()

    def _ended(self, json: bytes) -> bytes:
        """End the message; one that failed says nothing more."""
        self.response = orjson.loads(json)["response"]
        if self.failed:
            return b""
        closed = self._start() + self._close()
        reason = stop_cause(self.response, self._asked, self.matched, calls=self._calls)
        delta: JsonObject = {"stop_reason": reason, "stop_sequence": self.matched}
        container = container_of(self.response, self._asked)
        delta |= {"container": container} if container is not None else {}
        usage = usage_of(self.response, len(self._details.prompt_token_ids))
        ended: JsonObject = {"type": "message_delta", "delta": delta, "usage": dict(usage)}
        return closed + event(ended) + event({"type": "message_stop"})
