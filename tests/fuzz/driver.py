"""Sends hostile input to a real server and reads what comes back: never a 500, always an error that helps."""

import json
import socket
from collections.abc import Iterable
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.clients import TERMINAL
from tests.fuzz.samples import Json
from tests.server import Server

WAIT_SECONDS = 20.0
NOISE = ("Traceback", "was never", "Task was destroyed", "Exception in ASGI", "Unhandled", "took too")


def as_bytes(value: Json) -> bytes:
    """Write a value as JSON the way the most tolerant of clients does: lone surrogates are escaped."""
    return json.dumps(value).encode()


class HttpDriver:
    """Posts bodies and reads the answers to their end."""

    def __init__(self, server: Server) -> None:
        self._client = httpx.Client(base_url=server.base_url, timeout=WAIT_SECONDS, verify=False)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def send(self, method: str, path: str, body: Json = None, *, params: Any = None) -> int:
        """Send a request, check the answer, and return its status."""
        content = None if body is None else as_bytes(body)
        headers = {} if body is None else {"content-type": "application/json"}
        with self._client.stream(method, path, content=content, headers=headers, params=params) as answer:
            text = answer.read().decode()
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.status_code == 200, text
            assert text.rstrip().endswith("data: [DONE]"), text[-500:]
        elif answer.status_code >= 400:
            check_error(json.loads(text)["error"], answer.status_code)
        return answer.status_code


class SocketDriver:
    """One WebSocket, opened again where the protocol says that it closes."""

    def __init__(self, server: Server) -> None:
        self._url = server.ws_url
        self._socket: ClientConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, frame: Json) -> None:
        """Send a frame and read until it was answered: by an error, or by a response's terminal event."""
        self.send_text(as_bytes(frame).decode())

    def send_text(self, text: str) -> None:
        """As `send`, for a text that may not be JSON."""
        socket = self._open()
        socket.send(text)
        try:
            while True:
                frame = json.loads(socket.recv(timeout=WAIT_SECONDS))
                if frame["type"] == "error":
                    check_error(frame["error"], frame["status"])
                if frame["type"] in TERMINAL or frame["type"].startswith(ANSWERS):
                    return
        except ConnectionClosed:
            assert socket.close_code in (1000, 4009), f"the server broke the connection off: {socket.close_code}"
            self._socket = None

    def _open(self) -> ClientConnection:
        if self._socket is None:
            self._socket = connect(self._url, max_size=None, compression=None, ping_interval=None)
        return self._socket


ANSWERS = ("response.steer.", "response.interrupt.")  # to what is said to a response that runs


def check_error(error: Json, status: int) -> None:
    """Check an error object: OpenAI's shape, a sentence, and never a fault of this server's own."""
    assert status != 500, error
    assert {"message", "type", "param", "code"} <= set(error), error
    assert len(error["message"]) > 10, error
    assert len(error["message"]) < 5000, "an error repeats what it was sent"
    assert isinstance(error["code"], str | None), error


def send_raw(server: Server, chunks: Iterable[bytes]) -> None:
    """Send bytes that may not be HTTP, and read until the server has answered or closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.settimeout(0.05)
        try:
            for chunk in chunks:
                raw.sendall(chunk)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
        except OSError:
            return


def noise(server: Server) -> str:
    """Return what its log tells of the first fault, "" where there was none."""
    lines = server.output.splitlines()
    faults = (number for number, line in enumerate(lines) if any(word in line for word in NOISE))
    first = next(faults, None)
    return "" if first is None else "\n".join(lines[max(0, first - 3) : first + 40])
