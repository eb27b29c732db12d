"""Who needs a key, and where a key may stand."""

from typing import Any

import pytest

from responses_app.api.endpoints import ENDPOINTS
from responses_app.auth.door import Door, Knock, accepted_subprotocol
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

LOCAL = ("127.0.0.1", 8000)


def scope(host: str = "localhost:8000", **more: Any) -> dict[str, Any]:
    headers = [(b"host", host.encode()), *more.pop("headers", [])]
    return {"server": LOCAL, "client": ("127.0.0.1", 50000), "headers": headers, **more}


def door(mode: str, *, is_exposed: bool = False) -> Door:
    """Return a door; whether it is open asks no keys."""
    return Door(mode, None, None, is_exposed=is_exposed)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:80", "[::1]:8000", "LOCALHOST:1"])
def test_this_machine_needs_no_key(host: str) -> None:
    assert door("auto").is_open(Knock.of(scope(host)))


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
    knock = Knock.of(scope(**given))
    assert not door("auto").is_open(knock)
    assert door("off").is_open(knock)


def test_an_exposed_server_asks_everybody() -> None:
    assert not door("auto", is_exposed=True).is_open(Knock.of(scope()))
    assert not door("on").is_open(Knock.of(scope()))
    assert door("off", is_exposed=True).is_open(Knock.of(scope()))


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
    assert Knock.of(scope(headers=headers, subprotocols=offered)).secret == found


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
        Caller(session="s", own_scopes=SCOPES),
        Caller(key=KeyRecord(id="k", project="p", digest="")),
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
    knock = Knock.of(scope(type="websocket", scheme=scheme, headers=headers, subprotocols=offered))
    assert (knock.session is not None) == is_own
