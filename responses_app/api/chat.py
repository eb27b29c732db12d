"""`/v1/chat/completions`: chats, on the same runs as responses (see `protocol.chat`), and those that are stored.

`ChatReading` is how the choices of a chat are read to their end: in chunks as they come, or as one completion.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Literal

from django.http.response import HttpResponseBase
from typing_extensions import TypedDict

from engine import orjson
from responses_app import __version__
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.chat.completion import (
    THOUGHT_NAMES,
    ChatCompletion,
    ChatCompletionChanges,
    ChatHead,
    StoredChatMessage,
    choice_of,
    parse_chat_changes,
    parse_chat_query,
    seen_turn_of,
    usage_of,
    whole_completion,
)
from responses_app.protocol.chat.encoder import ChunkEncoder, usage_chunk
from responses_app.protocol.chat.request import ChatRequest, parse_chat
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.fields import MAX_PAIRS
from responses_app.protocol.prompt.replaying import SeenTurn, keys_of
from responses_app.protocol.requests.pages import page_behind, page_of, parse_list_query
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.resources.batches.handlers import LineAnswer, LineHandler, LineRequest, begun, tokens_of
from responses_app.runs.chats import Choices
from responses_app.runs.log.journal import ResponseReader
from responses_app.runs.plan.plan import Origin
from responses_app.web.encoded import EncodedReading, Remember, encoded_stream, read_quietly
from responses_app.web.endpoint import AFTER, EVENTS, JSON, LIMIT, Endpoint, Parameter, text
from responses_app.web.http import DONE, ApiRequest, error_event, json_response, read_json, read_line
from responses_app.wiring.site import Site, get_site


class DeletedChatCompletion(TypedDict):
    """A stored completion is gone."""

    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]


class ChatCompletionList(TypedDict):
    """A part of a list of stored completions. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[ChatCompletion]
    first_id: str
    last_id: str
    has_more: bool


class ChatMessageList(TypedDict):
    """A part of a list of messages. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[StoredChatMessage]
    first_id: str
    last_id: str
    has_more: bool


class ChatReading(EncodedReading):
    """The choices of one chat, and what is said of them; `version` is that of this server."""

    def __init__(
        self,
        chat: ChatRequest,
        choices: Choices,
        details: Sequence[EngineDetails | None],
        *,
        version: str,
        remember: Remember,
    ) -> None:
        self._chat = chat
        first = choices.readers[0].source.response()
        fingerprint = ids.system_fingerprint(first["model"], version)
        self._head = ChatHead.of(first, system_fingerprint=fingerprint)
        self._form = chat.form(version)
        self._details = details
        self._encoders = [ChunkEncoder(self._head, chat, index, each) for index, each in enumerate(details)]
        super().__init__(chat, choices, self._encoders, remember)

    @staticmethod
    def seen(response: ResponseObject) -> SeenTurn:
        """Return the turn that a client has seen of a choice."""
        return seen_turn_of(choice_of(response))

    @property
    def last(self) -> bytes:
        """What is said behind the last chunk: what all choices used, where it is wanted, or why one has failed."""
        if self.problem is not None:
            return error_event(self.problem) + DONE
        if not self._chat.include_usage:
            return DONE
        used = usage_of(each.response for each in self._encoders if each.response is not None)
        return usage_chunk(self._head, used) + DONE

    def whole(self, responses: Sequence[ResponseObject]) -> ChatCompletion:
        """Return the completion that these responses are."""
        return self._chat.with_details(whole_completion(self._head, responses, self._form), self._details)

    @property
    def is_long(self) -> bool:
        """Whether the completion takes long to write: it has the log probabilities of a prompt."""
        return self._details[0] is not None and self._details[0].prompt_logprobs is not None


async def read_completion(reading: ChatReading) -> ChatCompletion:
    """Wait until all choices have ended, and return the completion. Raises `ApiError` where one of them failed."""
    await read_quietly(reading)
    responses = [reader.source.response() for reader in reading.choices.readers]
    return await asyncio.to_thread(reading.whole, responses) if reading.is_long else reading.whole(responses)


TRANSPORT = "chat"  # how its responses are counted and listed


def _read(data: JsonObject) -> tuple[ChatRequest, list[SeenTurn]]:
    site = get_site()
    named = site.settings.chat_reasoning
    chat = parse_chat(
        data,
        site.parse_create,
        engine_fields=site.takes_engine_fields,
        thought_names=THOUGHT_NAMES if named == "both" else (named,),
    )
    return chat, chat.seen_turns()


async def _create(request: ApiRequest) -> HttpResponseBase:
    site = get_site()
    chat, turns = await read_json(request, _read, site.reader)
    reading = await _begun(site, chat, turns, request.origin(TRANSPORT, "chat"))
    if not chat.create.stream:
        return json_response(await read_completion(reading))
    ping_seconds = site.settings.responses_ping_interval_seconds
    return await encoded_stream(reading, ping_seconds=ping_seconds, cut=request.cut)


async def _line(line: LineRequest) -> LineAnswer:
    """Answer a line of a batch."""
    site = get_site()
    chat, turns = await read_line(line, _read, site.reader)
    reading = await _begun(site, chat, turns, line.origin_of("chat"))
    with begun():
        completion = await read_completion(reading)
    return LineAnswer(orjson.dumps(completion), tokens_of(completion["usage"]))


async def _begun(site: Site, chat: ChatRequest, turns: Sequence[SeenTurn], origin: Origin) -> ChatReading:
    """Start what a chat asks for. Raises `ApiError` for what can be known before anything is said."""
    known = await site.service.known_turns.recall(origin.project, keys_of(turns))
    chat = chat.as_sampled(turns, known.get) if known else chat
    kept, details = chat.kept(__version__), [chat.details(index) for index in range(chat.n)]
    first = ""

    async def create(index: int) -> ResponseReader:
        nonlocal first
        # All choices are found by the first one's id, which is known once that has begun.
        choice = kept.beside(first, index) if kept is not None and index else kept
        reader = await site.service.create(chat.choice(index), origin, chat=choice, details=details[index])
        first = first or reader.source.response_id
        return reader

    try:
        choices = await Choices.create(create, chat.n)
    except ApiError as error:
        raise chat.renamed(error) from None
    return ChatReading(
        chat,
        choices,
        details,
        version=__version__,
        remember=partial(site.service.known_turns.remember, origin.project),
    )


async def _list(request: ApiRequest) -> ChatCompletionList:
    query = parse_chat_query(request.query)
    return page_of(await get_site().chats.listed(request.caller.project, query), query.page, lambda each: each)


async def _get(request: ApiRequest, completion_id: str) -> ChatCompletion:
    return await get_site().chats.get(request.caller.project, completion_id)


async def _update(request: ApiRequest, completion_id: str) -> ChatCompletion:
    site = get_site()
    metadata = await read_json(request, parse_chat_changes, site.reader)
    return await site.chats.change(request.caller.project, completion_id, metadata)


async def _delete(request: ApiRequest, completion_id: str) -> DeletedChatCompletion:
    await get_site().chats.delete(request.caller.project, completion_id)
    return {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}


async def _messages(request: ApiRequest, completion_id: str) -> ChatMessageList:
    page = parse_list_query(request.query, descending=False)
    messages = await get_site().chats.messages(request.caller.project, completion_id)
    return page_behind(messages, page)


_CHATS = "/v1/chat/completions"
_CHAT = f"{_CHATS}/{{completion_id}}"
_ORDER = Parameter("order", "Whether the oldest or the newest come first.", text(enum=["asc", "desc"], default="asc"))
_PAGED = (LIMIT, _ORDER, AFTER)
_MODEL = Parameter("model", "Only completions of this model.", text())
_METADATA = Parameter(
    "metadata",
    "Only completions with these pairs of metadata, as `metadata[key]=value`.",
    {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": MAX_PAIRS},
)
_endpoint = partial(Endpoint, tag="Chat", scope=Area.RESPONSES)  # what a chat makes are responses

ENDPOINTS = (
    _endpoint(
        "GET",
        _CHATS,
        _list,
        "listChatCompletions",
        "List the stored chat completions",
        takes=(_MODEL, _METADATA, *_PAGED),
    ),
    _endpoint("GET", _CHAT, _get, "getChatCompletion", "Return a stored chat completion"),
    _endpoint(
        "POST",
        _CHAT,
        _update,
        "updateChatCompletion",
        "Change the metadata of a stored chat completion",
        body=ChatCompletionChanges,
    ),
    _endpoint("DELETE", _CHAT, _delete, "deleteChatCompletion", "Delete a stored chat completion"),
    _endpoint(
        "GET",
        f"{_CHAT}/messages",
        _messages,
        "getChatCompletionMessages",
        "List the messages of a stored chat completion",
        takes=_PAGED,
    ),
    _endpoint(
        "POST",
        _CHATS,
        _create,
        "createChatCompletion",
        "Create a chat completion, at once or as a stream",
        body="CreateChatCompletion",
        answers={JSON: ChatCompletion, EVENTS: "ChatServerSentEvent"},
        line=LineHandler(_line, effects=("web_search_options",)),
        errors=(404, 409, 429),
    ),
)
