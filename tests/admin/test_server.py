"""The admin under a real server: its files, its login, and what it does to responses that run."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.admin.people import PASSWORD, make_superuser
from tests.server import Server

HANGS = [{"say": "<|channel|>final<|message|>This takes long.<|return|>", "hang_after": 3}]
LIST = "/admin/responses_app/response/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("admin"), script=HANGS) as server:
        make_superuser(server)
        yield server


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """A browser of a superuser."""
    with httpx.Client(base_url=server.url, follow_redirects=True) as client:
        form = {**token(client.get("/admin/")), "username": "root", "password": PASSWORD, "next": "/admin/"}
        assert "Log out" in client.post("/admin/login/", data=form).text
        yield client


def token(answer: httpx.Response) -> dict[str, str]:
    """Return the field that Django wants back from its forms."""
    return {"csrfmiddlewaretoken": re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', answer.text)[0]}


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


def test_the_front_door_leads_to_the_login(server: Server) -> None:
    answer = httpx.get(server.url, follow_redirects=True)
    assert answer.url.path == "/admin/login/"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.cookies["csrftoken"]


def test_a_running_response_can_be_cancelled(server: Server, browser: httpx.Client) -> None:
    asked = {"input": "Go", "background": True}
    response_id = browser.post("/v1/responses", json=asked).json()["id"]
    assert response_id in browser.get(f"{LIST}?status=in_progress").text + browser.get(f"{LIST}?status=queued").text
    assert "1 response was cancelled." in act(browser, "cancel", response_id)
    assert browser.get(f"/v1/responses/{response_id}").json()["status"] == "cancelled"
    assert "pill-cancelled" in browser.get(f"{LIST}{response_id}/change/").text


def test_a_running_response_that_is_deleted_stays_deleted(server: Server, browser: httpx.Client) -> None:
    response_id = browser.post("/v1/responses", json={"input": "Go", "background": True}).json()["id"]
    assert "Successfully deleted 1 response." in act(browser, "delete_selected", response_id, post="yes")
    assert browser.get(f"/v1/responses/{response_id}").status_code == 404
    assert f"The response {response_id} is not kept" in browser.get(f"{LIST}{response_id}/change/").text


def test_requests_leave_no_connection_behind(server: Server, browser: httpx.Client) -> None:
    assert server.process is not None
    files = Path(f"/proc/{server.process.pid}/fd")
    for _ in range(5):
        browser.get("/admin/dashboard/")
    before = len(list(files.iterdir()))
    for _ in range(20):
        browser.get("/admin/dashboard/")
    assert len(list(files.iterdir())) <= before + 2
    assert "Warning" not in server.output
