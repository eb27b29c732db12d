"""daphne's HTTP requests, bounded before daphne looks at them; imported only where daphne runs.

daphne calls the application when it has the whole body, which Twisted has parsed by then if it is a form, and queues it
in memory. So each connection gets a channel and requests of classes that extend Twisted's and daphne's own: a body is
refused by its head or while it comes, a request that comes too slowly is given up, no form is parsed, and a long body
stays in its file until the application asks for it. While a key is looked up nothing is read from its client. What was
refused is not parsed any more.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any
from urllib.parse import unquote

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketProtocol
from twisted.internet import reactor
from twisted.web import http

from responses_app.protocol.errors import ApiError, invalid_request, server_error
from responses_app.protocol.transport import (
    AnswerHeaders,
    chunks_too_small,
    head_too_large,
    request_too_slow,
    target_too_long,
    unreadable,
)
from responses_app.web.bodies import (
    LINGER_SECONDS,
    MAX_DIGITS,
    OTHER_BODY_BYTES,
    BodyRules,
    BodyStart,
    Message,
    RequestHead,
    answer,
    date,
    refusal,
)
from responses_app.web.endpoint import is_api_path
from responses_app.web.phrases import PHRASES
from responses_app.web.servers import inflow
from responses_app.web.servers.heads import MAX_HEAD_BYTES, check_head, check_size, is_handshake, origin_form
from responses_app.web.servers.inflow import AVERAGE_BYTES, Framing, Inflow, lines_end

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
for _status, _phrase in PHRASES.items():  # Twisted names neither 429 nor some others, and calls them "Unknown Status"
    http.RESPONSES.setdefault(_status, _phrase.encode())

QUEUED_BYTES = 64 * 1024  # a body up to this goes through daphne's queue, a longer one stays in its file


def bound_requests(rules: BodyRules, headers: AnswerHeaders) -> bool:
    """Make the running daphne's listeners build bounded connections; return False where there are none to be found."""
    factories = [factory for reader in reactor.getReaders() if (factory := _http_factory(reader)) is not None]
    for factory in factories:
        factory.protocol = lambda: http._GenericHTTPChannelProtocol(BoundedChannel(rules, headers))
        factory.server.ws_factory.protocol = partial(WebSocket, rules, headers)
        factory.buildProtocol = partial(_build, factory, partial(Request, rules=rules, headers=headers))
    return bool(factories)


def _http_factory(reader: Any) -> HTTPFactory | None:
    """Return daphne's factory behind a listening port; with TLS it is wrapped."""
    factory = getattr(reader, "factory", None)
    # A TLS listener has daphne's factory inside another one.
    factory = getattr(factory, "wrappedFactory", factory)
    return factory if isinstance(factory, HTTPFactory) else None


def _build(factory: HTTPFactory, requests: Callable[..., "Request"], address: Any) -> Any:
    protocol = type(factory).buildProtocol(factory, address)
    protocol.requestFactory = requests
    return protocol


class BoundedChannel(http.HTTPChannel):
    """An HTTP/1 connection. A request is timed from the first byte after which it is not complete.

    Requests that Twisted refuses silently, or with a bare status, get an answer like all others.
    """

    # More than is taken, so that pages can read the answer to most heads that are too long.
    MAX_LENGTH = totalHeadersSize = 4 * MAX_HEAD_BYTES
    _path: bytes  # the target of the request that comes

    def __init__(self, rules: BodyRules, headers: AnswerHeaders) -> None:
        super().__init__()
        self._rules = rules
        self._standing = headers  # those that every answer has
        self._is_refused = False
        self._deadline: Any = None  # a call of the reactor
        self._began = 0.0
        self._inflow = Inflow(
            self._cut, self._parse, self._read_or_not, lambda: self.transport.abortConnection(), self._parses_nothing
        )
        self._is_asking = False

    @property
    def target(self) -> tuple[str, bytes]:
        """Method and path of the request whose headers are complete."""
        return self._command.decode("latin1"), self._path.partition(b"?")[0]

    @property
    def version(self) -> str:
        """The version of HTTP that it is in, such as "1.1"."""
        return str(self._version, "latin1").removeprefix("HTTP/")

    def sends_continue(self, request: "Request") -> bool:
        """Whether a request, whose headers are complete, waits for a word before it sends its body."""
        expected = request.requestHeaders.getRawHeaders(b"Expect") or [b""]
        return bool(self._version == b"HTTP/1.1" and expected[0].lower() == b"100-continue")

    def ask(self, is_asking: bool) -> None:
        """While it is asked who sends a body, read nothing of it."""
        self._is_asking = is_asking
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self._is_asking or self._inflow.waits or self._waitingForTransport:
            self._networkProducer.pauseProducing()
        else:
            self._networkProducer.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        """Take what the client sent, or what was kept while it was served."""
        self._inflow.take(data)

    def _cut(self, data: bytes, lines: int) -> int:
        """Return where so many lines end. What is left of the present chunk has none."""
        chunk = self._transferDecoder
        in_chunk = int(chunk.length) if getattr(chunk, "state", None) == "BODY" else 0
        return lines_end(data, lines, in_chunk) if in_chunk < len(data) else len(data)

    def _parses_nothing(self) -> bool:
        """Whether what comes is kept for later, or is a body with a declared length."""
        return self._handlingRequest or bool(self._transferDecoder is not None and self.length is not None)

    def _parse(self, data: bytes) -> None:
        super().dataReceived(data)
        is_incomplete = not self._handlingRequest and bool(self.requests or self._buffer)
        if is_incomplete and self._deadline is None:
            self._began = reactor.seconds()
            self._deadline = reactor.callLater(self._rules.seconds(0), self._overdue)
        elif not is_incomplete and not self._is_refused:
            self._cancel()

    def lineReceived(self, line: bytes) -> None:
        """Take a line of a head, or of chunks."""
        if self._is_refused:  # it came with the line that was refused
            return
        version = line[-8:]
        if not self.requests and version.startswith(b"HTTP/"):
            # RFC 9110 section 2.5: a higher minor version is read as the one that is spoken here.
            if version.startswith(b"HTTP/1.") and version > b"HTTP/1.1" and version[7:].isdigit():
                line = line[:-1] + b"1"
            elif version[5:6].isdigit() and version[5:6] > b"1":
                self._refuse_head(unreadable("this server speaks HTTP/1.1", status=505))
                return
        super().lineReceived(line)

    def lineLengthExceeded(self, line: bytes) -> None:
        """A line is too long; Twisted would close the connection."""
        too_long = head_too_large if self.requests else target_too_long
        self._refuse_head(too_long(MAX_HEAD_BYTES))

    def headerReceived(self, line: bytes) -> bool:
        """Take a header. Python reads no number of thousands of digits, and Twisted would close at one."""
        name, colon, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            line = name + colon + (value.strip().lstrip(b"0")[:MAX_DIGITS] or b"0")
        return bool(super().headerReceived(line))

    def allHeadersReceived(self) -> None:
        """A head is complete. Of a URL as its target the path is left, and the host is the URL's."""
        request = self.requests[-1]
        try:
            check_size(self._path, request.headers_as_sent())
            self._path, authority = origin_form(self._path)
        except ApiError as error:
            request.refuse(error)
            return
        if authority is not None and request.requestHeaders.hasHeader(b"Host"):
            request.requestHeaders.setRawHeaders(b"Host", [authority])
        super().allHeadersReceived()

    def _respondToBadRequestAndDisconnect(self) -> None:
        if self._is_refused:
            return
        if self._receivedHeaderSize > self.totalHeadersSize or self._receivedHeaderCount > self.maxHeaders:
            error = head_too_large(MAX_HEAD_BYTES)
        elif not self.line_mode:
            error = unreadable("a chunk of its body does not begin with its size")
        elif hasattr(self, "_command"):
            error = unreadable("a header is not valid, or the length of the body is unclear")
        else:
            error = unreadable("its first line is not valid")
        self._refuse_head(error)

    def _refuse_head(self, error: ApiError) -> None:
        """Answer what is not a request, or not yet."""
        if self.requests:
            self.requests[-1].refuse(error)
            return
        self._rules.refused(error)
        self.refuse(refusal(error, (), self._standing))

    def rawDataReceived(self, data: bytes) -> None:
        """Take a part of a body, with the heads of its chunks, or what comes while a request is served."""
        if self._is_refused:
            return
        request, is_body = self.requests[-1], not self._handlingRequest
        before = request.received
        super().rawDataReceived(data)
        # All that is not content is framing: the chunks' lengths and the ends of their lines.
        if is_body and not self._handlingRequest and not self._is_refused:  # its end is not here yet
            content = request.received - before
            request.count_framing(len(data) - content, content)

    def refuse(self, content: bytes) -> None:
        """Answer at once and close; what still comes is thrown away, as a reset could cost the client its answer."""
        # Before anything is written: what was read already is not parsed any more.
        self._is_refused = True
        self._inflow.end()
        self._cancel()
        self.setTimeout(None)
        self.transport.write(content)
        if hasattr(self.transport, "loseWriteConnection"):  # not under TLS
            self.transport.loseWriteConnection()
        seconds = min(LINGER_SECONDS, self._rules.seconds(0))
        self._deadline = reactor.callLater(seconds, self.transport.abortConnection)
        self.ask(False)  # and read on

    def connectionLost(self, reason: Any) -> None:
        """The connection is gone."""
        self._inflow.end()
        self._cancel()
        super().connectionLost(reason)

    def _overdue(self) -> None:
        request = self.requests[-1] if self.requests else None
        # What has come since allows more time, so the timer may have to be set again.
        left = self._began + self._rules.seconds(getattr(request, "received", 0)) - reactor.seconds()
        self._deadline = None
        if left > 0:
            self._deadline = reactor.callLater(left, self._overdue)
        else:  # there may not even be a request line
            self._refuse_head(request_too_slow(self._rules.arrival_seconds))

    def _cancel(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()


class Request(WebRequest):
    """A request of daphne's whose body is bounded. `body` is the file of a long one; the application's to read."""

    content: Any

    def __init__(self, *args: Any, rules: BodyRules, headers: AnswerHeaders) -> None:
        self._rules = rules
        self._standing = headers  # those that every answer has
        self._limit = 0  # bytes of its body that are taken
        self._head: RequestHead | None = None
        self._asking: asyncio.Task[None] | None = None  # whether this client may send so much
        self._is_asked = False
        self._awaits_continue = False
        self._framing = Framing()
        self.received = 0
        self.refused = False
        self.body: Any = None
        self._start: BodyStart | None = None
        # Forms are read by Django, from a file; Twisted would parse them in memory, on the loop.
        super().__init__(*args, parsePOSTFormSubmission=False)

    def gotLength(self, length: int | None) -> None:
        """The headers are complete: look at them."""
        super().gotLength(length)
        # daphne takes its root path from whoever says it: a client could move any path below one that a proxy lets by.
        self.requestHeaders.removeHeader(b"Daphne-Root-Path")
        if getattr(self.channel, "_version", b"HTTP/1.1") != b"HTTP/1.1":
            # HTTP/1.0 has none (RFC 9110 section 7.8). daphne would go on as if it were HTTP/1.1, and nobody behind it
            # could tell that a proxy was in between.
            self.requestHeaders.removeHeader(b"Upgrade")
        if self.refused:  # they came too late
            return
        if not isinstance(self.channel, BoundedChannel):
            return  # HTTP/2: `Bodies` looks at it later
        if not all(map(bytes.isascii, self.requestHeaders.getRawHeaders(b"Sec-WebSocket-Protocol", ()))):
            # daphne would break at it, and tell the client how
            self.refuse(invalid_request("The header 'Sec-WebSocket-Protocol' takes ASCII only."))
            return
        (method, path), headers = self.channel.target, self.headers_as_sent()
        try:
            check_head(method, self.channel.version, headers)
        except ApiError as error:
            self.requestHeaders.removeHeader(b"Expect")  # nothing more is expected
            self.refuse(error)
            return
        if not is_handshake(headers):
            self.requestHeaders.removeHeader(b"Upgrade")
        self._head = RequestHead.of(method, unquote(path.decode("latin1")), self.server.root_path, headers)
        self._limit = self._rules.limit(self._head)
        self._start = BodyStart(self._rules, self._head)
        try:
            self._rules.check(self._head)
        except ApiError as error:
            # Else Twisted would answer "100 Continue" first.
            self.requestHeaders.removeHeader(b"Expect")  # nothing more is expected
            self.refuse(error)
            return
        if self._rules.asks_first(self._head):
            self._awaits_continue = self.channel.sends_continue(self)
            self.requestHeaders.removeHeader(b"Expect")  # what it expects is told when it is let in
            self._ask(self._head)

    def handleContentChunk(self, data: bytes) -> None:
        """Keep a part of the body."""
        self.received += len(data)
        if self.refused:
            return
        if self._head is not None and self.received > self._limit:
            self.refuse(self._rules.excess(self._head))
            return
        super().handleContentChunk(data)
        if self._start is not None:
            try:
                self._start.take(data)
            except ApiError as error:
                self.refuse(error)
                return
        if self._head is not None and self.received > OTHER_BODY_BYTES and not self._is_asked:
            self._ask(self._head)

    def count_framing(self, framing: int, content: int) -> None:
        """Count bytes of a body in chunks, of the chunks' heads and ends and of their content."""
        if not self._framing.take(framing, content):
            self.refuse(chunks_too_small(AVERAGE_BYTES))

    def _ask(self, head: RequestHead) -> None:
        """Find out whether this client may send so much; until that is known, read nothing more of it."""
        self._is_asked = True
        self.channel.ask(True)
        self._asking = asyncio.get_running_loop().create_task(self._admit(head), name="key of a body")

    async def _admit(self, head: RequestHead) -> None:
        try:
            await self._rules.let_in(self._scope(), head.method, head.path)
        except ApiError as error:
            self._asking = None
            self.refuse(error)
            return
        self._asking = None
        self.channel.ask(False)
        if self._awaits_continue:
            self.channel.write(CONTINUE)

    def _stop_asking(self) -> None:
        """It does not matter any more: the application asks again."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            # None once the connection is gone.
            if self.channel is not None:
                self.channel.ask(False)

    def _scope(self) -> Message:
        """Return what an ASGI scope says of who asks."""
        ends = {"client": self.channel.getPeer(), "server": self.channel.getHost()}
        addresses = {name: [end.host, end.port] if hasattr(end, "host") else None for name, end in ends.items()}
        return {"http_version": self.channel.version, "headers": self.headers_as_sent(), **addresses}

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """The body is complete."""
        self._stop_asking()  # a body of which the rest had come already
        if self.refused:
            self.channel.loseConnection()
            return
        # daphne puts `content` into its queue: it gets an empty one, and `_FiledBody` reads this one.
        if self.received > QUEUED_BYTES:
            self.body, self.content = self.content, BytesIO()
            self.body.seek(0)
        super().requestReceived(command, path, version)

    def refuse(self, error: ApiError) -> None:
        """Answer with an error, and close the connection."""
        self._stop_asking()
        self.refused = True
        if self.content is not None:
            self.content.close()
        self.content = BytesIO()
        self._rules.refused(error)
        self.channel.refuse(refusal(error, self.headers_as_sent(), self._standing, path=self._asked_path()))

    def handle_reply(self, message: Message) -> None:
        """Take a part of the answer from the application. daphne's has no `Date`."""
        if message.get("type") == "http.response.start" and not self.responseHeaders.hasHeader(b"date"):
            self.responseHeaders.setRawHeaders(b"date", [date()])
        super().handle_reply(message)

    def _asked_path(self) -> str:
        """Return the path below the root path; "" where the request's head was not read."""
        return "" if self._head is None else self._head.path

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """Answer what daphne refuses by itself, such as a control character in a header, and what breaks in it."""
        error = invalid_request(f"The request cannot be read: {body}.") if status < 500 else server_error()
        self._rules.refused(error)
        status, lines, content = answer(error, self.headers_as_sent(), self._standing, path=self._asked_path())
        self.handle_reply({"type": "http.response.start", "status": status, "headers": lines})
        self.handle_reply({"type": "http.response.body", "body": content})

    def take_body(self) -> Any:
        """Return the file of a long body, for the API: it reads and closes it. None where parts are wanted."""
        if self._head is None or self._head.is_packed or not is_api_path(self._head.path):
            return None
        body, self.body = self.body, None
        return body

    def connectionLost(self, reason: Any) -> None:
        """The connection is gone."""
        self._stop_asking()
        self._forget()
        super().connectionLost(reason)

    def finish(self) -> None:
        """The answer is complete."""
        self._forget()
        super().finish()

    def headers_as_sent(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that were read, with their names in lower case."""
        raw_headers = self.requestHeaders.getAllRawHeaders()
        return [(name.lower(), value) for name, values in raw_headers for value in values]

    def _forget(self) -> None:
        body, self.body = self.body, None
        if body is not None:
            body.close()


class WebSocket(WebSocketProtocol):
    """A WebSocket of daphne's. A handshake that is refused has an answer in the API's shape, and whoever breaks the
    rules of WebSockets a close frame that says so: autobahn would cut the connection.
    """

    failedByMe: bool

    def __init__(self, rules: BodyRules, headers: AnswerHeaders) -> None:
        super().__init__()
        self._rules = rules
        self._standing = headers
        self.end_inflow: Callable[[], None] = lambda: None  # throws away what still comes

    def sendHttpErrorResponse(self, code: int, reason: str, responseHeaders: Any = None) -> None:
        """Answer a handshake that autobahn refuses."""
        error = unreadable(reason, status=code)
        self._rules.refused(error)
        self.sendData(refusal(error, (), self._standing))

    def _fail_connection(self, code: int = 1001, reason: str = "going away") -> None:
        if self.failedByMe or self.state == self.STATE_CLOSED:
            return
        self.failedByMe = True
        self.data = b""
        self.end_inflow()
        self.sendCloseFrame(code=code, reasonUtf8=reason.encode()[: inflow.REASON_BYTES])  # if none was sent yet
        self.application_queue.put_nowait({"type": "websocket.disconnect", "code": code})
        self.muted = True  # else daphne would tell the application once more
        if hasattr(self.transport, "loseWriteConnection"):  # not under TLS
            self.transport.loseWriteConnection()
        reactor.callLater(inflow.LINGER_SECONDS, self.transport.abortConnection)
