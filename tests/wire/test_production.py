"""Settings as in production, and proxies in front of each kind of server: whom it counts, and asks for a key."""

import re
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.kit.clients import RAW_UPGRADE, raw_connection
from tests.kit.people import NAME, token
from tests.kit.server import KINDS, ROOT, Server, clean_environ

PRODUCTION = {
    "HOST": "0.0.0.0",
    "ALLOWED_HOSTS": "models.example.com",
    "BEHIND_PROXY": "tls",
    "CSRF_TRUSTED_ORIGINS": "https://models.example.com",
}
FAILURES = 3
_numbers = count(1)


def check(folder: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Have Django check settings for a deployment."""
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    environ = clean_environ(DATA_DIR=str(folder), **settings)
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_django_has_nothing_to_say_of_production(tmp_path: Path) -> None:
    done = check(tmp_path, **PRODUCTION)
    assert done.returncode == 0, done.stderr
    assert "no issues (2 silenced)" in done.stdout


class Served(Server):
    """`manage.py serve`, with a database that is migrated."""

    def _command(self) -> list[str]:
        return [sys.executable, "manage.py", "serve", "--port", str(self.port)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server as it stands behind a proxy with TLS, which these tests are."""
    folder = tmp_path_factory.mktemp("production")
    with Served(folder, behind_proxy="tls", admin_login_failures=FAILURES) as site:
        yield site


def made_up() -> str:
    """Return an address that nobody has yet."""
    return str(ip_address("198.18.0.0") + next(_numbers))


def over_tls(site: Served, address: str = "192.0.2.1") -> httpx.Client:
    """Return the proxy, with what comes from one client, who sends an address of their own making."""
    headers = {
        "X-Forwarded-For": f"{made_up()}, {address}",
        "X-Forwarded-Proto": "https",
        "Referer": f"https://127.0.0.1:{site.port}/",
    }
    return httpx.Client(base_url=site.url, headers=headers, verify=False, timeout=30)


def test_browsers_come_to_the_admin_over_https_alone(site: Served) -> None:
    plain = httpx.get(f"{site.url}/admin/login/", verify=False)
    assert plain.status_code == 301
    assert plain.headers["location"] == f"https://127.0.0.1:{site.port}/admin/login/"
    with over_tls(site) as proxy:
        answer = proxy.get("/admin/login/")
    assert answer.status_code == 200
    assert "secure" in answer.headers["set-cookie"].lower()
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
    assert "default-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_who_looks_after_the_server_needs_no_tls(site: Served, path: str) -> None:
    assert httpx.get(f"{site.url}{path}", verify=False).status_code == 200


def test_everybody_needs_a_key_also_who_does_not_come_through_the_proxy(site: Served) -> None:
    with over_tls(site) as proxy:
        assert proxy.get("/v1/models").status_code == 401
    assert httpx.get(f"{site.url}/v1/models", verify=False).status_code == 401  # a proxy may say nothing of itself
    assert "sk-" in site.output  # the first key, which the first start has made


def test_guesses_count_against_who_makes_them_and_not_against_the_proxy(site: Served) -> None:
    def guess(address: str, name: str) -> int:
        with over_tls(site, address) as proxy:
            page = proxy.get("/admin/login/")
            cookie = page.headers["set-cookie"].partition(";")[0]  # a secure one, which no client would send from here
            form = {**token(page), "username": name, "password": "wrong"}
            return proxy.post("/admin/login/", data=form, headers={"Cookie": cookie}).status_code

    statuses = [guess("192.0.2.66", f"guess-{number}") for number in range(FAILURES + 1)]
    assert statuses[-1] == 429
    assert guess("192.0.2.7", NAME) == 200


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
