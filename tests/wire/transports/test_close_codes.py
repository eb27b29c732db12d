"""How a WebSocket ends whose peer breaks the protocol's rules (RFC 6455), and which subprotocol is agreed on."""

import struct

import pytest

from tests.kit.clients import Socket
from tests.kit.scripts import LIMIT
from tests.kit.server import Server

pytestmark = pytest.mark.each_server


def frame(first: int, payload: bytes, *, masked: bool = True) -> bytes:
    """Return a frame with this first byte; its mask is zeros."""
    size, mask = len(payload), 0x80 if masked else 0
    length = bytes([mask | size]) if size < 126 else bytes([mask | 127]) + size.to_bytes(8, "big")
    return bytes([first]) + length + (bytes(4) if masked else b"") + payload


MORE = frame(0x82, b"a" * 16_000) * 2  # that comes behind, and is thrown away; the kernel takes it at once


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(0x81, b"{}", masked=False), 1002),
        (frame(0xC1, b"{}"), 1002),  # a reserved bit
        (frame(0x83, b"{}"), 1002),
        (frame(0x8B, b""), 1002),
        (frame(0x09, b""), 1002),  # a ping in parts
        (frame(0x89, b"a" * 126), 1002),
        (frame(0x80, b"a"), 1002),  # goes on with nothing
        (frame(0x01, b"a") + frame(0x81, b"a"), 1002),
        (frame(0x88, b"a"), 1002),
        (frame(0x88, struct.pack("!H", 1005)), 1002),
        (frame(0x88, struct.pack("!H", 1000) + b"\xff"), 1007),
        (frame(0x81, b"\xff\xfe"), 1007),
        (frame(0x01, b"{}") + frame(0x80, b"\xc3"), 1007),
        (frame(0x81, b"a" * (LIMIT + 1)), 1009),
        (frame(0x81, b"a" * (5 * LIMIT)), 1009),
        (frame(0x82, b"a" * (LIMIT + 1)), 1009),
        (frame(0x01, b"a" * LIMIT) + frame(0x80, b"a"), 1009),
    ],
)
@pytest.mark.parametrize("more", [b"", MORE], ids=["", "more"])
async def test_whoever_breaks_the_rules_reads_which_one(server: Server, sent: bytes, code: int, more: bytes) -> None:
    """A reset in place of the close frame looks like a lost network, after which clients try the same again."""
    async with await Socket.open(server.ws_url) as socket:
        socket.raw.transport.write(sent + more)
        assert await socket.closed() == code
        assert [frame["status"] for frame in socket.log] == ([413] if code == 1009 else [])
    assert "Traceback" not in server.output


async def test_messages_before_a_broken_one_are_taken(server: Server) -> None:
    async with await Socket.open(server.ws_url) as socket:
        socket.raw.transport.write(frame(0x81, b"?") + frame(0x81, b"a" * (LIMIT + 1)))
        assert await socket.closed() == 1009
        assert [frame["error"]["code"] for frame in socket.log] == ["invalid_json", "message_too_large"]


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        (["nope", "mqtt"], None),
        (["mqtt", "realtime"], "realtime"),
        (["respsite-playground", "respsite-session.default"], "respsite-playground"),
        (["mqtt", "openai-insecure-api-key.sk-a"], "openai-insecure-api-key.sk-a"),
    ],
)
async def test_no_subprotocol_is_agreed_on_that_is_not_spoken(
    server: Server, offered: list[str], taken: str | None
) -> None:
    async with await Socket.open(server.ws_url, subprotocols=offered) as socket:
        assert socket.raw.subprotocol == taken
        await socket.ask("Hello")
