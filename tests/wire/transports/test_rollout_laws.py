"""What roll-outs record over real servers: through kills, failovers, steering, waits, agents, compaction, dialects."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.formats.harmony.encoding import encode_harmony
from tests.kit.background import begin, get
from tests.kit.clients import Socket, http_client, server_sent
from tests.kit.fake_vllm import MODEL
from tests.kit.pairs import LONG, SHORT_LEASE, seen, two_workers
from tests.kit.rollouts import assert_laws_of_trees, assert_tree_is_the_engines, of_engine, path_tokens, tree_of
from tests.kit.scripts import HELLO, WEATHER
from tests.kit.server import Server
from tests.kit.vllm_process import VllmProcess
from tests.kit.waiting import eventually
from tests.wire.transports.test_waiting import WAIT, calls_of, give

HEADER = "x-rollout-id"


@pytest.mark.each_database
async def test_a_worker_is_killed_in_the_middle_of_a_turn(folder: Path) -> None:
    async with two_workers(folder, delay=0.002, worker_lease_seconds=SHORT_LEASE) as pair:
        owner, other = pair.workers
        async with http_client(owner) as http:
            for name in ("killed", "control"):
                assert (await http.post("/rollouts", json={"id": name})).status_code == 200
            response = await begin(http, "[held]", metadata={"rollout_id": "killed"})
        await seen(other, response["id"], 30)
        await asyncio.to_thread(pair.kill, owner)
        pair.let_go_on()
        async with http_client(other) as http:

            async def has_ended() -> bool:
                return bool((await get(http, response["id"]))["status"] == "completed")

            await eventually(has_ended)
            control = await http.post("/responses", json={"input": "[held]", "metadata": {"rollout_id": "control"}})
            assert control.status_code == 200, control.text
            killed, whole = await tree_of(http, "killed"), await tree_of(http, "control")
    assert_laws_of_trees(killed)
    [generation], [other_one] = killed["generations"], whole["generations"]
    assert generation["prompt_tokens"] == other_one["prompt_tokens"]
    tokens = path_tokens(killed, generation["nodes"])
    assert tokens == path_tokens(whole, other_one["nodes"])
    assert tokens[generation["prompt_tokens"] :] == encode_harmony(LONG)
    assert [node["id"] for node in killed["nodes"] if node["mask"]] == [killed["nodes"][-1]["id"]]


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


@pytest.mark.parametrize("dialect", ["openai", "tool-delta-objects,usage-per-turn", "reasoning-names,summary-names"])
async def test_dialects(server: Server, http: httpx.AsyncClient, dialect: str) -> None:
    headers = {HEADER: "dialects", "respsite-dialect": dialect}
    answer = await http.post("/responses", json={"input": "[think]", "tools": [WEATHER]}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert_tree_is_the_engines(await tree_of(http, "dialects"), server)
    await http.delete("/rollouts/dialects")


async def test_compaction(server: Server, http: httpx.AsyncClient) -> None:
    name = "compacts"
    first = await http.post("/responses", json={"input": "Hello"}, headers={HEADER: name})
    compacted = await http.post(
        "/responses/compact", json={"previous_response_id": first.json()["id"], "model": "test-model"},
        headers={HEADER: name},
    )  # fmt: skip
    assert compacted.status_code == 200, compacted.text
    history = [*compacted.json()["output"], {"role": "user", "content": "Go on"}]
    went_on = await http.post("/responses", json={"input": history}, headers={HEADER: name})
    assert went_on.status_code == 200, went_on.text
    tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    assert [each["summary"] for each in tree["generations"]] == [False, True, False]
    assert "compaction" in {each["reason"] for each in tree["breaks"]}
    await http.delete(f"/rollouts/{name}")


async def test_agents_of_one_response(folder: Path) -> None:
    def run() -> Any:
        with Server(folder, engine="demo") as server:
            body = {
                "input": "agent berlin: count to 5\nagent rome: count to 3",
                "multi_agent": {"enabled": True},
            }
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


async def test_a_steered_response_and_its_successor(folder: Path) -> None:
    talk = f"<|channel|>analysis<|message|>I will count.<|end|><|start|>assistant{LONG}"
    may_end = folder / "may-end"
    held = {"hang_after": 100, "wait_for_file": str(may_end)}
    script = [{"when": "[talk]", "say": talk, **held}, {"say": HELLO}]
    server = Server(folder, script=script, journal=True, model_name="test-model")
    await asyncio.to_thread(server.start)
    try:
        async with await Socket.open(server.ws_url, additional_headers={HEADER: "steered"}) as socket:
            await socket.create("[talk]", model="test-model")
            first = (await socket.until("response.output_text.delta"))[0]["response"]["id"]
            await socket.send({"type": "response.steer", "previous_response_id": first, "input": "Shorter!"})
            await socket.until("response.steer.accepted")
            may_end.touch()
            assert (await socket.answer())[-1]["type"] == "response.incomplete"
            successor = (await socket.answer())[-1]["response"]
        await eventually(lambda: len(of_engine([server], {first, successor["id"]})) == 2)
        async with http_client(server) as http:
            tree = await tree_of(http, "steered")
    finally:
        await asyncio.to_thread(server.stop)
    assert [each["response_id"] for each in tree["generations"]] == [first, successor["id"]]
    assert_tree_is_the_engines(tree, server)


async def test_a_replica_is_killed_in_the_middle_of_a_turn(folder: Path) -> None:
    numbers = f"<|channel|>final<|message|>{' '.join(map(str, range(80)))}<|return|>"
    may_end = folder / "may-end"
    held = {"hang_after": 60, "wait_for_file": str(may_end)}
    script = {"when": "[long]", "say": numbers, **held}, {"say": "<|channel|>final<|message|>Hello.<|return|>"}
    with VllmProcess(*script) as one, VllmProcess(*script) as other:
        urls = f"{one.url},{other.url}"
        server = Server(folder, engine="vllm-server", engine_url=urls, model=MODEL)
        with server:
            async with http_client(server) as http:
                body = {"input": "[long]", "stream": True}
                async with http.stream("POST", "/responses", json=body, headers={HEADER: "cut"}) as answer:
                    said = 0
                    async for kind, _ in server_sent(answer):
                        said += kind == "response.output_text.delta"
                        if said == 10 and one.is_there and other.is_there:
                            busy = max(one, other, key=VllmProcess.running)
                            assert busy.running() == 1
                            await asyncio.to_thread(busy.kill)
                            may_end.touch()
                assert one.is_there != other.is_there
                control = await http.post("/responses", json={"input": "[long]"}, headers={HEADER: "control"})
                assert control.status_code == 200, control.text
                cut, whole = await tree_of(http, "cut"), await tree_of(http, "control")
    [generation], [other_one] = cut["generations"], whole["generations"]
    assert generation["finish_reason"] == "stop"
    assert path_tokens(cut, generation["nodes"]) == path_tokens(whole, other_one["nodes"])
    assert generation["sampled_tokens"] == len(encode_harmony(numbers))
    assert [node["id"] for node in cut["nodes"] if node["mask"]] == [cut["nodes"][-1]["id"]]


@pytest.mark.parametrize(("asked", "keeps_data"), [("[weather]", False), ("[think]", True), ("[think]", False)])
async def test_a_client_that_gives_calls_back_without_thoughts(
    server: Server, http: httpx.AsyncClient, asked: str, keeps_data: bool
) -> None:
    """Its calls carry the thoughts, where it gives them back as it got them."""
    name, function = "texts", {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    question = {"role": "user", "content": asked}
    body: dict[str, Any] = {"model": "test-model", "messages": [question], "tools": [function]}
    first = await http.post("/chat/completions", json=body, headers={HEADER: name})
    assert first.status_code == 200, first.text
    calls = first.json()["choices"][0]["message"]["tool_calls"]
    if not keeps_data:
        calls = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    output = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "It rains."}
    body["messages"] = [question, said, output]
    second = await http.post("/chat/completions", json=body, headers={HEADER: name})
    assert second.status_code == 200, second.text
    tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    assert tree["breaks"] == []
    await http.delete(f"/rollouts/{name}")
