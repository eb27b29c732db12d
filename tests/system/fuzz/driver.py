"""Sends hostile input to a real server and reads what comes back: never a 500, always an error that helps."""

import json
import socket
import time
from collections.abc import Iterable
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.kit.clients import TERMINAL
from tests.kit.closed import ClosedServer, bearer
from tests.kit.server import Server
from tests.system.fuzz.samples import OWN_CALL, OWN_ID, TOOLS, Json

WAIT_SECONDS = 20.0
NOISE = ("Traceback", "was never", "Task was destroyed", "Exception in ASGI", "Unhandled", "took too")


def as_bytes(value: Json) -> bytes:
    """Write a value as JSON the way the most tolerant of clients does: lone surrogates are escaped."""
    return json.dumps(value).encode()


class HttpDriver:
    """Posts bodies and reads the answers to their end."""

    def __init__(self, server: ClosedServer) -> None:
        self._client = httpx.Client(
            base_url=server.base_url, timeout=WAIT_SECONDS, verify=False, headers=bearer(server.key)
        )

    def close(self) -> None:
        self._client.close()

    def send(
        self, method: str, path: str, body: Json = None, *, params: Any = None, headers: dict[str, str] | None = None
    ) -> int:
        """Send a request, check the answer, and return its status."""
        content = None if body is None else as_bytes(body)
        given = {name: value.encode("latin-1") for name, value in (headers or {}).items()}
        headers = given if body is None else {**given, "content-type": b"application/json"}
        with self._client.stream(method, path, content=content, headers=headers, params=params) as answer:
            text = answer.read().decode()
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.status_code == 200, text
            assert text.rstrip().endswith("data: [DONE]"), text[-500:]
        elif answer.status_code >= 400:
            check_error(json.loads(text)["error"], answer.status_code)
        return answer.status_code


class OutputsDriver:
    """Says what came of the call of a response that waits; of another one, once the first has its output."""

    def __init__(self, server: ClosedServer, http: HttpDriver) -> None:
        self._server = server
        self._http = http
        self._waiting: tuple[str, str] | None = None  # a response and its call

    def send(self, body: Json) -> None:
        """Send the body of a request that is about the call `OWN_CALL`."""
        response_id, call_id = self._waiting = self._waiting or self._begin()
        body = _with_own(body, OWN_CALL, call_id)
        if self._http.send("POST", f"/responses/{response_id}/tool_outputs", body) in (200, 409):
            self._waiting = None  # it has its output, or waits no longer

    def _begin(self) -> tuple[str, str]:
        asked = {"input": "call look for Rome", "tools": TOOLS[:1], "background": True}
        key = bearer(self._server.key)
        headers = {"Respsite-Tool-Mode": "wait", **key}
        url = f"{self._server.base_url}/responses"
        response_id = httpx.post(url, json=asked, headers=headers, verify=False).json()["id"]
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            output = httpx.get(f"{url}/{response_id}", headers=key, verify=False).json()["output"]
            calls = [item["call_id"] for item in output if item["type"] == "function_call"]
            if calls:
                return response_id, calls[0]
            time.sleep(0.01)
        raise AssertionError("the response has not called")


class SocketDriver:
    """One WebSocket, opened again where the protocol says that it closes."""

    def __init__(self, server: ClosedServer) -> None:
        self._url = server.ws_url
        self._headers = bearer(server.key)
        self._socket: ClientConnection | None = None

    def close(self) -> None:
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
            assert socket.close_code in (1000, 1002, 1007, 1008, 1009), (
                f"the server broke the connection off: {socket.close_code}"
            )
            self._socket = None

    def speak(self, words: Json) -> None:
        """Say something to a response that runs, `OWN_ID`, and read until all was answered and the response ended."""
        socket = self._open()
        socket.send(as_bytes({"type": "response.create", "input": "count to 300", "store": False}).decode())
        own = json.loads(socket.recv(timeout=WAIT_SECONDS))["response"]["id"]
        for word in words if isinstance(words, list) else [words]:
            socket.send(as_bytes(_with_own(word, OWN_ID, own)).decode())
        socket.send(json.dumps({"type": LAST_WORD}))
        left = {"the answers", "the end"}
        while left:
            frame = json.loads(socket.recv(timeout=WAIT_SECONDS))
            if frame["type"] == "error":
                check_error(frame["error"], frame["status"])
                left -= {"the answers"} if LAST_WORD in frame["error"]["message"] else set()
            elif frame["type"] in TERMINAL and frame["response"]["id"] == own:
                left -= {"the end"}
        self.close()  # a successor, or what was created beside it, may go on

    def _open(self) -> ClientConnection:
        if self._socket is None:
            self._socket = connect(
                self._url, additional_headers=self._headers, max_size=None, compression=None, ping_interval=None
            )
        return self._socket


def _with_own(value: Json, placeholder: str, own: str) -> Json:
    """Return a value with an id in the place of what stands for it."""
    if isinstance(value, dict):
        return {name: _with_own(each, placeholder, own) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_own(each, placeholder, own) for each in value]
    return own if value == placeholder else value


LAST_WORD = "last.word"  # is unknown, and answered behind all that was said before it
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
