"""A host that answers with what it was asked, over HTTP or over TLS, for tests of the proxy of containers."""

import datetime
import gzip
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class EchoHost(ThreadingHTTPServer):
    """Serves from the moment it is made; `asked` are the requests that came, as it has answered them."""

    daemon_threads = True

    def __init__(self, pem: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Echo)
        self.port = self.server_address[1]
        self.asked: list[dict[str, Any]] = []
        self.open: set[int] = set()  # descriptors of connections
        if pem is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem)
            # Without the handshake: that is made by the thread of the connection.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection on a thread of its own."""
        self.open.add(request.fileno())
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        number = request.fileno()
        super().shutdown_request(request)
        self.open.discard(number)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: tests cut connections."""


class _Echo(BaseHTTPRequestHandler):
    server: EchoHost
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        asked = {
            "method": self.command,
            "path": self.path,
            "headers": dict(self.headers.items()),
            "body": self.rfile.read(size).decode(errors="replace"),
        }
        self.server.asked.append(asked)
        content = json.dumps(asked).encode()
        path, _, rest = self.path.partition("?")
        headers = {"Content-Type": "application/json", "X-Token": self.headers.get("X-Token", "none")}
        if path == "/gzip":
            content = gzip.compress(content)
            headers["Content-Encoding"] = "gzip"
        if path == "/redirect":
            headers["Location"] = rest
        if path == "/large":
            content = b"x" * int(rest)
        self.send_response(302 if path == "/redirect" else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        if path == "/pieces":
            self._send_in_pieces(content)
            return
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_in_pieces(self, content: bytes) -> None:
        """Send each byte as a chunk of its own."""
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for byte in content:
            self.wfile.write(b"1\r\n%c\r\n" % byte)
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_HEAD = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def echo_host(pem: Path | None = None) -> Iterator[EchoHost]:
    host = EchoHost(pem)
    thread = threading.Thread(target=host.serve_forever, daemon=True)
    thread.start()
    try:
        yield host
    finally:
        host.shutdown()
        thread.join()
        host.server_close()


def certificate(path: Path, names: Sequence[str]) -> Path:
    """Write a key and a certificate for these names, which signs itself: who trusts the file trusts the host."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path
