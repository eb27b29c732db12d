"""Anthropic's Messages API over HTTP: what a replayed history is read as, how streams break, who is let in."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.kit.clients import http_client
from tests.kit.inprocess import ClosedServer, Server
from tests.kit.messages import sent
from tests.kit.scripts import LIMIT, WEATHER, as_history, generations

MODEL = "test-model"
TOOL = {"name": WEATHER["name"], "description": "Tell the weather.", "input_schema": WEATHER["parameters"]}
VERSION = {"anthropic-version": "2023-06-01"}
THINKING = {"type": "adaptive"}


@pytest.fixture
async def claude(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """A client that says which API it speaks."""
    async with http_client(server) as http:
        http.headers.update(VERSION)
        yield http


def user(*content: Any) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def asked(text: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a request."""
    return {"model": MODEL, "max_tokens": 2000, "messages": [user(text)], **fields}


async def post(http: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    """Send a request and read its answer to the end."""
    return await http.post("/messages", json=body)


def response_of(answer: httpx.Response) -> str:
    """Return the id of the response that a message was."""
    return "resp_" + str(answer.json()["id"]).removeprefix("msg_")


def result(call: Any) -> dict[str, Any]:
    """Return what came of a call."""
    return {"type": "tool_result", "tool_use_id": call["id"], "content": "18"}


def call_in(content: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the call of a message."""
    return next(block for block in content if block["type"] == "tool_use")


@pytest.mark.parametrize("thinking", [THINKING, {"type": "adaptive", "display": "omitted"}, {"type": "disabled"}])
async def test_a_replayed_tool_loop_goes_on_with_the_tokens_that_were_sampled(
    server: Server, claude: httpx.AsyncClient, thinking: Any
) -> None:
    body = asked(f"[think] {thinking}", tools=[TOOL], thinking=thinking)
    first = await post(claude, body)
    said = first.json()["content"]
    thinks = thinking["type"] != "disabled"
    # What is sealed of the call comes behind it: its white space is lost on the way.
    assert [block["type"] for block in said] == (
        ["thinking", "tool_use", "redacted_thinking"] if thinks else ["tool_use"]
    )
    if thinks:
        assert said[0]["thinking"] == ("" if "display" in thinking else "Hm, Paris.")
        assert len(said[0]["signature"]) > 50
    history = [*body["messages"], {"role": "assistant", "content": said}, user(result(call_in(said)))]
    second = await post(claude, {**body, "messages": history})
    [before], [after] = (generations(server, response_of(answer)) for answer in (first, second))
    assert second.json()["content"][-1]["text"] == "Hello there, friend."
    assert after["prompt_tokens"][: len(as_history(before))] == as_history(before)


async def test_a_billing_header_changes_nothing_of_the_prompt(server: Server, claude: httpx.AsyncClient) -> None:
    """So no block of it is computed twice: Claude Code sends another hash with each request."""
    prompts = []
    for version in ("2.1.19.8f2; cch=0a1b2", "2.1.20.c01; cch=fffffffff"):
        billed = {"type": "text", "text": f"x-anthropic-billing-header: cc_version={version};"}
        system = [billed, {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}]
        answer = await post(claude, asked("Hello", system=system))
        assert answer.headers["respsite-ignored"] == "system[0]"
        [generation] = generations(server, response_of(answer))
        prompts.append(generation["prompt_tokens"])
    assert prompts[0] == prompts[1]


async def test_more_tokens_than_the_context_has_may_be_asked_for(claude: httpx.AsyncClient) -> None:
    """Clients ask for what Anthropic's models can write."""
    answer = await post(claude, asked("Hello", max_tokens=64_000))
    assert answer.json()["stop_reason"] == "end_turn"


async def test_an_engine_that_goes_away_in_mid_stream_is_overloaded(claude: httpx.AsyncClient) -> None:
    answer = await post(claude, asked("[die]", stream=True))
    *events, last = sent(answer.content)
    assert (events[0]["type"], last["error"]["type"]) == ("message_start", "overloaded_error")
    assert last["request_id"] == answer.headers["request-id"]


async def test_limits_are_told_in_anthropics_headers(closed: ClosedServer) -> None:
    key = closed.new_key("--requests-per-minute", "2", "--tokens-per-day", "100000")
    async with http_client(closed) as http:
        http.headers.update({**VERSION, "x-api-key": key})
        models = (await http.get("/models")).json()["data"]
        body = {**asked("Hello", max_tokens=5), "model": models[0]["id"]}
        answers = [await post(http, body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    names = [name for name in answers[0].headers if "ratelimit" in name]
    told = [
        f"anthropic-ratelimit-{of}-{what}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")
    ]
    assert sorted(names) == sorted(told)
    assert [answer.headers[told[1]] for answer in answers] == ["1", "0", "0"]
    reset = datetime.fromisoformat(answers[2].headers[told[2]])
    assert reset > datetime.now(UTC)
    assert int(answers[2].headers["retry-after"]) >= 1


async def test_a_stream_that_breaks_says_so_and_ends(claude: httpx.AsyncClient) -> None:
    answer = await post(claude, asked("[break]", stream=True))
    assert answer.status_code == 200
    *events, last = sent(answer.content)
    texts = [each["delta"]["text"] for each in events if each["type"] == "content_block_delta"]
    assert "".join(texts) == "0 1 2"
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert last["request_id"] == answer.headers["request-id"]
    assert "Traceback" not in answer.text
    assert (await post(claude, asked("[break]"))).status_code == 500


async def test_a_body_that_is_too_large_is_refused_in_anthropics_words(claude: httpx.AsyncClient) -> None:
    answer = await post(claude, asked("x" * (LIMIT + 1000)))
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
    assert answer.headers["request-id"] == answer.json()["request_id"]


async def test_a_key_opens_it_in_either_header(closed: ClosedServer) -> None:
    good, revoked, limited = closed.some_keys()
    async with http_client(closed) as http:
        http.headers.update(VERSION)
        models = (await http.get("/models", headers={"x-api-key": good})).json()["data"]
        body = {**asked("Hello"), "model": models[0]["id"]}
        for headers in ({}, {"x-api-key": "sk-wrong"}, {"x-api-key": revoked}):
            refused = await http.post("/messages", json=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        forbidden = await http.post("/messages", json=body, headers={"x-api-key": limited})
        assert forbidden.status_code in (403, 429)
        assert forbidden.json()["error"]["type"] in ("permission_error", "rate_limit_error")
        for headers in ({"x-api-key": good}, {"authorization": f"Bearer {good}"}):
            answer = await http.post("/messages", json=body, headers=headers)
            assert answer.json()["stop_reason"] == "end_turn"
        foreign = await http.post("/messages", json=body, headers={"origin": "https://evil.example"})
        assert (foreign.status_code, foreign.json()["error"]["type"]) == (403, "permission_error")
