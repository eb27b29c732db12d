"""Guessing at the admin's login: real servers on one database, and what counts as one user and one address."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.db.models import F
from django.http import HttpResponse
from django.test import Client, RequestFactory

from responses_app.admin import requests as login_module
from responses_app.admin.requests import client_address
from tests.kit.people import NAME, PASSWORD, make_superuser, settings_of, token
from tests.kit.server import Server, manage

pytestmark = pytest.mark.any_database

LIMIT = 3
DEFAULT_LIMIT, DEFAULT_LOCK = 10, "900"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Two workers on one database."""
    folder = tmp_path_factory.mktemp("pair")
    first, second = (Server(folder, admin_login_failures=LIMIT, admin_login_lock_seconds=300) for _ in range(2))
    second.log = folder / "second.log"
    make_superuser(first)
    with first, second:
        yield first, second
    for server in (first, second):
        assert "Traceback" not in server.output


@pytest.fixture
def workers(pair: tuple[Server, Server]) -> tuple[Server, Server]:
    """The two workers, with nothing locked."""
    manage("axes_reset", **settings_of(pair[0]))
    return pair


def guess(server: Server, password: str, name: str = NAME) -> httpx.Response:
    """Log in, or try to."""
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as browser:
        form = {**token(browser.get("/admin/login/")), "username": name, "password": password, "next": "/admin/"}
        return browser.post("/admin/login/", data=form)


def test_guesses_are_counted_over_all_workers(workers: tuple[Server, Server]) -> None:
    first, second = workers
    before = len(first.output)  # tests share the servers, in any order
    assert guess(first, "a").status_code == guess(second, "b").status_code == 200
    locked = guess(first, "c")
    assert (locked.status_code, locked.headers["retry-after"]) == (429, "300")
    assert "Too many logins failed" in locked.text
    assert "Try again in 5 minutes." in locked.text
    for server in workers:
        assert guess(server, PASSWORD).status_code == 429, "the right password is refused like any other"
        assert guess(server, "d", name="somebody else").status_code == 429, "and so is the address"
        assert httpx.post(f"{server.base_url}/responses", json={"input": "Hello"}).status_code == 200
    said = [line for line in first.output[before:].splitlines() if "logins to the admin as 'root'" in line]
    assert len(said) == 1
    assert "from 127.0.0.1 are locked for 300 s, after 3 failures" in said[0]
    manage("axes_reset", **settings_of(first))
    assert [guess(server, PASSWORD).status_code for server in workers] == [302, 302]


def test_guesses_at_once_are_not_more(workers: tuple[Server, Server]) -> None:
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda n: guess(workers[n % 2], f"wrong {n}"), range(10)))
    assert LIMIT <= checked_passwords(workers[0]) <= LIMIT + len(workers) - 1
    assert guess(workers[0], PASSWORD).status_code == 429


def checked_passwords(server: Server) -> int:
    """Return how many guesses got as far as the password."""
    lines = manage("axes_list_attempts", **settings_of(server)).splitlines()
    return sum(int(line.split()[-1]) for line in lines)


def attempt(client: Client, name: str, password: str, **meta: str) -> HttpResponse:
    """Log in within this process."""
    return client.post("/admin/login/", {"username": name, "password": password}, **meta)  # type: ignore[arg-type]


@pytest.fixture
def client(db: None, settings: Any) -> Client:
    """A browser that nobody has logged in with, and a user who could; a password is checked at no cost here."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    User.objects.create_superuser("root", password="right")
    return Client()


def test_a_user_is_locked_for_every_address_and_for_a_time(client: Client) -> None:
    for number in range(DEFAULT_LIMIT):
        last = attempt(client, "root", "wrong", REMOTE_ADDR=f"10.0.0.{number}", HTTP_USER_AGENT=f"agent {number}")
    assert (last.status_code, last["retry-after"]) == (429, DEFAULT_LOCK)
    assert attempt(client, "root", "right", REMOTE_ADDR="10.9.9.9").status_code == 429
    assert AccessAttempt.objects.count() == DEFAULT_LIMIT, "what is refused is not kept"
    AccessAttempt.objects.update(attempt_time=F("attempt_time") - timedelta(seconds=int(DEFAULT_LOCK) + 1))
    assert attempt(client, "root", "right", REMOTE_ADDR="10.9.9.9").status_code == 302
    assert AccessAttempt.objects.count() == 0, "what is over is forgotten"


def test_an_address_is_locked_for_every_user_whatever_succeeds_between(client: Client) -> None:
    for number in range(DEFAULT_LIMIT - 1):
        assert attempt(client, f"user {number}", "wrong", REMOTE_ADDR="10.0.0.1").status_code == 200
        if number == 5:
            assert attempt(Client(), "root", "right", REMOTE_ADDR="10.0.0.1").status_code == 302
    assert attempt(client, "another", "wrong", REMOTE_ADDR="10.0.0.1").status_code == 429
    assert attempt(client, "root", "right", REMOTE_ADDR="10.0.0.1").status_code == 429
    assert attempt(client, "root", "right", REMOTE_ADDR="10.0.0.2").status_code == 302


def test_who_is_logged_in_stays_so(client: Client) -> None:
    assert attempt(client, "root", "right").status_code == 302
    for _ in range(DEFAULT_LIMIT):
        attempt(Client(), "root", "wrong")
    assert attempt(Client(), "root", "right").status_code == 429
    assert client.get("/admin/all/").status_code == 200


def test_nobody_waits_for_ever_for_a_turn(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_module, "WAIT_SECONDS", 0.01)
    with login_module._turn:
        answer = attempt(client, "root", "right")
        assert client.get("/admin/login/").status_code == 200
    assert (answer.status_code, answer["retry-after"]) == (429, "1")
    assert "Many are logging in at once." in answer.content.decode()
    assert attempt(client, "root", "right").status_code == 302


@pytest.mark.parametrize(
    ("given", "counted"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
        ("", None),
        ("unix:", None),
    ],
)
def test_what_counts_as_one_address(given: str, counted: str | None) -> None:
    assert client_address(RequestFactory().post("/admin/login/", REMOTE_ADDR=given)) == counted
