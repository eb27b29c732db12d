"""A loopback port before a server that passes every byte on, and keeps it."""

import asyncio
import contextlib
import json
import re

from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from responses_app.protocol.errors import JsonObject

CHUNK_BYTES = 64 * 1024
# Nothing else has these line ends: in JSON they are escaped.
_POST = re.compile(rb"POST (/[^\s?]*)\S* HTTP/1\.1\r\n")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")


class Wiretap:
    """Use it as `async with Wiretap(server.port) as tap`, and let clients connect to `tap.port`."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self._server_port = port
        self._sent: list[bytearray] = []  # by clients, a connection each
        self._answered: list[bytearray] = []  # by the server
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Wiretap":
        self._listener = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Wait for the connections' ends too: clients are to be gone."""
        self._listener.close()
        await self._listener.wait_closed()
        await asyncio.gather(*self._carrying)

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> list[str]:
        """The first request line of each connection that was used: Node.js opens some that it needs no more then."""
        return [sent.partition(b"\r\n")[0].decode() for sent in self._sent if sent]

    @property
    def upgrades(self) -> int:
        """How many of the connections became WebSockets."""
        return sum(answered.startswith(b"HTTP/1.1 101 ") for answered in self._answered)

    @property
    def posts(self) -> list[str]:
        """The paths that were posted to, without their queries."""
        return [path.decode() for sent in self._sent for path in _POST.findall(sent)]

    @property
    def statuses(self) -> list[int]:
        """The statuses of the server's answers."""
        return [int(status) for answered in self._answered for status in _STATUS.findall(answered)]

    @property
    def bytes_sent(self) -> int:
        """How much clients have sent."""
        return sum(map(len, self._sent))

    def frames(self) -> list[JsonObject]:
        """Return the frames that the clients of WebSockets sent."""
        return [frame for sent in self._sent for frame in _frames_in(bytes(sent))]

    def count(self, text: str) -> int:
        """How often clients have sent this text."""
        return sum(sent.count(text.encode()) for sent in self._sent)

    def sent(self, text: str) -> bool:
        return any(text.encode() in sent for sent in self._sent)

    def answered(self, text: str) -> bool:
        """Whether the server has sent this text."""
        return any(text.encode() in answered for answered in self._answered)

    def times_answered(self, text: str) -> int:
        """How often the server has sent this text."""
        return sum(answered.count(text.encode()) for answered in self._answered)

    def pings(self) -> int:
        """Count the protocol pings that the server sent on WebSockets."""
        return sum(_pings_in(bytes(answered)) for answered in self._answered)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if this := asyncio.current_task():
            self._carrying.add(this)
        sent, answered = bytearray(), bytearray()
        self._sent.append(sent)
        self._answered.append(answered)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except ConnectionRefusedError:  # the server is dead: so is what stands before it
            writer.close()
            return
        ways = [
            asyncio.create_task(_pump(reader, server_writer, sent)),
            asyncio.create_task(_pump(server_reader, writer, answered)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, server_writer):
                end.close()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, copy: bytearray) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(CHUNK_BYTES):
            copy += data
            sink.write(data)
            await sink.drain()


def _frames_in(sent: bytes) -> list[JsonObject]:
    """Read what a client of a WebSocket sent: its handshake, and text frames of JSON."""
    protocol = ServerProtocol(max_size=None)
    protocol.receive_data(sent)
    frames = [event for event in protocol.events_received() if isinstance(event, Frame)]
    return [json.loads(frame.data) for frame in frames if frame.opcode is Opcode.TEXT]


def _pings_in(answered: bytes) -> int:
    """Count the pings in what a server of a WebSocket answered; frames of a server are not masked."""
    head, _, frames = answered.partition(b"\r\n\r\n")
    pings = 0
    while head.startswith(b"HTTP/1.1 101 ") and len(frames) > 1:
        opcode, short = frames[0] & 0x0F, frames[1]
        wide = {126: 2, 127: 8}.get(short, 0)  # bytes of a length that is written out
        length = int.from_bytes(frames[2 : 2 + wide], "big") if wide else short
        pings += opcode == Opcode.PING
        frames = frames[2 + wide + length :]
    return pings
