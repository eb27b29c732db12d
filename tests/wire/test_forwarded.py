"""Proxies in front of each kind of server: whom it counts failed logins against, and whom it asks for a key."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.kit.clients import RAW_UPGRADE, raw_connection
from tests.kit.people import token
from tests.kit.server import KINDS, Server

# By the lines of X-Forwarded-For: whom a failed login counts against, where 127.0.0.1 and 198.51.100.0/24 are proxies.
SENT = {
    ("6.6.6.6, 9.0.0.1",): "9.0.0.1",
    ("6.6.6.6", "9.0.0.2"): "9.0.0.2",
    ("6.6.6.6", "2a00:1::2", "198.51.100.7"): "2a00:1::",
}

LARGE = (  # who may send it is asked before it comes
    b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n"
)


class Flagged(Server):
    """A server whose own flags have it believe all that a header says."""

    def _command(self) -> list[str]:
        flags = ["--proxy-headers"] if self.kind == "daphne" else ["--proxy-headers", "--forwarded-allow-ips", "*"]
        *command, application = super()._command()
        return [*command, *flags, application]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.each_server
def test_failed_logins_count_against_the_address_that_no_client_can_choose(folder: Path, kind: str) -> None:
    settings = {"behind_proxy": "http", "trusted_proxies": "127.0.0.1,198.51.100.0/24", "admin_login_failures": 1}
    with Flagged(folder, kind=kind, **settings) as server:
        for number, lines in enumerate(SENT):
            assert guess(server, f"guess-{number}", lines) == 429
        locked = re.findall(r"'guess-\d+' and from (\S+) are locked", server.output)
    assert locked == list(SENT.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.each_server
def test_no_header_counts_without_behind_proxy(folder: Path, kind: str) -> None:
    with Flagged(folder, kind=kind, admin_login_failures=1) as server:
        assert guess(server, "guess", ("9.0.0.1",)) == 429
        assert "and from 127.0.0.1 are locked" in server.output


def guess(server: Server, name: str, lines: tuple[str, ...]) -> int:
    """Fail to log in, behind what says these lines of X-Forwarded-For; return the status."""
    headers = [("X-Forwarded-For", line) for line in lines]
    with httpx.Client(base_url=server.url, headers=headers, verify=False, timeout=60) as browser:
        form = {**token(browser.get("/admin/login/")), "username": name, "password": "wrong"}
        return browser.post("/admin/login/", data=form).status_code


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    """A server of each kind, which asks nobody on this machine for a key."""
    with Server(folder, kind=request.param) as server:
        yield server


@pytest.mark.each_server
def test_what_speaks_an_old_http_is_a_proxy_and_needs_a_key(server: Server) -> None:
    for request in (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", RAW_UPGRADE, LARGE):
        statuses = [status(server, request.replace(b"HTTP/1.1", version)) for version in (b"HTTP/1.1", b"HTTP/1.0")]
        assert (statuses[0] < 300, statuses[1]) == (True, 401), request


def status(server: Server, request: bytes) -> int:
    """Send bytes, and return the status of the answer that begins."""
    with raw_connection(server.port) as raw:
        raw.sendall(request)
        return int(raw.recv(1024).split()[1])
