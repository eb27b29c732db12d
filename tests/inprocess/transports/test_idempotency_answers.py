"""`Idempotency-Key`: betas are compared, too, and an answer that the server cannot open any more is a clear 409."""

from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.kit.fixtures import module_server
from tests.kit.inprocess import Server

server = module_server("answers", Server)
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "count to 3"}]}


def asked(
    server: Server, key: str, body: object = CHAT, path: str = "/chat/completions", **headers: str
) -> httpx.Response:
    """Ask with a key."""
    given = {"Idempotency-Key": key, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if path == "/messages":
        given["anthropic-version"] = "2023-06-01"
    return httpx.post(f"{server.base_url}{path}", json=body, headers=given, timeout=60, verify=False)


@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/responses"])
@pytest.mark.parametrize("beta", ["openai_beta", "anthropic_beta"])
def test_another_beta_is_another_request(server: Server, path: str, beta: str) -> None:
    key = uuid4().hex
    body = {"model": "demo", "input": "hi"} if path == "/responses" else {**CHAT, "max_tokens": 100}
    first = asked(server, key, body, path, **{beta: "one"})
    assert first.status_code == 200, first.text
    again = asked(server, key, body, path, **{beta: "one"})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    for others in ({beta: "two"}, {}):
        other = asked(server, key, body, path, **others)
        assert other.status_code == 422, other.text


def test_an_answer_names_no_ignored_fields_where_no_body_was_read(server: Server) -> None:
    new = {"filename": "a.txt", "purpose": "user_data", "bytes": 5, "mime_type": "text/plain"}
    upload = asked(server, uuid4().hex, new, "/uploads").json()["id"]
    key = uuid4().hex
    first, again = (asked(server, key, {}, f"/uploads/{upload}/cancel") for _ in range(2))
    assert (first.status_code, again.headers["idempotent-replayed"]) == (200, "true"), first.text
    assert "respsite-ignored" not in first.headers
    assert "respsite-ignored" not in again.headers


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_be_opened_is_a_409(tmp_path: Path, stream: bool) -> None:
    key, body = uuid4().hex, {**CHAT, "stream": stream}
    with Server(tmp_path, secret_key="the first key of this server, long enough for it") as server:
        assert asked(server, key, body).status_code == 200
        assert asked(server, key, body).headers["idempotent-replayed"] == "true"
    with Server(tmp_path, secret_key="the second key of this server, long enough for it") as server:
        refused = asked(server, key, body)
        assert refused.status_code == 409, refused.text
        assert refused.json()["error"]["code"] == "idempotency_answer_unreadable"
        assert refused.headers["x-should-retry"] == "false"
        assert "Traceback" not in server.output
