"""What roll-outs record over real servers: waits, agents, compaction, and calls that come back without thoughts."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.inprocess.transports.test_rollouts import HEADER, posted
from tests.kit.clients import server_sent
from tests.kit.rollouts import assert_tree_is_the_engines, tree_of
from tests.kit.scripts import WEATHER
from tests.kit.server import Server
from tests.wire.transports.test_waiting import WAIT, calls_of, give


async def test_tool_mode_wait(server: Server, http: httpx.AsyncClient) -> None:
    name, events = "waits", list[Any]()
    body = {"input": "[weather]", "tools": [WEATHER], "stream": True}
    async with http.stream("POST", "/responses", json=body, headers={HEADER: name, **WAIT}) as answer:
        async for _, event in server_sent(answer):
            events.append(event)
            if calls := calls_of([each for each in events[-1:] if isinstance(each, dict)]):
                await give(http, events[0]["response"]["id"], calls[0])
    tree = await tree_of(http, name)
    assert len(tree["generations"]) == 2
    assert tree["breaks"] == []
    assert len(tree["sequences"]) == 1
    assert_tree_is_the_engines(tree, server)
    await http.delete(f"/rollouts/{name}")


async def test_compaction(server: Server, http: httpx.AsyncClient) -> None:
    name = "compacts"
    first = await posted(http, "/responses", {"input": "Hello"}, **{HEADER: name})
    compacted = await posted(http, "/responses/compact", {"previous_response_id": first["id"]}, **{HEADER: name})
    history = [*compacted["output"], {"role": "user", "content": "Go on"}]
    await posted(http, "/responses", {"input": history}, **{HEADER: name})
    tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    assert [each["summary"] for each in tree["generations"]] == [False, True, False]
    assert "compaction" in {each["reason"] for each in tree["breaks"]}
    await http.delete(f"/rollouts/{name}")


async def test_agents_of_one_response(folder: Path) -> None:
    def run() -> Any:
        with Server(folder, engine="demo") as server:
            body = {"input": "agent berlin: count to 5\nagent rome: count to 3", "multi_agent": {"enabled": True}}
            headers = {"OpenAI-Beta": "responses_multi_agent=v1", HEADER: "agents"}
            answer = httpx.post(f"{server.base_url}/responses", json=body, headers=headers, timeout=30, verify=False)
            assert answer.status_code == 200, answer.text
            return answer.json(), httpx.get(f"{server.base_url}/rollouts/agents", verify=False).json()

    response, tree = await asyncio.to_thread(run)
    usage, sampled = response["usage"], sum(each["sampled_tokens"] for each in tree["generations"])
    assert sampled == usage["output_tokens"] == tree["usage"]["sampled_tokens"]
    assert sum(each["prompt_tokens"] for each in tree["generations"]) == usage["input_tokens"]
    assert {each["agent"] for each in tree["generations"]} == {None, "/root/berlin", "/root/rome"}
    assert sum(node["mask"] * len(node["token_ids"]) for node in tree["nodes"]) == sampled
    assert {node["logprobs"] and node["logprobs"][0] for node in tree["nodes"]} == {None}


@pytest.mark.parametrize(("asked", "keeps_data"), [("[weather]", False), ("[think]", True), ("[think]", False)])
async def test_a_client_that_gives_calls_back_without_thoughts(
    server: Server, http: httpx.AsyncClient, asked: str, keeps_data: bool
) -> None:
    """Its calls carry the thoughts, where it gives them back as it got them."""
    name, function = "texts", {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    question = {"role": "user", "content": asked}
    body: dict[str, Any] = {"messages": [question], "tools": [function]}
    first = await posted(http, "/chat/completions", body, **{HEADER: name})
    calls = first["choices"][0]["message"]["tool_calls"]
    if not keeps_data:
        calls = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    output = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "It rains."}
    body["messages"] = [question, said, output]
    await posted(http, "/chat/completions", body, **{HEADER: name})
    tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    assert tree["breaks"] == []
    await http.delete(f"/rollouts/{name}")
