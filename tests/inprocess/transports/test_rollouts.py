"""Roll-outs over real servers: what is recorded is what the engine got and gave, whichever way a request comes."""

import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.kit.clients import Socket, http_client, server_sent
from tests.kit.inprocess import ClosedServer, Server
from tests.kit.rollouts import LOGPROB, assert_tree_is_the_engines, of_engine, tree_of
from tests.kit.scripts import WEATHER
from tests.kit.waiting import eventually

HEADER = "x-rollout-id"
ANTHROPIC = {"anthropic-version": "2023-06-01"}
TOOL_OUTPUT = "It rains."


@pytest.fixture
def name() -> str:
    """The id of a roll-out that nobody has used."""
    return f"task:{uuid4().hex}"


async def posted(http: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> Any:
    """Return what a request is answered."""
    answer = await http.post(path, json={"model": "test-model", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def request_of(api: str) -> tuple[str, dict[str, Any]]:
    """Return the path of an API, and a request of it."""
    messages = [{"role": "user", "content": "Hello"}]
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "responses": ("/responses", {"input": "Hello"}),
        "chat": ("/chat/completions", {"messages": messages, "n": 3}),
        "messages": ("/messages", {"messages": messages, "max_tokens": 50}),
        "completions": ("/completions", {"prompt": ["Hello", "You"], "n": 2, "max_tokens": 50}),
    }
    return requests[api]


def roles_of(tree: Any) -> list[str]:
    """Return whose the spans of a tree are, in order; with a star where they were sampled."""
    return [node["role"] + "*" * node["mask"] for node in tree["nodes"]]


@pytest.mark.each_database
async def test_a_conversation_is_one_sequence_until_its_end_token_is_rendered_anew(
    server: Server, http: httpx.AsyncClient, name: str
) -> None:
    first = await posted(http, "/responses", {"input": "[weather]", "tools": [WEATHER]}, **{HEADER: name})
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": TOOL_OUTPUT}
    body = {"previous_response_id": first["id"], "input": [output], "tools": [WEATHER]}
    second = await posted(http, "/responses", body, **{HEADER: name})
    tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    assert [each["response_id"] for each in tree["generations"]] == [first["id"], second["id"]]
    assert tree["breaks"] == []
    [sequence] = tree["sequences"]
    assert sum(sequence["mask"]) == tree["usage"]["sampled_tokens"]
    assert len(sequence["token_ids"]) == tree["usage"]["prompt_tokens"] + tree["usage"]["sampled_tokens"]
    assert tree["generations"][0]["finish_reason"] == "stop"
    assert roles_of(tree) == "system developer user assistant assistant* tool assistant assistant*".split()
    # The model ended its answer with <|return|>, and the next prompt has <|end|> in its place.
    body = {"previous_response_id": second["id"], "input": "Hi", "tools": [WEATHER]}
    third = await posted(http, "/responses", body, **{HEADER: name})
    tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    [cut] = tree["breaks"]
    assert (cut["after"], cut["reason"]) == ("g1", "end_token")
    assert tree["generations"][2]["response_id"] == third["id"]


@pytest.mark.parametrize("api", ["responses", "chat", "messages"])
async def test_spans_have_the_roles_of_what_was_sent(http: httpx.AsyncClient, name: str, api: str) -> None:
    question, answer = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}
    path, body = {
        "responses": ("/responses", {"instructions": "Be kind.", "input": [question, answer, question]}),
        "chat": (
            "/chat/completions",
            {"messages": [{"role": "system", "content": "Be kind."}, question, answer, question]},
        ),
        "messages": ("/messages", {"system": "Be kind.", "messages": [question, answer, question], "max_tokens": 50}),
    }[api]
    await posted(http, path, body, **{HEADER: name}, **(ANTHROPIC if api == "messages" else {}))  # type: ignore[arg-type]
    tree = await tree_of(http, name)
    assert roles_of(tree) == "system developer user assistant user assistant assistant*".split()
    group = {"group": "roles"}
    # An export has the same tree.
    assert (await http.post("/rollouts", json={"id": f"{name}.2", **group})).status_code == 200
    await posted(http, path, body, **{HEADER: f"{name}.2"}, **(ANTHROPIC if api == "messages" else {}))  # type: ignore[arg-type]
    lines = (await http.get("/rollouts/export", params=group)).text.splitlines()
    assert [roles_of(json.loads(line)) for line in lines if name in line] == [roles_of(tree)]


@pytest.mark.parametrize("stored", [True, False])
async def test_a_stream(server: Server, http: httpx.AsyncClient, name: str, stored: bool) -> None:
    body = {"model": "test-model", "input": "Hello", "stream": True, "store": stored}
    async with http.stream("POST", "/responses", json=body, headers={HEADER: name}) as answer:
        events = [data async for _, data in server_sent(answer)]
    assert 'logprobs":[{' not in str(events), "log probabilities are recorded, and shown to nobody"
    assert_tree_is_the_engines(await tree_of(http, name), server)


async def test_it_is_kept_before_the_end_is_told(server: Server, http: httpx.AsyncClient, name: str) -> None:
    body = {"model": "test-model", "input": "Hello", "stream": True}
    async with http.stream("POST", "/responses", json=body, headers={HEADER: name}) as answer:
        async for kind, _ in server_sent(answer):
            if kind == "response.completed":
                assert len((await tree_of(http, name))["generations"]) == 1


async def test_a_websocket_with_a_base_url(server: Server, http: httpx.AsyncClient, name: str) -> None:
    url = f"ws://127.0.0.1:{server.port}/rollouts/{name}/v1/responses"
    async with await Socket.open(url, additional_headers={"session-id": "codex-1"}) as socket:
        first = await socket.ask("Hello", model="test-model")
        await socket.ask("Again", previous_response_id=first["id"])
    tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    assert {each["branch"] for each in tree["generations"]} == {"codex-1"}


@pytest.mark.parametrize("way", ["header", "url", "metadata"])
@pytest.mark.parametrize("api", ["responses", "chat", "messages", "completions"])
async def test_every_api_in_every_way(server: Server, http: httpx.AsyncClient, name: str, api: str, way: str) -> None:
    path, body = request_of(api)
    headers = {HEADER: name} if way == "header" else {}
    body = {**body, "metadata": {"rollout_id": name}} if way == "metadata" else body
    base = f"{server.url}/rollouts/{name}/v1" if way == "url" else ""
    await posted(http, base + path, body, **headers, **(ANTHROPIC if api == "messages" else {}))
    tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    assert {each["api"] for each in tree["generations"]} == {api}
    count = {"chat": 3, "completions": 4}.get(api, 1)
    assert len(tree["generations"]) == count
    if api == "chat":
        # The prompt is there once, however many answers it has.
        assert tree["usage"]["prompt_tokens"] == tree["generations"][0]["prompt_tokens"]
        assert {each["reason"] for each in tree["breaks"]} <= {"fork"}


async def test_what_a_client_asks_to_see_is_shown_and_recorded(
    server: Server, http: httpx.AsyncClient, name: str
) -> None:
    body = {"input": "Hello", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    answer = await posted(http, "/responses", body, **{HEADER: name})
    assert answer["output"][-1]["content"][0]["logprobs"]
    tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    [sampled] = [node for node in tree["nodes"] if node["mask"]]
    assert [len(each) for each in sampled["top_logprobs"]] == [2] * len(sampled["token_ids"])


async def test_interrupted_in_the_middle_of_a_turn(server: Server, http: httpx.AsyncClient, name: str) -> None:
    async with await Socket.open(server.ws_url, additional_headers={HEADER: name}) as socket:
        await socket.create("[hang]", model="test-model")
        response_id = (await socket.until("response.output_text.delta"))[0]["response"]["id"]
        await socket.send({"type": "response.interrupt", "response_id": response_id})
        await socket.answer()
    await eventually(lambda: bool(of_engine([server], {response_id})))
    tree = await tree_of(http, name)
    [generation] = tree["generations"]
    assert generation["finish_reason"] == "abort"
    assert generation["sampled_tokens"] > 0
    assert_tree_is_the_engines(tree, server)


@pytest.mark.each_database
async def test_sampling_defaults_a_group_rewards_and_an_end(server: Server, http: httpx.AsyncClient, name: str) -> None:
    sampling = {"temperature": 0.5, "seed": 7, "top_p": 0.9}
    made = await http.post("/rollouts", json={"id": name, "group": "g", "metadata": {"a": "b"}, "sampling": sampling})
    assert made.status_code == 200, made.text
    assert made.json()["sampling"] == sampling
    answer = await posted(http, "/responses", {"input": "Hello", "temperature": 1.5}, **{HEADER: name})
    [generation] = (await tree_of(http, name))["generations"]
    assert generation["sampling"] == {**generation["sampling"], **sampling, "temperature": 1.5}
    assert (await http.post(f"/rollouts/{name}/reward", json={"reward": 1})).status_code == 200
    given = await http.post(f"/rollouts/{name}/reward", json={"reward": {"a": 0.5}, "turn": answer["id"]})
    assert [each["reward"] for each in given.json()["rewards"]] == [1, {"a": 0.5}]
    assert (await tree_of(http, name))["sequences"][0]["reward"] == {"a": 0.5}
    listed = (await http.get("/rollouts", params={"group": "g", "limit": 100})).json()["data"]
    assert name in {each["id"] for each in listed}
    head = (await http.get(f"/rollouts/{name}", params={"tree": "false"})).json()
    assert "nodes" not in head
    ended = (await http.post(f"/rollouts/{name}/end")).json()
    assert ended["status"] == "ended"
    refused = await http.post("/responses", json={"input": "Hello"}, headers={HEADER: name})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "rollout_ended")
    assert (await http.delete(f"/rollouts/{name}")).json()["deleted"] is True
    assert (await http.get(f"/rollouts/{name}")).status_code == 404
    assert (await http.delete(f"/rollouts/{name}")).status_code == 404


async def test_an_end_while_a_turn_runs(server: Server, http: httpx.AsyncClient, name: str) -> None:
    async with await Socket.open(server.ws_url, additional_headers={HEADER: name}) as socket:
        await socket.create("[pauses]", model="test-model")
        await socket.until("response.in_progress")
        assert (await http.post(f"/rollouts/{name}/end")).json()["status"] == "ended"
        assert (await socket.answer())[-1]["type"] == "response.completed"
        await socket.create("Hello")
        assert (await socket.error())["error"]["code"] == "rollout_ended"
    tree = await tree_of(http, name)
    assert len(tree["generations"]) == 1
    assert_tree_is_the_engines(tree, server)


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/rollouts", b'{"id": "a b"}', 400),
        ("/rollouts", b'{"id": "%s"}' % (b"x" * 10_000), 400),
        ("/rollouts", b'{"sampling": {"temperature": 9}}', 400),
        ("/rollouts", b'{"metadata": {"a": 1}}', 400),
        ("/rollouts/{name}/reward", b'{"reward": NaN}', 400),
        ("/rollouts/{name}/reward", b'{"reward": 1e999}', 400),
        ("/rollouts/{name}/reward", b'{"reward": {"a": "high"}}', 400),
        ("/rollouts/{name}/reward", b'{"reward": {}}', 400),
        ("/rollouts/{name}/reward", b'{"reward": true}', 400),
        ("/rollouts/nobody/reward", b'{"reward": 1}', 404),
        ("/rollouts/nobody/end", b"{}", 404),
    ],
)
async def test_bad_input_is_told(http: httpx.AsyncClient, name: str, path: str, content: bytes, status: int) -> None:
    assert (await http.post("/rollouts", json={"id": name})).status_code == 200
    headers = {"content-type": "application/json"}
    answer = await http.post(path.format(name=name), content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    assert (await http.post("/rollouts", json={"id": name})).json()["error"]["code"] == "rollout_exists"


@pytest.mark.parametrize("wrong", ["a b", "x" * 129, "x" * 10_000, "ä"])
async def test_a_wrong_id_is_a_400_in_every_way(server: Server, http: httpx.AsyncClient, wrong: str) -> None:
    body = {"model": "test-model", "input": "Hello"}
    by_url = await http.post(f"{server.url}/rollouts/{wrong}/v1/responses", json=body)
    assert by_url.status_code in (400, 414, 431)
    by_metadata = await http.post("/responses", json={**body, "metadata": {"rollout_id": wrong[:512]}})
    assert by_metadata.status_code == 400
    if wrong.isascii():
        by_header = await http.post("/responses", json=body, headers={HEADER: wrong})
        assert by_header.status_code in (400, 431)


@pytest.mark.parametrize("other", ["header", "metadata"])
@pytest.mark.parametrize("api", ["responses", "chat", "messages", "completions", "websocket"])
async def test_a_request_that_names_two_is_told_both(
    server: Server, http: httpx.AsyncClient, name: str, api: str, other: str
) -> None:
    named = [name, f"{name}.2"]
    headers = {HEADER: named[1]} if other == "header" else {}
    body = {"model": "test-model", **({"metadata": {"rollout_id": named[1]}} if other == "metadata" else {})}
    if api == "websocket":
        url = f"ws://127.0.0.1:{server.port}/rollouts/{name}/v1/responses"
        async with await Socket.open(url, additional_headers=headers) as socket:
            if other == "metadata":
                await socket.create("Hello", **body)
            error = (await socket.error())["error"]
    else:
        path, more = request_of(api)
        base = f"{server.url}/rollouts/{name}/v1"
        versions = ANTHROPIC if api == "messages" else {}
        answer = await http.post(base + path, json={**more, **body}, headers={**headers, **versions})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
    assert all(f"'{each}'" in error["message"] for each in named), error
    assert "no id" not in error["message"]
    for each in named:
        assert (await http.get(f"/rollouts/{each}")).status_code == 404


async def test_projects_see_their_own_only_and_keys_need_the_scope(closed: ClosedServer, name: str) -> None:
    one, other = closed.new_key("--project", "one"), closed.new_key("--project", "two")
    reader = closed.new_key("--project", "one", "--scope", "api.rollouts.read")
    async with http_client(closed) as http:

        def by(key: str) -> dict[str, str]:
            return {"authorization": f"Bearer {key}"}

        assert (await http.post("/rollouts", json={"id": name}, headers=by(one))).status_code == 200
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/end"), ("POST", "/reward")):
            body = {"json": {"reward": 1}} if method == "POST" else {}
            answer = await http.request(method, f"/rollouts/{name}{path}", headers=by(other), **body)  # type: ignore[arg-type]
            assert answer.status_code == 404, (method, path)
        assert (await http.get("/rollouts", headers=by(other))).json()["data"] == []
        assert (await http.get(f"/rollouts/{name}", headers=by(reader))).status_code == 200
        assert (await http.post(f"/rollouts/{name}/end", headers=by(reader))).status_code == 403
        # The same id is another roll-out there.
        assert (await http.post("/rollouts", json={"id": name}, headers=by(other))).status_code == 200


@pytest.mark.parametrize("asked", [{"include": ["tokens"]}, {"return_token_ids": True}])
async def test_items_have_their_tokens(server: Server, http: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    answer = await posted(http, "/responses", {"input": "[think]", "tools": [WEATHER], **asked})
    [entry] = [each for entries in of_engine([server], {answer["id"]}).values() for each in entries]
    thought, call = answer["output"]
    assert "prompt_token_ids" not in thought
    assert call["prompt_token_ids"] == entry["prompt_tokens"]
    assert call["generation_token_ids"] == entry["sampled_tokens"]
    assert call["generation_log_probs"] == [LOGPROB] * len(entry["sampled_tokens"])
    stored = (await http.get(f"/responses/{answer['id']}")).json()
    assert {item["type"] for item in stored["output"]} == {"reasoning", "function_call"}
    refused = await http.post("/responses", json={"input": "Hello", "stream": True, **asked})
    assert refused.status_code == 400
    assert "roll-out" in refused.json()["error"]["message"]
