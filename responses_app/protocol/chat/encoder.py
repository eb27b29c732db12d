"""`ChunkEncoder`: the events of a response as the chunks of a chat completion's choice.

    response.output_item.added            the role, once; or a call begins: its id and its name
    response.output_text.delta            content
    response.reasoning_text.delta         reasoning, reasoning_content (as it was called before), or both
    response.function_call_arguments.delta, …custom_tool_call_input.delta     more of the last call
    response.completed, incomplete        finish_reason

All other events say nothing here. A journal has its events as JSON, each written once. Nearly all are text, and their
text is cut out of that JSON as it stands, between the fields around it, and put between the fields of a chunk: it is
neither read nor written again. That is exact, since no name of a field can stand inside of a JSON string, where its
quotes would be escaped, and the fields behind a text are known. Example:

    {"type":"response.output_text.delta","content_index":0,"delta":"a\\"b","logprobs":[],"item_id":"msg_…",…}
                                                                   ^^^^^^ -> {"content":"a\\"b"}
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from engine import orjson
from responses_app.protocol.chat.completion import (
    CALLS,
    ChatHead,
    ChatLogprobs,
    ChatUsage,
    FinishReason,
    finish_reason,
    with_bytes,
)
from responses_app.protocol.chat.request import ChatRequest
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import TERMINAL, EventType
from responses_app.protocol.json_text import dumps
from responses_app.protocol.prompt.replaying import BETWEEN
from responses_app.protocol.requests.resources import has_failed
from responses_app.protocol.stop_strings import StopStrings
from responses_app.protocol.tiers import ServiceTier

_DELTA = b'"delta":'  # before the text of a delta
_BEHIND_TEXT = b',"logprobs":['  # behind the text of an answer, as `MessageBuilder.delta_after` has it
_BEHIND = b',"item_id":"'  # behind that of a thought or a call, whose deltas have no log probabilities
_NO_LOGPROBS = b',"logprobs":null,"finish_reason":null}]'  # the end of a choice that goes on


class ChatChunkChoice(TypedDict):
    """What is new of a choice."""

    index: int
    delta: JsonObject
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | None]  # the stop string that ended it; in its last chunk
    token_ids: NotRequired[list[int]]  # where they are asked for


class ChatCompletionChunk(TypedDict):
    """A part of a completion; the last one may have its usage, and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    service_tier: ServiceTier
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[ChatUsage | None]
    prompt_token_ids: NotRequired[list[int]]  # where they are asked for


class ChunkEncoder:
    """Writes the chunks of one choice.

    Where tokens are wanted, those of the prompt come with the role, others as they are sampled, by `tokens`, and the
    last ones with the end.
    """

    def __init__(self, head: ChatHead, chat: ChatRequest, index: int = 0, details: EngineDetails | None = None) -> None:
        self.response: Mapping[str, Any] | None = None  # what it ended as; None as long as it has not
        self._begin = _opened(head) + b'"choices":[{"index":%d,"delta":{' % index  # of each chunk, up to its delta
        # Behind the choices, to the end of the event.
        self._rest = b',"usage":null}\n\n' if chat.include_usage else b"}\n\n"
        self._end = b"}" + _NO_LOGPROBS + self._rest
        self._counted = details if chat.counts_each else None  # each chunk says what the choice has used so far
        self._stops = StopStrings(chat.stops) if chat.stops else None
        self._looks = self._stops is not None or chat.create.logprobs is not None  # at each text
        self._shows_reasoning, self._old_calls = chat.shows_reasoning, chat.old_calls
        # The fields of a delta with a thought, each with its name and `%b` for the text.
        self._thoughts = b",".join(b'"%b":%%b' % name.encode() for name in chat.thought_names)
        self._thought_count = len(chat.thought_names)
        self._has_role = False  # the first chunk was written
        self._details = details if chat.returns_tokens else None  # None: its client wants no tokens
        self._sent_tokens = 0  # how many of them its client has
        self._calls = 0  # how many have begun
        self._text = _Text()  # of its messages
        self._thought = _Text()  # of its reasoning items
        self._call = b""  # what of a chunk stands before the text of the last call, and behind it
        self._call_end = b""
        self._of: Mapping[str, Callable[[bytes], bytes]] = {
            EventType.TEXT_DELTA: self._answered,
            EventType.REASONING_DELTA: self._reasoned,
            EventType.ARGUMENTS_DELTA: self._called,
            EventType.CUSTOM_INPUT_DELTA: self._called,
            EventType.ITEM_ADDED: self._added,
            **dict.fromkeys(TERMINAL, self._ended),
        }

    @property
    def matched(self) -> str | None:
        """The stop string that has ended its text."""
        return self._stops.matched if self._stops else None

    @property
    def failed(self) -> bool:
        """Whether it failed, or was cancelled."""
        return self.response is not None and has_failed(self.response)

    def encode(self, type: str, json: bytes) -> bytes:
        """Return an event as server-sent chunks: nearly always one, or none."""
        of = self._of.get(type)
        if of is None:
            return b""
        if self._counted is not None:
            prompt, sampled = len(self._counted.prompt_token_ids), len(self._counted.token_ids)
            used = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
            self._rest = b',"usage":%b}\n\n' % dumps(used)
            self._end = b"}" + _NO_LOGPROBS + self._rest
        return of(json)

    def tokens(self) -> bytes:
        """Return the tokens that were sampled since, as a chunk without a text, where tokens are wanted."""
        new = self._new_tokens() if self._has_role else []
        if not new:
            return b""
        return b'%b},"logprobs":null,"finish_reason":null,"token_ids":%b}]%b' % (
            self._begin,
            dumps(new),
            self._rest,
        )

    def _new_tokens(self) -> list[int]:
        if self._details is None or not self._shows_reasoning:  # who may not read the thoughts has no tokens of them
            return []
        new = self._details.token_ids[self._sent_tokens :]
        self._sent_tokens += len(new)
        return new

    def _answered(self, json: bytes) -> bytes:
        # The first `"delta":` is the field's name: no text stands before it.
        start = json.find(_DELTA) + len(_DELTA)
        if not (self._looks or self._text.waits):  # nearly always
            self._text.any = True
            return b'%b"content":%b%b' % (self._begin, json[start : json.rfind(_BEHIND_TEXT)], self._end)
        # The engine may still say some tokens before it is stopped.
        if self.matched is not None:
            return b""
        event = orjson.loads(json)
        self._text.take(event["logprobs"])
        text = self._text.between() + event["delta"]
        self._text.length += len(text)
        if self._stops is None:
            # Nothing holds text back, so each token's entry can go with its text.
            return self._release(text, whole=True)
        return self._release(self._stops.feed(text))

    def _release(self, text: str, *, whole: bool = False) -> bytes:
        """Say this text, and the log probabilities of the tokens that begin in it; all if it is `whole`."""
        self._text.sent += len(text)
        entries = self._text.ready(whole=whole)
        if not text and not entries:
            return b""
        if not entries:
            return b'%b"content":%b%b' % (self._begin, dumps(text), self._end)
        logprobs = dumps({"content": entries, "refusal": None})
        return b'%b"content":%b},"logprobs":%b,"finish_reason":null}]%b' % (
            self._begin,
            dumps(text),
            logprobs,
            self._rest,
        )

    def _reasoned(self, json: bytes) -> bytes:
        if not self._shows_reasoning:
            return b""
        start = json.find(_DELTA) + len(_DELTA)
        text = json[start : json.rfind(_BEHIND)]
        if self._thought.waits:
            text = dumps(self._thought.between() + orjson.loads(text))
        self._thought.any = True
        return self._begin + self._thoughts % ((text,) * self._thought_count) + self._end

    def _called(self, json: bytes) -> bytes:
        # A call that is not shown: behind a stop string, or a second one in the older form.
        if not self._call:
            return b""
        start = json.find(_DELTA) + len(_DELTA)
        return b"%b%b%b%b" % (self._call, json[start : json.rfind(_BEHIND)], self._call_end, self._end)

    def _added(self, json: bytes) -> bytes:
        """Begin an item: a call says its name now, a message or a thought only that it is another one."""
        item = orjson.loads(json)["item"]
        kind = item["type"]
        if kind == "message":
            self._text.another()
            return self._role()
        if kind == "reasoning" and self._shows_reasoning:
            self._thought.another()
            return self._role()
        if kind in CALLS and self.matched is None:
            return self._role() + self._call_begun(item)
        self._call = b""
        return b""

    def _role(self) -> bytes:
        if self._has_role:
            return b""
        self._has_role = True
        # The tokens of the prompt are told once, here.
        if self._details is not None:
            prompt_ids = dumps(list(self._details.prompt_token_ids))
            opened = b'%b"role":"assistant","content":""}%b' % (self._begin, _NO_LOGPROBS)
            return b'%b,"prompt_token_ids":%b%b' % (opened, prompt_ids, self._rest)
        return b'%b"role":"assistant","content":""%b' % (self._begin, self._end)

    def _call_begun(self, item: Mapping[str, Any]) -> bytes:
        kind, field = CALLS[item["type"]]
        place, self._calls = self._calls, self._calls + 1
        called = {"name": item["name"], field: ""}
        # The older form has room for one call: the first.
        if self._old_calls:
            self._call = b'%b"function_call":{"arguments":' % self._begin if place == 0 else b""
            self._call_end = b"}"
            begun: JsonObject = {"function_call": {"name": item["name"], "arguments": ""}}
            return self._chunk(begun) if place == 0 else b""
        self._call = b'%b"tool_calls":[{"index":%d,"%b":{"%b":' % (self._begin, place, kind.encode(), field.encode())
        self._call_end = b"}}]"
        return self._chunk({"tool_calls": [{"index": place, "id": item["call_id"], "type": kind, kind: called}]})

    def _chunk(self, delta: JsonObject) -> bytes:
        return b"%b%b%b" % (self._begin, dumps(delta)[1:-1], self._end)

    def _ended(self, json: bytes) -> bytes:
        """End the choice; one that failed says nothing more."""
        self.response = orjson.loads(json)["response"]
        if self.failed:
            return b""
        # What was held back for a stop string is text after all, unless one has come.
        rest = self._release(self._stops.rest(), whole=True) if self._stops and self.matched is None else b""
        calls = self._calls > 0 and self.matched is None
        reason = finish_reason(self.response, calls=calls, old_calls=self._old_calls)
        last = {} if self._details is None else {"token_ids": self._new_tokens()}
        ended = dumps({"finish_reason": reason, "stop_reason": self.matched, **last})[1:-1]
        return b'%b%b%b},"logprobs":null,%b}]%b' % (self._role(), rest, self._begin, ended, self._rest)


class _Text:
    """What was said of a text that several items make."""

    __slots__ = ("_entries", "_place", "any", "length", "sent", "waits")

    def __init__(self) -> None:
        self.any = False  # there is text
        self.waits = False  # what separates it from that of another item is to be said first
        self.length = 0  # characters that came
        self.sent = 0  # of these, what was said: the others are held back
        self._place = 0  # of the next token
        # Log probabilities that were not told, each with the place of its token.
        self._entries: list[tuple[int, JsonObject]] = []

    def another(self) -> None:
        """Begin another item of the text."""
        self.waits = self.any

    def between(self) -> str:
        """Return the separator before the text that comes now."""
        between = BETWEEN if self.waits else ""
        self.any, self.waits = True, False
        return between

    def take(self, entries: Any) -> None:
        """Take the log probabilities of the text that comes next."""
        if not entries:
            return
        # A new item begins behind what separates it; within one, a token begins where the one before it ended.
        if self.waits or not self._place:
            self._place = self.length + (len(BETWEEN) if self.waits else 0)
        for entry in entries:
            self._entries.append((self._place, with_bytes(entry)))
            self._place += len(entry["token"])

    def ready(self, *, whole: bool) -> list[JsonObject]:
        """Return, once, those of the tokens that begin in the told text; `whole`: nothing is held back, so all."""
        ready = [entry for place, entry in self._entries if whole or place < self.sent]
        del self._entries[: len(ready)]
        return ready


def usage_chunk(head: ChatHead, usage: ChatUsage) -> bytes:
    """Return the last chunk, which has no choices, and the tokens that they used."""
    return b'%b"choices":[],"usage":%b}\n\n' % (_opened(head), dumps(usage))


def _opened(head: ChatHead) -> bytes:
    fields = {
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "service_tier": head.service_tier,
        "system_fingerprint": head.system_fingerprint,
    }
    return b"data: %b," % dumps(fields)[:-1]
