"""nginx, with the file of `deploy/`, before a server: connections of one address, and how large bodies may be."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from responses_app.protocol.setting import MIB
from tests.kit.clients import Socket, raw_connection
from tests.kit.server import Server, free_port
from tests.system.cluster.processes import Nginx

CHUNKED = 32  # bodies in chunks that one address may send at a time
HEAD = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BEGUN = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
UPLOAD = 34 * MIB  # more than a request may have that is no upload
BIG = (
    b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=a\r\n"
    b"Content-Length: 100000000\r\n\r\n--a\r\n"
)
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


def test_uploads_are_as_large_as_the_server_takes_them_and_no_stranger_sends_one(tmp_path: Path) -> None:
    with Server(tmp_path / "server", behind_proxy="http") as server:
        nginx = Nginx(tmp_path, free_port(), upstreams=[f"127.0.0.1:{server.port}"])
        try:
            nginx.start()
            secret = re.findall(r"sk-\S+", server.output)[0]  # of the first start
            key, url = {"authorization": f"Bearer {secret}"}, f"{nginx.url}/v1/files"
            form: dict[str, Any] = {"data": {"purpose": "user_data"}, "files": {"file": ("a.bin", b"a" * UPLOAD)}}
            kept = httpx.post(url, headers=key, timeout=120, verify=False, **form)
            assert (kept.status_code, kept.json()["bytes"]) == (200, UPLOAD)
            with raw_connection(nginx.port) as raw:  # answered although only its head is there
                raw.sendall(BIG)
                assert raw.recv(1024).startswith(b"HTTP/1.1 401 ")
            too_large = httpx.post(f"{nginx.url}/v1/responses", content=b" " * UPLOAD, headers=key, verify=False)
            assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, "request_too_large")
        finally:
            nginx.stop()
