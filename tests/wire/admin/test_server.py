"""The admin under a real server: its files, its login, and what it does to responses that run."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.kit.people import NAME, PASSWORD, log_in, make_superuser, token
from tests.kit.redis_server import RedisServer
from tests.kit.server import Server

HANGS = [{"say": "<|channel|>final<|message|>This takes long.<|return|>", "hang_after": 3}]
LIST = "/admin/responses_app/response/"
KEYS = "/admin/responses_app/apikey/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("admin"), script=HANGS) as server:
        make_superuser(server)
        yield server


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """A browser of a superuser."""
    with closing(log_in(server)) as browser:
        yield browser


def act(browser: httpx.Client, action: str, response_id: str, **more: str) -> str:
    """Do something with one response, and return the text of the page behind it."""
    form = {**token(browser.get(LIST)), "action": action, "_selected_action": response_id, **more}
    return browser.post(LIST, data=form).text


def test_files_come_from_the_server_itself(server: Server) -> None:
    for path, kind in (("admin/css/base.css", "text/css"), ("respsite/admin.js", "text/javascript")):
        answer = httpx.get(f"{server.url}/static/{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
        assert "max-age=300" in answer.headers["cache-control"]
        since = {"if-modified-since": answer.headers["last-modified"]}
        assert httpx.get(f"{server.url}/static/{path}", headers=since).status_code == 304
    for path in ("", "respsite/", "../manage.py", "..%2f..%2fmanage.py", "%00", "respsite/none.css"):
        assert httpx.get(f"{server.url}/static/{path}").status_code == 404
    assert "Traceback" not in server.output


def test_the_admin_leads_to_the_login(server: Server) -> None:
    answer = httpx.get(f"{server.url}/admin/", follow_redirects=True)
    assert answer.url.path == "/admin/login/"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.cookies["csrftoken"]


def test_a_running_response_can_be_cancelled(server: Server, browser: httpx.Client) -> None:
    asked = {"input": "Go", "background": True}
    response_id = browser.post("/v1/responses", json=asked).json()["id"]
    waits = browser.get(f"{LIST}?status=queued").text  # first: it may begin to run before the next look
    assert response_id in waits + browser.get(f"{LIST}?status=in_progress").text
    assert "1 response was cancelled." in act(browser, "cancel", response_id)
    assert browser.get(f"/v1/responses/{response_id}").json()["status"] == "cancelled"
    assert "pill-cancelled" in browser.get(f"{LIST}{response_id}/change/").text


def test_a_stream_that_is_cancelled_ends(server: Server, browser: httpx.Client) -> None:
    with browser.stream("POST", "/v1/responses", json={"input": "Go", "stream": True}, timeout=20) as stream:
        lines = stream.iter_lines()
        events = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {"))
        response_id = next(events)["response"]["id"]
        with closing(log_in(server)) as other:
            assert "1 response was cancelled." in act(other, "cancel", response_id)
        last = list(events)[-1]
    assert last["type"] in ("response.failed", "response.cancelled", "response.incomplete")
    assert browser.get(f"/v1/responses/{response_id}").json()["status"] == last["response"]["status"]


def test_a_running_response_that_is_deleted_stays_deleted(server: Server, browser: httpx.Client) -> None:
    response_id = browser.post("/v1/responses", json={"input": "Go", "background": True}).json()["id"]
    assert "Successfully deleted 1 response." in act(browser, "delete_selected", response_id, post="yes")
    assert browser.get(f"/v1/responses/{response_id}").status_code == 404
    assert f"The response {response_id} is not kept" in browser.get(f"{LIST}{response_id}/change/").text


def test_what_another_worker_runs_is_cancelled_through_redis(folder: Path, redis_server: RedisServer) -> None:
    first, second = (Server(folder, script=HANGS, redis_url=redis_server.url) for _ in range(2))
    make_superuser(first)
    with first, second, closing(log_in(second)) as browser:
        asked = {"input": "Go", "background": True, "stream": True}
        with httpx.stream("POST", f"{first.base_url}/responses", json=asked, timeout=20) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: {"))
            response_id = json.loads(next(lines).removeprefix("data: "))["response"]["id"]
            assert "1 response was given to the workers" in act(browser, "cancel", response_id)
            assert json.loads(list(lines)[-1].removeprefix("data: "))["response"]["status"] == "cancelled"


def test_requests_leave_no_connection_behind(server: Server, browser: httpx.Client) -> None:
    files = Path(f"/proc/{server.process.pid}/fd")
    held = []
    for _ in range(6):
        for _ in range(20):
            browser.get("/admin/dashboard/")
        held.append(len(list(files.iterdir())))
    # Threads that begin late have connections, which stay; there are few of them.
    assert min(after - before for before, after in pairwise(held)) <= 2, held
    assert "Warning" not in server.output


def test_while_the_database_cannot_be_written_to_nothing_is_done_and_that_is_said(folder: Path) -> None:
    server = Server(folder, database_timeout_seconds=1)
    make_superuser(server)
    with server, closing(log_in(server)) as browser:
        form = {**token(browser.get(f"{KEYS}add/")), "project": "team", "name": "late"}
        signing_in = httpx.Client(base_url=server.url, timeout=60)
        login = {**token(signing_in.get("/admin/login/")), "username": NAME, "password": PASSWORD, "next": "/admin/"}
        with closing(sqlite3.connect(folder / "respsite.sqlite3", isolation_level=None)) as other, closing(signing_in):
            other.execute("BEGIN IMMEDIATE")
            for answer in (signing_in.post("/admin/login/", data=login), browser.post(f"{KEYS}add/", data=form)):
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
                assert "nothing was changed" in answer.text
            assert browser.get(KEYS).status_code == 200, "what only reads goes on"
            other.execute("ROLLBACK")
            assert "Log out" in signing_in.post("/admin/login/", data=login, follow_redirects=True).text
            assert browser.post(f"{KEYS}add/", data=form).status_code == 200
    assert "Traceback" not in server.output
