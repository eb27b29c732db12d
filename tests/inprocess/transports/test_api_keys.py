"""Keys on a server that asks for them: who comes in, as whom, and that a revoked key is out everywhere."""

import asyncio
import base64
import time
from pathlib import Path

import httpx
import pytest

from tests.kit.clients import Socket
from tests.kit.closed import bearer, post
from tests.kit.inprocess import ClosedServer
from tests.kit.waiting import looks

REVOKED_WITHIN = 2.0  # seconds
SLACK = 8.0  # seconds, on a machine that is busy


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": "Basic x"}]
)
def test_without_a_key_nothing_is_served(closed: ClosedServer, headers: dict[str, str]) -> None:
    for method, path in [("GET", "/v1/models"), ("POST", "/v1/responses"), ("DELETE", "/v1/conversations/conv_1")]:
        answer = httpx.request(method, closed.url + path, headers=headers, verify=False)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        error = answer.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("authentication_error", "invalid_api_key", None)
        assert "create_key" in error["message"]


@pytest.mark.parametrize("key", ["sk-wrong", "x" * 5000, "sk-" + "A" * 43, "é"])
def test_a_wrong_key_opens_nothing_and_is_not_echoed(closed: ClosedServer, key: str) -> None:
    answer = httpx.get(
        f"{closed.base_url}/models", headers={"authorization": f"Bearer {key}".encode("latin1")}, verify=False
    )
    assert answer.status_code == 401
    assert key not in answer.text
    assert "Incorrect API key provided" in answer.json()["error"]["message"]


def test_who_asks_whether_it_lives_needs_none(closed: ClosedServer) -> None:
    for path in ("/health", "/ready", "/openapi.json"):
        assert httpx.get(closed.url + path, verify=False).status_code == 200
    assert httpx.get(f"{closed.url}/v1/nothing", verify=False).status_code == 404


def test_a_key_opens_in_any_case_of_the_scheme(closed: ClosedServer) -> None:
    key = closed.new_key()
    assert post(closed, key).status_code == 200
    answer = httpx.get(f"{closed.base_url}/models", headers={"authorization": f"bearer {key}"}, verify=False)
    assert answer.status_code == 200


def test_the_log_has_no_key(closed: ClosedServer) -> None:
    key = closed.new_key()
    post(closed, key)
    post(closed, key + "x")
    assert key not in closed.output


def test_scopes_say_what_a_key_may_do(closed: ClosedServer) -> None:
    reads = closed.new_key("--scopes", "api.responses.read,api.model.read")
    answer = post(closed, reads)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "missing_scope"
    assert "api.responses.write" in answer.json()["error"]["message"]
    assert httpx.get(f"{closed.base_url}/models", headers=bearer(reads), verify=False).status_code == 200
    made = post(closed, closed.new_key()).json()["id"]
    assert httpx.get(f"{closed.base_url}/responses/{made}", headers=bearer(reads), verify=False).status_code == 200


def test_a_key_may_be_for_some_models_alone(closed: ClosedServer) -> None:
    other, own = closed.new_key("--models", "other"), closed.new_key("--models", "other,m")
    answer = post(closed, other, model="m")
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "model_not_found"
    assert httpx.get(f"{closed.base_url}/models", headers=bearer(other), verify=False).json()["data"] == []
    assert post(closed, own, model="m").status_code == 200
    assert post(closed, own).json()["model"] == "m"


@pytest.mark.each_database
def test_a_key_that_has_expired_opens_no_more(closed: ClosedServer) -> None:
    key = closed.new_key()
    until = time.time() + 1.5
    closed.manage(
        "shell",
        "-c",
        "from responses_app.resources.projects.model import ApiKey; from datetime import datetime, UTC; "
        f"ApiKey.objects.filter(prefix={key[:9]!r}).update(expires_at=datetime.fromtimestamp({until}, UTC))",
    )
    assert post(closed, key).status_code == 200 or time.time() >= until
    # It expires by the store's clock, which a busy machine reads as early or late as the answer took.
    answers = (post(closed, key) for _ in looks(1.5 + SLACK))
    assert any(answer.status_code == 401 for answer in answers)


@pytest.mark.each_database
def test_a_revoked_key_is_out_within_two_seconds(closed: ClosedServer) -> None:
    key = closed.new_key()
    assert post(closed, key).status_code == 200
    closed.operate("revoke_key", key)
    assert any(post(closed, key).status_code == 401 for _ in looks(REVOKED_WITHIN + SLACK))


async def test_an_open_websocket_of_a_revoked_key_is_closed_with_a_reason(closed: ClosedServer) -> None:
    key = closed.new_key()
    async with await Socket.open(closed.ws_url, additional_headers=bearer(key)) as socket:
        await socket.send({"type": "response.create", "input": "Hello"})
        await socket.until("response.completed")
        await asyncio.to_thread(closed.operate, "revoke_key", key)
        async with asyncio.timeout(REVOKED_WITHIN + SLACK):
            error = await socket.receive()
            assert error["type"] == "error"
            assert (error["status"], error["error"]["code"]) == (401, "invalid_api_key")
            assert await socket.closed() == 1000


def test_a_server_on_loopback_asks_nobody_but_who_comes_through_a_proxy(folder: Path) -> None:
    with ClosedServer(folder) as server:
        assert post(server, None).status_code == 200
        assert post(server, "sk-anything").status_code == 200
        for name in ("x-forwarded-for", "forwarded", "x-real-ip", "via"):
            answer = httpx.get(f"{server.base_url}/models", headers={name: "203.0.113.9"}, verify=False)
            assert answer.status_code == 401, name


def test_basic_credentials_are_not_a_key(closed: ClosedServer) -> None:
    key = closed.new_key()
    told = base64.b64encode(f"user:{key}".encode()).decode()
    answer = httpx.get(f"{closed.base_url}/models", headers={"authorization": f"Basic {told}"}, verify=False)
    assert answer.status_code == 401
