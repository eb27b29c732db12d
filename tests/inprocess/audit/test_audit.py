"""The audit trail of a real server: each action by a real request or command, no content in it, and what it refuses."""

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from websockets.exceptions import InvalidStatus
from websockets.sync import client as websockets

from responses_app.resources.audit.fields import Action
from tests.kit.inprocess import ClosedServer
from tests.kit.people import NAME, PASSWORD, in_the_database, log_in, token
from tests.kit.stored import stored
from tests.wire.command_line.program import respsite, settings_of

MARKER = "xylophone-marker"  # in all content
CONTENT = [{"type": "message", "role": "user", "content": f"Do not tell: {MARKER}"}]
SLOW = {"tokens_per_second": 200}
PASS = {"Respsite-Session": "default"}
LIST = "/admin/responses_app"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedServer]:
    with ClosedServer(tmp_path_factory.mktemp("audit"), auth="on", engine_options=SLOW) as server:
        in_the_database(server, f"User.objects.create_user('clerk', password={PASSWORD!r}, is_staff=True)")
        yield server
        assert "Traceback" not in server.output


@pytest.fixture
def browser(server: ClosedServer) -> Iterator[httpx.Client]:
    """A session of this test alone: what another one has looked at is not recorded again in the same session."""
    with closing(log_in(server)) as browser:
        yield browser


@pytest.fixture(scope="module")
def client(server: ClosedServer) -> Iterator[httpx.Client]:
    """A client with a key of the default project."""
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        yield client


def trail(server: ClosedServer, after: int = 0) -> list[dict[str, Any]]:
    """Return the entries behind a number, as they are exported (by the table: an export is an entry itself)."""
    names = "number action actor_kind actor_name project subject address detail".split()
    rows = stored(
        server, f"SELECT {', '.join(names)} FROM responses_app_auditrow WHERE number > {after} ORDER BY number"
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


@contextmanager
def recorded(server: ClosedServer) -> Iterator[list[tuple[str, str, str, str]]]:
    """Give what is recorded while the block runs: action, who, project, subject."""
    before = max((each["number"] for each in trail(server)), default=0)
    found: list[tuple[str, str, str, str]] = []
    yield found
    for each in trail(server, before):
        who = each["actor_name"] if each["actor_kind"] == "user" else each["actor_kind"]
        found.append((each["action"], who, each["project"], each["subject"]))


def made(client: httpx.Client, **fields: object) -> str:
    answer = client.post("/v1/responses", json={"input": CONTENT, **fields})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def conversation_of(client: httpx.Client) -> str:
    return str(client.post("/v1/conversations", json={"items": CONTENT}).json()["id"])


def opening(server: ClosedServer, browser: httpx.Client) -> dict[str, Any]:
    """Return how a page opens a WebSocket by the session of a browser."""
    headers = {"Cookie": f"sessionid={browser.cookies['sessionid']}"}
    return {"origin": server.url, "subprotocols": ["respsite-session.default"], "additional_headers": headers}


def act(browser: httpx.Client, model: str, action: str, *ids: str, **more: str) -> httpx.Response:
    form = {**token(browser.get(f"{LIST}/{model}/")), "action": action, "_selected_action": list(ids), **more}
    return browser.post(f"{LIST}/{model}/", data=form)


def test_who_signs_in_and_who_fails_to(server: ClosedServer) -> None:
    with recorded(server) as found, closing(log_in(server, "clerk")) as own:
        own.post("/admin/logout/", data=token(own.get("/admin/")))
        wrong = {**token(own.get("/admin/login/")), "username": "<b>nobody</b>", "password": MARKER}
        assert own.post("/admin/login/", data=wrong).status_code == 200
    assert found == [
        ("signed_in", "clerk", "", "clerk"),
        ("signed_out", "clerk", "", "clerk"),
        ("sign_in_failed", "nobody", "", "<b>nobody</b>"),
    ]
    assert trail(server)[-1]["address"] == "127.0.0.1"
    assert re.search(r"audit head \d+:[0-9a-f]{64}", server.output)


def test_a_page_is_recorded_once_in_a_while_and_a_download_each_time(
    server: ClosedServer, browser: httpx.Client, client: httpx.Client
) -> None:
    response_id, conversation = made(client), conversation_of(client)
    other = made(client)
    with recorded(server) as found:
        for _ in range(3):
            assert MARKER in browser.get(f"{LIST}/response/{response_id}/change/").text
            browser.get(f"{LIST}/response/{response_id}/change/?part=live")
            browser.get(f"/watch/responses/{response_id}")
            browser.get(f"/watch/responses/{response_id}.json")
            browser.get(f"/watch/responses/{response_id}.trace.json")
        assert MARKER in browser.get(f"{LIST}/conversation/{conversation}/change/").text
        browser.get(f"/watch/compare?left={response_id}&right={other}")
        for _ in range(2):
            assert MARKER in browser.get(f"{LIST}/response/{response_id}/json/").text
        assert MARKER in act(browser, "response", "export", response_id, other).text
        browser.get(f"{LIST}/conversation/")
        assert browser.get("/watch/responses/resp_none").status_code == 404
    assert found == [
        ("content_viewed", NAME, "default", response_id),
        ("content_viewed", NAME, "default", conversation),
        ("content_viewed", NAME, "default", other),
        *[("content_exported", NAME, "default", response_id)] * 2,
        ("content_viewed", NAME, "", "list of responses"),  # with their first words
        *[("content_exported", NAME, "default", each) for each in (response_id, other)],
        ("content_viewed", NAME, "", "list of conversations"),
    ]


def test_a_roll_out_is_content(server: ClosedServer, browser: httpx.Client, client: httpx.Client) -> None:
    for name in ("task-1", "task-2"):
        client.post("/v1/responses", json={"input": CONTENT}, headers={"x-rollout-id": name}).raise_for_status()
    with recorded(server) as found:
        assert browser.get("/watch/rollouts/task-1").status_code == 200
        browser.get("/watch/rollouts/task-1?part=tokens&g=0")
        browser.get("/watch/rollouts/task-1?with=task-2")
    assert found == [("content_viewed", NAME, "default", name) for name in ("task-1", "task-2")]


def test_the_api_by_session_is_recorded_and_by_key_it_is_not(
    server: ClosedServer, browser: httpx.Client, client: httpx.Client
) -> None:
    response_id, file = (
        made(client),
        client.post("/v1/files", files={"file": ("a.txt", b"x")}, data={"purpose": "user_data"}),
    )
    file_id = file.json()["id"]
    with recorded(server) as found:
        client.get(f"/v1/responses/{response_id}").raise_for_status()
        client.get("/v1/playground/chats").raise_for_status()
        browser.get("/v1/models", headers=PASS).raise_for_status()
        assert browser.get("/v1/responses/resp_none", headers=PASS).status_code == 404
    assert found == []
    with recorded(server) as found:
        for _ in range(3):
            browser.get(f"/v1/responses/{response_id}", headers=PASS).raise_for_status()
            browser.get(f"/v1/responses/{response_id}/input_items", headers=PASS).raise_for_status()
        browser.get("/v1/playground/chats?search=words", headers=PASS).raise_for_status()
        browser.get(f"/v1/files/{file_id}/content", headers=PASS)
        browser.delete(f"/v1/responses/{response_id}", headers=PASS).raise_for_status()
        assert browser.get(f"/v1/responses/{response_id}?stream=true", headers=PASS).status_code == 404
    viewed = [subject for action, _, _, subject in found if action == "content_viewed"]
    assert viewed[:2] == [response_id, "/v1/playground/chats"]
    assert found[-1] == ("content_deleted", NAME, "default", response_id)
    with recorded(server) as found:
        assert browser.delete(f"/v1/responses/{response_id}", headers=PASS).status_code == 404
    assert found == [("content_deleted", NAME, "default", response_id)] * 2
    tried, failed = trail(server)[-2:]
    path = f"/v1/responses/{response_id}"
    assert [json.loads(each["detail"]) for each in (tried, failed)] == [{"path": path}, {"path": path, "failed": 404}]
    assert "words" not in json.dumps(trail(server))


def test_asking_the_model_by_session_is_recorded_over_http_and_over_a_websocket(
    server: ClosedServer, browser: httpx.Client
) -> None:
    with recorded(server) as found:
        for _ in range(2):
            browser.post("/v1/responses", json={"input": CONTENT}, headers=PASS).raise_for_status()
    assert found == [("content_viewed", NAME, "default", "/v1/responses")]
    with closing(log_in(server)) as other, recorded(server) as found:
        for _ in range(2):
            websockets.connect(server.ws_url, **opening(server, other)).close()  # type: ignore[arg-type]
    assert found == [("content_viewed", NAME, "default", "/v1/responses")]
    detail = json.loads(trail(server)[-1]["detail"])
    assert detail == {"path": "/v1/responses", "transport": "websocket"}


def test_what_is_cancelled_and_deleted(server: ClosedServer, browser: httpx.Client, client: httpx.Client) -> None:
    first, second, running = made(client), made(client), made(client, input="count to 9000", background=True)
    conversation = conversation_of(client)
    with recorded(server) as found:
        act(browser, "response", "cancel", running)
        act(browser, "response", "delete_selected", first, second, post="yes")
        act(browser, "conversation", "delete_selected", conversation, post="yes")
    assert found[0] == ("content_viewed", NAME, "", "list of responses")
    assert found[1] == ("response_cancelled", NAME, "default", running)
    assert sorted(each for each in found if each[0] == "content_deleted") == [
        ("content_deleted", NAME, "default", each) for each in sorted((first, second, conversation))
    ]
    assert stored(server, f"SELECT count(*) FROM responses_app_response WHERE id = '{first}'") == [(0,)]


def test_keys_limits_and_users_in_the_admin(server: ClosedServer, browser: httpx.Client) -> None:
    with recorded(server) as found:
        form = {**token(browser.get(f"{LIST}/apikey/add/")), "project": "team", "name": "mine"}
        assert "sk-" in browser.post(f"{LIST}/apikey/add/", data=form).text
        ((key_id,),) = stored(server, "SELECT id FROM responses_app_apikey WHERE name = 'mine'")
        act(browser, "apikey", "revoke", key_id)
        page = f"{LIST}/project/team/change/"
        browser.post(page, data={**token(browser.get(page)), "requests_per_minute": "60"})
        added = {"username": "new", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
        browser.post("/admin/auth/user/add/", data={**token(browser.get("/admin/auth/user/add/")), **added})
        ((user_id,),) = stored(server, "SELECT id FROM auth_user WHERE username = 'new'")
        browser.post(f"/admin/auth/user/{user_id}/delete/", data={**token(browser.get("/admin/")), "post": "yes"})
    assert found == [
        ("key_created", NAME, "team", key_id),
        ("key_revoked", NAME, "team", key_id),
        ("limits_changed", NAME, "team", "team"),
        ("admin_changed", NAME, "", "new"),
        ("admin_changed", NAME, "", "new"),
    ]
    limits = [each["detail"] for each in trail(server) if each["action"] == "limits_changed"]
    assert json.loads(limits[-1]) == {"requests_per_minute": 60}


def test_commands_are_recorded(server: ClosedServer, client: httpx.Client) -> None:
    made(client)
    export, moved = server.folder / "forgotten.jsonl", server.folder / "moved.jsonl"
    with recorded(server) as found:
        key = server.new_key("--project", "gone")
        server.operate("set_limits", "--key", key, "--websockets", "3")
        server.operate("set_limits", "--key", key)  # prints them
        server.operate("revoke_key", key)
        server.operate("forget", "--project", "gone", "--export", str(export), "--yes")
        server.operate("purge_responses", "--dry-run")
        server.operate("purge_responses")
        for command in ("export", "import"):
            assert respsite(command, str(moved), **settings_of(server)).returncode == 0
    key_id = found[0][3]
    assert found == [
        ("key_created", "command", "gone", key_id),
        ("limits_changed", "command", "gone", key_id),
        ("key_revoked", "command", "gone", key_id),
        ("content_exported", "command", "gone", "gone"),
        ("project_forgotten", "command", "gone", "gone"),
        ("content_purged", "command", "", ""),
        ("content_exported", "command", "", "all projects"),
        ("content_imported", "command", "", "moved.jsonl"),
    ]
    assert key not in json.dumps(trail(server))


def test_the_program_verifies_and_exports(server: ClosedServer) -> None:
    settings = settings_of(server)
    verified = respsite("audit", "verify", **settings)
    assert verified.returncode == 0, verified.stderr
    head = verified.stdout.rpartition("Head: ")[2].strip()
    written = server.folder / "audit.jsonl"
    assert respsite("audit", "export", written, **settings).returncode == 0
    entries = [json.loads(line) for line in written.read_text().splitlines()]
    assert [each["number"] for each in entries] == list(range(1, len(entries) + 1))
    assert written.stat().st_mode & 0o777 == 0o600
    assert respsite("audit", "export", written, **settings).returncode == 2, "no file is written over"
    rest = respsite("audit", "export", "-", "--after", str(len(entries)), **settings).stdout.splitlines()
    assert [json.loads(line)["number"] for line in rest] == [len(entries) + 1]
    assert f"{entries[int(head.partition(':')[0]) - 1]['hash']}" == head.partition(":")[2]
    assert respsite("audit", "verify", "--head", head, **settings).returncode == 0
    other = respsite("audit", "verify", "--head", head[:-4] + "ffff", **settings)
    assert (other.returncode, "was written anew" in other.stderr) == (1, True)
    wrong = respsite("audit", "verify", "--head", "17", **settings)
    assert (wrong.returncode, "64 hex digits" in wrong.stderr) == (2, True)


def test_the_admin_shows_and_filters_and_changes_nothing(server: ClosedServer, browser: httpx.Client) -> None:
    page = browser.get(f"{LIST}/auditrow/")
    assert page.status_code == 200
    assert "signed in" in page.text
    assert re.findall('<option value="(\\w+)"', page.text) == ["export"]
    for query in ("action=signed_in", "age=hour", f"actor_name={NAME}", "project=default", "q=resp_none", "q=%00"):
        assert browser.get(f"{LIST}/auditrow/?{query}").status_code == 200, query
    table = (
        browser.get(f"{LIST}/auditrow/?action=key_created").text.partition("result_list")[2].partition("</table>")[0]
    )
    assert "key created" in table
    assert "signed out" not in table
    for path in ("add/", "1/delete/"):
        assert browser.get(f"{LIST}/auditrow/{path}").status_code == 403
    with closing(log_in(server, "clerk")) as clerk:
        assert clerk.get(f"{LIST}/auditrow/").status_code == 403


def test_chosen_entries_are_exported_as_the_program_exports_them(server: ClosedServer, browser: httpx.Client) -> None:
    server.new_key()
    answer = act(browser, "auditrow", "export", "2", "1")
    assert answer.headers["content-disposition"] == 'attachment; filename="audit.jsonl"'
    whole = respsite("audit", "export", "-", **settings_of(server)).stdout.splitlines()
    assert answer.text.splitlines() == whole[:2]
    recorded_as = trail(server)[-2]
    assert (recorded_as["action"], recorded_as["actor_name"]) == ("audit_exported", NAME)
    assert json.loads(recorded_as["detail"]) == {"first": 1, "last": 2, "entries": 2}


def test_hostile_names_are_shown_as_text(server: ClosedServer, browser: httpx.Client) -> None:
    own = httpx.Client(base_url=server.url, timeout=60)
    with closing(own):
        for name in ("<script>alert(1)</script>", "\u202eevil", "x" * 140):
            form = {**token(own.get("/admin/login/")), "username": name, "password": "x"}
            assert own.post("/admin/login/", data=form).status_code in (200, 429)
    server.manage("axes_reset")
    page = browser.get(f"{LIST}/auditrow/").text
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\u202e" not in page


def test_what_cannot_be_recorded_is_not_done(server: ClosedServer, browser: httpx.Client, client: httpx.Client) -> None:
    response_id, running = made(client), made(client, input="count to 9000", background=True)
    keys = stored(server, "SELECT count(*) FROM responses_app_apikey")
    form = {**token(browser.get(f"{LIST}/apikey/add/")), "project": "team", "name": "never"}
    signing_in = httpx.Client(base_url=server.url, timeout=60)
    login = {**token(signing_in.get("/admin/login/")), "username": "clerk", "password": PASSWORD, "next": "/admin/"}
    in_the_database_again(server, "ALTER TABLE responses_app_auditrow RENAME TO away")
    try:
        for path in (f"{LIST}/response/{response_id}/change/", f"{LIST}/response/{response_id}/json/"):
            page = browser.get(path)
            assert (page.status_code, page.headers["retry-after"]) == (503, "2"), path
            assert "cannot be recorded" in page.text
            assert MARKER not in page.text
        assert browser.get(f"/watch/responses/{response_id}").status_code == 503
        assert browser.get(f"/watch/responses/{response_id}.json").json()["error"]["code"] == "audit_unavailable"
        for query in ("", "?stream=true"):
            answer = browser.get(f"/v1/responses/{running}{query}", headers=PASS)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "audit_unavailable")
        assert browser.delete(f"/v1/responses/{response_id}", headers=PASS).status_code == 503
        assert browser.post("/v1/responses", json={"input": "Hi"}, headers=PASS).status_code == 503
        with pytest.raises(InvalidStatus) as refused:
            websockets.connect(server.ws_url, **opening(server, browser))  # type: ignore[arg-type]
        assert refused.value.response.status_code == 503
        assert browser.post(f"{LIST}/apikey/add/", data=form).status_code == 503
        assert stored(server, "SELECT count(*) FROM responses_app_apikey") == keys
        assert signing_in.post("/admin/login/", data=login).status_code == 503
        assert signing_in.get("/admin/", follow_redirects=True).url.path == "/admin/login/"
    finally:
        in_the_database_again(server, "ALTER TABLE away RENAME TO responses_app_auditrow")
    assert client.get(f"/v1/responses/{response_id}").status_code == 200
    assert MARKER in browser.get(f"{LIST}/response/{response_id}/change/").text
    signing_in.close()


def in_the_database_again(server: ClosedServer, statement: str) -> None:
    server.manage(
        "shell", "--no-imports", "-c", f"from django.db import connection as c; c.cursor().execute({statement!r})"
    )


def test_no_content_is_in_the_trail_and_all_that_is_recorded_is_an_action(server: ClosedServer) -> None:
    entries = trail(server)
    assert entries
    assert {each["action"] for each in entries} <= set(Action)
    assert MARKER not in json.dumps(entries)
    assert PASSWORD not in json.dumps(entries)


def test_users_and_sign_ins_are_recorded_without_any_extension() -> None:
    recording = [type(admin.site.get_model_admin(each)) for each in (User, Group)]
    for signal in (user_logged_in, user_logged_out, user_login_failed):
        receivers, _ = signal._live_receivers(None)
        recording += [each for each in receivers if each.__module__.startswith("responses_app")]
    assert [each.__module__ for each in recording] == ["responses_app.admin.users"] * 5
