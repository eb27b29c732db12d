"""Chat Completions over HTTP: what a replayed history is read as, how streams break, who is let in."""

from typing import Any

import httpx
import orjson
import pytest

from tests.kit.chats import put_together, sent
from tests.kit.inprocess import Server
from tests.kit.scripts import WEATHER, as_history, generations

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
