"""Projects and keys over the API: OpenAI's SDK against every path that is served, and who may use them."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai.types.admin.organization import AdminAPIKey, Project
from openai.types.admin.organization.projects import ProjectAPIKey, ProjectServiceAccount
from websockets.exceptions import InvalidStatus

from responses_app.api.endpoints import ENDPOINTS
from responses_app.protocol.api_keys import MANAGES, Area
from responses_app.resources.projects.fields import MAX_KEY_SECONDS
from responses_app.web.endpoint import Endpoint
from tests.kit.clients import Socket
from tests.kit.closed import bearer, post
from tests.kit.fixtures import module_server
from tests.kit.inprocess import ClosedServer
from tests.kit.stored import stored
from tests.kit.waiting import looks

OUT_WITHIN = 10.0  # seconds: 2, and what a machine that is busy takes
OURS = [each for each in ENDPOINTS if each.scope is Area.MANAGEMENT]
OTHERS = [each for each in ENDPOINTS if each.scope is not Area.MANAGEMENT and not each.is_open]
PROJECTS = "/v1/organization/projects"
ADMIN_KEYS = "/v1/organization/admin_api_keys"
TRAIL = "SELECT action, actor_kind, actor_id, actor_name, project, subject FROM responses_app_auditrow ORDER BY number"


closed = module_server("organization", ClosedServer, auth="on", model_name="m")


def is_out(server: ClosedServer, key: str) -> None:
    """Wait until a key opens no more, for as long as that may take."""
    assert any(post(server, key).status_code == 401 for _ in looks(OUT_WITHIN))


def error_of(answer: httpx.Response, status: int) -> dict[str, str]:
    """Return the error, which has this status."""
    assert answer.status_code == status, answer.text
    error: dict[str, str] = answer.json()["error"]
    return error


def test_an_admin_key_is_one_to_look_at(admin: str) -> None:
    assert re.fullmatch(r"sk-admin-[\w-]{43}", admin)


@pytest.mark.each_database
def test_projects_are_made_listed_renamed_and_archived(closed: ClosedServer, sdk: openai.OpenAI) -> None:
    projects = sdk.admin.organization.projects
    named, worded = projects.create(name="Finance"), projects.create(name="Büro <b>&\"' =1")
    assert (named.id, named.name, named.status, named.archived_at) == ("Finance", "Finance", "active", None)
    assert worded.id.startswith("proj_")
    assert worded.name == "Büro <b>&\"' =1"
    assert projects.retrieve(worded.id) == worded
    renamed = projects.update(named.id, name="Finance of Europe")
    assert (renamed.id, renamed.name) == ("Finance", "Finance of Europe")
    assert projects.update(named.id) == renamed
    listed = list(projects.list(limit=1))  # all pages, of one each
    assert [each.id for each in listed][:2] == [worded.id, "Finance"]
    assert len({each.id for each in listed}) == len(listed)
    gone = projects.archive(worded.id)
    assert (gone.status, gone.archived_at is not None) == ("archived", True)
    assert projects.archive(worded.id) == gone, "it stays what it was"
    assert worded.id not in [each.id for each in projects.list()]
    assert worded.id in [each.id for each in projects.list(include_archived=True)]
    for change in (
        lambda: projects.update(worded.id, name="x"),
        lambda: projects.service_accounts.create(worded.id, name="x"),
    ):
        with pytest.raises(openai.BadRequestError, match="archived, which is final"):
            change()
    with pytest.raises(openai.BadRequestError, match="Choose another name"):
        projects.create(name="Finance")
    with pytest.raises(openai.BadRequestError, match="cannot be archived"):
        projects.archive("default")


@pytest.mark.each_database
def test_a_key_is_made_used_narrowed_and_revoked(closed: ClosedServer, sdk: openai.OpenAI) -> None:
    projects = sdk.admin.organization.projects
    project = projects.create(name="atlas")
    made: Any = projects.service_accounts.create(project.id, name="ci", expires_in_seconds=3600)
    assert made.role == "member"
    assert made.api_key.value.startswith("sk-")
    assert made.api_key.expires_at == made.created_at + 3600
    secret = made.api_key.value
    assert post(closed, secret).json()["status"] == "completed"

    keys = projects.api_keys
    (listed,) = keys.list(project.id)
    assert isinstance(listed, ProjectAPIKey)
    assert (listed.id, listed.name, listed.redacted_value) == (made.api_key.id, "ci", f"{secret[:9]}...")
    assert listed.owner.service_account.id == made.id
    assert keys.retrieve(listed.id, project_id=project.id) == listed
    assert list(keys.list(project.id, owner_project_access="inactive")) == []
    assert list(keys.list(project.id, owner_project_access="active")) == [listed]

    later = keys.update(listed.id, project_id=project.id, expires_in_seconds=7200, scopes=["api.all.read"])
    assert later.expires_at > listed.expires_at
    assert any(post(closed, secret).status_code == 403 for _ in looks(OUT_WITHIN))
    assert httpx.get(f"{closed.base_url}/models", headers=bearer(secret), verify=False).status_code == 200
    assert keys.update(listed.id, project_id=project.id, scopes=[]).expires_at == later.expires_at
    assert keys.delete(listed.id, project_id=project.id).deleted
    is_out(closed, secret)
    with pytest.raises(openai.NotFoundError):
        keys.retrieve(listed.id, project_id=project.id)
    assert list(keys.list(project.id)) == []


def test_a_service_account_is_its_key(closed: ClosedServer, sdk: openai.OpenAI) -> None:
    projects = sdk.admin.organization.projects
    project = projects.create(name="accounts").id
    accounts = projects.service_accounts
    first, second = (accounts.create(project, name=name) for name in ("one", "two"))
    assert first.api_key.expires_at is None
    assert [each.id for each in accounts.list(project, limit=1)] == [second.id, first.id]
    renamed = accounts.update(first.id, project_id=project, name="uno", role="member")
    assert isinstance(renamed, ProjectServiceAccount)
    assert accounts.retrieve(first.id, project_id=project).name == "uno"
    assert accounts.delete(first.id, project_id=project).deleted
    is_out(closed, first.api_key.value)
    with pytest.raises(openai.NotFoundError):
        accounts.delete(first.id, project_id=project)
    with pytest.raises(openai.BadRequestError, match="A service account is a key here"):
        accounts.create(project, name="x", create_service_account_only=True)
    with pytest.raises(openai.BadRequestError, match="are its scopes"):
        accounts.update(second.id, project_id=project, role="owner")


def test_admin_keys_are_made_listed_and_revoked(closed: ClosedServer, sdk: openai.OpenAI, admin: str) -> None:
    keys = sdk.admin.organization.admin_api_keys
    made = keys.create(name="second", expires_in_seconds=60)
    assert made.value.startswith("sk-admin-")
    assert made.expires_at == made.created_at + 60
    with openai.OpenAI(base_url=closed.base_url, api_key="", admin_api_key=made.value, max_retries=0) as other:
        found = other.admin.organization.admin_api_keys.retrieve(made.id)
    assert isinstance(found, AdminAPIKey)
    assert (found.name, found.redacted_value) == ("second", f"{made.value[:15]}...")
    assert "value" not in found.model_dump()
    newest_first = list(keys.list(limit=1))  # all pages, of one each
    assert newest_first[0] == found
    assert list(keys.list(order="asc")) == newest_first[::-1]
    shown = [each.redacted_value for each in newest_first]
    assert f"{admin[:15]}..." in shown
    assert len({*shown}) == len(shown), "they can be told apart"
    assert keys.delete(made.id).deleted
    asked = {"headers": bearer(made.value), "verify": False}
    assert any(httpx.get(closed.url + ADMIN_KEYS, **asked).status_code == 401 for _ in looks(OUT_WITHIN))  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError):
        keys.retrieve(made.id)


def test_what_is_done_is_in_the_audit_trail(closed: ClosedServer, admin: str) -> None:
    with httpx.Client(base_url=closed.url, headers=bearer(admin), verify=False, timeout=30) as client:
        by = [key["id"] for key in client.get(ADMIN_KEYS).json()["data"] if key["name"] == "first"]
        before = len(stored(closed, TRAIL))

        def done(method: str, path: str, **fields: object) -> Any:
            answer = client.request(method, path, json=fields if method == "POST" else None)
            assert answer.status_code == 200, answer.text
            return answer.json()

        done("POST", PROJECTS, name="seen")
        done("POST", f"{PROJECTS}/seen", name="Seen by all")
        done("POST", f"{PROJECTS}/seen")  # says nothing of a name
        account = done("POST", f"{PROJECTS}/seen/service_accounts", name="one")["id"]
        done("POST", f"{PROJECTS}/seen/service_accounts/{account}", name="two")
        done("POST", f"{PROJECTS}/seen/api_keys/{account}", expires_in_seconds=600)
        done("DELETE", f"{PROJECTS}/seen/api_keys/{account}")
        done("POST", f"{PROJECTS}/seen/archive")
        other = done("POST", ADMIN_KEYS, name="other")["id"]
        done("DELETE", f"{ADMIN_KEYS}/{other}")
        assert client.delete(f"{ADMIN_KEYS}/{other}").status_code == 404  # nothing is done
    assert [list(row) for row in stored(closed, TRAIL)[before:]] == [
        [action, "key", *by, "first", project, subject]
        for action, project, subject in (
            ("project_created", "seen", "seen"),
            ("project_changed", "seen", "seen"),
            ("key_created", "seen", account),
            ("key_changed", "seen", account),
            ("key_changed", "seen", account),
            ("key_revoked", "seen", account),
            ("project_archived", "seen", "seen"),
            ("key_created", "", other),
            ("key_revoked", "", other),
        )
    ]


def test_what_is_stored_of_an_archived_project_stays_and_its_keys_are_out(
    closed: ClosedServer, sdk: openai.OpenAI
) -> None:
    projects = sdk.admin.organization.projects
    keys = {}
    for name in ("going", "staying"):
        made = projects.service_accounts.create(projects.create(name=name).id, name="k").api_key
        keys[name] = made.value
        assert post(closed, made.value).status_code == 200
    old = closed.new_key("--project", "going")  # as an operator makes one
    projects.archive("going")
    for key in (keys["going"], old):
        is_out(closed, key)
    told = post(closed, old).json()["error"]["message"]
    assert "its project is archived" in told
    assert post(closed, keys["staying"]).status_code == 200
    assert closed.manage("shell", "--no-imports", "-c", LOOK_AT_IT).split("\n")[-3:-1] == ["True", "project_archived"]


def path_of(endpoint: Endpoint) -> str:
    """Return its path, with ids of nothing."""
    return re.sub(r"{\w+}", "x", endpoint.shown_path)


def test_no_other_method_is_taken(raw: httpx.Client) -> None:
    for path in {path_of(each) for each in OURS}:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            is_taken = raw.request(method, path).status_code != 405
            assert is_taken == (method in {each.method for each in OURS if path_of(each) == path}), (method, path)


async def test_an_admin_key_opens_no_websocket(closed: ClosedServer, admin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await Socket.open(closed.ws_url, additional_headers=bearer(admin))
    assert refused.value.response.status_code == 403
    assert b"An admin key opens /v1/organization only" in refused.value.response.body


def test_an_admin_key_opens_nothing_else(raw: httpx.Client) -> None:
    assert len(OTHERS) > 60
    for each in OTHERS:
        answer = raw.request(each.method, path_of(each), json={} if each.method == "POST" else None)
        told = error_of(answer, 403)["message"]
        assert "An admin key opens /v1/organization only" in told, each.path
        assert "service_accounts makes one" in told


def test_no_other_key_opens_the_organization(closed: ClosedServer) -> None:
    assert len(OURS) == 31
    keys = [closed.key, closed.new_key("--scopes", "api.engine.write,api.metrics.read,api.responses.write")]
    for each in OURS:
        body = {} if each.method == "POST" else None
        for key in keys:
            headers = bearer(key)
            answer = httpx.request(each.method, closed.url + path_of(each), json=body, headers=headers, verify=False)
            error = error_of(answer, 403)
            assert error["code"] == "missing_scope"
            assert "create_key --admin" in error["message"]
        for headers in ({}, bearer("sk-admin-" + "A" * 43)):
            answer = httpx.request(each.method, closed.url + path_of(each), json=body, headers=headers, verify=False)
            assert error_of(answer, 401)["code"] == "invalid_api_key"


def test_an_open_server_asks_for_an_admin_key_all_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ClosedServer(tmp_path_factory.mktemp("open"), auth="off") as server:
        assert post(server, None).status_code == 200
        key, admin = server.new_key(), server.new_key("--admin")
        for headers, status in (({}, 401), (bearer("sk-anything"), 401), (bearer(key), 403), (bearer(admin), 200)):
            answer = httpx.get(server.url + PROJECTS, headers=headers, verify=False)
            assert answer.status_code == status, headers
        told = httpx.post(server.url + ADMIN_KEYS, json={"name": "x"}, verify=False).json()["error"]["message"]
        assert "needs an admin key, always" in told


# Whether there are its responses, and why the command line makes no key of it.
LOOK_AT_IT = """
from responses_app.models import Response
from responses_app.resources.projects.fields import Unchangeable
from responses_app.resources.projects.callers import create_key
print(Response.objects.filter(project="going").exists())
try:
    create_key("going")
except Unchangeable as problem:
    print(problem.error.code)
"""
LONG = "x" * 10_000
ACCOUNTS, KEYS = f"{PROJECTS}/default/service_accounts", f"{PROJECTS}/default/api_keys"
NAMES_REFUSED = ["", " ", "a\nb", "a\0b", "\u202eabc", "x" * 257, LONG, 7, None, ["a"], {"a": 1}]
SECONDS_REFUSED = [0, -1, MAX_KEY_SECONDS + 1, 10**30, 1.5, "60", True, []]


def test_names_and_times_that_are_refused(raw: httpx.Client) -> None:
    made = raw.post(ACCOUNTS, json={"name": "k"}).json()["id"]
    for name in NAMES_REFUSED:
        for path in (PROJECTS, ADMIN_KEYS, ACCOUNTS):
            assert error_of(raw.post(path, json={"name": name}), 400)["param"] == "name", name
    for seconds in SECONDS_REFUSED:
        for path in (ADMIN_KEYS, ACCOUNTS, f"{KEYS}/{made}"):
            answer = raw.post(path, json={"name": "x", "expires_in_seconds": seconds})
            assert error_of(answer, 400)["param"] == "expires_in_seconds", seconds


@pytest.mark.parametrize("unknown", ["nothing", LONG, "%00", "a%0Ab", "%F0%9F%98%80", "key_first'--", "..."])
def test_ids_that_are_not_there(raw: httpx.Client, unknown: str) -> None:
    for each in OURS:
        if each.parameters and each.path != f"{PROJECTS}/{{project_id}}/archive":
            last = each.parameters[-1]
            path = re.sub(
                r"{\w+}", lambda found, last=last: unknown if found[0] == f"{{{last}}}" else "default", each.path
            )
            answer = raw.request(each.method, path, json={"name": "x"} if each.method == "POST" else None)
            error = error_of(answer, 404)
            assert error["param"] == last
            assert len(error["message"]) < 200


def test_a_key_of_another_project_is_not_there(raw: httpx.Client) -> None:
    ours, theirs = (raw.post(PROJECTS, json={"name": name}).json()["id"] for name in ("mine", "theirs"))
    made = raw.post(f"{PROJECTS}/{theirs}/service_accounts", json={"name": "k"}).json()["id"]
    for kind in ("api_keys", "service_accounts"):
        path = f"{PROJECTS}/{ours}/{kind}/{made}"
        for method in ("GET", "POST", "DELETE"):
            error_of(raw.request(method, path, json={"name": "x"} if method == "POST" else None), 404)
        assert raw.get(f"{PROJECTS}/{ours}/{kind}?after={made}").json()["data"] == []  # a place, as any id is
        assert raw.get(f"{PROJECTS}/{ours}/{kind}").json()["data"] == []
        assert raw.get(path.replace(ours, theirs)).status_code == 200


def test_lists_that_are_asked_for_wrongly(raw: httpx.Client) -> None:
    for path in (PROJECTS, ADMIN_KEYS, KEYS, ACCOUNTS):
        for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nothing", f"after={LONG}"):
            assert error_of(raw.get(f"{path}?{query}"), 400)["param"] == query.partition("=")[0], path
        assert raw.get(f"{path}?colour=red").headers["respsite-ignored"] == "colour"
        assert "Did you mean 'order'?" in error_of(raw.get(f"{path}?ordr=asc"), 400)["message"]
    for path, param in ((PROJECTS, "include_archived"), (KEYS, "owner_project_access")):
        assert error_of(raw.get(f"{path}?{param}=2"), 400)["param"] == param


def test_other_wrong_fields(raw: httpx.Client) -> None:
    for field in ("external_key_id", "geography", "residency"):
        answer = raw.post(PROJECTS, json={"name": "x", field: "eu"})
        assert error_of(answer, 400)["code"] == "unsupported_parameter"
    made = raw.post(ACCOUNTS, json={"name": "k"}).json()["id"]
    for scopes in (["nothing"], "api.all.read", [7], ["api.model.read"] * 100, *([scope] for scope in MANAGES)):
        error = error_of(raw.post(f"{KEYS}/{made}", json={"scopes": scopes}), 400)
        assert scopes[0] not in MANAGES or error["param"] == "scopes[0]"


def test_a_key_that_has_expired_is_not_changed_any_more(raw: httpx.Client, closed: ClosedServer) -> None:
    made = raw.post(ACCOUNTS, json={"name": "k", "expires_in_seconds": 1}).json()["api_key"]
    assert any(post(closed, made["value"]).status_code == 401 for _ in looks(1 + OUT_WITHIN))
    answer = raw.post(f"{KEYS}/{made['id']}", json={"expires_in_seconds": 60})
    assert error_of(answer, 400)["code"] == "key_expired"


@pytest.mark.each_database
def test_of_many_that_make_a_project_one_does(raw: httpx.Client) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: raw.post(PROJECTS, json={"name": "race"}), range(8)))
    assert sorted(each.status_code for each in answers) == [200, *[400] * 7]


def test_no_value_of_a_key_is_in_the_log(raw: httpx.Client, closed: ClosedServer, admin: str) -> None:
    value = raw.post(ADMIN_KEYS, json={"name": "quiet"}).json()["value"]
    assert value not in closed.output
    assert admin not in closed.output


def test_the_command_line_lists_and_revokes_admin_keys(closed: ClosedServer) -> None:
    key = closed.new_key("--admin", "--name", "of the shell")
    (line,) = [line for line in closed.operate("list_keys").splitlines() if line.endswith("of the shell")]
    assert line.startswith("adminkey_")
    assert f"{key[:15]}…\t(admin key)\tgood" in line
    closed.operate("revoke_key", key[:15])
    assert httpx.get(closed.url + PROJECTS, headers=bearer(key), verify=False).status_code == 401


def test_sdk_types_have_all_that_is_answered(sdk: openai.OpenAI) -> None:
    project = sdk.admin.organization.projects.retrieve("default")
    assert isinstance(project, Project)
    assert project.model_extra == {}
