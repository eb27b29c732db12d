"""The audit trail over the API, and how long projects keep data, by OpenAI's SDK."""

from datetime import UTC, datetime
from typing import Any

import httpx
import openai
import pytest

from responses_app.resources.audit.fields import FAMILIES, OWN, TYPES, Action, type_of
from tests.kit.closed import bearer
from tests.kit.fixtures import module_server
from tests.kit.inprocess import ClosedServer

LOGS = "/v1/organization/audit_logs"
PROJECTS = "/v1/organization/projects"
TIME = 1_780_000_000
FILL = """
from datetime import UTC, datetime
from unittest.mock import patch
from django.contrib.auth import get_user_model
from django.db import connection
from responses_app.resources.audit.fields import Action, Actor, ActorKind, AuditEntry, SERVER
from responses_app.resources.audit import chain
user = get_user_model().objects.create(username="eve", email="eve@example.com")
eve = Actor(ActorKind.USER, str(user.pk), "eve", "10.0.0.7")
key = Actor(ActorKind.KEY, "adminkey_1", "ci", "10.0.0.8")
shell = Actor(ActorKind.COMMAND, name="root")
entries = [
    AuditEntry(eve, Action.SIGNED_IN, "eve"),
    AuditEntry(Actor(ActorKind.NOBODY, address="10.0.0.9"), Action.SIGN_IN_FAILED, "mallory"),
    AuditEntry(eve, Action.CONTENT_VIEWED, "resp_1", "default", {"path": "/admin/"}),
    AuditEntry(key, Action.PROJECT_CREATED, "trailed", "trailed"),
    AuditEntry(key, Action.KEY_CREATED, "key_1", "trailed"),
    AuditEntry(shell, Action.LIMITS_CHANGED, "key_1", "trailed", {"tokens_per_day": 5}),
    AuditEntry(SERVER, Action.KEY_CREATED, "key_first", "default"),
]
for number, entry in enumerate(entries):
    with patch.object(chain, "datetime") as clock:
        clock.now.return_value = datetime.fromtimestamp(%d + number, UTC)
        chain.append(connection, [entry])
print(user.pk)
"""


closed = module_server("trail", ClosedServer, auth="on", model_name="m")


@pytest.fixture(scope="module")
def eve(closed: ClosedServer) -> str:
    """Put entries into the trail, and return the id of their user."""
    return closed.manage("shell", "--no-imports", "-c", FILL % TIME).split()[-1]


@pytest.fixture(scope="module")
def admin(closed: ClosedServer, eve: str) -> str:
    """An admin key."""
    return closed.new_key("--admin", "--name", "first")


def of_then(sdk: openai.OpenAI, **asked: Any) -> list[str]:
    """Return the types of the events that `FILL` made, the oldest first, as far as they are asked for."""
    times = {"gte": TIME, "lt": TIME + 100, **asked.pop("effective_at", {})}
    return [each.type for each in sdk.admin.organization.audit_logs.list(effective_at=times, **asked)][::-1]  # type: ignore[arg-type]


ALL = [
    *("login.succeeded", "login.failed", "respsite.content_viewed", "project.created", "api_key.created"),
    *("rate_limit.updated", "api_key.created"),
]


def test_all_entries_are_listed_with_who_what_and_where(sdk: openai.OpenAI, eve: str) -> None:
    assert of_then(sdk) == ALL
    found: list[Any] = list(sdk.admin.organization.audit_logs.list(effective_at={"gte": TIME, "lt": TIME + 100}))[::-1]
    login, failed, viewed, project, key, limits, first = found
    assert (login.actor.type, login.actor.session.ip_address) == ("session", "10.0.0.7")
    assert (login.actor.session.user.id, login.actor.session.user.email) == (eve, "eve@example.com")
    assert login.login_succeeded == {}
    assert (failed.actor.session.user, failed.actor.session.ip_address) == (None, "10.0.0.9")
    assert viewed.project.id == "default"
    assert (project.project_created.id, project.effective_at) == ("trailed", TIME + 3)
    assert key.api_key_created.id == "key_1"
    assert key.actor.api_key.id == "adminkey_1"
    assert limits.actor is None
    assert first.actor is None
    # Nothing of an entry is left out: `recorded` has all that the export has.
    recorded = limits.model_extra["recorded"]
    assert recorded["action"] == "limits_changed"
    assert recorded["actor"] == {"kind": "command", "id": "", "name": "root"}
    assert recorded["detail"] == {"tokens_per_day": 5}
    assert recorded["at"] == datetime.fromtimestamp(TIME + 5, UTC).isoformat()
    for each in found:
        assert set(each.model_extra) - {each.type} == {"recorded"}  # the SDK takes names with dots for extras


@pytest.mark.each_database
def test_filters(sdk: openai.OpenAI, eve: str) -> None:
    assert of_then(sdk, event_types=["login.failed", "project.created"]) == ["login.failed", "project.created"]
    assert of_then(sdk, event_types=["respsite.content_viewed", "tenant.policy.created"]) == ["respsite.content_viewed"]
    assert of_then(sdk, event_types=["certificate.created"]) == []
    assert of_then(sdk, actor_ids=["adminkey_1"]) == ["project.created", "api_key.created"]
    assert of_then(sdk, actor_ids=[eve, "nobody"]) == ["login.succeeded", "respsite.content_viewed"]
    assert of_then(sdk, actor_emails=["eve@example.com"]) == ["login.succeeded", "respsite.content_viewed"]
    assert of_then(sdk, actor_emails=["%"]) == []
    assert of_then(sdk, resource_ids=["key_1"]) == ["api_key.created", "rate_limit.updated"]
    assert of_then(sdk, project_ids=["default"]) == ["respsite.content_viewed", "api_key.created"]
    assert of_then(sdk, project_ids=["default"], actor_ids=[eve]) == ["respsite.content_viewed"]
    assert of_then(sdk, tenant_only=False) == ALL
    for bounds, count in (({"gt": TIME + 5}, 1), ({"gte": TIME + 5}, 2), ({"lt": TIME + 1}, 1), ({"lte": TIME + 1}, 2)):
        assert len(of_then(sdk, effective_at=bounds)) == count, bounds
    assert of_then(sdk, effective_at={"gt": TIME + 5, "gte": TIME, "lte": TIME + 6}) == ALL[6:]


@pytest.mark.each_database
def test_pages_go_on_and_back(sdk: openai.OpenAI) -> None:
    assert of_then(sdk, limit=2) == ALL
    logs = sdk.admin.organization.audit_logs
    times: Any = {"effective_at": {"gte": TIME, "lt": TIME + 100}}
    every = [each.id for each in logs.list(**times)]
    before = logs.list(**times, before=every[5], limit=2)
    assert [each.id for each in before.data] == every[3:5]
    assert before.has_more
    assert [each.id for each in logs.list(**times, after=every[1], before=every[4]).data] == every[2:4]
    assert [each.id for each in logs.list(**times, before=every[0]).data] == []


def test_that_it_is_read_is_recorded_once_in_a_while(closed: ClosedServer) -> None:
    key = closed.new_key("--admin", "--name", "reader")
    with httpx.Client(base_url=closed.url, headers=bearer(key), verify=False, timeout=30) as client:
        told = client.get(f"{LOGS}?event_types[]={OWN}audit_exported").json()["data"]
        assert client.get(LOGS).is_success
        again = client.get(f"{LOGS}?event_types[]={OWN}audit_exported").json()["data"]
    assert told == again
    assert [each["recorded"]["actor"]["name"] for each in told].count("reader") == 1
    assert "whole" in closed.manage("shell", "--no-imports", "-c", IS_WHOLE)


IS_WHOLE = """
from responses_app.resources.audit.chain import verify
print("broken" if verify().problems else "whole")
"""


@pytest.mark.parametrize(
    ("query", "param"),
    [
        *(("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("after=x", "after")),
        *(("after=audit_log-0", "after"), ("before=audit_log-x", "before")),
        ("event_types[]=nothing", "event_types"),
        *(("event_types[]=api_keys.created", "event_types"), ("event_types[]=respsite.nothing", "event_types")),
        *(("effective_at[gt]=x", "effective_at[gt]"), ("effective_at[eq]=1", "effective_at[eq]")),
        *(("effective_at=1", "effective_at"), ("actor_ids[]=%00", "actor_ids"), ("tenant_only=true", "tenant_only")),
        *(("order=asc", "order"), ("limit[]=5", "limit[]"), (f"after={'x' * 5000}", "after")),
    ],
)
def test_what_is_asked_wrongly_is_refused(raw: httpx.Client, query: str, param: str) -> None:
    answer = raw.get(f"{LOGS}?{query}")
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert len(error["message"]) < 900


def test_every_action_has_a_type() -> None:
    types = [type_of(action) for action in Action]
    assert len(set(types)) == len(types)
    assert all(each.startswith(OWN) or each.partition(".")[0] in FAMILIES for each in types)
    assert set(TYPES.values()) <= set(types)


def test_how_long_a_project_keeps_data(sdk: openai.OpenAI, raw: httpx.Client) -> None:
    project = sdk.admin.organization.projects.create(name="kept").id
    retention = sdk.admin.organization.projects.data_retention

    def now() -> tuple[str, int | None]:
        found = retention.retrieve(project)
        assert set(found.model_extra or {}) == {"retention_hours"}
        return found.type, (found.model_extra or {})["retention_hours"]

    assert now() == ("organization_default", None)
    for name in ("zero_data_retention", "none", "organization_default"):
        assert retention.update(project, retention_type=name).type == name  # type: ignore[arg-type]
        assert now() == (name, None)
    retention.update(project, retention_type="none", extra_body={"retention_hours": 72})
    assert now() == ("none", 72)
    path = f"{PROJECTS}/{project}/data_retention"
    for body, param in (
        ({}, "retention_type"),
        ({"retention_type": "modified_abuse_monitoring"}, "retention_type"),
        ({"retention_type": "72"}, "retention_type"),
        ({"retention_type": "none", "retention_hours": 0}, "retention_hours"),
        ({"retention_type": "none", "retention_hours": 87_601}, "retention_hours"),
        ({"retention_type": "none", "retention_hours": "72"}, "retention_hours"),
        ({"retention_type": "zero_data_retention", "retention_hours": 72}, "retention_hours"),
    ):
        answer = raw.post(path, json=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == param
    assert now() == ("none", 72)
    changes = list(sdk.admin.organization.audit_logs.list(resource_ids=[project]))
    assert [each.type for each in changes] == [*[f"{OWN}retention_changed"] * 4, "project.created"]
    sdk.admin.organization.projects.archive(project)
    assert raw.post(path, json={"retention_type": "none"}).json()["error"]["code"] == "project_archived"
