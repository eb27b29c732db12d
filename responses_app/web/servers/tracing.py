"""`Traced`: an ASGI application in which each request over HTTP is a span, below that of its caller.

The caller says which by the header `traceparent`: who is let in, and nobody else, because a caller's trace may be one
that is to be kept. What is done for the request finds its span in the scope.
"""

import re

from responses_app.observing.traces import SPAN, TRACEPARENT, Traces
from responses_app.protocol.errors import ApiError
from responses_app.web.bodies import Application, Message, Receive, SendMessage
from responses_app.web.http import NotServed
from responses_app.web.routes import find
from responses_app.wiring.wiring import get_site

API = "/v1/"
METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))
_PARAMETER = re.compile(r"{\w+}")


class Traced:
    """Begins a span when a request comes, and ends it with its answer, streams included."""

    def __init__(self, app: Application, traces: Traces) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve a request."""
        path = scope["path"]
        if not path.startswith(API):
            await self._app(scope, receive, send)
            return
        given = next((value.decode("latin1") for name, value in scope["headers"] if name == TRACEPARENT.encode()), None)
        if given is not None and not await _is_let_in(scope):
            given = None
        attributes = {"http.request.method": scope["method"], "url.path": path}
        with self._traces.under(given).child(name_of(scope["method"], path), attributes) as span:

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
