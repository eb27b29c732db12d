"""`/v1/chat/completions`: chats, on the same runs as responses; see `protocol.chat`."""

from functools import partial

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from responses_app import __version__
from responses_app.api.chat.streams import ChatReading, completion_stream, read_completion
from responses_app.protocol.api_keys import Area
from responses_app.protocol.chat.completion import ChatCompletion
from responses_app.protocol.chat.replaying import SeenTurn, as_sampled, keys_of, seen_turns
from responses_app.protocol.chat.request import ChatRequest, parse_chat
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.runs.choices import Choices
from responses_app.runs.log.reader import ResponseReader
from responses_app.runs.plan.plan import Origin
from responses_app.web.endpoint import EVENTS, JSON, Endpoint
from responses_app.web.http import (
    caller_of,
    cut_of,
    json_response,
    project_of,
    read_json,
    request_id_of,
    span_of,
)
from responses_app.wiring.site import Site
from responses_app.wiring.wiring import get_site

TRANSPORT = "chat"  # how its responses are counted and listed


async def _create(request: HttpRequest) -> HttpResponseBase:
    site = get_site()

    def read(data: JsonObject) -> tuple[ChatRequest, list[SeenTurn]]:
        chat = parse_chat(data, site.parse_create, engine_fields=site.takes_engine_fields)
        return chat, seen_turns(chat)

    chat, turns = await read_json(request, read, site.reader)
    project = project_of(request)
    known = await site.service.known_turns.recall(project, keys_of(turns))
    chat = as_sampled(chat, turns, known.get) if known else chat
    reading = await _begun(site, request, chat)
    if not chat.create.stream:
        return json_response(await read_completion(reading))
    ping_seconds = site.settings.responses_ping_interval_seconds
    return await completion_stream(reading, ping_seconds=ping_seconds, cut=cut_of(request))


async def _begun(site: Site, request: HttpRequest, chat: ChatRequest) -> ChatReading:
    """Start what a chat asks for. Raises `ApiError` for what can be known before anything is said."""
    origin = Origin.of(caller_of(request), TRANSPORT, request_id=request_id_of(request), span=span_of(request))

    kept, details = chat.kept(__version__), [chat.details(index) for index in range(chat.n)]
    first = ""

    async def create(index: int) -> ResponseReader:
        nonlocal first
        choice = kept.beside(first, index) if kept is not None and index else kept
        reader = await site.service.create(chat.choice(index), origin, chat=choice, details=details[index])
        first = first or reader.response_id
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
        request_id=origin.request_id,
        remember=partial(site.service.known_turns.remember, origin.project),
    )


ENDPOINTS = (
    Endpoint(
        *("POST", "/v1/chat/completions", _create),
        *("createChatCompletion", "Create a chat completion, at once or as a stream"),
        tag="Chat",
        scope=Area.RESPONSES,  # what it makes are responses
        body="CreateChatCompletion",
        answers={JSON: ChatCompletion, EVENTS: "ChatServerSentEvent"},
        errors=(404, 409, 429),
    ),
)
