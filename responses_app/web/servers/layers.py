"""ASGI layers around the application, whatever serves it; `respsite.application` puts them together.

`Handler`: Django's ASGI handler, in which a request of the API costs no thread.
`Exposure`: warns where the network reaches a server that asks nobody for a key.
`Traced`: each request over HTTP is a span.
`Lifecycle`: start and stop with the server.
`StaticFiles`: the files of the admin's pages: ASGI servers serve none, and no other server is needed.
"""

import asyncio
import contextlib
import gzip
import logging
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache, partial
from tempfile import SpooledTemporaryFile
from types import FrameType
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.exceptions import RequestAborted, SuspiciousFileOperation
from django.core.handlers.asgi import ASGIHandler
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

from responses_app.auth.door import is_loopback
from responses_app.limits.suspects import holding
from responses_app.observing.traces import SPAN, TRACEPARENT, Traces
from responses_app.protocol.errors import ApiError
from responses_app.web.bodies import BODY_FILE, Application, Message, Receive, SendMessage
from responses_app.web.endpoint import find, is_api_path
from responses_app.web.http import ApiRequest, NotServed, Serving
from responses_app.web.servers.listening import ports, stop_accepting, when_daphne_runs
from responses_app.wiring.site import Site, get_site

logger = logging.getLogger("respsite")


class Handler(ASGIHandler):
    """Serves HTTP. A request of the API costs no thread.

    Django starts a thread for each request, on which it runs what belongs to the begin and the end of one: closing the
    database connections of that thread, and the like. The API uses none there, as the stores have threads of their own
    (`kit.threads`); and that was a third of what the smallest answer costs. So requests of the API send
    neither `request_started` nor `request_finished`. All others, the admin's among them, are Django's as ever.
    """

    def __init__(self, site: Site) -> None:
        """Have requests come with what they need of a site."""
        super().__init__()
        own = site.settings
        serving = Serving(
            refuse_unknown=site.reader.refuse_unknown,
            retentions=site.retention.current,
            responses=site.store,
            keys=site.idempotency,
            is_draining=lambda: site.draining.begun,
            ping_seconds=own.responses_ping_interval_seconds,
            max_lag_bytes=own.stream_max_lag_bytes,
        )
        self.request_class = partial(ApiRequest, serving=serving)  # type: ignore[assignment]  # Django only calls it

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not is_api_path(scope["path"].removeprefix(scope.get("root_path", ""))):
            await super().__call__(scope, receive, send)
            return

        async def answered(request: Any) -> None:
            await self.send_response(await self.run_get_response(request), send)

        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        try:
            request, refused = self.create_request(scope, body)
            if request is None:
                assert refused is not None  # one of the two is there
                await self.send_response(refused, send)
                return
            assert isinstance(request, ApiRequest)
            request.is_of_api = True
            # Whichever ends first: a client that leaves cancels its answer, and so lets go of what it reads.
            answering = asyncio.create_task(answered(request), name="answer")
            leaving = asyncio.create_task(receive(), name="disconnect")  # behind the body comes only this
            try:
                await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (answering, leaving):
                    task.cancel()
                # Neither may outlive the request: both use its connection.
                await asyncio.wait((answering, leaving))
            if not answering.cancelled():  # else its client has left
                answering.result()
        finally:
            if getattr(body, "_rolled", True):  # on a disk, which may take 20 ms to forget 30 MB
                await asyncio.get_running_loop().run_in_executor(None, body.close)
            else:
                body.close()

    async def read_body(self, receive: Any) -> Any:
        """Return a request's body as a file, closed where it does not come to its end: Django would leave it open.

        A long one is the file that the server has written it to.
        """
        with ExitStack() as unless_whole:
            body = unless_whole.enter_context(SpooledTemporaryFile(max_size=settings.FILE_UPLOAD_MAX_MEMORY_SIZE))
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestAborted
                if (file := message.get(BODY_FILE)) is not None:
                    return file
                body.write(message.get("body", b""))
                more = message.get("more_body", False)
            unless_whole.pop_all()
        body.seek(0)
        return body


WARNING = (
    "This server can be reached from the network, at %s, and asks nobody who they are (AUTH=off): whoever reaches it "
    "may use the model, and read, continue and delete what is stored. Set AUTH=auto, or listen on 127.0.0.1.%s"
)
ANY_NAME = (
    " ALLOWED_HOSTS=* lets in the pages of any web site, too, through the browser of anybody who can reach it: name "
    "the hosts that clients use."
)


class Exposure:
    """ASGI middleware around the whole application: clients need keys where the network reaches it, or it warns.

    `HOST` is what `respsite serve` listens on; daphne and uvicorn have flags of their own. So what counts is where the
    process listens. Under daphne its sockets are known at the start (`hook_daphne`); another server tells only with
    each connection which of its addresses was called, and the first one that is not loopback tells it.
    """

    def __init__(self, app: Application, *, any_host: bool, asks_nobody: bool, exposed: Callable[[], None]) -> None:
        """Take whether any `Host` is served, whether nobody needs a key, and what is called, once, when it is known."""
        self._app = app
        self._any_host = any_host
        self._asks_nobody = asks_nobody
        self._exposed = exposed
        self._known = False
        self._checked: object = None  # the last address, which nearly all connections come to

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve; the first connection from the network is taken note of."""
        address = scope.get("server")
        if not self._known and address != self._checked:
            self._check(address)
            self._checked = address
        await self._app(scope, receive, send)

    def hook_daphne(self) -> None:
        """Check what daphne listens on, once it does, if this process runs it."""
        when_daphne_runs(self._check_ports)

    def _check_ports(self) -> None:
        for port in ports():
            host = port.getHost()
            if hasattr(host, "port"):  # a Unix socket has none
                self._check((host.host, host.port))

    def _check(self, address: Any) -> None:
        """Take note of an address, a host and a port, that others can reach."""
        # A Unix socket has a path, and no port.
        if self._known or not address or address[1] is None or is_loopback(address[0], unknown=True):
            return
        self._known = True
        self._exposed()
        if not self._asks_nobody:
            return
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        logger.warning(WARNING, f"{host}:{address[1]}", ANY_NAME if self._any_host else "")


API = "/v1/"
METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))
_PARAMETER = re.compile(r"{\w+}")  # `{file_id}`: all names become `{id}`, so that few names of spans are left


class Traced:
    """Begins a span when a request comes, below that of its caller, and ends it with its answer, streams included.

    The caller says which by the header `traceparent`: who is let in, and nobody else, because a caller's trace may be
    one that is to be kept. What is done for the request finds its span in the scope.
    """

    def __init__(self, app: Application, traces: Traces) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve a request."""
        path = scope["path"]
        if not path.startswith(API):
            await self._app(scope, receive, send)
            return
        traceparent = next(
            (value.decode("latin1") for name, value in scope["headers"] if name == TRACEPARENT.encode()), None
        )
        if traceparent is not None and not await _is_let_in(scope):
            traceparent = None
        attributes = {"http.request.method": scope["method"]}
        with self._traces.under(traceparent).child(name_of(scope["method"], path), attributes, answers=True) as span:

            async def note_and_send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.note({"http.response.status_code": message["status"]})
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            await self._app({**scope, SPAN: span}, receive, note_and_send)


async def _is_let_in(scope: Message) -> bool:
    """Whether who asks has a key that opens, or needs none."""
    try:
        await get_site().door.caller(scope)
    except ApiError:  # the API says so
        return False
    return True


def name_of(method: str, path: str) -> str:
    """Return a span's name: the route's, as whoever has no key can ask for any path. Without a route it is the method.

    OpenTelemetry's rules for HTTP: names are few, and a method that nobody knows is "HTTP".
    """
    known = method if method in METHODS else "HTTP"
    try:
        route, _ = find(path)
    except NotServed:
        return known
    return f"{known} {_PARAMETER.sub('{id}', route.path)}"


def traced(app: Application, traces: Traces) -> Application:
    """Return the application as it is where nothing is traced."""
    return Traced(app, traces) if traces.enabled else app


class Served:
    """ASGI middleware: a request that is there as a whole is waited for when the server stops, to its answer's end.

    For as long it counts as running where its worker dies (`limits.suspects`).

    One whose body is still coming is not: nothing of it was begun, and it may come slowly.
    """

    def __init__(self, app: Application, serving: Callable[[], AbstractContextManager[None]]) -> None:
        self._app = app
        self._serving = serving

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve one request."""
        with ExitStack() as served, holding():
            is_counted = False

            async def received() -> Message:
                nonlocal is_counted
                message = await receive()
                if not is_counted and message["type"] == "http.request" and not message.get("more_body"):
                    is_counted = True
                    served.enter_context(self._serving())
                return message

            await self._app(scope, received, send)


SETTLE_SECONDS = 0.3  # where nothing more is accepted: what has just been accepted is read, and served as usual


class Lifecycle:
    """Calls `start` once and `stop` once, whoever asks first: the lifespan scope (uvicorn) or daphne's reactor.

    A signal that ends the server stops us first, while it still serves; then the server gets it. Both servers would
    cut their connections at once, and with them what may yet end within SHUTDOWN_GRACE_SECONDS.

    `hurry` tells `stop` not to wait: a person pressed Ctrl-C, while SIGTERM comes from a supervisor, or it is the
    second signal. As an ASGI application it serves the lifespan scope; `hook_daphne` ties it to daphne's reactor.
    """

    def __init__(
        self, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]], *, hurry: Callable[[], None]
    ) -> None:
        self._start = start
        self._stop = stop
        self._hurry = hurry
        self._started: asyncio.Task[None] | None = None
        self._stopped: asyncio.Task[None] | None = None

    def is_stopping(self) -> bool:
        """Whether the server stops."""
        return self._stopped is not None

    def start(self) -> "asyncio.Task[None]":
        """Begin to start, on the running loop."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._logged(self._start, "start"))
            self._come_before_the_server()
        return self._started

    def stop(self) -> "asyncio.Task[None]":
        """Begin to stop, on the running loop, after a start that is under way."""
        if self._stopped is None:
            self._stopped = asyncio.ensure_future(self._stop_after_start(settle=stop_accepting()))
        return self._stopped

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve the lifespan scope."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def hook_daphne(self) -> None:
        """Tie start and stop to daphne's reactor, if this process runs one (daphne has no lifespan)."""
        if "daphne.server" not in sys.modules:
            return
        from twisted.internet import defer, reactor

        reactor.callWhenRunning(self.start)
        reactor.addSystemEventTrigger("before", "shutdown", lambda: defer.Deferred.fromFuture(self.stop()))

    def _come_before_the_server(self) -> None:
        # Python takes handlers of signals from the main thread only.
        if threading.current_thread() is not threading.main_thread():
            return  # signals are another's business
        for number in (signal.SIGINT, signal.SIGTERM):
            servers = signal.getsignal(number)
            if callable(servers):
                signal.signal(number, partial(self._on_signal, servers))

    def _on_signal(self, servers: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
        """Called between any two steps of the program: no more than a word to the loop."""
        assert self._started is not None
        self._started.get_loop().call_soon_threadsafe(self._end, number, partial(servers, number, None))

    def _end(self, number: int, end_server: Callable[[], Any]) -> None:
        if number == signal.SIGINT or self._stopped is not None:
            self._hurry()
        # The server's own handler is called once everything has ended here.
        self.stop().add_done_callback(lambda _: end_server())

    async def _stop_after_start(self, *, settle: bool) -> None:
        # A stop in the middle of a start waits for it: half of what it starts would be left otherwise.
        if self._started is not None:
            await asyncio.wait([self._started])
        if settle:
            await asyncio.sleep(SETTLE_SECONDS)
        await self._logged(self._stop, "stop")

    async def _logged(self, action: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await action()
        except Exception:
            logger.exception("the server did not %s cleanly", name)
            raise


FRESH = "max-age=300, stale-while-revalidate=86400"  # then a 304; names do not change with a new version
ASKED = "no-cache"  # a 304 each time: modules that import each other have to be of one version
MODULES = "/static/playground/"
FOR_GOOD = "max-age=31536000, immutable"  # their paths have the version of the library
LIBRARIES = "/static/vendor/"
PACKED = ("text/", "application/javascript", "application/json", "image/svg+xml")  # types that gzip makes smaller
MIN_PACKED_BYTES = 400  # below that it saves no packet


class StaticFiles(ASGIStaticFilesHandler):
    """Answers the paths under STATIC_URL, with DEBUG or without; all others go on, and cost a comparison.

    Django calls its handler slow for a busy site: it looks a file up in the folders of its apps at each request. That
    is a thread of its own, and an admin has few readers.
    """

    def serve(self, request: HttpRequest) -> HttpResponseBase:  # type: ignore[override]
        """Answer with a file that browsers may keep for a while."""
        try:
            answer: HttpResponseBase = super().serve(request)
        except (SuspiciousFileOperation, ValueError) as error:  # a path out of the folder, or with a NUL
            raise Http404 from error
        kept = ASKED if request.path.startswith(MODULES) else FRESH
        answer["Cache-Control"] = FOR_GOOD if request.path.startswith(LIBRARIES) else kept
        answer["X-Content-Type-Options"] = "nosniff"
        return _packed(request, answer)


def _packed(request: HttpRequest, answer: HttpResponseBase) -> HttpResponseBase:
    """Return the file compressed, where its reader takes that: a third of what is loaded is left."""
    if answer.status_code != 200 or not answer.get("Content-Type", "").startswith(PACKED):
        return answer
    patch_vary_headers(answer, ("Accept-Encoding",))
    if "gzip" not in request.headers.get("Accept-Encoding", "") or int(answer["Content-Length"]) < MIN_PACKED_BYTES:
        return answer
    assert isinstance(answer, FileResponse)
    with contextlib.closing(answer):
        packed = _gzipped(answer.getvalue())
    names = ("Content-Type", "Last-Modified", "Cache-Control", "X-Content-Type-Options", "Vary")
    headers = {name: answer[name] for name in names}
    return HttpResponse(packed, headers={**headers, "Content-Encoding": "gzip", "Content-Length": str(len(packed))})


@lru_cache(maxsize=256)  # more than there are files; the largest takes 10 ms
def _gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
