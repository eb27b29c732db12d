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
from responses_app.protocol.chat.completion import choice_of
from responses_app.protocol.chat.replaying import SeenTurn, as_sampled
from responses_app.protocol.chat.request import ChatRequest, parse_chat
from responses_app.protocol.errors import ApiError
from responses_app.protocol.resources import ResponseObject
from responses_app.runs.choices import Choices
from responses_app.runs.plan import Origin
from responses_app.runs.reader import ResponseReader
from responses_app.servers.backpressure import CUT
from responses_app.views.chat_streams import ChatReading, completion_stream, read_completion
from responses_app.wiring import Site, get_site

TRANSPORT = "chat"  # how its responses are counted and listed


async def index(request: HttpRequest) -> HttpResponseBase:
    """Create a chat completion; `stream: true` streams it."""
    if request.method != "POST":
        raise MethodNotAllowed(str(request.method), ["POST"])
    site = get_site()
    chat = await read_json(request, partial(parse_chat, parse=site.parse_create), site.reader)
    project = project_of(request)
    chat = as_sampled(chat, partial(site.service.known_turns.recall, project))
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

    def ended(reader: ResponseReader, response: ResponseObject) -> None:
        _remember(site, origin.project, reader, response)

    try:
        choices = await Choices.create(create, chat.n)
    except ApiError as error:
        raise chat.renamed(error) from None
    model = choices.readers[0].response()["model"]
    return ChatReading(chat, choices, system_fingerprint=_fingerprint(model), request_id=origin.request_id, ended=ended)


def _remember(site: Site, project: str, reader: ResponseReader, response: ResponseObject) -> None:
    """Keep what the model has said, so that it reads it again as it has said it when its client gives it back."""
    exact = reader.said()
    seen = SeenTurn.of_choice(choice_of(response))
    if exact is not None and seen.key is not None:
        site.service.known_turns.remember(project, seen.key, seen.known(exact))


@lru_cache(maxsize=64)
def _fingerprint(model: str) -> str:
    """Return what a completion says of the server that made it: another one for another version of it."""
    return "fp_" + blake2b(f"{version('respsite')} {model}".encode(), digest_size=5).hexdigest()
