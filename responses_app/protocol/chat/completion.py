"""A whole chat completion, of the responses that its choices are.

    response 1, response 2, … ──> {"choices": [{"index": 0, "message": {…}, "finish_reason": "stop"}, …], "usage": …}

`encoder` says the same in chunks: what both decide stands here. So does what is kept of a completion that is stored,
beside the responses that its choices are:

    response of choice 0   StoredChoice(count=2, chat=StoredChat(…))     what was asked, and how it is worded
    response of choice 1   StoredChoice(count=2, place=1, first=…)       where it belongs

It is made of these responses whenever it is read: nothing that the model has said is kept twice. One whose choices are
not all there (one runs, has failed or was deleted) is not known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, NotRequired, cast

from typing_extensions import TypedDict

from engine.orjson import Fragment
from responses_app.protocol import ids
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, not_found
from responses_app.protocol.fields import MAX_PAIRS, ClientModel, Metadata, check_metadata, missing, validate
from responses_app.protocol.items.resources import shown_as
from responses_app.protocol.items.spelling import canonical
from responses_app.protocol.prompt.replaying import BETWEEN, SeenTurn
from responses_app.protocol.requests.pages import ListQuery, Query, parse_list_query
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.stop_strings import StopStrings
from responses_app.protocol.tiers import ServiceTier

# By the item's type: the type of the call, which is also the name of its object, and the field with what was called.
CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
_UNSURE = "\N{REPLACEMENT CHARACTER}"  # stands for what is not whole characters

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


THOUGHT_NAMES = ("reasoning", "reasoning_content")  # of the field that has the model's thought, the newer one first


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatForm:
    """How responses are worded as a completion; all but the last field are those of `ChatRequest`."""

    stops: Sequence[str] = ()
    shows_reasoning: bool = True
    old_calls: bool = False
    thought_names: Sequence[str] = THOUGHT_NAMES
    version: str = ""  # of the server that ran them: it makes the fingerprint

    def as_json(self) -> JsonObject:
        """Return it as JSON, for `from_json`."""
        return {
            "stops": list(self.stops),
            "shows_reasoning": self.shows_reasoning,
            "old_calls": self.old_calls,
            "thought_names": list(self.thought_names),
            "version": self.version,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "ChatForm":
        """Read the JSON of `as_json`, of this version or of a newer one, which may say more."""
        known: dict[str, Any] = {each.name: kept[each.name] for each in fields(cls) if each.name in kept}
        return cls(**known | {name: tuple(value) for name, value in known.items() if isinstance(value, list)})


class ChatUsage(TypedDict):
    """The tokens of a completion: the prompt's once, and those of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatLogprobs(TypedDict):
    """The log probabilities of an answer's tokens."""

    content: list[JsonObject]
    refusal: None


class ChatAnswer(TypedDict):
    """What the model says; `reasoning_content` is an older name of `reasoning`."""

    role: Literal["assistant"]
    content: str | None  # None: there are calls and no text
    refusal: None
    annotations: list[JsonObject]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[JsonObject]]
    function_call: NotRequired[JsonObject]  # in the place of `tool_calls`, for requests with `functions`


class ChatChoice(TypedDict):
    """One of the completions that were asked for; `stop_reason` is the stop string that ended it."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | None
    token_ids: NotRequired[list[int] | None]  # where they are asked for


class ChatCompletion(TypedDict):
    """A whole completion."""

    id: str
    object: Literal["chat.completion"]
    created: int  # Unix seconds
    model: str
    service_tier: ServiceTier
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: ChatUsage
    metadata: NotRequired[dict[str, str]]  # of a stored one
    prompt_token_ids: NotRequired[list[int]]  # these are vLLM's, and there where they are asked for
    prompt_logprobs: NotRequired[list[Annotated[Fragment, shown_as(JsonObject | None)]] | None]
    kv_transfer_params: NotRequired[Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatHead:
    """What a completion, and each of its chunks, says of itself."""

    id: str
    created: int  # Unix seconds
    model: str
    service_tier: ServiceTier
    system_fingerprint: str  # another one for another version of the server

    @classmethod
    def of(cls, response: ResponseObject, *, system_fingerprint: str) -> "ChatHead":
        """Return the head of the completion whose first choice is this response."""
        return cls(
            id=completion_id(response["id"]),
            created=response["created_at"],
            model=response["model"],
            service_tier=response["service_tier"],
            system_fingerprint=system_fingerprint,
        )


def completion_id(response_id: str) -> str:
    """Return the id of the completion that a response is."""
    return ids.CHAT_COMPLETION + response_id.removeprefix(ids.RESPONSE)


def response_id(completion: str) -> str:
    """Return the id of the response that a completion is."""
    return ids.RESPONSE + completion.removeprefix(ids.CHAT_COMPLETION)


def stored_completion(
    responses: Sequence[ResponseObject], form: ChatForm, metadata: Mapping[str, str]
) -> ChatCompletion:
    """Return a completion that was stored, whose choices are these responses."""
    first = responses[0]
    head = ChatHead.of(first, system_fingerprint=ids.system_fingerprint(first["model"], form.version))
    return {**whole_completion(head, responses, form), "metadata": dict(metadata)}


def whole_completion(head: ChatHead, responses: Sequence[ResponseObject], form: ChatForm) -> ChatCompletion:
    """Return the completion whose choices are these responses."""
    choices = [
        choice_of(
            response,
            index,
            stops=form.stops,
            thought_names=form.thought_names if form.shows_reasoning else (),
            old_calls=form.old_calls,
        )
        for index, response in enumerate(responses)
    ]
    return {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "service_tier": head.service_tier,
        "system_fingerprint": head.system_fingerprint,
        "choices": choices,
        "usage": usage_of(responses),
    }


def choice_of(
    response: ResponseObject,
    index: int = 0,
    *,
    stops: Sequence[str] = (),
    thought_names: Sequence[str] = THOUGHT_NAMES,
    old_calls: bool = False,
) -> ChatChoice:
    """Return a response as a choice; its text ends before the first of the `stops` that comes in it.

    `thought_names` are the fields of the message that have the thoughts.
    """
    output = response["output"]
    thought = BETWEEN.join(filter(None, (_text(item) for item in output if item["type"] == "reasoning")))
    messages, calls, matched = _messages_and_calls(output, stops)
    # Texts have what separates them already: the stop strings see the text as it is shown.
    text = "".join(shown for _, shown in messages)
    message: ChatAnswer = {
        "role": "assistant",
        # As at OpenAI: null beside calls, and an empty text where there is nothing at all.
        "content": text if text or not calls else None,
        "refusal": None,
        "annotations": [],
    }
    if thought:
        message |= cast(ChatAnswer, dict.fromkeys(thought_names, thought))
    if calls and old_calls:
        message["function_call"] = {"name": calls[0]["name"], "arguments": calls[0].get("arguments", "")}
    elif calls:
        message["tool_calls"] = [
            {"id": item["call_id"], "type": kind, kind: {"name": item["name"], field: item[field]}}
            for item in calls
            for kind, field in (CALLS[str(item["type"])],)
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs([item for item, _ in messages], None if matched is None else len(text)),
        "finish_reason": finish_reason(response, calls=bool(calls) and matched is None, old_calls=old_calls),
        "stop_reason": matched,
    }


def seen_turn_of(choice: Mapping[str, Any]) -> SeenTurn:
    """Return the turn that a client has seen in a whole choice, as `messages.seen_turn` finds it given back."""
    calls, message = [], choice["message"]
    for call in message.get("tool_calls") or ():
        called = call[call["type"]]
        text = called["input"] if call["type"] == "custom" else canonical(called["arguments"])
        calls.append((call["id"], called["name"], text))
    return SeenTurn(message["content"] or "", message.get("reasoning") or "", tuple(calls))


def finish_reason(response: Mapping[str, Any], *, calls: bool, old_calls: bool = False) -> FinishReason:
    """Return why a choice ended: at its length, with calls, or because the model was done or a stop string came."""
    details = response["incomplete_details"]
    if details is not None and details.get("reason") == "max_output_tokens":
        return "length"
    if calls:
        return "function_call" if old_calls else "tool_calls"
    return "stop"


def usage_of(responses: Iterable[Mapping[str, Any]]) -> ChatUsage:
    """Return the tokens of a completion: of the prompt, which its choices share, once, and of each choice."""
    used = [response["usage"] for response in responses if response["usage"]]
    # All choices have the same prompt, so the first one tells it.
    prompt = used[0]["input_tokens"] if used else 0
    sampled = sum(each["output_tokens"] for each in used)
    cached = used[0]["input_tokens_details"]["cached_tokens"] if used else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(each["output_tokens_details"]["reasoning_tokens"] for each in used),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def with_bytes(entry: Mapping[str, Any]) -> JsonObject:
    """Return a token's log probability as Chat Completions has it; no bytes where they are not known."""
    return {
        **_token(entry),
        "top_logprobs": [_token(each) for each in entry["top_logprobs"]],
    }


def _token(entry: Mapping[str, Any]) -> JsonObject:
    token = str(entry["token"])
    # Without bytes of its own a token's text gives them, unless it has lost some.
    known = entry.get("bytes") or (None if _UNSURE in token else list(token.encode()))
    return {"token": token, "logprob": entry["logprob"], "bytes": known}


def _text(item: Mapping[str, Any]) -> str:
    return "".join(part.get("text", "") for part in item.get("content") or ())


def _messages_and_calls(
    output: Sequence[JsonObject], stops: Sequence[str]
) -> tuple[list[tuple[JsonObject, str]], list[JsonObject], str | None]:
    """Return the messages, each with its shown text, the calls, and the stop string behind which there is neither."""
    watched = StopStrings(stops)
    messages: list[tuple[JsonObject, str]] = []
    calls: list[JsonObject] = []
    for item in output:
        if watched.matched is not None:
            break
        if item["type"] in CALLS:
            calls.append(item)
        elif item["type"] == "message" and (text := _text(item)):
            messages.append((item, watched.feed((BETWEEN if messages else "") + text)))
    # What the last message may still hold back is text: nothing follows it.
    if messages:
        last, shown = messages[-1]
        messages[-1] = last, shown + watched.rest()
    return messages, calls, watched.matched


def _logprobs(messages: Sequence[Mapping[str, Any]], shown: int | None) -> ChatLogprobs | None:
    """Return the log probabilities of the tokens that begin in as many characters; None: of all."""
    entries: list[JsonObject] = []
    before = 0
    for item in messages:
        # Where the item's first token begins, behind what separates it from the one before.
        place = before = before + len(BETWEEN) if before else 0
        for entry in (each for part in item["content"] for each in part.get("logprobs") or ()):
            if shown is None or place < shown:
                entries.append(with_bytes(entry))
            place += len(entry["token"])
        before += len(_text(item))
    return {"content": entries, "refusal": None} if entries else None


_PREFIX, _SUFFIX = "metadata[", "]"  # of a filter in a query, around its key


class StoredChatMessage(TypedDict):
    """A message as it was sent; `content_parts` are those of a content that was a list."""

    id: str
    role: str
    content: str | None
    name: str | None
    refusal: str | None
    content_parts: list[JsonObject] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChat:
    """What a completion was asked."""

    messages: Sequence[JsonObject]  # as they were sent
    metadata: Mapping[str, str] = field(default_factory=dict)  # clients may change it later
    form: ChatForm = field(default_factory=ChatForm)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChoice:
    """Where a response belongs: which choice of a completion it is."""

    count: int = 1  # choices of the completion
    place: int = 0  # from 0 on
    first: str = ""  # the response of choice 0; "" where that is this one
    chat: StoredChat | None = None  # what all of them were asked; choice 0 has it

    def beside(self, first: str, place: int) -> "StoredChoice":
        """Return another choice of the same completion."""
        return replace(self, first=first, place=place, chat=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuery:
    """Which stored completions are listed."""

    page: ListQuery
    model: str | None = None  # None: of any
    metadata: Mapping[str, str] = field(default_factory=dict)  # all these pairs; none: any


class ChatCompletionChanges(ClientModel):
    """What a stored completion is to have from now on; null is none."""

    metadata: Metadata | None


def parse_chat_query(query: Query) -> ChatQuery:
    """Read the query of a list. Raises `ApiError` that names the parameter that is wrong."""
    # `metadata[team]=red` is the filter of `team`; of one that is there twice the last counts.
    filters = {
        name[len(_PREFIX) : -len(_SUFFIX)]: values[-1]
        for name, values in query.items()
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
    }
    if len(filters) > MAX_PAIRS:
        raise invalid_request(f"A list is filtered by {MAX_PAIRS} pairs of metadata at most.", param="metadata")
    check_metadata(filters)
    # An empty name is no filter.
    model = (query.get("model") or [""])[-1] or None
    return ChatQuery(page=parse_list_query(query, ids.CHAT_COMPLETION, descending=False), model=model, metadata=filters)


def parse_chat_changes(data: Mapping[str, object]) -> Mapping[str, str]:
    """Return the metadata that a completion is to have. Raises `ApiError`."""
    if "metadata" not in data:
        raise missing("metadata")
    metadata = validate(ChatCompletionChanges, data).metadata or {}
    check_metadata(metadata)
    return metadata


def stored_messages(completion_id: str, messages: Sequence[JsonObject]) -> list[StoredChatMessage]:
    """Return the messages of a completion's request as OpenAI lists them: each has an id, and a text or parts."""
    return [_stored_message(f"{completion_id}-{index}", message) for index, message in enumerate(messages)]


def _stored_message(message_id: str, message: JsonObject) -> StoredChatMessage:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    texts = [str(part["text"]) for part in parts or () if part.get("type") == "text"]
    whole = {
        "name": None,
        "refusal": None,
        **message,
        "id": message_id,
        "content": content if parts is None else "".join(texts) if texts else None,
        "content_parts": parts,
    }
    return cast(StoredChatMessage, whole)  # the message was validated when it came, and may have more fields


def completion_not_found(completion: str, *, stores: bool) -> ApiError:
    """There is no such stored completion, or not any more (404); `stores`: this server keeps any at all."""
    message = f"Chat completion with id '{completion[:80]}' not found. "
    message += (
        "Only those that were created with 'store': true are kept."
        if stores
        else "This server stores none (RESPONSES_STORE=off)."
    )
    return not_found(message, param="completion_id")
