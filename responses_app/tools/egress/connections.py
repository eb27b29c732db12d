"""`Connection`: one connection that something in a container has made to its proxy.

    http://    GET http://host/path    each request is checked, and answered by a connection of its own to the host
    https://   CONNECT host:443        a tunnel; or, to a domain with secrets, TLS ends here, and each request in it is
                                       checked as above

What is refused is answered with a sentence, which stands in the reason of the status, too: many programs show that
alone of what a proxy answers to a CONNECT.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import h11

from responses_app.tools.egress.dialling import Dialler, Streams, Target, Unreached
from responses_app.tools.egress.exchanges import Exchange, Refused
from responses_app.tools.egress.peers import MAX_HEAD, Malformed, Meter, Peer, passed_on, raw_headers, value_of
from responses_app.tools.egress.policy import EgressPolicy
from responses_app.tools.egress.secrets import Filled, Placeholders, SecretExposed, SecretLost
from responses_app.tools.egress.tunnels import WRONG_NAME, Begin, Checked, NoGreeting, WrongName, greeting, pass_on
from responses_app.tools.network import AddressRefused, normal_host

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
    """What a proxy goes by."""

    policy: Callable[[], EgressPolicy]  # as it is now: values of secrets may be given anew
    placeholders: Placeholders
    project: str
    dialler: Dialler
    meter: Meter


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and where it leads."""

    request: h11.Request
    headers: list[tuple[bytes, bytes]]
    target: Target
    path: bytes  # with its query


class Connection:
    """`answer` answers requests until the connection ends, or becomes something else: `tunnel` says what."""

    def __init__(self, streams: Streams, rules: Rules, *, inside: Target | None = None) -> None:
        self._rules = rules
        self._inside = inside  # the host whose TLS ends here; None for what was not sent in a tunnel
        self._client = Peer(*streams, h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD), rules.meter)

    async def answer(self) -> Target | None:
        """Answer requests; return the host to whose TLS the connection is to be ended here, None at its end."""
        while True:
            try:
                request = await self._client.event(HEAD_SECONDS)
                if not isinstance(request, h11.Request):
                    return None
                if request.method == b"CONNECT" and self._inside is None:
                    return await self._connect(request)
                await self._exchange(self._asked(request))
            except (Refused, Unreached) as problem:
                await self._refuse(problem.status, str(problem))
            except Malformed as problem:
                await self._refuse(400, f"The request is refused: {problem}.")
            if not self._is_kept():
                return None
            self._client.machine.start_next_cycle()

    def _is_kept(self) -> bool:
        machine = self._client.machine
        return machine.our_state is h11.DONE and machine.their_state is h11.DONE

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

    def _asked(self, request: h11.Request) -> Asked:
        """Read where a request leads, and check that. Raises `Refused`."""
        headers = _checked_headers(request)
        path = bytes(request.target)
        if self._inside is None:
            match = _URL.fullmatch(path)
            if match is None:
                raise Refused(400, "This is a proxy: it takes http:// URLs without a user, and CONNECT for https://.")
            target, path = _target(match[1], 80), match[2] if match[2].startswith(b"/") else b"/" + match[2]
        elif request.method == b"CONNECT" or not (path.startswith(b"/") or path == b"*"):
            raise Refused(400, "A request in a tunnel names a path.")
        else:
            target = self._inside
        host = value_of(headers, b"host")
        if host is not None and _target(host, 80 if self._inside is None else _HTTPS) != target:
            raise Refused(400, "The Host header names another host than the URL.")
        self._check(target)
        return Asked(request, headers, target, path)

    def _check(self, target: Target) -> None:
        """Raise `Refused` for what the allowlist does not have."""
        if self._rules.meter.is_spent:
            raise Refused(403, "This container has sent and received as much as it may (SANDBOX_NETWORK_BYTES).")
        if not self._rules.policy().allows(target.host, target.port):
            raise Refused(
                403,
                f"The host '{target}' may not be reached: the allowlist of the request "
                "(network_policy.allowed_domains) does not have it.",
            )

    # Tunnels.

    async def _connect(self, request: h11.Request) -> Target | None:
        """Carry a CONNECT out; return the host whose TLS is to end here. Raises `Refused`, `Unreached`."""
        headers, policy = _checked_headers(request), self._rules.policy()
        target = _target(bytes(request.target), None)
        host = value_of(headers, b"host")
        if host is not None and _target(host, target.port).host != target.host:
            raise Refused(400, "The Host header names another host than the target.")
        self._check(target)
        names_port = policy.names_port(target.host, target.port)
        if target.port != _HTTPS and not names_port:
            raise Refused(403, f"CONNECT leads to port 443 and to ports that the allowlist names; {target} is none.")
        if value_of(headers, b"content-length") not in (None, b"0") or value_of(headers, b"transfer-encoding"):
            raise Refused(400, "A CONNECT has no body.")
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
            raise Refused(400, "Something was sent behind a CONNECT before it was answered.")
        await self._client.send(h11.Response(status_code=200, headers=[], reason=b"OK"))

    async def _tunnel(self, target: Target, streams: Streams, *, names_port: bool) -> None:
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

    async def _exchange(self, asked: Asked) -> None:
        """Have a host answer a request. Raises `Refused`, `Unreached`."""
        policy, target = self._rules.policy(), asked.target
        filled = self._filled(asked, policy)
        headers = passed_on(filled.headers, *(_HIDING if policy.secrets else ()), b"expect", b"host")
        headers.insert(0, (b"Host", self._host(asked)))
        if policy.secrets:
            headers.append((b"Accept-Encoding", b"identity"))
        headers.append((b"Connection", b"close"))
        if len(filled.target) + sum(len(name) + len(value) for name, value in headers) > MAX_FILLED:
            raise Refused(400, "With the values of its secrets, the head of the request is too long.")
        try:
            head = h11.Request(method=asked.request.method, target=filled.target, headers=headers)
        except h11.LocalProtocolError:  # without its text, which may have a value
            raise Refused(400, "The request cannot be passed on as it is.") from None
        is_https = self._inside is not None
        async with self._rules.dialler.connected(target, self._rules.project, tls=is_https) as streams:
            upstream = Peer(*streams, h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD))
            mask = self._rules.placeholders.mask(policy, filled.encoded) if policy.secrets else None
            await Exchange(self._client, upstream, mask).run(head)

    def _host(self, asked: Asked) -> bytes:
        """Return the header by which a server knows the host; as it came only where every server reads that alike."""
        host, whole = asked.target.host.encode(), str(asked.target).encode()
        written = value_of(asked.headers, b"host")
        if written is not None and written.lower() in (host, whole):
            return written
        return host if asked.target.port == (80 if self._inside is None else _HTTPS) else whole

    def _filled(self, asked: Asked, policy: EgressPolicy) -> Filled:
        target, allowed = asked.target, self._rules.dialler.network.allowed
        # Also without TLS, to hosts of the operator's own network that a setting names.
        is_private = self._inside is not None or allowed.has_name(target.host, target.port)
        head = (asked.path, asked.headers)
        try:
            return self._rules.placeholders.fill(policy, target.host, target.port, head, is_private=is_private)
        except SecretLost as lost:
            raise Refused(
                502,
                f"The value of the secret {lost} is not known any more, as the server was started again since. "
                "A request with the same network_policy gives it again.",
            ) from None
        except SecretExposed as exposed:
            raise Refused(403, f"The secret {exposed} is sent by https:// only.") from None


def _checked_headers(request: h11.Request) -> list[tuple[bytes, bytes]]:
    try:
        return raw_headers(request)
    except Malformed as problem:
        raise Refused(400, f"The request is refused: {problem}.") from None


def _target(written: bytes, port: int | None) -> Target:
    """Read a host with its port. Raises `Refused`."""
    match = _AUTHORITY.fullmatch(written.decode("ascii", "replace"))
    if match is None or (match[2] is None and port is None):
        raise Refused(400, "That is not a host with a port.")
    number = port if match[2] is None else int(match[2])
    try:
        host = normal_host(match[1])
    except AddressRefused as problem:
        raise Refused(403, str(problem)) from None
    if number is None or not 0 < number < 65536:
        raise Refused(400, "That is not a port.")
    return Target(host, number)
