"""Guessing at the admin's login: for whom it is locked and for how long, and what counts as one address.

`tests/wire/admin/test_login.py` guesses at two servers.
"""

from datetime import timedelta
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.db.models import F
from django.http import HttpResponse
from django.test import Client, RequestFactory

from responses_app.admin import requests as login_module
from responses_app.admin.requests import client_address

DEFAULT_LIMIT, DEFAULT_LOCK = 10, "900"


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


def test_the_page_says_where_an_account_comes_from(client: Client) -> None:
    page = client.get("/admin/login/").content.decode()
    assert "<code>make superuser</code>" in page
    assert "<code>respsite manage createsuperuser</code>" in page


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
