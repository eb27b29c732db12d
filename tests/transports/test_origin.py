"""Who may open a WebSocket: browsers on our own pages, and everything that is no browser."""

import pytest
from websockets.exceptions import InvalidStatus

from tests.clients import Socket
from tests.server import Server
from tests.transports.conftest import Connect


@pytest.mark.parametrize(
    "origin", [None, "http://localhost:3000", "https://127.0.0.1", "http://[::1]:8000", "http://LOCALHOST"]
)
async def test_an_own_or_missing_origin_passes(server: Server, open_socket: Connect, origin: str | None) -> None:
    await (await open_socket(server, origin=origin)).ask("Hello")


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://localhost.evil.example", "null", "", "localhost", "http://evil.example#localhost",
     "http://[", "http://evil.example:80@localhost.evil.example"],
)  # fmt: skip
async def test_a_foreign_origin_is_refused_at_the_handshake(server: Server, open_socket: Connect, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await open_socket(server, additional_headers={"Origin": origin})
    malformed = server.kind == "daphne" and origin in ("", "localhost", "http://[")  # refused by daphne itself
    assert refusal.value.response.status_code == (400 if malformed else 403)
    assert malformed or "its Origin is not in ALLOWED_HOSTS" in server.output


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/responses/resp_1"])
async def test_another_path_is_refused_at_the_handshake(server: Server, path: str) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await Socket.open(f"ws://127.0.0.1:{server.port}{path}")
    assert refusal.value.response.status_code == 403


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/", "/responses", "/v1/responses?model=test-model"])
async def test_the_paths_that_clients_use(server: Server, path: str) -> None:
    async with await Socket.open(f"ws://127.0.0.1:{server.port}{path}") as socket:
        await socket.ask("Hello")
