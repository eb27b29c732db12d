"""`/v1/chat/completions`: chats, on the same runs as responses; see `protocol.chat`."""

from functools import lru_cache, partial
from hashlib import blake2b
from importlib.metadata import version

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from responses_app.http import (
    MethodNotAllowed,
    caller_of,
    json_response,
    project_of,
    read_json,
    request_id_of,
    span_of,
)
from responses_app.protocol.chat.replaying import SeenTurn, as_sampled, keys_of, seen_turns
from responses_app.protocol.chat.request import ChatRequest, parse_chat
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.runs.choices import Choices
from responses_app.runs.plan import Origin
from responses_app.runs.reader import ResponseReader
from responses_app.servers.backpressure import CUT
from responses_app.site import Site
from responses_app.views.chat_streams import ChatReading, completion_stream, read_completion
from responses_app.wiring import get_site

TRANSPORT = "chat"  # how its responses are counted and listed


async def index(request: HttpRequest) -> HttpResponseBase:
    """Create a chat completion; `stream: true` streams it."""
    if request.method != "POST":
        raise MethodNotAllowed(str(request.method), ["POST"])
    site = get_site()

    def read(data: JsonObject) -> tuple[ChatRequest, list[SeenTurn]]:
        chat = parse_chat(data, site.parse_create)
        return chat, seen_turns(chat)

    chat, turns = await read_json(request, read, site.reader)
    project = project_of(request)
    known = await site.service.known_turns.recall(project, keys_of(turns))
    chat = as_sampled(chat, turns, known.get) if known else chat
    reading = await _begun(site, request, chat)
    if not chat.create.stream:
        return json_response(await read_completion(reading))
    cut = request.scope.get(CUT) if isinstance(request, ASGIRequest) else None
    return await completion_stream(reading, ping_seconds=site.settings.responses_ping_interval_seconds, cut=cut)


async def _begun(site: Site, request: HttpRequest, chat: ChatRequest) -> ChatReading:
    """Start what a chat asks for. Raises `ApiError` for what can be known before anything is said."""
    origin = Origin.of(caller_of(request), TRANSPORT, request_id=request_id_of(request), span=span_of(request))

    async def create(_: int) -> ResponseReader:
        return await site.service.create(chat.create, origin)

    try:
        choices = await Choices.create(create, chat.n)
    except ApiError as error:
        raise chat.renamed(error) from None
    return ChatReading(
        chat,
        choices,
        system_fingerprint=_fingerprint(choices.readers[0].response()["model"]),
        request_id=origin.request_id,
        remember=partial(site.service.known_turns.remember, origin.project),
    )


@lru_cache(maxsize=64)
def _fingerprint(model: str) -> str:
    """Return what a completion says of the server that made it: another one for another version of it."""
    return "fp_" + blake2b(f"{version('respsite')} {model}".encode(), digest_size=5).hexdigest()
