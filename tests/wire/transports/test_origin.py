"""Who may open a WebSocket: browsers on our own pages, and everything that is not a browser."""

import socket
from http.client import HTTPResponse
from select import select

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from responses_app.web.middleware import Source
from responses_app.web.servers.heads import MAX_HEAD_BYTES
from tests.kit.clients import RAW_UPGRADE, Socket, http_client, raw_connection, read_error_answer
from tests.kit.fixtures import server_of_each_kind
from tests.kit.server import Server
from tests.wire.transports.conftest import Connect

LISTED = "http://localhost:3000"
FOREIGN = ["http://evil.example", "http://localhost.evil.example", "http://localhost:1", "https://127.0.0.1", "null"]


listing_server = server_of_each_kind("listing", allowed_origins=LISTED)  # takes requests of a page of another server


@pytest.mark.parametrize("own", [None, "http://127.0.0.1:PORT", "HTTP://127.0.0.1:PORT"])
async def test_an_own_or_missing_origin_passes(
    server: Server, http: httpx.AsyncClient, open_socket: Connect, own: str | None
) -> None:
    origin = own and own.replace("PORT", str(server.port))
    await (await open_socket(server, origin=origin)).ask("Hello")
    headers = {"origin": origin} if origin else {}
    assert (await http.post("/responses", json={"input": "Hi"}, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [*FOREIGN, "", "localhost", "http://evil.example#localhost", "http://[",
     "http://evil.example:80@localhost.evil.example"],
)  # fmt: skip
async def test_a_foreign_origin_is_refused_at_the_handshake(server: Server, open_socket: Connect, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await open_socket(server, additional_headers={"Origin": origin})
    malformed = server.kind == "daphne" and origin in ("", "localhost", "http://[")  # refused by daphne itself
    assert refusal.value.response.status_code == (400 if malformed else 403)
    assert malformed or "nor in ALLOWED_ORIGINS" in server.output


@pytest.mark.parametrize("host", ["evil.example", "evil.example:PORT", "127.0.0.1.evil.example"])
@pytest.mark.each_server
async def test_a_foreign_host_is_refused_at_the_handshake(server: Server, open_socket: Connect, host: str) -> None:
    """A page may give any name to this machine's address, and is then of the same origin as what it connects to."""
    name = host.replace("PORT", str(server.port))
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        upgrade = RAW_UPGRADE.replace(b"localhost", name.encode())
        raw.sendall(upgrade.replace(b"\r\n\r\n", f"\r\nOrigin: http://{name}\r\n\r\n".encode()))
        assert raw.recv(64).split()[1] == b"403"
    assert "its Host is not in ALLOWED_HOSTS" in server.output


async def test_listed_pages_pass(listing_server: Server, open_socket: Connect) -> None:
    await (await open_socket(listing_server, origin=LISTED)).ask("Hello")
    with pytest.raises(InvalidStatus):
        await open_socket(listing_server, origin=f"{LISTED}1")
    for origin, status in ((LISTED, 200), (f"{LISTED}1", 403)):
        headers = {"origin": origin, "sec-fetch-site": "cross-site"}
        async with http_client(listing_server) as http:
            assert (await http.post("/responses", json={"input": "Hi"}, headers=headers)).status_code == status


@pytest.mark.each_server
def test_a_listed_page_can_read_that_a_head_is_too_large_also_where_it_comes_in_parts(listing_server: Server) -> None:
    with raw_connection(listing_server.port, receive_buffer=65536) as raw:
        raw.sendall(f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: {LISTED}\r\nX: ".encode())
        raw.sendall(b"a" * 2 * MAX_HEAD_BYTES)
        select([raw], [], [], 0.3)  # an answer to this part would come now, and say nothing of the origin
        raw.sendall(b"\r\n\r\n")
        answer = HTTPResponse(raw)
        answer.begin()
        assert answer.status == 431
        assert answer.headers["access-control-allow-origin"] == LISTED


@pytest.mark.parametrize("headers", [*({"origin": each} for each in FOREIGN), {"sec-fetch-site": "cross-site"}])
async def test_a_foreign_page_changes_nothing(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    created = (await http.post("/responses", json={"input": "[hang]", "background": True})).json()
    path = f"/responses/{created['id']}"
    for method, where in (("POST", f"{path}/cancel"), ("DELETE", path), ("POST", "/conversations")):
        answer = await http.request(method, where, headers=headers)
        assert "ALLOWED_ORIGINS" in read_error_answer(answer, status=403, code="origin_not_allowed")
    assert (await http.get(path)).json()["status"] in ("queued", "in_progress")
    assert (await http.post(f"{path}/cancel", headers={"sec-fetch-site": "none"})).json()["status"] == "cancelled"


@pytest.mark.parametrize(
    "headers",
    [
        *({"origin": each} for each in FOREIGN),
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},  # a picture, or a script
        {"sec-fetch-site": "same-site"},
        {"origin": FOREIGN[0], "sec-fetch-mode": "navigate"},
    ],
)
async def test_a_foreign_page_asks_for_nothing(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    for method in ("GET", "HEAD", "OPTIONS"):
        answer = await http.request(method, "/models", headers=headers)
        assert answer.status_code == 403
    assert "ALLOWED_ORIGINS" in read_error_answer(
        await http.get("/models", headers=headers), status=403, code="origin_not_allowed"
    )


async def test_a_link_on_a_foreign_page_can_be_followed(http: httpx.AsyncClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (await http.get("/models", headers=headers)).status_code == 200
    assert (await http.post("/conversations", headers=headers)).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "bad host", "<b>"])
def test_a_foreign_host_of_a_page_is_told_without_a_traceback(server: Server, host: str) -> None:
    answer = httpx.get(f"{server.url}/admin/login/", headers={"host": host})
    assert answer.status_code == 400
    assert "ALLOWED_HOSTS" in answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    assert "Invalid HTTP_HOST" not in server.output


OWN = {"scheme": "http", "host": "models.example", "origin": None, "fetch_site": None}


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({}, True),
        ({"origin": "http://models.example"}, True),
        ({"origin": "http://models.example:80"}, True),
        ({"origin": "http://models.example", "host": "models.example:80"}, True),
        ({"origin": "http://models.example:8000"}, False),
        ({"origin": "https://models.example"}, False),
        ({"origin": "https://models.example", "scheme": "https"}, True),
        ({"origin": "https://models.example", "fetch_site": "same-origin"}, True),  # a proxy with TLS between
        ({"origin": "http://other.example", "fetch_site": "same-site"}, False),
        ({"origin": "http://listed.example:80/"}, False),
        ({"origin": "http://listed.example:80"}, True),
        ({"origin": "extension://listed"}, True),
        ({"origin": "http://models.example", "host": None}, False),
        ({"origin": "http://[::1]:8000", "host": "[::1]:8000"}, True),
        ({"origin": "http://models.example:x"}, False),
        ({"origin": "http://user@models.example"}, False),
        ({"fetch_site": "none"}, True),
        ({"fetch_site": "same-site"}, False),
        ({"fetch_site": "cross-site"}, False),
    ],
)
def test_what_counts_as_an_own_page(given: dict[str, str | None], allowed: bool) -> None:
    source = Source(**{**OWN, **given})  # type: ignore[arg-type]
    assert source.is_allowed(("http://listed.example", "extension://listed")) is allowed


def test_any_page_may_be_listed() -> None:
    assert Source(scheme="http", host="h", origin="null", fetch_site="cross-site").is_allowed(("*",))


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/responses/resp_1"])
@pytest.mark.each_server
async def test_another_path_is_refused_at_the_handshake(server: Server, path: str) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await Socket.open(f"ws://127.0.0.1:{server.port}{path}")
    assert refusal.value.response.status_code == 404


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/", "/responses", "/v1/responses?model=test-model"])
async def test_the_paths_that_clients_use(server: Server, path: str) -> None:
    async with await Socket.open(f"ws://127.0.0.1:{server.port}{path}") as socket:
        await socket.ask("Hello")
