"""API keys in the admin: made and shown once, listed without their secret, revoked."""

import re

from django.contrib.admin.models import LogEntry
from django.test import Client

from responses_app.models import ApiKey, Project
from responses_app.protocol.api_keys import digest_of
from responses_app.stores.database.callers import create_key
from tests.inprocess.admin.conftest import ClientWith

LIST = "/admin/responses_app/apikey/"
NEW = f"{LIST}add/"


def made(client: Client, **fields: object) -> str:
    """Make a key by the form, and return it."""
    answer = client.post(NEW, {"project": "team-a", "name": "ci", **fields})
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    found = re.search(r'<code class="id">(sk-[\w-]+)</code>', answer.content.decode())
    assert found, answer.content.decode()
    return found.group(1)


def test_a_key_is_shown_once_and_kept_as_its_digest(admin: Client) -> None:
    secret = made(admin, scopes=["api.responses.write"], allowed_models="a, b,a", requests_per_minute=7)
    row = ApiKey.objects.get()
    assert row.digest == digest_of(secret)
    assert (row.project_id, row.name, row.requests_per_minute) == ("team-a", "ci", 7)
    assert (row.scopes, row.allowed_models) == (["api.responses.write"], ["a", "b"])
    shown = admin.get(LIST).content.decode()
    assert row.prefix in shown
    assert secret not in shown
    assert secret not in str(list(LogEntry.objects.values()))


def test_projects_are_made_as_they_are_named(admin: Client) -> None:
    made(admin)
    made(admin)
    assert Project.objects.count() == 1


def test_what_makes_no_key_says_why(admin: Client) -> None:
    for fields, said in [
        ({"project": "a b"}, "Enter a valid value"),
        ({"expires_at_0": "2001-01-01", "expires_at_1": "00:00"}, "future"),
        ({"scopes": ["all"]}, "Select a valid choice"),
        ({"requests_per_minute": "-1"}, "greater than or equal to 1"),
    ]:
        answer = admin.post(NEW, {"project": "team-a", **fields})
        assert said in answer.content.decode(), fields
    assert not ApiKey.objects.exists()


def test_keys_are_revoked(admin: Client) -> None:
    rows = [create_key("team-a")[1] for _ in range(2)]
    answer = admin.post(LIST, {"action": "revoke", "_selected_action": [rows[0].pk]}, follow=True)
    assert "1 revoked" in str([str(message) for message in answer.context["messages"]])
    assert [row.revoked_at is not None for row in ApiKey.objects.order_by("created_at")] == [True, False]
    assert LogEntry.objects.filter(change_message__contains="Revoked").count() == 1


def test_who_may_look_alone_makes_and_revokes_nothing(client_with: ClientWith) -> None:
    client = client_with("view_apikey")
    row = create_key("team-a")[1]
    assert client.get(NEW).status_code == client.post(NEW, {"project": "x"}).status_code == 403
    client.post(LIST, {"action": "revoke", "_selected_action": [row.pk]}, follow=True)
    row.refresh_from_db()
    assert row.revoked_at is None
    assert row.prefix in client.get(LIST).content.decode()
