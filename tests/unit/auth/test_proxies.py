"""Which client a request behind proxies is from, and what shows that it came through one."""

import logging
from typing import Any

import pytest

from responses_app.auth.proxies import Proxies, came_through_proxy, trusted_proxies
from responses_app.web.servers.forwarded import PEER, SCHEME, Forwarded

ONE, NAMED = Proxies(), Proxies(trusted_proxies("192.0.2.1, 203.0.113.0/24,2001:db8::/48"))
LOCAL = "127.0.0.1"


@pytest.mark.parametrize(
    ("proxies", "peer", "forwarded", "client"),
    [
        (ONE, LOCAL, [], LOCAL),  # the proxy itself, or a probe
        (ONE, LOCAL, ["8.8.8.8"], "8.8.8.8"),  # a proxy that replaces the header
        (ONE, LOCAL, ["6.6.6.6, 8.8.8.8"], "8.8.8.8"),  # one that appends to a forged one
        (ONE, LOCAL, ["6.6.6.6", "8.8.8.8"], "8.8.8.8"),  # one that adds a line of its own
        (ONE, LOCAL, ["6.6.6.6, 127.0.0.1, 10.0.0.9"], "10.0.0.9"),  # a client in the same private network
        (ONE, LOCAL, ["6.6.6.6, 127.0.0.1"], LOCAL),  # and on this machine
        (ONE, "172.18.0.5", ["6.6.6.6,8.8.8.8"], "8.8.8.8"),
        (ONE, "::1", ["6.6.6.6, 2001:db8::1"], "2001:db8::1"),
        (ONE, "fd00::5", ["[2001:db8::1]:4711"], "2001:db8::1"),
        (ONE, "::ffff:10.0.0.5", ["6.6.6.6, 8.8.8.8:4711"], "8.8.8.8"),
        (ONE, None, ["6.6.6.6, 8.8.8.8"], "8.8.8.8"),  # a Unix socket
        (ONE, None, [], None),
        (ONE, LOCAL, ["8.8.8.8, unix:"], "8.8.8.8"),  # nginx behind another proxy's Unix socket
        (ONE, LOCAL, ["6.6.6.6, unknown"], LOCAL),
        (ONE, LOCAL, ["6.6.6.6,, "], "6.6.6.6"),
        (ONE, "9.9.9.9", ["6.6.6.6"], "9.9.9.9"),  # a stranger who calls the server directly
        (ONE, "2a00::9", ["6.6.6.6"], "2a00::9"),
        (NAMED, "203.0.113.7", ["6.6.6.6, 8.8.8.8"], "8.8.8.8"),
        (NAMED, "203.0.113.7", ["6.6.6.6, 8.8.8.8, 192.0.2.1"], "8.8.8.8"),  # two proxies
        (NAMED, "203.0.113.7", ["6.6.6.6, 8.8.8.8", "192.0.2.1", "2001:db8::7"], "8.8.8.8"),  # and three
        (NAMED, "203.0.113.7", ["203.0.113.9, 192.0.2.1"], "203.0.113.9"),  # a client that is a proxy
        (NAMED, "::ffff:203.0.113.7", ["6.6.6.6, 8.8.8.8, ::ffff:192.0.2.1"], "8.8.8.8"),
        (NAMED, "203.0.113.7", ["8.8.8.8, _hidden, 192.0.2.1"], "192.0.2.1"),
        (NAMED, LOCAL, ["6.6.6.6"], LOCAL),  # not named
        (NAMED, None, ["6.6.6.6, 8.8.8.8"], "8.8.8.8"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxys(
    proxies: Proxies, peer: str | None, forwarded: list[str], client: str | None
) -> None:
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    assert proxies.sender(peer, headers).host == client


@pytest.mark.parametrize(
    ("forwarded", "schemes", "scheme"),
    [
        ("8.8.8.8", ["https"], "https"),
        ("8.8.8.8", ["http", "https"], "https"),  # the first one is the client's word
        ("8.8.8.8, 192.0.2.1", ["https, http"], "https"),  # the outer proxy has the TLS
        ("8.8.8.8, 192.0.2.1", ["HTTPS"], "https"),
        ("8.8.8.8", ["ftp"], None),
        ("8.8.8.8", [], None),
        ("", ["https"], "https"),
    ],
)
def test_the_scheme_is_what_the_clients_proxy_says(forwarded: str, schemes: list[str], scheme: str | None) -> None:
    headers = [(b"x-forwarded-for", forwarded.encode()), *((b"x-forwarded-proto", each.encode()) for each in schemes)]
    assert NAMED.sender("203.0.113.7", headers).scheme == scheme
    assert NAMED.sender("9.9.9.9", headers).scheme is None, "a stranger says nothing"


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_the_scope_has_the_client(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    plain, secure = ("http", "https") if kind == "http" else ("ws", "wss")

    async def app(scope: Any, receive: object, send: object) -> None:
        seen.append((scope["client"], scope.get("scheme")))

    async def none(*_: object) -> Any: ...

    headers = [(b"x-forwarded-for", b"6.6.6.6, 8.8.8.8"), (b"x-forwarded-proto", b"https")]
    scope = {"type": kind, "client": (LOCAL, 5), "headers": headers}
    for proxies in (None, ONE, NAMED):
        await Forwarded(app, proxies)(dict(scope), none, none)
    for proxies in (None, ONE):  # uvicorn has put the first address there, whoever called
        found = {"client": ("6.6.6.6", 0), "scheme": secure, PEER: ("9.9.9.9", 7), SCHEME: plain}
        await Forwarded(app, proxies)({**scope, **found}, none, none)
    local, stranger = ((LOCAL, 5), None), (("9.9.9.9", 7), plain)
    assert seen == [local, (("8.8.8.8", 0), secure), local, stranger, stranger]
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.partition(" sends ")[0] for each in told] == [LOCAL, "9.9.9.9"]


@pytest.mark.parametrize("version", ["0.9", "1.0", "1.1", "2", None])
def test_an_old_http_is_a_proxys(version: str | None) -> None:
    scope = {} if version is None else {"http_version": version}
    assert came_through_proxy(scope, [b"host", b"x-request-id"]) == (version in ("0.9", "1.0"))


@pytest.mark.parametrize("value", ["0.0.0.0/0", "10.0.0.5, ::/0", "::ffff:0.0.0.0/96"])
def test_everybody_is_no_proxy(value: str) -> None:
    with pytest.raises(ValueError, match="proxies alone"):
        trusted_proxies(value)


def test_a_proxy_may_be_named_as_a_socket_of_both_protocols_shows_it() -> None:
    assert trusted_proxies("::ffff:192.0.2.1,::ffff:10.0.0.0/104") == trusted_proxies("192.0.2.1,10.0.0.0/8")
