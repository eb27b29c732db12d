"""daphne's HTTP requests, bounded before daphne looks at them; imported only where daphne runs.

daphne calls the application when it has the whole body, which Twisted has parsed by then if it is a form, and queues it
in memory. So each connection gets a channel and requests of classes that extend Twisted's and daphne's own: a body is
refused by its head or while it comes, a request that comes too slowly is given up, no form is parsed, and a long body
stays in its file until the application asks for it.
"""

from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any
from urllib.parse import unquote

from daphne.http_protocol import HTTPFactory, WebRequest
from twisted.internet import reactor
from twisted.web import http

from responses_app.bodies import BodyRules, Head, answer
from responses_app.protocol.answer_headers import AnswerHeaders
from responses_app.protocol.errors import ApiError

LINGER_SECONDS = 10.0  # a refused client may go on sending this long; it reads its answer in this time
QUEUED_BYTES = 64 * 1024  # a body up to this goes through daphne's queue, a longer one stays in its file


def bound_requests(rules: BodyRules, headers: AnswerHeaders) -> bool:
    """Make the running daphne's listeners build bounded connections; return False where there are none to be found."""
    factories = [factory for reader in reactor.getReaders() if (factory := _http_factory(reader)) is not None]
    for factory in factories:
        factory.protocol = partial(_protocol, rules)
        factory.buildProtocol = partial(_build, factory, partial(Request, rules=rules, headers=headers))
    return bool(factories)


def _http_factory(reader: Any) -> HTTPFactory | None:
    """Return daphne's factory behind a listening port; with TLS it is wrapped."""
    factory = getattr(reader, "factory", None)
    factory = getattr(factory, "wrappedFactory", factory)
    return factory if isinstance(factory, HTTPFactory) else None


def _protocol(rules: BodyRules) -> Any:
    return http._GenericHTTPChannelProtocol(Channel(rules))


def _build(factory: HTTPFactory, requests: Callable[..., "Request"], address: Any) -> Any:
    protocol = type(factory).buildProtocol(factory, address)
    protocol.requestFactory = requests
    return protocol


class Channel(http.HTTPChannel):
    """An HTTP/1 connection. A request is timed from the first byte after which it is not complete."""

    def __init__(self, rules: BodyRules) -> None:
        super().__init__()
        self._rules = rules
        self._deadline: Any = None  # a call of the reactor
        self._began = 0.0

    @property
    def target(self) -> tuple[str, bytes]:
        """Method and path of the request whose headers are complete."""
        return self._command.decode("latin1"), self._path.partition(b"?")[0]

    def dataReceived(self, data: bytes) -> None:
        """Take what the client sent."""
        super().dataReceived(data)
        is_incomplete = not self._handlingRequest and bool(self.requests or self._buffer)
        if is_incomplete and self._deadline is None:
            self._began = reactor.seconds()
            self._deadline = reactor.callLater(self._rules.seconds(0), self._overdue)
        elif not is_incomplete and not self._is_refused:
            self._cancel()

    def refuse(self, content: bytes) -> None:
        """Answer at once and close; what still comes is thrown away, as a reset could cost the client its answer."""
        self._cancel()
        self.setTimeout(None)
        self.transport.write(content)
        if hasattr(self.transport, "loseWriteConnection"):  # not under TLS
            self.transport.loseWriteConnection()
        seconds = min(LINGER_SECONDS, self._rules.seconds(0))
        self._deadline = reactor.callLater(seconds, self.transport.abortConnection)

    def connectionLost(self, reason: Any) -> None:
        """The connection is gone."""
        self._cancel()
        super().connectionLost(reason)

    @property
    def _is_refused(self) -> bool:
        return bool(self.requests) and getattr(self.requests[-1], "refused", False)

    def _overdue(self) -> None:
        request = self.requests[-1] if self.requests else None
        left = self._began + self._rules.seconds(getattr(request, "received", 0)) - reactor.seconds()
        self._deadline = None
        if left > 0:
            self._deadline = reactor.callLater(left, self._overdue)
        elif request is None:  # not even a request line
            self.transport.abortConnection()
        else:
            request.refuse(self._rules.too_slow())

    def _cancel(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()


class Request(WebRequest):
    """A request of daphne's whose body is bounded. `body` is the file of a long one; the application's to read."""

    def __init__(self, *args: Any, rules: BodyRules, headers: AnswerHeaders) -> None:
        self._rules = rules
        self._standing = headers
        self._limit = 0
        self._head: Head | None = None
        self.received = 0
        self.refused = False
        self.body: Any = None
        super().__init__(*args, parsePOSTFormSubmission=False)

    def gotLength(self, length: int | None) -> None:
        """The headers are complete: look at them."""
        super().gotLength(length)
        # daphne takes its root path from whoever says it: a client could move any path below one that a proxy lets by.
        self.requestHeaders.removeHeader(b"Daphne-Root-Path")
        if self.refused:  # they came too late
            return
        if not isinstance(self.channel, Channel):
            return  # HTTP/2: `Bodies` looks at it later
        method, path = self.channel.target
        headers = [(name.lower(), value) for name, values in self._raw_headers() for value in values]
        self._head = Head.of(method, unquote(path.decode("latin1")), self.server.root_path, headers)
        self._limit = self._rules.limit(self._head)
        try:
            self._rules.check(self._head)
        except ApiError as error:
            self.requestHeaders.removeHeader(b"Expect")  # nothing more is expected
            self.refuse(error)

    def handleContentChunk(self, data: bytes) -> None:
        """Keep a part of the body."""
        self.received += len(data)
        if self.refused:
            return
        if self._head is not None and self.received > self._limit:
            self.refuse(self._rules.excess(self._head))
            return
        super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """The body is complete."""
        if self.refused:
            self.channel.loseConnection()
            return
        if self.received > QUEUED_BYTES:
            self.body, self.content = self.content, BytesIO()
            self.body.seek(0)
        super().requestReceived(command, path, version)

    def refuse(self, error: ApiError) -> None:
        """Answer with an error, and close the connection."""
        self.refused = True
        if self.content is not None:
            self.content.close()
        self.content = BytesIO()
        headers = [(name.lower(), value) for name, values in self._raw_headers() for value in values]
        self._rules.refused(error)
        status, lines, body = answer(error, headers, self._standing)
        head = b"HTTP/1.1 %d %b\r\n" % (status, http.RESPONSES.get(status, b"Error"))
        for name, value in (*lines, (b"connection", b"close")):
            head += b"%b: %b\r\n" % (name, value)
        self.channel.refuse(head + b"\r\n" + body)

    def connectionLost(self, reason: Any) -> None:
        """The connection is gone."""
        self._forget()
        super().connectionLost(reason)

    def finish(self) -> None:
        """The answer is complete."""
        self._forget()
        super().finish()

    def _raw_headers(self) -> Any:
        return self.requestHeaders.getAllRawHeaders()

    def _forget(self) -> None:
        body, self.body = self.body, None
        if body is not None:
            body.close()
