"""The handshake of a WebSocket: who asks, from where, and what was agreed for the connection's whole life."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from responses_app.limits.rates import Ticket
from responses_app.observing.traces import NO_SPAN, TRACEPARENT, Span
from responses_app.protocol.api_keys import NOBODY_ASKED, Area, Caller
from responses_app.protocol.events.dialects import DIALECT_HEADER, OPENAI, Dialect
from responses_app.protocol.rate_limits import NOTHING, RateLimited, Slot
from responses_app.protocol.session.connection_errors import too_many_connections
from responses_app.protocol.session.tool_outputs import TOOL_MODE_HEADER
from responses_app.web.middleware import answer_headers
from responses_app.web.origins import Source, host_allowed
from responses_app.web.servers.heartbeat import no_ping
from responses_app.wiring.site import Site
from responses_app.wiring.wiring import get_site


@dataclass(frozen=True, slots=True)
class Extras:
    """What only some servers can do: a protocol ping, and writing many text frames at once.

    `frames` returns False where they have to be sent one by one.
    """

    ping: Callable[[], None] = no_ping
    frames: Callable[[Sequence[bytes]], Awaitable[bool]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What was agreed: whose the connection is, how its events are worded, and whether its streams wait for tools."""

    caller: Caller = NOBODY_ASKED
    dialect: Dialect = OPENAI
    awaits_tools: bool = False
    span: Span = NO_SPAN  # of who opened it


NO_EXTRAS, USUAL_TERMS = Extras(), Terms()


def refusal(site: Site, scope: Any) -> str | None:
    """Return why a handshake is refused whoever asks: for its host, or for the page that a browser sends it for."""
    source = Source.of_handshake(scope)
    if not host_allowed(source.host, site.settings.allowed_hosts):
        return "its Host is not in ALLOWED_HOSTS"
    if not source.is_allowed(site.settings.trusted_pages):
        return "its Origin is neither the server's own nor in ALLOWED_ORIGINS"
    return None


async def caller_of(site: Site, scope: Any, area: Area) -> Caller:
    """Return who asks. Raises `ApiError` for who may not write what is of this area."""
    caller = await site.door.caller(scope)
    caller.check_scope(area.scope(writes=True))
    return caller


async def take_place(site: Site, caller: Caller) -> Ticket:
    """Take one of the connections that key and project may have. Raises `ApiError` (429) where they have them all."""
    try:
        return await site.rates.admit(caller.limited, NOTHING, Slot.WEBSOCKET)
    except RateLimited as limited:
        raise too_many_connections(limited) from limited


async def headers_of(scope: Any, caller: Caller, *, began: float) -> list[tuple[bytes, bytes]]:
    """Return what the answer to a handshake has as headers, whatever it is."""
    given = {name.decode("latin1"): value.decode("latin1") for name, value in scope["headers"]}
    request_id = get_site().answer_headers.request_id(given)
    told = await answer_headers(given, request_id, caller, began=began)
    return [(name.encode(), value.encode("latin1")) for name, value in told.items()]


def terms_of(site: Site, scope: Any, caller: Caller) -> Terms:
    """Return what a handshake asks for. Raises `ApiError` (400) for what is not known."""
    dialect = site.dialect(_header(scope, DIALECT_HEADER))
    awaits_tools = site.awaits_tools(_header(scope, TOOL_MODE_HEADER), dialect)
    span = site.traces.under(_header(scope, TRACEPARENT))
    return Terms(caller=caller, dialect=dialect, awaits_tools=awaits_tools, span=span)


def _header(scope: Any, name: str) -> str | None:
    found = [value.decode("latin1") for key, value in scope["headers"] if key == name.lower().encode()]
    return ",".join(found) if found else None  # as one that comes twice is read over HTTP
