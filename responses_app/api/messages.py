"""Anthropic's Messages API, on the same runs as responses; see `protocol.messages`.

`/v1/messages`: a message, whole or in events. `/v1/messages/count_tokens`: how long its prompt would be.
"""

from dataclasses import replace
from functools import partial

from django.http.response import HttpResponseBase

from engine import orjson
from responses_app.kit.clock import rfc3339
from responses_app.protocol.api_keys import Area
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import ApiError
from responses_app.protocol.messages.errors import MessagesErrorAnswer, check_version, error_answer
from responses_app.protocol.messages.message import (
    PING,
    MessageEncoder,
    MessageObject,
    MessageTokens,
    event,
    seen_turn_of,
    whole_message,
)
from responses_app.protocol.messages.request import MessagesRequest, parse_count, parse_messages
from responses_app.protocol.prompt.replaying import SeenTurn, keys_of
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.transport import ANTHROPIC_VERSION as VERSION
from responses_app.resources.batches.handlers import LineAnswer, LineHandler, LineRequest, begun, tokens_of
from responses_app.runs.chats import Choices
from responses_app.runs.log.journal import ResponseReader
from responses_app.runs.plan.plan import Origin
from responses_app.tools.base import container_limits
from responses_app.web.encoded import EncodedReading, Remember, encoded_stream, read_quietly
from responses_app.web.endpoint import EVENTS, JSON, SEALS, Endpoint, Parameter, text
from responses_app.web.http import ApiRequest, json_response, read_json, read_line
from responses_app.wiring.site import get_site

BETA = "anthropic-beta"
LISTS_TOOLS = "mcp-client-2026"  # a client of this beta knows blocks with the tools of an MCP server
TRANSPORT = "messages"  # how its responses are counted and listed


class MessageReading(EncodedReading):
    """The response that a message is, and what is said of it."""

    ping = PING

    def __init__(
        self,
        asked: MessagesRequest,
        reader: ResponseReader,
        details: EngineDetails,
        *,
        request_id: str,
        remember: Remember,
    ) -> None:
        self._message = asked
        self._reader = reader
        self._details = details
        self._request_id = request_id
        encoder = MessageEncoder(reader.source.response(), asked, details)
        super().__init__(asked, Choices((reader,)), [encoder], remember)

    @staticmethod
    def seen(response: ResponseObject) -> SeenTurn:
        """Return the turn that a client has seen of a message."""
        return seen_turn_of(response)

    @property
    def last(self) -> bytes:
        """What is said behind the last event: why it has failed, if it has."""
        return b"" if self.problem is None else event(dict(error_answer(self.problem, self._request_id)))

    def whole(self) -> MessageObject:
        """Return the message."""
        return whole_message(self._reader.source.response(), self._message, len(self._details.prompt_token_ids))


async def _create(request: ApiRequest) -> HttpResponseBase:
    check_version(request.headers.get(VERSION))
    site = get_site()
    asked = await read_json(request, partial(parse_messages, parse=site.parse_create), site.reader)
    origin = request.origin(TRANSPORT, "messages")
    reading = await _begun(asked, origin, lists_tools=LISTS_TOOLS in request.headers.get(BETA, ""))
    if asked.create.stream:
        ping_seconds = site.settings.responses_ping_interval_seconds
        return await encoded_stream(reading, ping_seconds=ping_seconds, cut=request.cut)
    await read_quietly(reading)
    return json_response(reading.whole())


async def _line(line: LineRequest) -> LineAnswer:
    """Answer a line of a batch."""
    site = get_site()
    asked = await read_line(line, partial(parse_messages, parse=site.parse_create), site.reader)
    reading = await _begun(asked, line.origin_of("messages"))
    with begun():
        await read_quietly(reading)
    message = reading.whole()
    return LineAnswer(orjson.dumps(message), tokens_of(message["usage"]))


async def _begun(asked: MessagesRequest, origin: Origin, *, lists_tools: bool = False) -> MessageReading:
    """Start what a message asks for. Raises `ApiError` for what can be known before anything is said."""
    site = get_site()
    limits = container_limits(site.tools)
    until = None if limits is None else lambda used: rfc3339(used + int(limits.idle_seconds))
    asked = replace(asked, lists_tools=lists_tools, container_until=until)
    known = await site.service.known_turns.recall(origin.project, keys_of(turn.seen for turn in asked.turns))
    asked = asked.as_sampled(known.get) if known else asked
    details = EngineDetails()
    try:
        reader = await site.service.create(asked.create, origin, details=details)
    except ApiError as error:
        raise asked.renamed(error) from None
    return MessageReading(
        asked,
        reader,
        details,
        request_id=origin.request_id,
        remember=partial(site.service.known_turns.remember, origin.project),
    )


async def _count(request: ApiRequest) -> MessageTokens:
    check_version(request.headers.get(VERSION))
    site = get_site()
    asked = await read_json(request, partial(parse_count, parse=site.parse_create), site.reader)
    origin = request.origin(TRANSPORT, "messages")
    try:
        return {"input_tokens": await site.service.count_input_tokens(asked.create, origin)}
    except ApiError as error:
        raise asked.renamed(error) from None


_VERSION = Parameter(
    VERSION, "The version of Anthropic's API that the client speaks.", text(pattern=r"^20\d\d-\d\d-\d\d$"),
    where="header", required=True,
)  # fmt: skip
_endpoint = partial(
    Endpoint,
    tag="Messages",
    scope=Area.RESPONSES,  # what it makes are responses
    takes=(_VERSION, SEALS),
    errors=(404, 429),
    error_answer=MessagesErrorAnswer,
)

ENDPOINTS = (
    _endpoint(
        "POST",
        "/v1/messages",
        _create,
        "createMessage",
        "Create a message of Anthropic's API, at once or as a stream",
        body="CreateMessage",
        answers={JSON: MessageObject, EVENTS: "MessagesServerSentEvent"},
        line=LineHandler(_line, effects=("mcp_servers", "container")),
    ),
    _endpoint(
        "POST",
        "/v1/messages/count_tokens",
        _count,
        "countMessageTokens",
        "Count the tokens of a message's prompt",
        body="CountMessageTokens",
        only_asks=True,
    ),
)
