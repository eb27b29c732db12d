"""Settings as in production: Django finds nothing to say of them, and the admin behind a proxy with TLS is what it is
without one."""

import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.kit.people import NAME, token
from tests.kit.server import ROOT, Server, clean_environ

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
