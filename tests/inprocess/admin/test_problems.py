"""Pages of what did not work: none is Django's own, and each says what helps."""

from html import unescape
from unittest import mock

import pytest
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import OperationalError
from django.http import HttpResponse
from django.test import Client
from django.urls import resolve

from responses_app.admin.requests import POLICY

LOGIN = "/admin/login/"
PROXY = {"HTTP_HOST": "127.0.0.1:8000"}  # of a proxy that says nothing of the address that people use
DJANGOS = ("DEBUG", "csrf", "Django", "Server Error", "<h1>Not Found", "403 Forbidden", "Bad Request", "<style")


def checked(answer: HttpResponse, status: int, *said: str) -> str:
    """Assert that a page is ours, and says this."""
    text = unescape(answer.content.decode())
    assert answer.status_code == status, text
    assert "places.css" in text
    assert answer.headers["content-security-policy"] == POLICY
    assert [each for each in DJANGOS if each in text] == []
    assert [each for each in said if each not in text] == [], text
    return text


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (
            {**PROXY, "HTTP_ORIGIN": "https://models.example.com"},
            ("BEHIND_PROXY=tls", "TRUSTED_ORIGINS=https://models"),
        ),
        (
            {**PROXY, "HTTP_ORIGIN": "http://models.example.com"},
            ("BEHIND_PROXY=http", "you called http://127.0.0.1:8000"),
        ),
        ({"HTTP_ORIGIN": '"><script>alert(1)</script>'}, ("do not send it again",)),
        ({"secure": True}, ("the header Referer",)),
        ({"secure": True, "HTTP_REFERER": "https://a.example/b/c"}, ("form came from https://a.example,", "=tls")),
        ({"secure": True, "HTTP_REFERER": "http://a.example/b"}, ("form came from http://a.example,", "=http")),
        ({}, ("had expired",)),
    ],
)
def test_a_form_that_is_not_taken_says_why(db: None, headers: dict[str, str], said: tuple[str, ...]) -> None:
    answer = Client(enforce_csrf_checks=True).post(LOGIN, {"username": "a"}, **headers)  # type: ignore[arg-type]
    checked(answer, 403, *said)
    assert b"<script>" not in answer.content


def test_a_form_whose_page_is_old_is_to_be_opened_again(db: None) -> None:
    client = Client(enforce_csrf_checks=True)
    client.get(LOGIN)
    checked(client.post(LOGIN, {"csrfmiddlewaretoken": "a" * 64}), 403, "had expired", "Open the page again")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (SuspiciousOperation("too many fields"), 400, "does not take this form"),
        (PermissionDenied(), 403, "may not do this"),
        (RuntimeError("broken here"), 500, "Something broke in the server"),
    ],
)
def test_what_fails_has_a_page_of_ours(db: None, error: Exception, status: int, said: str) -> None:
    client = Client(raise_request_exception=False)
    resolve(LOGIN)  # which loads the paths, once: not while a mock is among their views
    with mock.patch("responses_app.admin.requests.admin.site.login", side_effect=error):
        checked(client.get(LOGIN), status, said)


def test_a_page_needs_no_database(admin: Client) -> None:
    with mock.patch("django.contrib.sessions.backends.db.SessionStore.load", side_effect=OperationalError("away")):
        checked(admin.get("/admin/nothing/"), 503, "Try again")
        checked(admin.get("/watch/nothing"), 404, "nothing at this address")


def test_only_people_get_a_page_where_nothing_is(admin: Client) -> None:
    checked(admin.get("/admin/nothing/here/"), 404, "nothing at this address")
    assert Client().get("/nothing").json()["error"]["code"] == "not_found"
