"""A real provider for tests: django-allauth's own, in a venv and a process of its own (`provider.py`)."""

import base64
import hashlib
import hmac
import json
import sqlite3
import struct
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

import httpx

from tests.kit import pip
from tests.kit.server import START_SECONDS, free_port

HERE = Path(__file__).parent
CLIENT_ID, SECRET, PASSWORD = "respsite-tests", "an unusual secret: %+&", "walnut canoe harbour 9"
TOTP_SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"


class Identity:
    """The process. It is stopped and started again with the same users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.issuer = f"http://localhost:{self.port}"  # another host than the server's: browsers tell cookies by it
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, server_url: str) -> "Identity":
        addresses = {"back": f"{server_url}/oidc/callback/", "out": f"{server_url}/admin/login/"}
        told = {"client": CLIENT_ID, "secret": SECRET, "password": PASSWORD, "totp": TOTP_SECRET, **addresses}
        python = pip.installed(HERE / "requirements.txt")
        command = [python, HERE / "provider.py", str(self.port), self.folder, json.dumps(told)]
        with (self.folder / "provider.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "provider.log").read_text()
            with suppress(httpx.TransportError):
                httpx.get(f"{self.issuer}/.well-known/openid-configuration", timeout=30).raise_for_status()
                return self
            time.sleep(0.05)
        raise AssertionError("the provider does not answer")

    def stop(self) -> None:
        """Kill it. Safe to call twice."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def change(self, statement: str) -> None:
        with closing(sqlite3.connect(self.folder / "provider.sqlite3", timeout=30)) as database, database:
            assert database.execute(statement).rowcount > 0


def totp() -> str:
    """Return the six digits that an authenticator shows now (RFC 6238)."""
    counter = struct.pack(">Q", int(time.time()) // 30)
    digest = hmac.new(base64.b32decode(TOTP_SECRET), counter, hashlib.sha1).digest()
    offset = digest[-1] & 15
    return f"{(struct.unpack('>I', digest[offset : offset + 4])[0] & 0x7FFFFFFF) % 10**6:06d}"
