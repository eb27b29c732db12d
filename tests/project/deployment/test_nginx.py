"""nginx, with the file of `deploy/`, before a server: how many connections one address may have."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.kit.clients import Socket, raw_connection
from tests.kit.server import Server, free_port
from tests.system.cluster.processes import Nginx

CHUNKED = 32  # bodies in chunks that one address may send at a time
HEAD = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BEGUN = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
REST = b'12\r\n"input": "Hello"}\n\r\n0\r\n\r\n'


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Nginx]:
    """Run both."""
    with Server(tmp_path / "server", behind_proxy="http", auth="off") as server:
        nginx = Nginx(tmp_path, free_port(), upstreams=[f"127.0.0.1:{server.port}"])
        try:
            nginx.start()
            yield nginx
        finally:
            nginx.stop()


async def test_one_address_has_so_many_bodies_in_chunks_and_all_else(front: Nginx) -> None:
    with ExitStack() as held:
        for _ in range(CHUNKED):
            begun = held.enter_context(raw_connection(front.port))
            begun.sendall(BEGUN)
            begun.settimeout(30)
        async with httpx.AsyncClient(base_url=f"{front.url}/v1", timeout=30, verify=False) as http:

            async def one_more() -> httpx.Response:
                async def chunks() -> AsyncIterator[bytes]:
                    yield b'{"input": "Hello"}'

                return await http.post("/responses", content=chunks(), headers={"content-type": "application/json"})

            refused = await one_more()
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert refused.headers["retry-after"] == "1"
            for _ in range(CHUNKED + 1):  # what tells its length is not counted with them
                assert (await http.get("/models")).status_code == 200
            for _ in range(CHUNKED + 1):
                socket = await Socket.open(f"ws://127.0.0.1:{front.port}/v1/responses")
                held.callback(socket.raw.transport.abort)
            assert (await http.post("/responses", json={"input": "Hello"})).status_code == 200
            begun.sendall(REST)  # the last one's
            assert begun.recv(1024).startswith(b"HTTP/1.1 200 ")
            begun.close()
            assert (await one_more()).status_code == 200
