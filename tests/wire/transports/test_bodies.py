"""Bodies that are too large, of the wrong kind, or too slow: refused before they cost anything, under both servers."""

import asyncio
import gzip
import json
import random
import socket as sockets
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import orjson
import pytest

from tests.kit.clients import RAW_UPGRADE, raw_connection, read_error, read_error_answer
from tests.kit.fixtures import measured_server, server_of_each_kind
from tests.kit.heartbeat import tries
from tests.kit.pictures import noise
from tests.kit.server import Server
from tests.kit.waiting import eventually

MIB = 1024 * 1024
JSON = {"content-type": "application/json"}
PART = b'{"input":"' + b"x" * (MIB - 10)  # of a body that is as good as one can tell while it comes


served = measured_server("served")


brisk = server_of_each_kind("brisk", request_arrival_seconds=1)


async def chunks(size: int) -> AsyncIterator[bytes]:
    """Yield a body of so many bytes."""
    for _ in range(size // MIB):
        yield PART


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """Return a request's head."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def read_answer(raw: sockets.socket) -> tuple[int, bytes]:
    """Return the status and body of an answer that says how long it is, or ends with its connection."""
    seen = b""
    while b"\r\n\r\n" not in seen and (part := raw.recv(65536)):
        seen += part
    top, _, body = seen.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in top.lower().split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < length and (part := raw.recv(65536)):
        body += part
    return int(top.split()[1]), body


def grown(server: Server, before: int) -> float:
    """Return how much more memory a server has held than before, at most, in MiB."""
    return (server.peak_memory_bytes() - before) / MIB


def quiet(server: Server) -> int:
    """Begin to measure; return the memory a server holds now, in bytes."""
    server.forget_peak()
    return server.memory_bytes()


@pytest.mark.each_server
def test_what_is_declared_too_large_is_refused_before_a_byte_of_it(served: Server) -> None:
    for _ in tries(served):
        before = quiet(served)
        with raw_connection(served.port) as raw:
            raw.sendall(head("/v1/responses", "Content-Type: application/json", "Content-Length: 1200000000"))
            status, body = read_answer(raw)
            assert status == 413
            message = read_error(json.loads(body)["error"], status=413, code="request_too_large")
            assert "MAX_BODY_BYTES" in message
            with suppress(OSError):  # it may be closed; but what is sent is not kept
                for _ in range(200):
                    raw.sendall(PART)
        assert grown(served, before) < 24


async def test_usual_clients_read_the_refusal(served: Server) -> None:
    for _ in tries(served):
        before = quiet(served)
        async with httpx.AsyncClient(base_url=served.base_url, timeout=60, verify=False) as http:
            for length in ({"content-length": str(100 * MIB)}, {}):  # declared, and in chunks, of no known length
                answer = await http.post("/responses", content=chunks(100 * MIB), headers={**JSON, **length})
                read_error_answer(answer, status=413, code="request_too_large")
            assert (await http.post("/responses", json={"input": "Hello"})).status_code == 200
        assert grown(served, before) < 24


def curl(server: Server, file: Path, *headers: str) -> tuple[str, int, str]:
    """Have curl send a file as JSON; return the status, the bytes that it has sent, and the body of the answer."""
    command = ["curl", "-s", "-w", "\n%{size_upload}\n%{http_code}", "-X", "POST", "-T", str(file)]
    for line in ("Content-Type: application/json", *headers):
        command += ["-H", line]
    url = f"{server.base_url}/responses"
    done = subprocess.run([*command, url], capture_output=True, text=True, timeout=30, check=False)
    body, uploaded, status = done.stdout.rsplit("\n", 2)
    return status, int(uploaded), body


@pytest.mark.parametrize("expect", ["Expect: 100-continue", "Expect:"])
@pytest.mark.each_server
def test_curl_reads_the_refusal(served: Server, tmp_path: Path, expect: str) -> None:
    file = tmp_path / "body.json"
    with file.open("wb") as opened:
        opened.truncate(80 * MIB)
    status, _, body = curl(served, file, expect)
    assert status == "413", body
    read_error(json.loads(body)["error"], status=413, code="request_too_large")


@pytest.mark.parametrize(
    ("method", "path", "kind", "expected"),
    [
        ("POST", "/v1/responses", "multipart/form-data; boundary=b", (415, "unsupported_media_type")),
        ("POST", "/v1/responses", "application/x-www-form-urlencoded", (415, "unsupported_media_type")),
        ("POST", "/v1/responses", "text/plain", (415, "unsupported_media_type")),
        ("POST", "/v1/nowhere", "application/json", (413, "request_too_large")),
        ("GET", "/v1/models", "application/json", (413, "request_too_large")),
        ("POST", "/nowhere", "application/x-www-form-urlencoded", (413, "request_too_large")),
        ("POST", "/admin/login/", "application/x-www-form-urlencoded", (413, "request_too_large")),
        ("POST", "/static/admin/css/base.css", "multipart/form-data; boundary=b", (413, "request_too_large")),
    ],
)
async def test_large_bodies_are_taken_where_they_are_of_use(
    served: Server, method: str, path: str, kind: str, expected: tuple[int, str]
) -> None:
    """A form of 24 MB stood the server still for 3.4 s and cost a gigabyte, sent by any web page."""
    form = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 500_000
    body = form if "multipart" in kind else b"a=1&" * 6_000_000
    for _ in tries(served):
        growth: list[float] = []
        while not growth or (growth[-1] >= 24 and len(growth) < 3):  # what the test before left may still be going on
            before = quiet(served)
            async with httpx.AsyncClient(base_url=served.url, timeout=60, verify=False) as http:
                answer = await http.request(method, path, content=body, headers={"content-type": kind})
                read_error_answer(answer, status=expected[0], code=expected[1])
            growth.append(grown(served, before))
        assert growth[-1] < 24


def test_a_malformed_form_is_told(served: Server) -> None:
    for body in (b"nothing of the kind", b"--b\r\nbroken\r\n\r\n--b--", b"--b--"):
        for path, status in (("/v1/responses", 415), ("/v1/nowhere", 404)):
            headers = {"content-type": "multipart/form-data; boundary=b"}
            answer = httpx.post(f"{served.url}{path}", content=body, headers=headers, verify=False)
            code = "unsupported_media_type" if status == 415 else "not_found"
            read_error_answer(answer, status=status, code=code)


def test_a_login_works(served: Server) -> None:
    """Forms of the admin are Django's."""
    with httpx.Client(base_url=served.url, verify=False) as http:
        token = http.get("/admin/login/").cookies["csrftoken"]
        form = {"username": "nobody", "password": "wrong", "csrfmiddlewaretoken": token}
        assert "Please enter the correct username" in http.post("/admin/login/", data=form).text
        files = {name: (None, value) for name, value in form.items()}
        assert "Please enter the correct username" in http.post("/admin/login/", files=files).text


ITEM = {"role": "user", "content": "x"}
PICTURE = b'{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,%b"}]}]}'
WITHIN = {  # what the limits let through
    "picture": lambda: PICTURE % b64encode(noise(13 * MIB)),
    "ignored text": lambda: b'{"input":"Hello","x":"' + b"a,[" * (10 * MIB) + b'"}',
    "ignored arrays": lambda: b'{"input":"Hello","x":[' + b"[]," * 49_000 + b"1]}",
    "ignored objects": lambda: b'{"input":"Hello","x":[' + b'{"a":1},' * 49_000 + b"1]}",
    "items": lambda: orjson.dumps({"input": [ITEM] * 5000}),
    "unread items": lambda: orjson.dumps({"input": [{"type": "web_search_call"}] * 3000}),
    "parts": lambda: orjson.dumps(
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 20_000}]}
    ),
}
BEYOND = {
    "spaces": (lambda: b" " * (30 * MIB), "invalid_json", None),
    "picture": (lambda: PICTURE % (b"A" * (31 * MIB)), "invalid_image", "input[0].content[0]"),
    "items": (lambda: orjson.dumps({"input": [ITEM] * 5001}), "array_above_max_length", "input"),
    "tools": (
        lambda: orjson.dumps({"input": "x", "tools": [{"type": "function"}] * 5000}),
        "array_above_max_length",
        "tools",
    ),
    "many items": (lambda: orjson.dumps({"input": [ITEM] * 600_000}), "request_too_complex", None),
    "ignored field": (lambda: b'{"input":"x","x":[' + b"[]," * (10 * MIB) + b"1]}", "request_too_complex", None),
    "depth": (lambda: b'{"input":' + b"[" * (30 * MIB), "request_too_complex", None),
    "metadata": (
        lambda: orjson.dumps({"input": "x", "metadata": {str(n): n for n in range(90_000)}}),
        "invalid_value",
        "metadata",
    ),
    "wrong parts": (lambda: orjson.dumps({"input": [{"role": "user", "content": [1] * 90_000}]}), None, None),
    "wrong includes": (lambda: orjson.dumps({"input": "x", "include": [1] * 90_000}), "invalid_type", "include[0]"),
}


@pytest.mark.parametrize("case", WITHIN)
def test_what_the_limits_let_through_never_stops_the_loop(served: Server, case: str) -> None:
    body = WITHIN[case]()
    for _ in tries(served):
        before = quiet(served)
        answer = httpx.post(f"{served.base_url}/responses", content=body, headers=JSON, timeout=60, verify=False)
        assert answer.status_code == 200, answer.text[:500]
        # Read, parsed, written for the store and by its driver: PostgreSQL's takes another copy or two, and beside
        # other load its steps run in more threads, each of which keeps a copy's memory for its next one.
        assert grown(served, before) < 64 + 14 * len(body) / MIB


@pytest.mark.parametrize("case", BEYOND)
def test_what_the_limits_stop_costs_nothing(served: Server, case: str) -> None:
    make, code, param = BEYOND[case]
    body = make()
    for _ in tries(served):
        before = quiet(served)
        answer = httpx.post(f"{served.base_url}/responses", content=body, headers=JSON, timeout=60, verify=False)
        if code is None:
            assert answer.status_code == 400, answer.text
        else:
            read_error_answer(answer, status=400, code=code, param=param)
        assert grown(served, before) < 48 + 2 * len(body) / MIB


@pytest.mark.each_server
async def test_a_long_packed_body_is_read(served: Server) -> None:
    """Both servers keep a long body in a file, which is unpacked from its beginning."""
    content = json.dumps({"input": "repeat: hello", "padding": random.Random(7).randbytes(MIB).hex()}).encode()
    packed = gzip.compress(content)
    assert len(packed) > MIB
    async with httpx.AsyncClient(base_url=served.base_url, timeout=30) as http:
        answer = await http.post("/responses", content=packed, headers={**JSON, "content-encoding": "gzip"})
    assert answer.json()["status"] == "completed", answer.text
    assert answer.headers["respsite-ignored"] == "padding"


async def test_many_large_bodies_at_once(served: Server) -> None:
    body = b'{"input":"Hello","x":"' + b"A" * (24 * MIB) + b'"}'
    before = quiet(served)
    async with httpx.AsyncClient(base_url=served.base_url, timeout=120, verify=False) as http:
        posts = [http.post("/responses/input_tokens", content=body, headers=JSON) for _ in range(8)]
        assert {answer.status_code for answer in await asyncio.gather(*posts)} == {200}
    assert grown(served, before) < 24 * 12  # 8 bodies and what is made of them would be more


# Slow ones.


def is_closed(raw: sockets.socket) -> bool:
    """Read what is there; say whether the other side has closed."""
    raw.setblocking(False)
    try:
        while raw.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


async def drip(server: Server, sent: bytes, dripped: bytes) -> bytes:
    """Send a beginning, and then a byte at a time, until the server answers or closes; return what it said."""
    loop = asyncio.get_running_loop()
    with raw_connection(server.port) as raw:
        raw.setblocking(False)
        await loop.sock_sendall(raw, sent)
        reading = asyncio.ensure_future(loop.sock_recv(raw, 65536))
        async with asyncio.timeout(10):
            while not reading.done():
                with suppress(OSError):
                    await loop.sock_sendall(raw, dripped)
                await asyncio.wait([reading], timeout=0.2)
        said = b""
        with suppress(OSError):
            said = await reading
            while not said.endswith(b"}}") and (part := await loop.sock_recv(raw, 65536)):  # an error's JSON
                said += part
    return said


@pytest.mark.parametrize("sent", [b"", b"GET /v1/mod", head("/v1/models", method="GET")[:-2]])
@pytest.mark.each_server
async def test_headers_that_never_end(brisk: Server, sent: bytes) -> None:
    await drip(brisk, sent, b"x")


@pytest.mark.each_server
async def test_headers_that_stop(brisk: Server) -> None:
    """Also on a connection that had an answer before."""
    with raw_connection(brisk.port) as raw, raw_connection(brisk.port) as other:
        raw.sendall(b"GET /v1/models HTTP/1.1\r\nHost: loc")
        other.sendall(head("/v1/models", method="GET"))
        assert read_answer(other)[0] == 200
        other.sendall(b"GET /v1/mod")
        await eventually(lambda: is_closed(raw))
        await eventually(lambda: is_closed(other))


@pytest.mark.each_server
async def test_a_body_that_drips(brisk: Server) -> None:
    for lines in (["Content-Length: 5000"], ["Transfer-Encoding: chunked"]):
        dripped = b"1\r\nx\r\n" if "chunked" in lines[0] else b"x"
        said = await drip(brisk, head("/v1/responses", "Content-Type: application/json", *lines), dripped)
        assert said.startswith(b"HTTP/1.1 408 ")
        error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
        assert "REQUEST_ARRIVAL_SECONDS" in error["message"]
        assert error["code"] == "request_timeout"


async def test_a_slow_client_with_a_long_body_is_served(brisk: Server) -> None:
    """16 KiB/s is enough, however long it takes; what comes at once gives time for the rest."""
    body = json.dumps({"input": "Hello", "x": "x" * 160_000}).encode()
    loop = asyncio.get_running_loop()
    with raw_connection(brisk.port) as raw:
        raw.setblocking(False)
        lines = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
        await loop.sock_sendall(raw, head("/v1/responses", *lines) + body[:100_000])
        for start in range(100_000, len(body), 10_000):
            await asyncio.sleep(0.25)  # 40 kB/s: 1.5 s in all
            await loop.sock_sendall(raw, body[start : start + 10_000])
        said = await loop.sock_recv(raw, 65536)
    assert said.startswith(b"HTTP/1.1 200 ")


async def test_a_refused_client_that_drips_on_is_closed(brisk: Server) -> None:
    with raw_connection(brisk.port) as raw:
        raw.sendall(head("/v1/responses", "Content-Type: application/json", "Content-Length: 1200000000"))
        assert read_answer(raw)[0] == 413
        raw.sendall(b"x")
        await eventually(lambda: is_closed(raw))


async def test_an_open_websocket_is_not_timed(brisk: Server) -> None:
    with raw_connection(brisk.port) as raw:
        raw.sendall(RAW_UPGRADE)
        assert raw.recv(1024).startswith(b"HTTP/1.1 101 ")
        await asyncio.sleep(1.5)  # longer than a request may take
        raw.sendall(b"\x89\x80" + bytes(4))
        raw.setblocking(True)
        assert raw.recv(16) == b"\x8a\x00"
