"""`ProxyConnection`: one connection that something in a container has made to its proxy.

    http://    GET http://host/path    each request is checked, and answered by a connection of its own to the host
    https://   CONNECT host:443        a tunnel; or, to a domain with secrets, TLS ends here, and each request in it is
                                       checked as above

A refusal is a sentence, which stands in the reason of the status, too: many programs show that alone of a proxy's
answer to a CONNECT.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

import h11

from responses_app.extensions.containers.egress.peers import (
    MAX_HEAD,
    Dialler,
    Malformed,
    Meter,
    Peer,
    ProxyTarget,
    Streams,
    Unreached,
    passed_on,
    raw_headers,
    value_of,
)
from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.egress.secrets import Filled, Mask, Placeholders, SecretExposed, SecretLost
from responses_app.extensions.containers.egress.tunnels import (
    WRONG_NAME,
    Begin,
    Checked,
    NoGreeting,
    WrongName,
    greeting,
    pass_on,
)
from responses_app.protocol.transport import codings_in
from responses_app.tools.network import AddressRefused, normal_host

ANSWER_SECONDS = 300.0  # in which a host begins its answer
MAX_INFORMATIONAL = 16  # answers of 1xx before the answer; none is passed on
_SWITCHING, _NO_CONTENT, _NOT_MODIFIED = 101, 204, 304


class RequestRefused(Exception):
    """A request is not carried out; the text is a sentence for whoever made it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ProxyExchange:
    """Between two peers; `mask` takes secrets out of the answer, None where there are none."""

    def __init__(self, client: Peer, upstream: Peer, mask: Mask | None) -> None:
        self._client = client
        self._upstream = upstream
        self._mask = mask

    async def run(self, head: h11.Request) -> None:
        """Pass all on, to the end of the answer: that may come before all of the request went.

        Raises `RequestRefused` before the answer has begun. Else, as the answer is cut: `Malformed`, `OSError`,
        `TimeoutError`.
        """
        try:
            await self._upstream.send(head)
        except Malformed:
            raise RequestRefused(400, "The request cannot be passed on as it is.") from None
        upload = asyncio.create_task(self._upload())
        answer = asyncio.create_task(self._answer(head.method))
        try:
            await asyncio.wait({upload, answer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                upload.result()
            await answer
        finally:
            for each in (upload, answer):
                each.cancel()
            await asyncio.gather(upload, answer, return_exceptions=True)

    async def _upload(self) -> None:
        """Pass the body on. A host that has stopped reading may answer all the same: that is no error."""
        while True:
            if self._client.machine.they_are_waiting_for_100_continue:
                await self._client.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            event = await self._client.event()
            if isinstance(event, h11.EndOfMessage):
                event = h11.EndOfMessage()  # without trailers: nobody looked at them
            elif not isinstance(event, h11.Data):
                raise OSError("the client is gone")
            try:
                await self._upstream.send(event)
            except OSError:
                return
            if isinstance(event, h11.EndOfMessage):
                return

    async def _answer(self, method: bytes) -> None:
        try:
            for _ in range(MAX_INFORMATIONAL + 1):
                response = await self._upstream.event(ANSWER_SECONDS)
                if not isinstance(response, h11.InformationalResponse):
                    break
                if response.status_code == _SWITCHING:
                    raise RequestRefused(502, "The host has changed the protocol, which is not passed on.")
            if not isinstance(response, h11.Response):
                raise RequestRefused(502, "The host closed the connection without an answer.")
            head = self._masked(response, has_body=method != b"HEAD")
        except Malformed:  # without its text, which has what the host sent: that is not masked
            raise RequestRefused(502, "The host did not answer as HTTP wants it.") from None
        except TimeoutError:
            raise RequestRefused(504, "The host did not answer in time.") from None
        except OSError:
            raise RequestRefused(502, "The connection to the host broke.") from None
        await self._client.send(head)
        await self._pass_body_back()

    async def _pass_body_back(self) -> None:
        while True:
            match await self._upstream.event():
                case h11.Data(data=content):
                    await self._send_body(bytes(content) if self._mask is None else self._mask.add(bytes(content)))
                case h11.EndOfMessage():
                    await self._send_body(b"" if self._mask is None else self._mask.end())
                    await self._client.send(h11.EndOfMessage())
                    return
                case _:
                    raise OSError("the host is gone")

    def _masked(self, response: h11.Response, *, has_body: bool) -> h11.Response:
        """Return the head of an answer as it goes back. Raises `RequestRefused`, `Malformed`."""
        raw, status, reason = raw_headers(response), response.status_code, bytes(response.reason)
        if self._mask is None:
            return h11.Response(status_code=status, headers=passed_on(raw), reason=reason)
        if codings_in(raw):
            raise RequestRefused(502, "The host answered with a compressed body, though it was asked not to.")
        # What takes the place of a secret has another length.
        changes = has_body and status not in (_NO_CONTENT, _NOT_MODIFIED)
        headers = passed_on(raw, *((b"content-length",) if changes else ()))
        masked = [(self._mask.whole(name), self._mask.whole(value)) for name, value in headers]
        try:
            return h11.Response(status_code=status, headers=masked, reason=self._mask.whole(reason))
        except h11.LocalProtocolError:  # its text may have what a header says
            raise Malformed("its head cannot be passed on") from None

    async def _send_body(self, content: bytes) -> None:
        if content:
            await self._client.send(h11.Data(data=content))


HEAD_SECONDS = 30.0  # in which a request's head comes, from its first byte or the end of the request before
MAX_FILLED = 64 * 1024  # bytes of a request's head with the values of its secrets, each of which may come many times
MAX_REASON = 300  # bytes of a sentence that stand beside the status
LINGER_SECONDS = 1.0  # that a client has to read a refusal, while it still sends
MAX_LINGER = 1024 * 1024  # bytes of that
_URL = re.compile(rb"http://([^/?#@\s]+)(/[^#\s]*|\?[^#\s]*|)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
_HTTPS = 443
# With them an answer would be compressed, or come in parts: a secret in it could not be found.
_HIDING = (b"accept-encoding", b"range", b"request-range", b"if-range")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a proxy."""

    policy: Callable[[], EgressPolicy]  # as it is now: values of secrets may be given anew
    placeholders: Placeholders
    project: str
    dialler: Dialler
    meter: Meter


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request, and where it leads."""

    request: h11.Request
    headers: list[tuple[bytes, bytes]]
    target: ProxyTarget
    path: bytes  # with its query


class ProxyConnection:
    """`answer` answers requests until the connection ends, or until TLS to one of its hosts is to be ended here."""

    def __init__(self, streams: Streams, rules: Rules, *, inside: ProxyTarget | None = None) -> None:
        self._rules = rules
        self._inside = inside  # the host whose TLS ends here; None for what was not sent in a tunnel
        self._client = Peer(*streams, h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD), rules.meter)

    async def answer(self) -> ProxyTarget | None:
        """Answer requests; return the host to whose TLS the connection is to be ended here, None at its end."""
        while True:
            try:
                request = await self._client.event(HEAD_SECONDS)
                if not isinstance(request, h11.Request):
                    return None
                if request.method == b"CONNECT" and self._inside is None:
                    return await self._connect(request)
                await self._exchange(self._checked(request))
            except (RequestRefused, Unreached) as problem:
                await self._refuse(problem.status, str(problem))
            except Malformed as problem:
                await self._refuse(400, f"The request is refused: {problem}.")
            machine = self._client.machine
            if machine.our_state is not h11.DONE or machine.their_state is not h11.DONE:
                return None
            machine.start_next_cycle()

    async def _refuse(self, status: int, message: str) -> None:
        """Answer with a sentence, where no other answer has begun; the connection ends behind it."""
        if self._client.machine.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{message}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        reason = message.encode("ascii", "replace")[:MAX_REASON]
        headers.append(("Connection", "close"))
        await self._client.send(h11.Response(status_code=status, headers=headers, reason=reason))
        await self._client.send(h11.Data(data=body))  # h11 leaves it out where the request was a HEAD
        await self._client.send(h11.EndOfMessage())
        await self._client.drop_rest(MAX_LINGER, LINGER_SECONDS)

    # Where a request leads.

    def _checked(self, request: h11.Request) -> CheckedRequest:
        """Read where a request leads, and check that. Raises `RequestRefused`."""
        headers = _checked_headers(request)
        path = bytes(request.target)
        if self._inside is None:
            match = _URL.fullmatch(path)
            if match is None:
                raise RequestRefused(
                    400, "This is a proxy: it takes http:// URLs without a user, and CONNECT for https://."
                )
            target, path = _target(match[1], 80), match[2] if match[2].startswith(b"/") else b"/" + match[2]
        elif request.method == b"CONNECT" or not (path.startswith(b"/") or path == b"*"):
            raise RequestRefused(400, "A request in a tunnel names a path.")
        else:
            target = self._inside
        host = value_of(headers, b"host")
        if host is not None and _target(host, 80 if self._inside is None else _HTTPS) != target:
            raise RequestRefused(400, "The Host header names another host than the URL.")
        self._check(target)
        return CheckedRequest(request, headers, target, path)

    def _check(self, target: ProxyTarget) -> None:
        """Raise `RequestRefused` for a host that the allowlist does not have."""
        if self._rules.meter.is_spent:
            raise RequestRefused(403, "This container has sent and received as much as it may (SANDBOX_NETWORK_BYTES).")
        if not self._rules.policy().allows(target.host, target.port):
            raise RequestRefused(
                403,
                f"The host '{target}' may not be reached: the allowlist of the request "
                "(network_policy.allowed_domains) does not have it.",
            )

    # Tunnels.

    async def _connect(self, request: h11.Request) -> ProxyTarget | None:
        """Carry a CONNECT out; return the host whose TLS is to end here. Raises `RequestRefused`, `Unreached`."""
        headers, policy = _checked_headers(request), self._rules.policy()
        target = _target(bytes(request.target), None)
        host = value_of(headers, b"host")
        if host is not None and _target(host, target.port).host != target.host:
            raise RequestRefused(400, "The Host header names another host than the target.")
        self._check(target)
        names_port = policy.names_port(target.host, target.port)
        if target.port != _HTTPS and not names_port:
            raise RequestRefused(
                403, f"CONNECT leads to port 443 and to ports that the allowlist names; {target} is none."
            )
        if value_of(headers, b"content-length") not in (None, b"0") or value_of(headers, b"transfer-encoding"):
            raise RequestRefused(400, "A CONNECT has no body.")
        await self._client.event()  # its end
        if policy.secrets_for(target.host, target.port):
            # Not read from here on: what comes is the greeting of TLS, and is for whoever ends it.
            self._client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a socket's
            await self._begin_tunnel()
            return target
        async with self._rules.dialler.connected(target, self._rules.project, tls=False) as streams:
            await self._begin_tunnel()
            await self._tunnel(target, streams, names_port=names_port)
        return None

    async def _begin_tunnel(self) -> None:
        if self._client.machine.trailing_data[0]:
            raise RequestRefused(400, "Something was sent behind a CONNECT before it was answered.")
        await self._client.send(h11.Response(status_code=200, headers=[], reason=b"OK"))

    async def _tunnel(self, target: ProxyTarget, streams: Streams, *, names_port: bool) -> None:
        client, meter = (self._client.reader, self._client.writer), self._rules.meter
        # A server of HTTPS may have the names of others, too, also where the allowlist writes its port.
        checked = Checked(client[0], target.host, may_lack=target.port != _HTTPS)
        begin: Begin = checked.first
        try:
            if not names_port:
                first, name = await greeting(client[0])
                if name != target.host:
                    raise WrongName
                meter.count(len(first))
                streams[1].write(first)
                begin = checked.second
            await pass_on(client, streams, meter, begin)
        except WrongName:
            client[1].write(WRONG_NAME)
        except NoGreeting:
            return

    # Requests.

    async def _exchange(self, checked: CheckedRequest) -> None:
        """Have a host answer a request. Raises `RequestRefused`, `Unreached`."""
        policy, target = self._rules.policy(), checked.target
        filled = self._filled(checked, policy)
        headers = passed_on(filled.headers, *(_HIDING if policy.secrets else ()), b"expect", b"host")
        headers.insert(0, (b"Host", self._host(checked)))
        if policy.secrets:
            headers.append((b"Accept-Encoding", b"identity"))
        headers.append((b"Connection", b"close"))
        if len(filled.target) + sum(len(name) + len(value) for name, value in headers) > MAX_FILLED:
            raise RequestRefused(400, "With the values of its secrets, the head of the request is too long.")
        try:
            head = h11.Request(method=checked.request.method, target=filled.target, headers=headers)
        except h11.LocalProtocolError:  # without its text, which may have a value
            raise RequestRefused(400, "The request cannot be passed on as it is.") from None
        is_https = self._inside is not None
        async with self._rules.dialler.connected(target, self._rules.project, tls=is_https) as streams:
            upstream = Peer(*streams, h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD))
            mask = self._rules.placeholders.mask(policy, filled.encoded) if policy.secrets else None
            await ProxyExchange(self._client, upstream, mask).run(head)

    def _host(self, checked: CheckedRequest) -> bytes:
        """Return the header by which a server knows the host; as it came only where every server reads that alike."""
        host, whole = checked.target.host.encode(), str(checked.target).encode()
        written = value_of(checked.headers, b"host")
        if written is not None and written.lower() in (host, whole):
            return written
        return host if checked.target.port == (80 if self._inside is None else _HTTPS) else whole

    def _filled(self, checked: CheckedRequest, policy: EgressPolicy) -> Filled:
        target, allowed = checked.target, self._rules.dialler.network.allowed
        # Also without TLS, to hosts of the operator's own network that a setting names.
        is_private = self._inside is not None or allowed.has_name(target.host, target.port)
        head = (checked.path, checked.headers)
        try:
            return self._rules.placeholders.fill(policy, target.host, target.port, head, is_private=is_private)
        except SecretLost as lost:
            raise RequestRefused(
                502,
                f"The value of the secret {lost} is not known any more, as the server was started again since. "
                "A request with the same network_policy gives it again.",
            ) from None
        except SecretExposed as exposed:
            raise RequestRefused(403, f"The secret {exposed} is sent by https:// only.") from None


def _checked_headers(request: h11.Request) -> list[tuple[bytes, bytes]]:
    try:
        return raw_headers(request)
    except Malformed as problem:
        raise RequestRefused(400, f"The request is refused: {problem}.") from None


def _target(written: bytes, port: int | None) -> ProxyTarget:
    """Read a host with its port. Raises `RequestRefused`."""
    match = _AUTHORITY.fullmatch(written.decode("ascii", "replace"))
    if match is None or (match[2] is None and port is None):
        raise RequestRefused(400, "That is not a host with a port.")
    number = port if match[2] is None else int(match[2])
    try:
        host = normal_host(match[1])
    except AddressRefused as problem:
        raise RequestRefused(403, str(problem)) from None
    if number is None or not 0 < number < 65536:
        raise RequestRefused(400, "That is not a port.")
    return ProxyTarget(host, number)
