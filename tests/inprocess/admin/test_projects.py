"""Projects and API keys in the admin: keys are shown once; limits are seen and changed, by who may."""

import json
import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from responses_app.extensions.console.admin.projects import LimitsForm
from responses_app.protocol.api_keys import digest_of
from responses_app.resources.audit.model import AuditRow
from responses_app.resources.projects.callers import create_key
from responses_app.resources.projects.model import ApiKey, Project
from tests.inprocess.admin.conftest import ClientWith

LIST = "/admin/responses_app/project/"
NOTHING = {"requests_per_minute": "", "concurrent_responses": ""}


def page(project: str) -> str:
    return f"{LIST}{project}/change/"


def test_limits_are_changed_and_shown(admin: Client) -> None:
    create_key("team-a")
    create_key("team-a")
    answer = admin.post(page("team-a"), {**NOTHING, "requests_per_minute": "60", "tokens_per_day": "5000000"})
    assert answer.status_code == 302
    row = Project.objects.get()
    assert (row.requests_per_minute, row.tokens_per_day, row.websockets) == (60, 5_000_000, None)
    shown = admin.get(LIST).content.decode()
    assert 'name="form-0-requests_per_minute" value="60"' in shown
    assert 'name="form-0-tokens_per_day" value="5000000"' in shown
    assert 'class="field-keys_counted">2<' in shown
    assert LogEntry.objects.count() == 1
    before = {"initial-requests_per_minute": "60", "initial-tokens_per_day": "5000000"}
    admin.post(page("team-a"), {**NOTHING, **before, "tokens_per_day": ""})
    row.refresh_from_db()
    assert (row.requests_per_minute, row.tokens_per_day) == (None, None)


def test_its_name_stays_and_what_is_not_a_limit_is_refused(admin: Client) -> None:
    create_key("team-a")
    admin.post(page("team-a"), {"name": "other"})
    assert Project.objects.get().name == "team-a"
    answer = admin.post(page("team-a"), {"websockets": "-1"})
    assert "greater than or equal to 1" in answer.content.decode()
    assert Project.objects.get().websockets is None


def rows(client: Client, address: str) -> dict[str, str]:
    """Return the fields of a list's form, as a browser has them."""
    text = client.get(address).content.decode()
    inputs = re.findall(r'<input type="(?:hidden|number)" name="((?:initial-)?form-[^"]+)"(?: value="([^"]*)")?', text)
    assert inputs, text
    return {**dict(inputs), "_save": "Save"}


def test_limits_are_changed_in_the_list_and_each_is_recorded(admin: Client) -> None:
    for project in ("a", "b", "c"):
        create_key(project)
    form = rows(admin, LIST)
    changes = {"form-0-requests_per_minute": "60", "form-1-websockets": "3", "form-1-tokens_per_day": "2147483647"}
    assert admin.post(LIST, {**form, **changes}).status_code == 302
    kept = {row.pk: (row.requests_per_minute, row.websockets, row.tokens_per_day) for row in Project.objects.all()}
    assert kept == {"a": (60, None, None), "b": (None, 3, 2**31 - 1), "c": (None, None, None)}
    entries = AuditRow.objects.filter(action="limits_changed").order_by("number")
    assert [(row.project, row.subject, json.loads(row.detail)) for row in entries] == [
        ("a", "a", {"requests_per_minute": 60}),
        ("b", "b", {"websockets": 3, "tokens_per_day": 2**31 - 1}),
    ]
    admin.post(LIST, {**rows(admin, LIST), "form-0-requests_per_minute": ""})
    assert Project.objects.get(pk="a").requests_per_minute is None


@pytest.mark.parametrize("value", ["0", "-1", "2147483648", "1.5", "many", "9" * 400, "1e3", "\0"])
def test_a_list_takes_what_the_command_line_takes(admin: Client, value: str) -> None:
    create_key("a")
    answer = admin.post(LIST, {**rows(admin, LIST), "form-0-websockets": value})
    assert answer.status_code == 200
    assert "Please correct the error" in answer.content.decode()
    assert Project.objects.get().websockets is None
    assert not AuditRow.objects.filter(action="limits_changed").exists()


def test_a_limit_of_spending_needs_prices_and_may_be_what_the_api_takes(admin: Client) -> None:
    for project, cents in (("a", 0), ("b", 10**15), ("c", None)):
        create_key(project)
        Project.objects.filter(pk=project).update(monthly_spend_cents=cents)
    for address, field in ((LIST, "form-2-monthly_spend_cents"), (page("c"), "monthly_spend_cents")):
        form = rows(admin, LIST) if address == LIST else NOTHING
        answer = admin.post(address, {**form, field: "5"})
        assert "Set PRICES first" in answer.content.decode()
    # Those of others are no reason to refuse a change, although they were set when there were prices.
    assert admin.post(LIST, {**rows(admin, LIST), "form-2-websockets": "3"}).status_code == 302
    kept = {row.pk: (row.monthly_spend_cents, row.websockets) for row in Project.objects.all()}
    assert kept == {"a": (0, None), "b": (10**15, None), "c": (None, 3)}


def test_two_operators_do_not_overwrite_each_other(admin: Client) -> None:
    for project in ("a", "b"):
        create_key(project)
    for address, field in ((LIST, "form-0-{}"), (page("a"), "{}")):
        Project.objects.update(requests_per_minute=None, websockets=None)
        mine = rows(admin, LIST) if address == LIST else {"initial-requests_per_minute": "", "initial-websockets": ""}
        Project.objects.filter(pk="a").update(requests_per_minute=7)  # meanwhile
        # Another limit of the same row: both are kept.
        assert admin.post(address, {**mine, field.format("websockets"): "3"}).status_code == 302
        row = Project.objects.get(pk="a")
        assert (row.requests_per_minute, row.websockets) == (7, 3)
        answer = admin.post(address, {**mine, field.format("requests_per_minute"): "9"})
        assert "Somebody else has set this to 7 meanwhile" in answer.content.decode()
        assert Project.objects.get(pk="a").requests_per_minute == 7


def test_what_changes_while_a_form_is_saved_is_not_overwritten(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    create_key("a")
    form = rows(admin, LIST)

    def changed_before(form: LimitsForm) -> dict[str, Any]:
        Project.objects.update(websockets=7)
        return form.cleaned_data

    monkeypatch.setattr(LimitsForm, "clean", changed_before)
    answer = admin.post(LIST, {**form, "form-0-websockets": "3"}, follow=True)
    assert "somebody else has changed these limits at the same time" in answer.content.decode()
    assert Project.objects.get().websockets == 7
    assert not AuditRow.objects.filter(action="limits_changed").exists()


def test_limits_of_keys_are_changed_in_their_list(admin: Client, client_with: ClientWith) -> None:
    address = "/admin/responses_app/apikey/"
    _, key = create_key("a", name="mine")
    assert admin.post(address, {**rows(admin, address), "form-0-concurrent_responses": "2"}).status_code == 302
    key.refresh_from_db()
    assert (key.concurrent_responses, key.name) == (2, "mine")
    [entry] = AuditRow.objects.filter(action="limits_changed")
    assert (entry.subject, entry.project, json.loads(entry.detail)) == (key.pk, "a", {"concurrent_responses": 2})
    looker = client_with("view_apikey")
    assert "rs-limit" not in looker.get(address).content.decode()
    assert looker.post(address, {**rows(admin, address), "form-0-websockets": "2"}).status_code == 403
    assert "rs-limit" not in admin.get("/admin/responses_app/adminkey/").content.decode()


def test_a_retention_that_erases_has_to_be_meant(admin: Client) -> None:
    create_key("team-a")
    assert 'value="server"' in admin.get(page("team-a")).content.decode()
    refused = admin.post(page("team-a"), {**NOTHING, "retention": "never"}).content.decode()
    assert "what is past the retention is erased for good" in refused
    assert "is not one of" in admin.post(page("team-a"), {**NOTHING, "retention": "0.5"}).content.decode()
    assert Project.objects.get().retention_hours is None
    assert not AuditRow.objects.filter(action="retention_changed").exists()
    assert admin.post(page("team-a"), {**NOTHING, "retention": "never", "erase": "on"}).status_code == 302
    assert Project.objects.get().retention_hours == 0
    assert 'class="field-retention_shown">never<' in admin.get(LIST).content.decode()
    admin.post(page("team-a"), {**NOTHING, "websockets": "1"})  # says nothing of it
    assert Project.objects.get().retention_hours == 0
    admin.post(page("team-a"), {**NOTHING, "retention": "forever"})
    assert Project.objects.get().retention_hours == -1
    told = AuditRow.objects.filter(action="retention_changed").order_by("number")
    assert [json.loads(row.detail)["retention"] for row in told] == ["never", "forever"]


KEYS = "/admin/responses_app/apikey/"
NEW = f"{KEYS}add/"


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
    shown = admin.get(KEYS).content.decode()
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
    answer = admin.post(KEYS, {"action": "revoke", "_selected_action": [rows[0].pk]}, follow=True)
    assert "1 revoked" in str([str(message) for message in answer.context["messages"]])
    assert [row.revoked_at is not None for row in ApiKey.objects.order_by("created_at")] == [True, False]
    assert LogEntry.objects.filter(change_message__contains="Revoked").count() == 1


def test_who_may_look_alone_makes_and_revokes_nothing(client_with: ClientWith) -> None:
    client = client_with("view_apikey")
    row = create_key("team-a")[1]
    assert client.get(NEW).status_code == client.post(NEW, {"project": "x"}).status_code == 403
    client.post(KEYS, {"action": "revoke", "_selected_action": [row.pk]}, follow=True)
    row.refresh_from_db()
    assert row.revoked_at is None
    assert row.prefix in client.get(KEYS).content.decode()
