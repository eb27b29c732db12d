"""Bodies of requests that come compressed, as Codex can send them (zstd), curl and proxies."""

import gzip
import io
import json
import zlib
from collections.abc import Callable
from itertools import pairwise

import brotli
import httpx
import pytest
from backports import zstd

from responses_app.protocol.errors import ApiError
from responses_app.web.unpacking import DECODERS, MAX_MEMBERS, PIECE_BYTES, SLICE_BYTES, unpacked_pieces
from tests.kit.clients import read_error_answer
from tests.kit.scripts import LIMIT

Pack = Callable[[bytes], bytes]


def raw_deflate(data: bytes) -> bytes:
    """Compress without zlib's head, as some clients do."""
    return zlib.compress(data, wbits=-zlib.MAX_WBITS)


PACKS: dict[str, tuple[str, Pack]] = {
    "gzip": ("gzip", gzip.compress),
    "two-members": ("X-GZIP", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "deflate": ("deflate", zlib.compress),
    "raw-deflate": ("deflate", raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstd.compress),
    "two-frames": ("identity, zstd", lambda data: zstd.compress(data[:9]) + zstd.compress(data[9:])),
}
JSON = {"content-type": "application/json"}
HELLO = b'{"input": "Hello", "store": false}'


@pytest.fixture(params=PACKS)
def packed(request: pytest.FixtureRequest) -> tuple[str, Pack]:
    """A value of `Content-Encoding`, and what compresses so."""
    return PACKS[request.param]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/responses", {"input": "Hello"}),
        ("/responses", {"input": "Hello", "stream": True}),
        ("/chat/completions", {"model": "test-model", "messages": [{"role": "user", "content": "Hello"}]}),
        ("/messages", {"model": "test-model", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}),
        ("/conversations", {"metadata": {"a": "é"}}),
    ],
)
async def test_json_is_read_as_if_it_were_not_compressed(
    http: httpx.AsyncClient, packed: tuple[str, Pack], path: str, body: object
) -> None:
    coding, pack = packed
    content = json.dumps(body, ensure_ascii=False).encode()
    own = {"anthropic-version": "2023-06-01"} if path == "/messages" else {}
    answer = await http.post(path, content=pack(content), headers={**JSON, **own, "content-encoding": coding})
    assert answer.status_code == 200, answer.text


async def test_a_form_is_read_so(http: httpx.AsyncClient, packed: tuple[str, Pack]) -> None:
    coding, pack = packed
    lines = b'{"a": 1}\n' * 5000
    plain = http.build_request("POST", "/files", data={"purpose": "user_data"}, files={"file": ("a.jsonl", lines)})
    headers = {"content-type": plain.headers["content-type"], "content-encoding": coding}
    answer = await http.post("/files", content=pack(plain.read()), headers=headers)
    assert answer.json()["bytes"] == len(lines), answer.text
    assert (await http.get(f"/files/{answer.json()['id']}/content")).content == lines


async def test_a_bomb_is_refused_by_what_comes_out(http: httpx.AsyncClient, packed: tuple[str, Pack]) -> None:
    coding, pack = packed
    bomb = pack(b'{"input": "' + b"a" * (300 * LIMIT) + b'"}')
    assert len(bomb) < LIMIT
    answer = await http.post("/responses", content=bomb, headers={**JSON, "content-encoding": coding})
    message = read_error_answer(answer, status=413, code="request_too_large")
    assert "MAX_BODY_BYTES" in message
    assert "unpacked" in message


@pytest.mark.parametrize(("coding", "part"), [("gzip", gzip.compress(b"")), ("zstd", zstd.compress(b""))])
async def test_parts_of_nothing_are_counted_and_others_have_their_turns(
    http: httpx.AsyncClient, coding: str, part: bytes
) -> None:
    turns = list(unpacked_pieces(DECODERS[coding](), part * 3000, coding))
    assert turns == [b""] * -(-len(part) * 3000 // SLICE_BYTES)
    headers = {**JSON, "content-encoding": coding}
    parted = b"".join((part, PACKS[coding][1](HELLO), part * 1000))
    assert (await http.post("/responses", content=parted, headers=headers)).status_code == 200
    with pytest.raises(ApiError, match="more than 16,384 parts"):
        list(unpacked_pieces(DECODERS[coding](), part * (MAX_MEMBERS + 1), coding))


@pytest.mark.parametrize("spoil", [lambda body: body[:-3], lambda body: body + b"more", lambda body: b"x" + body])
async def test_what_is_not_what_it_says_is_told(http: httpx.AsyncClient, packed: tuple[str, Pack], spoil: Pack) -> None:
    coding, pack = packed
    headers = {**JSON, "content-encoding": coding}
    answer = await http.post("/responses", content=spoil(pack(HELLO)), headers=headers)
    assert "Content-Encoding" in read_error_answer(answer, status=400, code="invalid_content_encoding")


@pytest.mark.parametrize("coding", ["compress", "lz4", "gzip, gzip", "aws-chunked", "*"])
@pytest.mark.parametrize("path", ["/responses", "/files", "/missing"])
async def test_another_coding_is_refused_by_its_name(http: httpx.AsyncClient, path: str, coding: str) -> None:
    answer = await http.post(path, content=HELLO, headers={**JSON, "content-encoding": coding})
    message = read_error_answer(answer, status=415, code="unsupported_media_type")
    assert f"'Content-Encoding': '{coding}'" in message
    assert answer.headers["accept-encoding"] == "gzip, deflate, br, zstd"


@pytest.mark.parametrize("coding", ["identity", "", "Identity, identity"])
async def test_what_is_not_compressed_is_read(http: httpx.AsyncClient, coding: str) -> None:
    answer = await http.post("/responses", content=HELLO, headers={**JSON, "content-encoding": coding})
    assert answer.status_code == 200
    assert (await http.get("/models", headers={"content-encoding": "lz4"})).status_code == 200


@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize("size", [1, 7, 10**9])
def test_pieces_are_bounded_whatever_comes_in(name: str, size: int) -> None:
    data = bytes(range(256)) * 500 + b"a" * (5 * PIECE_BYTES) + b"end"
    coding, pack = PACKS[name]
    packed = pack(data)
    decoder = DECODERS[{"x-gzip": "gzip", "identity, zstd": "zstd"}.get(coding.lower(), coding)]()
    out, longest = io.BytesIO(), 0
    for start, end in pairwise([*range(0, len(packed), size), len(packed)]):
        for piece in decoder.pieces(packed[start:end]):
            out.write(piece)
            longest = max(longest, len(piece))
    assert out.getvalue() == data
    assert decoder.is_whole
    assert longest <= PIECE_BYTES
