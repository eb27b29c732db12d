"""Who needs a key, and where a key may stand; which client a request behind proxies is from."""

import logging
from typing import Any

import pytest

from responses_app.api.endpoints import ENDPOINTS
from responses_app.auth.door import Credentials, Door, accepted_subprotocol, came_through_proxy, headers_in
from responses_app.auth.proxies import TrustedProxies, trusted_proxies
from responses_app.protocol.api_keys import (
    ADMIN_START,
    MANAGES,
    NOBODY_ASKED,
    ONLY_NAMED,
    SCOPES,
    Caller,
    KeyRecord,
    new_secret,
    prefix_of,
)
from responses_app.protocol.errors import ApiError
from responses_app.web.endpoint import routes
from responses_app.web.servers.daphne import peer_of
from responses_app.web.servers.heads import PEER, SCHEME, Senders

LOCAL = ("127.0.0.1", 8000)


def scope(host: str = "localhost:8000", **more: Any) -> dict[str, Any]:
    headers = [(b"host", host.encode()), *more.pop("headers", [])]
    return {"server": LOCAL, "client": ("127.0.0.1", 50000), "headers": headers, **more}


def door(mode: str, *, is_exposed: bool = False) -> Door:
    """Return a door; whether it is open asks no keys."""
    return Door(mode, None, None, is_exposed=is_exposed)  # type: ignore[arg-type]


def is_open(door: Door, scope: dict[str, Any]) -> bool:
    return door.is_open(scope, headers_in(scope))


def credentials(scope: dict[str, Any]) -> Credentials:
    return Credentials.of(scope, headers_in(scope))


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:80", "[::1]:8000", "LOCALHOST:1"])
def test_this_machine_needs_no_key(host: str) -> None:
    assert is_open(door("auto"), scope(host))


@pytest.mark.parametrize(
    "given",
    [
        *({"host": host} for host in ("models.example.com", "", "127.0.0.1.evil.example", "localhost.evil.example:1")),
        *({"server": server} for server in (("10.0.0.1", 80), ("/run/a.sock", None), None)),
        *({"client": client} for client in (("10.0.0.1", 80), None)),
        *({"headers": [(name, b"1.2.3.4")]} for name in (b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip")),
        *({"headers": [(name, b"a")]} for name in (b"x-forwarded-proto", b"x-forwarded-server", b"cf-connecting-ip")),
        {"http_version": "1.0"},
    ],
)
def test_who_may_come_from_elsewhere_needs_one(given: dict[str, Any]) -> None:
    assert not is_open(door("auto"), scope(**given))
    assert is_open(door("off"), scope(**given))


def test_an_exposed_server_asks_everybody() -> None:
    assert not is_open(door("auto", is_exposed=True), scope())
    assert not is_open(door("on"), scope())
    assert is_open(door("off", is_exposed=True), scope())


@pytest.mark.parametrize(
    ("headers", "offered", "found"),
    [
        ([(b"authorization", b"Bearer sk-a")], [], "sk-a"),
        ([(b"authorization", b"bearer   sk-a  ")], [], "sk-a"),
        ([(b"authorization", b"sk-a")], [], None),
        ([(b"authorization", b"Token sk-a")], [], None),
        ([(b"authorization", b"Bearer sk-a"), (b"authorization", b"Bearer sk-b")], [], "sk-a"),
        ([], ["realtime", "openai-insecure-api-key.sk-a"], "sk-a"),
        ([], ["openai-insecure-api-key."], None),
        ([(b"authorization", b"Bearer sk-a")], ["openai-insecure-api-key.sk-b"], "sk-a"),
    ],
)
def test_where_a_key_stands(headers: list[tuple[bytes, bytes]], offered: list[str], found: str | None) -> None:
    assert credentials(scope(headers=headers, subprotocols=offered)).secret == found


def test_a_browser_gets_back_a_subprotocol_without_a_key() -> None:
    key = "openai-insecure-api-key.sk-a"
    assert accepted_subprotocol([]) is None
    assert accepted_subprotocol([key, "openai-project.p", "realtime"]) == "realtime"
    assert accepted_subprotocol([key, "mqtt"]) == key
    assert accepted_subprotocol([key, "openai-project.p"]) == "openai-project.p"
    assert accepted_subprotocol(["mqtt"]) is None


def test_who_needs_no_key() -> None:
    open_paths = {"/health", "/ready", "/metrics", "/v1/openapi.json", "/v1/openapi"}
    assert {each.path for each in ENDPOINTS if each.scope is None} == open_paths
    assert [each.path for each in ENDPOINTS if each.asks_for_key] == ["/metrics"]


def test_every_scope_is_one_that_a_key_can_be_made_for() -> None:
    for route in routes():
        assert len({each.scope for each in route.endpoints}) == 1, route.path
        scopes = {route.scope(each.method) for each in route.endpoints}
        assert scopes <= {*SCOPES, *MANAGES, None}
        assert route.scope("FANCY") == route.scope("POST"), "what nobody knows may write"


def test_no_key_of_a_project_can_be_made_for_what_admin_keys_may() -> None:
    assert not {*SCOPES, *ONLY_NAMED} & {*MANAGES}
    for caller in (
        NOBODY_ASKED,
        Caller(session="s", scopes=SCOPES),
        Caller.by_key(KeyRecord(id="k", project="p", digest="")),
    ):
        for scope in MANAGES:
            with pytest.raises(ApiError, match="needs an admin key"):
                caller.check_scope(scope)


def test_secrets_are_long_and_show_little() -> None:
    secret = new_secret(lambda number: b"\xff" * number)
    assert secret == "sk-" + "_" * 42 + "8"
    assert prefix_of(secret) == "sk-______"
    admins = new_secret(lambda number: b"\xff" * number, start=ADMIN_START)
    assert admins == "sk-admin-" + "_" * 42 + "8"
    assert prefix_of(admins) == "sk-admin-______"


@pytest.mark.parametrize(
    ("scheme", "origin", "is_own"),
    [
        ("wss", "https://localhost:8000", True),
        ("wss", "http://localhost:8000", False),
        ("ws", "http://localhost:8000", True),
        ("ws", "https://localhost:8000", True),  # a proxy has the TLS
        ("ws", "http://localhost:8001", False),
    ],
)
def test_a_session_is_of_a_page_of_this_origin(scheme: str, origin: str, is_own: bool) -> None:
    headers = [(b"origin", origin.encode()), (b"cookie", b"sessionid=abc")]
    offered = ["respsite-session.default"]
    found = credentials(scope(type="websocket", scheme=scheme, headers=headers, subprotocols=offered))
    assert (found.session is not None) == is_own


ONE, NAMED = TrustedProxies(), TrustedProxies(trusted_proxies("192.0.2.1, 203.0.113.0/24,2001:db8::/48"))
LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    ("proxies", "peer", "forwarded", "client"),
    [
        (ONE, LOOPBACK, [], LOOPBACK),  # the proxy itself, or a probe
        (ONE, LOOPBACK, ["8.8.8.8"], "8.8.8.8"),  # a proxy that replaces the header
        (ONE, LOOPBACK, ["6.6.6.6, 8.8.8.8"], "8.8.8.8"),  # one that appends to a forged one
        (ONE, LOOPBACK, ["6.6.6.6", "8.8.8.8"], "8.8.8.8"),  # one that adds a line of its own
        (ONE, LOOPBACK, ["6.6.6.6, 127.0.0.1, 10.0.0.9"], "10.0.0.9"),  # a client in the same private network
        (ONE, LOOPBACK, ["6.6.6.6, 127.0.0.1"], LOOPBACK),  # and on this machine
        (ONE, "172.18.0.5", ["6.6.6.6,8.8.8.8"], "8.8.8.8"),
        (ONE, "::1", ["6.6.6.6, 2001:db8::1"], "2001:db8::1"),
        (ONE, "fd00::5", ["[2001:db8::1]:4711"], "2001:db8::1"),
        (ONE, "::ffff:10.0.0.5", ["6.6.6.6, 8.8.8.8:4711"], "8.8.8.8"),
        (ONE, None, ["6.6.6.6, 8.8.8.8"], "8.8.8.8"),  # a Unix socket
        (ONE, None, [], None),
        (ONE, LOOPBACK, ["8.8.8.8, unix:"], "8.8.8.8"),  # nginx behind another proxy's Unix socket
        (ONE, LOOPBACK, ["6.6.6.6, unknown"], LOOPBACK),
        (ONE, LOOPBACK, ["6.6.6.6,, "], "6.6.6.6"),
        (ONE, "9.9.9.9", ["6.6.6.6"], "9.9.9.9"),  # a stranger who calls the server directly
        (ONE, "2a00::9", ["6.6.6.6"], "2a00::9"),
        (NAMED, "203.0.113.7", ["6.6.6.6, 8.8.8.8"], "8.8.8.8"),
        (NAMED, "203.0.113.7", ["6.6.6.6, 8.8.8.8, 192.0.2.1"], "8.8.8.8"),  # two proxies
        (NAMED, "203.0.113.7", ["6.6.6.6, 8.8.8.8", "192.0.2.1", "2001:db8::7"], "8.8.8.8"),  # and three
        (NAMED, "203.0.113.7", ["203.0.113.9, 192.0.2.1"], "203.0.113.9"),  # a client that is a proxy
        (NAMED, "::ffff:203.0.113.7", ["6.6.6.6, 8.8.8.8, ::ffff:192.0.2.1"], "8.8.8.8"),
        (NAMED, "203.0.113.7", ["8.8.8.8, _hidden, 192.0.2.1"], "192.0.2.1"),
        (NAMED, LOOPBACK, ["6.6.6.6"], LOOPBACK),  # not named
        (NAMED, None, ["6.6.6.6, 8.8.8.8"], "8.8.8.8"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxys(
    proxies: TrustedProxies, peer: str | None, forwarded: list[str], client: str | None
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
def test_the_scope_has_the_client(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    plain, secure = ("http", "https") if kind == "http" else ("ws", "wss")

    def see(proxies: TrustedProxies | None, scope: Any) -> None:
        scope = Senders(proxies, peer_of).named(scope, None)
        seen.append((scope["client"], scope.get("scheme")))

    headers = [(b"x-forwarded-for", b"6.6.6.6, 8.8.8.8"), (b"x-forwarded-proto", b"https")]
    scope = {"type": kind, "client": (LOOPBACK, 5), "headers": headers}
    for proxies in (None, ONE, NAMED):
        see(proxies, scope)
    for proxies in (None, ONE):  # uvicorn has put the first address there, whoever called
        found = {"client": ("6.6.6.6", 0), "scheme": secure, PEER: ("9.9.9.9", 7), SCHEME: plain}
        see(proxies, {**scope, **found})
    local, stranger = ((LOOPBACK, 5), None), (("9.9.9.9", 7), plain)
    assert seen == [local, (("8.8.8.8", 0), secure), local, stranger, stranger]
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.partition(" sends ")[0] for each in told] == [LOOPBACK, "9.9.9.9"]


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
