"""What roll-outs want of weights, over two workers of the demo engine: which versions, and how old they may be."""

import asyncio
import re
from typing import Any
from uuid import uuid4

import httpx
import pytest
from openai import OpenAI

from tests.kit.batches import batch_of, ended, line, output_of
from tests.kit.clients import Frame, Socket, read_error_answer
from tests.kit.fixtures import module_pair
from tests.kit.rollouts import tree_of
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.transports.test_engine_doors import LEASE, SAYS, done

HEADER = "x-rollout-id"
MESSAGES = [{"role": "user", "content": "repeat: hello"}]
_LONG = f"repeat: {SAYS} {SAYS} {SAYS} {SAYS}"  # eight seconds: without Redis a worker may hear of news after one
SAYING = "one"  # stands in the first words that the model repeats
APIS = {
    "/responses": {"input": "repeat: hello"},
    "/chat/completions": {"messages": MESSAGES},
    "/messages": {"messages": MESSAGES, "max_tokens": 64},
    "/completions": {"prompt": "hello", "max_tokens": 8},
}
_SAID = [{"role": "user", "content": _LONG}]
LONG = {
    "/responses": {"input": _LONG},
    "/chat/completions": {"messages": _SAID},
    "/messages": {"messages": _SAID, "max_tokens": 4000},
    "/completions": {"prompt": _LONG, "max_tokens": 4000},
}


pair = module_pair(
    "weights", engine="demo", engine_weights="on", engine_options={"tokens_per_second": 60}, worker_lease_seconds=LEASE
)


async def updated(http: httpx.AsyncClient, seed: int = 0) -> str:
    """Give the engine other weights, and return their version."""
    version = f"v-{uuid4().hex[:8]}"
    await done(http, "weights", action="apply", version=version, info={"seed": seed})
    return version


async def made(http: httpx.AsyncClient, **fields: object) -> str:
    """Create a roll-out, and return its id."""
    answer = await http.post("/rollouts", json=fields)
    assert answer.status_code == 200, answer.text
    assert {name: answer.json()[name] for name in fields} == fields
    return str(answer.json()["id"])


def headers_of(name: str, path: str) -> dict[str, str]:
    """Return the headers of a request of a roll-out."""
    return {HEADER: name, **({"anthropic-version": "2023-06-01"} if path == "/messages" else {})}


async def asked(http: httpx.AsyncClient, name: str, path: str = "/responses", **fields: object) -> httpx.Response:
    """Send a request of a roll-out."""
    return await http.post(path, json={"model": "demo", **APIS[path], **fields}, headers=headers_of(name, path))


async def head_of(http: httpx.AsyncClient, name: str) -> Frame:
    """Return a roll-out without its tree."""
    head: Frame = (await http.get(f"/rollouts/{name}", params={"tree": "false"})).json()
    return head


@pytest.mark.parametrize("path", APIS)
async def test_weights_that_are_wanted_answer_and_no_others(
    one: httpx.AsyncClient, two: httpx.AsyncClient, path: str
) -> None:
    version = await updated(one)
    name = await made(one, weights_wanted=version)
    for http in (one, two):
        answer = await asked(http, name, path)
        assert answer.status_code == 200, answer.text
    newer = await updated(two)
    for http in (one, two):
        error = (await asked(http, name, path)).json()["error"]
        assert version in error["message"]
        assert newer in error["message"]
        if path != "/messages":  # which has neither code nor field
            assert (error["code"], error["param"]) == ("weights_not_served", "weights_wanted")
    tree = await tree_of(one, name)
    assert tree["versions"] == [version]
    assert len(tree["generations"]) == 2


@pytest.mark.parametrize("path", APIS)
async def test_tokens_that_are_too_old_take_no_more(one: httpx.AsyncClient, two: httpx.AsyncClient, path: str) -> None:
    first = await updated(one)
    name = await made(one, max_staleness=1)
    assert (await head_of(one, name))["staleness"] == 0
    for behind in range(2):
        assert (await asked(two, name, path)).status_code == 200
        head = await head_of(two, name)
        assert (head["staleness"], head["stale"]) == (behind, False)
        last = await updated(one)
    head = await head_of(one, name)
    assert (head["staleness"], head["stale"], head["versions"][0]) == (2, True, first)
    page = await two.get(f"{two.base_url.copy_with(path='/watch/rollouts/')}{name}")
    assert re.search(r"<dt>Stale</dt>\s*<dd><bdi>yes</bdi></dd>", page.text), page.text
    answer = await asked(two, name, path)
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert f"'{first}', which are 2 versions behind '{last}'" in error["message"]
    if path != "/messages":
        assert (error["code"], error["param"]) == ("rollout_stale", "max_staleness")
    free = await made(one)  # says nothing of weights
    assert (await asked(two, free, path)).status_code == 200
    assert (await head_of(two, free))["stale"] is None


async def test_other_ways_in_refuse_it_too(pair: tuple[Server, Server], one: httpx.AsyncClient) -> None:
    name = await made(one, weights_wanted="nobody-has-it")
    async with await Socket.open(pair[1].ws_url, additional_headers={HEADER: name}) as socket:
        await socket.create("repeat: hello")
        assert (await socket.error())["error"]["code"] == "weights_not_served"
    for fields in ({"background": True}, {"stream": True}):
        read_error_answer(
            await asked(one, name, **fields), status=409, code="weights_not_served", param="weights_wanted"
        )
    body: Any = {"input": "repeat: hello", "metadata": {"rollout_id": name}}
    read_error_answer(
        await one.post("/responses", json=body), status=409, code="weights_not_served", param="weights_wanted"
    )
    compacting = {"input": "repeat: hello", "model": "demo"}
    assert (await one.post("/responses/compact", json=compacting, headers={HEADER: name})).status_code == 409


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("wants", "code", "finish"),
    [("weights_wanted", "weights_not_served", "other_weights"), ("max_staleness", "rollout_stale", "stale")],
)
async def test_a_turn_that_is_frozen_ends_where_other_weights_would_go_on(
    one: httpx.AsyncClient, two: httpx.AsyncClient, path: str, wants: str, code: str, finish: str
) -> None:
    version = await updated(one)
    name = await made(one, **{wants: version if wants == "weights_wanted" else 0})
    async with two.stream(
        "POST", path, json={"model": "demo", **LONG[path], "stream": True}, headers=headers_of(name, path)
    ) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if SAYING in line:
                break
        newer = await updated(one, seed=1)
        rest = "".join([line async for line in lines])
    assert "error" in rest
    assert version in rest
    assert newer in rest
    assert (code in rest) is (path != "/messages")
    tree = await tree_of(one, name)
    [generation] = tree["generations"]
    assert generation["finish_reason"] == finish
    [node] = [node for node in tree["nodes"] if node["mask"]]
    assert [span["version"] for span in node["weights"]] == [version]
    assert tree["versions"] == [version]


async def test_what_is_stored_says_so(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    version = await updated(one)
    name = await made(one, max_staleness=0)
    begun = (await asked(two, name, **LONG["/responses"], background=True)).json()

    async def has_said() -> bool:
        return bool((await one.get(f"/responses/{begun['id']}")).json()["status"] == "in_progress")

    await eventually(has_said)
    async with two.stream("GET", f"/responses/{begun['id']}", params={"stream": "true"}) as answer:
        async for line in answer.aiter_lines():
            if SAYING in line:
                break
    await updated(one)

    async def has_ended() -> bool:
        return bool((await one.get(f"/responses/{begun['id']}")).json()["status"] == "failed")

    await eventually(has_ended)
    error = (await one.get(f"/responses/{begun['id']}")).json()["error"]
    assert error["code"] == "rollout_stale"
    assert version in error["message"]


async def test_a_turn_that_is_frozen_goes_on_as_far_as_it_may(
    pair: tuple[Server, Server], one: httpx.AsyncClient
) -> None:
    first = await updated(one)
    name = await made(one, max_staleness=1)
    async with await Socket.open(pair[1].ws_url, additional_headers={HEADER: name}) as socket:
        await socket.create(_LONG)
        while not socket.frames("response.output_text.delta"):
            await socket.receive()
        second = await updated(one, seed=1)
        seen = len(socket.frames("response.output_text.delta"))
        while len(socket.frames("response.output_text.delta")) <= seen:
            await socket.receive()
        third = await updated(one)
        failed = (await socket.until("response.failed"))[-1]["response"]["error"]
    assert failed["code"] == "rollout_stale"
    assert f"'{first}', which are 2 versions behind '{third}'" in failed["message"]
    tree = await tree_of(one, name)
    [node] = [node for node in tree["nodes"] if node["mask"]]
    assert [span["version"] for span in node["weights"]] == [first, second]


async def test_lines_of_batches_obey(pair: tuple[Server, Server], one: httpx.AsyncClient) -> None:
    name = await made(one, weights_wanted="nobody-has-it")
    body = {"input": "repeat: hello", "metadata": {"rollout_id": name}}

    def answered() -> Any:
        with OpenAI(base_url=pair[0].base_url, api_key="none") as client:
            batch = ended(client, batch_of(client, [line("a", **body)]))
            return output_of(client, batch.error_file_id)["a"]["response"]

    answer = await asyncio.to_thread(answered)
    assert (answer["status_code"], answer["body"]["error"]["code"]) == (409, "weights_not_served")
