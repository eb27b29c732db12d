"""Chat Completions over real sockets: what a replayed history is read as, how streams break, who is let in."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from tests.kit.chats import put_together, sent
from tests.kit.clients import http_client, ready
from tests.kit.inprocess import ClosedServer, Server
from tests.kit.scripts import WEATHER, aborted_prompts, as_history, generations
from tests.kit.waiting import eventually

TOOL = {"type": "function", "function": {name: value for name, value in WEATHER.items() if name != "type"}}


def asked(text: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a chat."""
    return {"messages": [{"role": "user", "content": text}], **fields}


async def post(http: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    """Send a chat and read its answer to the end."""
    return await http.post("/chat/completions", json=body)


def response_of(answer: httpx.Response) -> str:
    """Return the id of the response that a completion was."""
    return "resp_" + str(answer.json()["id"]).removeprefix("chatcmpl-")


def data_of(text: str) -> list[Any]:
    """Return what a stream says, without its end, which must be there."""
    assert text.endswith("data: [DONE]\n\n")
    return sent(text.encode())


@pytest.mark.parametrize("store", [True, False])
async def test_a_replayed_tool_loop_goes_on_with_the_tokens_that_were_sampled(
    server: Server, http: httpx.AsyncClient, store: bool
) -> None:
    body = asked(f"[think] {store}", tools=[TOOL], store=store)
    first = await post(http, body)
    message = first.json()["choices"][0]["message"]
    assert message["reasoning"] == "Hm, Paris."
    del message["reasoning"], message["reasoning_content"]
    output = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "18"}
    again = {**body, "messages": [*body["messages"], message, output]}
    second = await post(http, again)
    said = second.json()["choices"][0]["message"]
    assert said["content"] == "Hello there, friend."
    [before], [after] = (generations(server, response_of(answer)) for answer in (first, second))
    assert after["prompt_tokens"][: len(as_history(before))] == as_history(before)
    third = await post(http, {**again, "messages": [*again["messages"], said, {"role": "user", "content": "And?"}]})
    [last] = generations(server, response_of(third))
    answer = after["sampled_tokens"][:-1]
    assert any(last["prompt_tokens"][at : at + len(answer)] == answer for at in range(len(last["prompt_tokens"])))


async def test_what_the_engine_read_and_sampled_is_told_in_vllms_fields(
    server: Server, http: httpx.AsyncClient
) -> None:
    body = asked("[think] of tokens", tools=[TOOL], return_token_ids=True)
    answer = await post(http, {**body, "prompt_logprobs": 2})
    told = answer.json()
    [generation] = generations(server, response_of(answer))
    prompt = generation["prompt_tokens"]
    assert told["prompt_token_ids"] == prompt
    assert told["choices"][0]["token_ids"] == generation["sampled_tokens"]
    refused = await post(http, {**body, "kv_transfer_params": {"remote_host": "another"}})
    assert refused.status_code == 400
    assert "RESPONSES_COMPATIBILITY_MODE=false" in refused.json()["error"]["message"]
    first, second, *others = told["prompt_logprobs"]
    assert first is None
    assert second[str(prompt[1])] == {"logprob": -0.25, "rank": 1, "decoded_token": "system"}
    assert (len(second), len(others)) == (2, len(prompt) - 2)

    text = (await post(http, {**body, "stream": True, "n": 2})).text
    chunks = data_of(text)
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [prompt] * 2
    for index in range(2):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        tokens = [token for choice in choices for token in choice.get("token_ids", [])]
        assert tokens == generation["sampled_tokens"]
        assert put_together(chunks, index)["message"]["tool_calls"]

    hidden = (await post(http, {**body, "include_reasoning": False})).json()
    assert hidden["prompt_token_ids"] == prompt
    assert hidden["choices"][0]["token_ids"] is None
    usual = (await post(http, asked("[think] of tokens", tools=[TOOL]))).json()
    assert not {"prompt_token_ids", "prompt_logprobs", "kv_transfer_params"} & set(usual)
    assert "token_ids" not in usual["choices"][0]


async def test_a_stop_string_ends_an_engine_that_would_not_end(server: Server, http: httpx.AsyncClient) -> None:
    answer = await post(http, asked("[hang]", stop=["1 "], n=2))
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == ["0 ", "0 "]
    await eventually(lambda: {each["finish"] for each in generations(server, response_of(answer))} == {"abort"})


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("text", "status"), [("[away]", 503), ("[full]", 429), ("[no]", 500)])
async def test_what_fails_before_anything_was_said_has_its_status(
    http: httpx.AsyncClient, text: str, status: int, stream: bool
) -> None:
    answer = await post(http, asked(text, stream=stream, n=2))
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["type"] in ("server_error", "rate_limit_error")
    assert ("retry-after" in answer.headers) == (status != 500)


async def test_a_stream_that_breaks_says_so_and_ends(http: httpx.AsyncClient) -> None:
    answer = await post(http, asked("[break]", stream=True))
    assert answer.status_code == 200
    *chunks, last = data_of(answer.text)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "0 1 2"
    assert set(last) == {"error"}
    assert last["error"]["code"] == "server_error"
    assert "Traceback" not in answer.text
    whole = await post(http, asked("[break]"))
    assert whole.status_code == 500
    assert whole.json()["error"] == last["error"] | {"message": whole.json()["error"]["message"]}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_ends_all_choices(server: Server, stream: bool) -> None:
    marker = f"goes away {stream}"

    async def ask() -> None:
        async with http_client(server) as http:
            await post(http, asked(f"[hang] {marker}", n=3, stream=stream))

    await eventually(lambda: _in_flight(server, 0))  # what other tests have left ends
    asking = asyncio.create_task(ask())
    await eventually(lambda: _in_flight(server, 3))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: sum(marker in prompt for prompt in aborted_prompts(server)) == 3)


async def _in_flight(server: Server, count: int) -> bool:
    return int((await ready(server))["responses_in_flight"]) == count


async def test_a_silent_stream_has_a_heartbeat(strict_server: Server) -> None:
    """Also before its first chunk: else nobody knew that it was taken."""
    async with http_client(strict_server) as http:
        async with http.stream("POST", "/chat/completions", json=asked("[silence]", stream=True)) as answer:
            assert answer.status_code == 200
            pings = 0
            async for line in answer.aiter_lines():
                assert line in ("", ": ping")
                pings += line == ": ping"
                if pings == 3:
                    break
        paused = await post(http, asked("[pauses]", stream=True))
        assert ": ping" in paused.text
        said: Any = put_together([each for each in data_of(paused.text) if each["choices"]])
        assert said["message"]["content"] == "So."


async def test_a_key_opens_it(closed: ClosedServer) -> None:
    async with http_client(closed) as http:
        assert (await post(http, asked("Hello"))).status_code == 401
        http.headers["authorization"] = f"Bearer {closed.key}"
        answer = await post(http, asked("Hello"))
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
        foreign = await http.post(
            "/chat/completions", content=orjson.dumps(asked("Hello")), headers={"origin": "https://evil.example"}
        )
        assert foreign.status_code == 403


async def test_who_waits_for_a_chat_that_is_deleted_is_told_so(http: httpx.AsyncClient) -> None:
    """One client reads a stream, and another one deletes the response that it is."""
    async with http.stream("POST", "/chat/completions", json=asked("[hang]", store=True, stream=True)) as stream:
        said = ""
        async for line in stream.aiter_lines():
            if not said and line:
                made = orjson.loads(line.removeprefix("data: "))["id"].removeprefix("chatcmpl-")
                assert (await http.delete(f"/responses/resp_{made}")).is_success
            said += line
    assert "The stored answer was deleted while the model wrote it" in said
    assert "response_deleted" in said
