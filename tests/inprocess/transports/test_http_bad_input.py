"""What an HTTP client can get wrong: JSON in OpenAI's shape, never a page, never an event stream."""

import json
from typing import Any

import httpx
import pytest

from tests.kit.clients import read_error_answer
from tests.kit.inprocess import Server
from tests.kit.scripts import LIMIT
from tests.kit.stored import stored_statuses
from tests.kit.waiting import eventually

JSON = {"content-type": "application/json"}


def wrong(param: str, code: str | None = "invalid_type", status: int = 400) -> dict[str, Any]:
    """Return what a wrong field is answered with."""
    return {"status": status, "code": code, "param": param}


NOT_JSON = {"status": 400, "code": "invalid_json"}
BAD_BODIES: dict[str, tuple[object, dict[str, Any]]] = {
    "malformed": ("{", NOT_JSON),
    "bytes": (b"\xff\xfe", NOT_JSON),
    "array": ("[1]", NOT_JSON),
    "no-input": ({}, wrong("input", "missing_required_parameter")),
    "item-number": ({"input": [{"role": "user", "content": "x"}, 5]}, wrong("input[1]")),
    "model-unknown": ({"input": "Hi", "model": "gpt-99"}, wrong("model", "model_not_found", 404)),
    "top-p": ({"input": "Hi", "top_p": 2}, wrong("top_p", "invalid_value")),
    "parent-unknown": (
        {"input": "Hi", "previous_response_id": "resp_nobody"},
        wrong("previous_response_id", "previous_response_not_found"),
    ),
    "call-unknown": (
        {"input": [{"type": "function_call_output", "call_id": "call_nobody", "output": "1"}]},
        wrong("input", None),
    ),
    "reference-unknown": ({"input": [{"type": "item_reference", "id": "msg_nobody"}]}, wrong("input[0].id", None)),
    "context": ({"input": "word " * 5000}, wrong("input", "context_length_exceeded")),
    "conversation": ({"input": "Hi", "conversation": "conv_1"}, wrong("conversation", None, 404)),
}


async def post(http: httpx.AsyncClient, body: object, *, stream: bool = False) -> httpx.Response:
    """Send a body, as it is if it is text."""
    if isinstance(body, dict) and stream:
        body = {"stream": True, **body}
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    return await http.post("/responses", content=content, headers=JSON)


@pytest.mark.parametrize("case", BAD_BODIES)
async def test_bad_input_is_told(http: httpx.AsyncClient, case: str) -> None:
    body, expected = BAD_BODIES[case]
    for stream in (False, True):  # a stream that cannot start answers with JSON, too
        read_error_answer(await post(http, body, stream=stream), **expected)


async def test_a_body_over_the_limit(http: httpx.AsyncClient) -> None:
    body = json.dumps({"input": "x" * LIMIT})
    message = read_error_answer(await post(http, body), status=413, code="request_too_large")
    assert "MAX_BODY_BYTES" in message
    assert str(LIMIT) in message
    assert (await post(http, {"input": "Hello"})).status_code == 200


@pytest.mark.parametrize("given", ["text/plain", "application/x-www-form-urlencoded", "text/json", None])
async def test_another_content_type(http: httpx.AsyncClient, given: str | None) -> None:
    headers = {} if given is None else {"content-type": given}
    for body in ({"content": b'{"input": "Hello"}', "headers": headers}, {"files": {"input": b"Hello"}}):
        answer = await http.post("/responses", **body)  # type: ignore[arg-type]
        message = read_error_answer(answer, status=415, code="unsupported_media_type")
        assert "application/json" in message


async def test_json_with_a_charset_is_json(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await http.post("/responses", content=b'{"input": "Hello"}', headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/responses", "POST"),
        ("PUT", "/responses", "POST"),
        ("POST", "/models", "GET"),
        ("DELETE", "/models/a", "GET"),
    ],
)
async def test_a_method_that_is_not_taken(http: httpx.AsyncClient, method: str, path: str, allowed: str) -> None:
    answer = await http.request(method, path)
    message = read_error_answer(answer, status=405, code="method_not_allowed")
    assert method in message
    assert allowed in message
    assert answer.headers["allow"] == allowed


async def test_a_handshake_that_lost_its_upgrade_on_the_way(http: httpx.AsyncClient) -> None:
    headers = {"sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==", "connection": "close"}
    answer = await http.get("/responses", headers=headers)
    message = read_error_answer(answer, status=405, code="method_not_allowed")
    assert "'Upgrade' did not come along: a proxy in front dropped it" in message
    other = await http.delete("/models/a", headers=headers)
    assert "Upgrade" not in read_error_answer(other, status=405, code="method_not_allowed")


async def test_an_unknown_model_of_the_list(http: httpx.AsyncClient) -> None:
    read_error_answer(await http.get("/models/a/b"), **wrong("model", "model_not_found", 404))
    assert (await http.get("/models/test-model")).json()["id"] == "test-model"


@pytest.mark.parametrize("given", ["abc-123", "x" * 128])
async def test_a_request_id_is_echoed(http: httpx.AsyncClient, given: str) -> None:
    headers = {"x-request-id": given}
    assert (await http.get("/models", headers=headers)).headers["x-request-id"] == given
    assert (await http.get("/nothing", headers=headers)).headers["x-request-id"] == given
    answer = await http.post("/responses", json={"input": "Hello", "stream": True}, headers=headers)
    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "x" * 129, "", "caf\xe9"])
async def test_a_request_id_is_made(http: httpx.AsyncClient, given: str | None) -> None:
    headers = {} if given is None else {"x-request-id": given.encode("latin1")}
    made = [(await http.get("/models", headers=headers)).headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    assert all(each.startswith("req_") for each in made)


@pytest.mark.parametrize(
    ("word", "status", "code"),
    [("[away]", 503, "server_is_overloaded"), ("[full]", 429, "rate_limit_exceeded"), ("[no]", 500, "server_error")],
)
async def test_an_engine_that_says_nothing(
    server: Server, http: httpx.AsyncClient, word: str, status: int, code: str
) -> None:
    """An error, which every SDK raises and retries; `test_first_words` has streams."""
    before = set(stored_statuses(server))
    read_error_answer(await post(http, {"input": word}), status=status, code=code)
    new = {response: kept for response, kept in stored_statuses(server).items() if response not in before}
    assert list(new.values()) == ["failed"]


async def test_a_background_response_fails_in_its_own_time(http: httpx.AsyncClient) -> None:
    begun = (await post(http, {"input": "[full]", "background": True})).json()
    assert begun["status"] == "queued"

    async def ended() -> bool:
        response = (await http.get(f"/responses/{begun['id']}")).json()
        return bool(response["status"] == "failed" and response["error"]["code"] == "rate_limit_exceeded")

    await eventually(ended)
