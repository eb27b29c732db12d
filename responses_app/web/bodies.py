"""The bodies of HTTP requests: how large they may be, told by the head alone, and counted and timed while they come.

One that comes compressed is unpacked here (`unpacking`), after its key is known to open; its content is counted, too.

Whoever has no key that opens may send a small body, as the usual answer to it, a 401, keeps the connection. Of a larger
one nothing more is taken than that: the 401 comes at the head, or where a body without a declared length grows larger.

`Bodies` does so on every server; `daphne_http` asks the same rules before daphne takes a byte, as daphne calls the
application only when it has the whole body.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any

from responses_app.protocol.errors import ApiError, not_an_object
from responses_app.protocol.transport import (
    CHUNKED,
    FORM_TYPE,
    JSON_TYPE,
    AnswerHeaders,
    body_too_large,
    body_too_large_here,
    coding_beside_length,
    codings_in,
    request_too_slow,
    unknown_coding,
    unsupported_media_type,
)
from responses_app.resources.files.fields import MAX_PART_BYTES, file_too_large, part_too_large
from responses_app.resources.skills.fields import skill_too_large
from responses_app.web.endpoint import Endpoint, Form, Size, find, is_api_path
from responses_app.web.http import NotServed, error_response
from responses_app.web.phrases import PHRASES
from responses_app.web.unpacking import DECODERS, coding_of, not_unpacked, unpacked_pieces

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
SendMessage = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, SendMessage], Awaitable[None]]

OTHER_BODY_BYTES = 256 * 1024  # all bodies but the API's JSON: the admin's forms, and what is refused in any case
FORM_BYTES = 64 * 1024  # of an upload beside its file
SKILL_FORM_BYTES = 1024 * 1024  # of one beside the files of a skill, each of which has a head
MAX_DIGITS = 18  # of a declared length that are read; more are too many bytes in any case
MIN_BYTES_PER_SECOND = 16 * 1024  # of a body that takes longer than REQUEST_ARRIVAL_SECONDS
START_BYTES = 64 * 1024  # of a body of JSON, within which its first brace has to stand
# Of a message with a body's last part: a file that has the whole body, whose bytes do not stand in messages, and their
# number. Whoever reads the message takes the file over.
BODY_FILE, BODY_SIZE = "respsite.body.file", "respsite.body.size"
ROLLOUT_BASE = re.compile(r"/rollouts/([^/]+)(/v1/.*)")  # a path below the base URL of a roll-out
LINGER_SECONDS = 10.0  # a refused client may go on sending this long; it reads its answer in this time


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """What a request says before its body."""

    method: str  # in capitals
    path: str  # below the root path
    content_type: str  # in lower case, without its parameters
    length: int | None  # bytes; None where it is not declared
    codings: tuple[str, ...] = ()  # how the body is wrapped for its way, in lower case
    has_both: bool = False  # a coding, and a length beside it
    end_is_unclear: bool = False  # two servers could disagree where the body ends
    is_packed: bool = False  # its content has a coding of its own, such as gzip

    @classmethod
    def of(cls, method: str, path: str, root_path: str, headers: Iterable[tuple[bytes, bytes]]) -> "RequestHead":
        """Read a request's head; header names are in lower case. In chunks, no declared length means anything."""
        headers = list(headers)
        codings = tuple(v.decode("latin1").strip().lower() for n, v in headers if n == b"transfer-encoding")
        values = {name: value.decode("latin1") for name, value in headers}
        is_coded = b"transfer-encoding" in values
        length = "" if is_coded else values.get(b"content-length", "0")
        path = path.removeprefix(root_path.rstrip("/"))
        based = ROLLOUT_BASE.fullmatch(path)
        return cls(
            method=method,
            path=path if based is None else based[2],
            content_type=values.get(b"content-type", "").partition(";")[0].strip().lower(),
            # Zeros in front mean nothing; of what is left the first digits are enough, as Python takes long for very
            # long ones.
            length=int("0" + length.lstrip("0")[:MAX_DIGITS]) if length.isdecimal() else None,
            codings=codings,
            has_both=(has_both := is_coded and b"content-length" in values),
            end_is_unclear=has_both or codings not in ((), (CHUNKED,)),
            is_packed=b"content-encoding" in values and bool(codings_in(headers)),
        )


@dataclass(frozen=True, slots=True)
class BodyRules:
    """How much of a body is taken."""

    max_body_bytes: int  # of the API's JSON
    arrival_seconds: float  # a body may take so long, and longer where it is large (MIN_BYTES_PER_SECOND)
    # Is told of whatever is answered with an error before the API sees it.
    refused: Callable[[ApiError], None]
    # Raises `ApiError` for who may not ask for this: takes an ASGI scope, a method and a path.
    let_in: Callable[[Message, str, str], Awaitable[object]]
    # Of a file that is kept, in parts of up to MAX_PART_BYTES or as a whole; one for a container is bounded as JSON is.
    max_file_bytes: int
    max_file_setting: str  # the name of the setting that says so
    max_skill_bytes: int  # of a skill's bundle, or of the files in it

    def check(self, head: RequestHead) -> int:
        """Return how many bytes of a body are taken.

        Raises `ApiError` for one that is declared larger than it may be, or of which two servers could disagree where
        it ends: a proxy in front could take a part of it for the next request, of somebody else.
        """
        if head.end_is_unclear:
            raise coding_beside_length() if head.has_both else unknown_coding(", ".join(head.codings))
        limit = self.limit(head)
        if head.length is not None and head.length > limit:
            raise self.excess(head)
        return limit

    def asks_first(self, head: RequestHead) -> bool:
        """Whether a body is declared so large that who sends it is asked for a key before any of it is taken."""
        return head.length is not None and head.length > OTHER_BODY_BYTES

    def limit(self, head: RequestHead) -> int:
        """Return how many bytes are taken."""
        if head.length is not None and head.length <= OTHER_BODY_BYTES:
            return self.max_body_bytes  # small, whatever it is: the answer is the application's
        endpoint = _posted(head)
        # A body for which there is no use: its client gets an error in any case.
        if endpoint is None or not (head.content_type == JSON_TYPE or _form(head, endpoint)):
            return min(OTHER_BODY_BYTES, self.max_body_bytes)
        match _form(head, endpoint):
            case Form(size=Size.FILE):
                return self.max_file_bytes + FORM_BYTES
            case Form(size=Size.PART):
                return min(self.max_file_bytes, MAX_PART_BYTES) + FORM_BYTES
            case Form(size=Size.SKILL):
                return self.max_skill_bytes + SKILL_FORM_BYTES
        return self.max_body_bytes

    def excess(self, head: RequestHead) -> ApiError:
        """Return the error for more bytes than that."""
        endpoint = _posted(head)
        if endpoint is None:
            return body_too_large_here(self.limit(head))
        form = _form(head, endpoint)
        if form is None and endpoint.form is not None and endpoint.body is None:
            return unsupported_media_type(head.content_type, FORM_TYPE)
        if form is None and head.content_type != JSON_TYPE:
            return unsupported_media_type(head.content_type)
        if form is None or form.size is Size.AS_JSON:
            return body_too_large(self.max_body_bytes)
        if form.size is Size.SKILL:
            return skill_too_large(self.max_skill_bytes)
        # The smaller of the two bounds is the one that the client is told of.
        is_part = form.size is Size.PART and self.max_file_bytes > MAX_PART_BYTES
        return part_too_large() if is_part else file_too_large(self.max_file_bytes, setting=self.max_file_setting)

    def check_start(self, head: RequestHead, start: bytes) -> None:
        """Raise `ApiError` for a body of JSON that is no object. `start`: its first START_BYTES or more, of a long one.

        A short one is answered by who parses it. Of a long one nothing more is taken: it costs its sender nothing.
        """
        is_json = head.content_type == JSON_TYPE and not head.is_packed and _posted(head) is not None
        if is_json and start.lstrip(b" \t\r\n")[:1] != b"{":
            raise not_an_object()

    def seconds(self, received: int) -> float:
        """Return how long a request may take of which so many bytes are here, in seconds."""
        return self.arrival_seconds + received / MIN_BYTES_PER_SECOND


class Bodies:
    """ASGI middleware: refuses a body by its head, counts it while it comes, and waits only so long for it."""

    def __init__(self, app: Application, rules: BodyRules, *, headers: AnswerHeaders) -> None:
        self._app = app
        self._rules = rules
        self._headers = headers

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve one request; whatever is not HTTP goes on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = RequestHead.of(scope["method"], scope["path"], scope.get("root_path", ""), scope["headers"])
        try:
            limit = self._rules.check(head)
            if head.length == 0:
                await self._app(scope, receive, send)
                return
            coding = coding_of(scope["headers"]) if head.is_packed else None
            body = _CountedBody(self._rules, head, scope, receive, limit)
            if self._rules.asks_first(head) or (coding is not None and _posted(head) is not None):
                await body.admit()
            if coding is None:
                await self._app(scope, body.receive, send)
            else:
                unpacked = _UnpackedBody(self._rules, head, body, coding)
                headers = [(name, value) for name, value in scope["headers"] if name not in _OF_PACKED]
                await self._app({**scope, "headers": headers}, unpacked.receive, send)
        except ApiError as error:
            self._rules.refused(error)
            status, lines, content = answer(error, scope["headers"], self._headers, path=head.path)
            # Nobody knows where the next request would begin.
            if head.end_is_unclear:
                lines.append((b"connection", b"close"))
            await say(send, status, lines, content)


async def say(send: SendMessage, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def answer(
    error: ApiError, headers: Iterable[tuple[bytes, bytes]], standing: AnswerHeaders, *, path: str
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return an error as status, headers and body, for a request with these headers to this path."""
    request_headers = {name.decode("latin1"): value.decode("latin1") for name, value in headers}
    request_id = standing.request_id(request_headers)
    response = error_response(error, path=path, headers=request_headers, request_id=request_id)
    for own, value in standing.of(request_headers, request_id).items():
        response[own] = value
    for own, value in standing.for_page(request_headers, response.headers).items():
        response[own] = value
    lines = [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in response.items()]
    return response.status_code, lines, response.content


def refusal(
    error: ApiError, headers: Iterable[tuple[bytes, bytes]], standing: AnswerHeaders, *, path: str = ""
) -> bytes:
    """Return a whole answer, as bytes, behind which the connection closes; `headers` are those of the request."""
    return written(*answer(error, headers, standing, path=path))


def written(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Return an answer over HTTP/1.1, as bytes, behind which the connection closes."""
    head = b"HTTP/1.1 %d %b\r\n" % (status, PHRASES.get(status, "Error").encode())
    for line in (*headers, (b"date", date()), (b"connection", b"close")):
        head += b"%b: %b\r\n" % line
    return head + b"\r\n" + body


def date() -> bytes:
    """Return the time as `Date` has it."""
    return formatdate(usegmt=True).encode()


class BodyStart:
    """The beginning of a body, until it is known to be one of what is taken."""

    def __init__(self, rules: BodyRules, head: RequestHead) -> None:
        self._rules = rules
        self._head = head
        self._start: bytes | None = b""

    def take(self, part: bytes) -> None:
        """Take what comes next. Raises `ApiError` for what is not taken."""
        if self._start is not None:
            self._start += part
            if len(self._start) >= START_BYTES:
                start, self._start = self._start, None
                self._rules.check_start(self._head, start)


class _CountedBody:
    """One request's body on its way to the application."""

    def __init__(self, rules: BodyRules, head: RequestHead, scope: Message, receive: Receive, limit: int) -> None:
        self._rules = rules
        self._head = head
        self._scope = scope
        self._receive = receive
        self._is_admitted = False  # it is known that who sends it may send so much
        self._limit = limit  # bytes
        self._began = asyncio.get_running_loop().time()
        self._received = 0  # bytes
        is_short = head.length is not None and head.length < START_BYTES
        self._start = None if is_short else BodyStart(rules, head)
        self._complete = False

    async def admit(self) -> None:
        """Let through more than what everybody may send. Raises `ApiError` (401, 403, or 503 where none can tell)."""
        await self._rules.let_in(self._scope, self._head.method, self._head.path)
        self._is_admitted = True

    async def receive(self) -> Message:
        """Return the next part, or what comes after the body.

        Raises `ApiError`, which comes up through the application that was reading: Django reads a body before any of
        its middleware, `ApiMiddleware` too, could answer it.
        """
        if self._complete:
            return await self._receive()
        try:
            # Each part that comes allows more time, so a large body may take longer than a small one.
            async with asyncio.timeout_at(self._began + self._rules.seconds(self._received)):
                message = await self._receive()
        except TimeoutError:
            raise request_too_slow(self._rules.arrival_seconds) from None
        part = message.get("body", b"")
        self._received += message.get(BODY_SIZE, len(part))
        if self._start is not None:
            self._start.take(part)
        self._complete = not message.get("more_body", False)
        if self._received > self._limit:
            raise self._rules.excess(self._head)
        # A body in chunks declares no length: who sends it is asked for a key when it has become long.
        if self._received > OTHER_BODY_BYTES and not self._is_admitted:
            await self.admit()
        return message


_OF_PACKED = (b"content-encoding", b"content-length")  # headers that mean nothing of what is unpacked


class _UnpackedBody:
    """A body that came compressed, as it was before. What comes out is counted as a body in chunks is."""

    def __init__(self, rules: BodyRules, head: RequestHead, body: _CountedBody, coding: str) -> None:
        self._rules = rules
        self._head = replace(head, length=None, is_packed=False)
        self._start = BodyStart(rules, self._head)
        self._body = body
        self._coding = coding
        self._decoder = DECODERS[coding]()
        self._pieces: Iterator[bytes] = iter(())  # of what has come
        self._size = 0  # bytes that came out
        self._has_come = False  # all of it
        self._is_over = False

    async def receive(self) -> Message:
        """Return the next piece, or what comes after the body. Raises `ApiError`, as `_CountedBody.receive` does."""
        while not self._is_over:
            for piece in self._pieces:
                self._size += len(piece)
                if self._size > self._rules.limit(self._head):
                    raise self._excess()
                self._start.take(piece)
                await asyncio.sleep(0)  # others have their turn between two
                if piece:
                    return {"type": "http.request", "body": piece, "more_body": True}
            if self._has_come:
                if not self._decoder.is_whole:
                    raise not_unpacked(self._coding)
                self._is_over = True
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._body.receive()
            if message["type"] != "http.request":
                return message
            self._has_come = not message.get("more_body", False)
            self._pieces = unpacked_pieces(self._decoder, message.get("body", b""), self._coding)
        return await self._body.receive()

    def _excess(self) -> ApiError:
        error = self._rules.excess(self._head)
        message = f"{error.message} The limit is that of the unpacked body ('Content-Encoding: {self._coding}')."
        return ApiError(message, status=error.status, type=error.type, code=error.code)


def _posted(head: RequestHead) -> Endpoint | None:
    """Return the endpoint that a body is for, None where it is of no use."""
    if head.method != "POST" or not is_api_path(head.path):
        return None
    try:
        route, _ = find(head.path)
    except NotServed:
        return None
    return route.endpoint("POST")


def _form(head: RequestHead, endpoint: Endpoint) -> Form | None:
    """Return the form that a body is, None if it is none, or is to be none."""
    return endpoint.form if head.content_type == FORM_TYPE else None
