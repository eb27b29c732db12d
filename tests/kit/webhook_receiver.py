"""A receiver of webhooks, a process of its own or a thread of the tests, which checks each message with OpenAI's SDK.

    python -m tests.kit.webhook_receiver PORT FOLDER

`FOLDER/secrets` has the secrets that it knows, a line each. Each message that one of them verifies is a line of
`FOLDER/received`, on disk before it is answered. While `FOLDER/hold` is there, nothing is answered.
"""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from openai import InvalidWebhookSignatureError, OpenAI

from tests.kit.server import ROOT, START_SECONDS, free_port
from tests.kit.waiting import looks


class Receiver:
    """The process, and what it has received. It can be killed and started again at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/webhooks"
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def knows(self, *secrets: str) -> None:
        """Verify with these secrets from now on."""
        (self.folder / "secrets").write_text("\n".join(secrets))

    def start(self) -> "Receiver":
        """Start, and wait until it answers."""
        command = [sys.executable, "-m", "tests.kit.webhook_receiver", str(self.port), str(self.folder)]
        self.process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        for _ in looks(START_SECONDS):
            with suppress(httpx.TransportError):
                httpx.get(self.url, timeout=5)
                return self
        raise AssertionError("the receiver does not answer")

    def kill(self) -> None:
        """Kill it (-9). Safe to call twice."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def received(self) -> list[dict[str, Any]]:
        """The messages, each with the `webhook-id` it came under."""
        file = self.folder / "received"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for(self, number: int, seconds: float = START_SECONDS) -> list[dict[str, Any]]:
        """Wait until so many messages have come."""
        for _ in looks(seconds):
            if len(received := self.received) >= number:
                return received
        raise AssertionError(received)

    def __enter__(self) -> "Receiver":
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.kill()


class ReceiverThread(Receiver):
    """The same in this process, which has imported the SDK already."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server: Server | None = None
        self._serving: threading.Thread | None = None

    def start(self) -> "ReceiverThread":
        """Start; it listens behind this."""
        self._server = listening(self.port, self.folder)
        self._serving = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._serving.start()
        return self

    def kill(self) -> None:
        """Stop. Safe to call twice."""
        if self._server is not None and self._serving is not None:
            self._server.shutdown()
            self._serving.join()
            self._server.server_close()
            self._server = None


class Server(ThreadingHTTPServer):
    """Says nothing of a sender that was killed in the middle of a message: another one sends it again."""

    daemon_threads = True  # a message may be held for ever

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell what broke, unless it is the sender that is gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def listening(port: int, folder: Path) -> Server:
    """Return what receives, and listens already."""
    client = OpenAI(api_key="none")
    with suppress(InvalidWebhookSignatureError):  # the first one takes long: the SDK builds its types
        client.webhooks.unwrap(
            "{}", {"webhook-id": "x", "webhook-timestamp": "0", "webhook-signature": "x"}, secret="x"
        )
    file = os.open(folder / "received", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for secret in (folder / "secrets").read_text().splitlines():
                with suppress(InvalidWebhookSignatureError):
                    event = client.webhooks.unwrap(body, dict(self.headers), secret=secret)
                    told = {"kind": type(event).__name__, "header": self.headers["webhook-id"], "secret": secret}
                    os.write(file, (json.dumps({**json.loads(body), **told}) + "\n").encode())
                    while (folder / "hold").exists():
                        time.sleep(0.02)
                    self._answer(200)
                    return
            self._answer(401)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    Server.request_queue_size = 128
    return Server(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    listening(int(sys.argv[1]), Path(sys.argv[2])).serve_forever()
