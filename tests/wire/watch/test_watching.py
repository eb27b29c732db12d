"""Responses are watched over real workers: live from another one, with tools, over a takeover, with their forks."""

import asyncio
from itertools import pairwise
from pathlib import Path

import httpx

from tests.kit.background import begin, until
from tests.kit.clients import Frame, http_client
from tests.kit.redis_server import RedisServer
from tests.kit.scripts import WEATHER
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.watch.conftest import LEASE, two_workers

Two = tuple[httpx.AsyncClient, httpx.AsyncClient]


def root(client: httpx.AsyncClient) -> str:
    """Return a worker's address without the API's path."""
    return str(client.base_url).removesuffix("/").removesuffix("/v1")


async def watched(client: httpx.AsyncClient, response_id: str) -> Frame:
    """Return what a worker shows of a response; what it has of the timeline holds its laws."""
    answer = await client.get(f"{root(client)}/watch/responses/{response_id}.json")
    assert answer.status_code == 200, answer.text
    found: Frame = answer.json()
    phases = found["phases"]
    assert phases[0]["began"] == found["created"]
    assert all(before["ended"] == after["began"] for before, after in pairwise(phases))
    assert phases[-1]["ended"] == found["ended"]
    return found


def kinds(found: Frame) -> list[str]:
    """Return its phases' kinds, each turn's by themselves, without those of no time at their end."""
    return [phase["kind"] for phase in found["phases"]]


async def page(client: httpx.AsyncClient, path: str) -> str:
    """Return a page."""
    answer = await client.get(f"{root(client)}{path}")
    assert answer.status_code == 200, answer.text
    assert "script-src" not in answer.headers["content-security-policy"]
    return answer.text


async def test_a_stream_is_watched_live_from_another_worker(two: Two, folder_of: Path) -> None:
    first, second = two
    async with first.stream("POST", "/responses", json={"input": "[gate live]", "stream": True}) as stream:
        lines = (line async for line in stream.aiter_lines() if line.startswith("data: {"))
        created = await anext(lines)
        response_id = created.partition('"id":"')[2].partition('"')[0]

        async def answers() -> bool:
            return "answer" in kinds(await watched(second, response_id))

        await eventually(answers)
        seen = await watched(second, response_id)
        assert (seen["status"], seen["ended"]) == ("in_progress", None)
        assert kinds(seen) == ["queue", "prefill", "reasoning", "answer"]
        assert seen["now"] >= seen["phases"][-1]["began"]
        text = await page(second, f"/watch/responses/{response_id}?part=live")
        assert 'data-running="true"' in text
        assert "Let me think about it." in text
        assert "<html" not in text
        (folder_of / "gate-live").touch()
        async for _ in lines:
            pass
    ended = await watched(second, response_id)
    assert ended["status"] == "completed"
    assert ended["phases"][:3] == seen["phases"][:3]
    assert {**ended, "now": 0} == {**await watched(first, response_id), "now": 0}


async def test_a_takeover_keeps_the_timeline_of_a_run_with_tools_whole(folder: Path, redis: RedisServer) -> None:
    with two_workers(folder, redis, worker_lease_seconds=LEASE) as (owner, heir):
        async with http_client(owner) as first, http_client(heir) as second:
            await timeline_over_a_takeover(owner, first, second)


async def timeline_over_a_takeover(owner: Server, first: httpx.AsyncClient, second: httpx.AsyncClient) -> None:
    """Kill the worker of a run that waits for its client."""
    asked = {"input": "[weather]", "background": True, "tools": [WEATHER]}
    answer = await first.post("/responses", json=asked, headers={"Respsite-Tool-Mode": "wait"})
    response_id = answer.json()["id"]

    async def waits() -> bool:
        return kinds(await watched(second, response_id))[-1] == "client"

    await eventually(waits)
    before = await watched(second, response_id)
    assert kinds(before) == ["queue", "prefill", "reasoning", "call", "client"]
    assert before["phases"][3]["name"] == "get_weather"
    owner.kill()
    output = {"tool_call_id": (await second.get(f"/responses/{response_id}")).json()["output"][-1]["call_id"]}

    async def taken() -> bool:
        given = await second.post(f"/responses/{response_id}/tool_outputs", json={**output, "output": "18 °C"})
        return given.status_code == 200

    await eventually(taken)
    await until(second, response_id, "completed")
    after = await watched(second, response_id)
    assert after["phases"][:4] == before["phases"][:4]
    assert kinds(after) == [*kinds(before), "queue", "prefill", "answer", "saving"]
    assert [phase["turn"] for phase in after["phases"]][4:] == [1, 2, 2, 2, 2]
    assert len(after["turns"]) == 2


async def test_the_tree_has_the_chain_and_its_forks(two: Two) -> None:
    first, second = two
    ids: list[str] = []
    for text, parent in [("One", None), ("Two", 0), ("Three", 1), ("A fork", 0), ("Its end", 3)]:
        before = None if parent is None else ids[parent]
        made = await first.post("/responses", json={"input": text, "previous_response_id": before})
        ids.append(made.json()["id"])
    tree = (await watched(second, ids[1]))["tree"]
    assert {(each["id"], each["parent"]) for each in tree} == {
        (ids[0], ""),
        (ids[1], ids[0]),
        (ids[2], ids[1]),
        (ids[3], ids[0]),
    }, "what goes on from a fork is on the page of the fork"
    assert [each["asked"] for each in tree if each["is_current"]] == ["Two"]
    assert [each["id"] for each in tree if each["more"]] == [ids[3]]
    await first.delete(f"/responses/{ids[2]}")
    [gone] = [each for each in (await watched(second, ids[1]))["tree"] if each["status"] is None] or [None]
    assert gone is None or gone["id"] == ids[2]
    text = await page(second, f"/watch/responses/{ids[4]}")
    assert [word in text for word in ("One", "A fork", "Its end")] == [True] * 3


async def test_one_that_runs_or_failed_is_in_the_tree_of_what_it_goes_on_from(two: Two, folder_of: Path) -> None:
    first, second = two
    parent = (await first.post("/responses", json={"input": "Hi"})).json()["id"]
    running = await begin(first, "[gate seen]", previous_response_id=parent)
    tree = (await watched(second, parent))["tree"]
    assert [(each["id"], each["parent"]) for each in tree[1:]] == [(running["id"], parent)]
    (folder_of / "gate-seen").touch()
    await until(first, running["id"], "completed")


async def test_two_are_compared_on_one_scale(two: Two) -> None:
    first, second = two
    asked = [{"input": "[weather] in Paris", "tools": [WEATHER]}, {"input": "[weather] in Rome", "instructions": "<b>"}]
    answers = await asyncio.gather(*(first.post("/responses", json=each) for each in asked))
    left, right = (answer.json()["id"] for answer in answers)
    text = await page(second, f"/watch/compare?left={left}&right={right}")
    assert "[weather] in <mark>Paris</mark>" in text
    assert "&lt;b&gt;" in text
    assert text.count('class="wt-timeline"') == 2
    same = await page(second, f"/watch/compare?left={left}&right={left}")
    assert "Their settings are the same." in same
    assert "<mark>" not in same
    assert 'name="left"' in await page(second, "/watch/compare")


async def test_a_timeline_is_downloaded_as_a_trace(two: Two) -> None:
    first, second = two
    made = (await first.post("/responses", json={"input": "Hi"})).json()["id"]
    answer = await second.get(f"{root(second)}/watch/responses/{made}.trace.json")
    assert answer.headers["content-disposition"] == f'attachment; filename="{made}.trace.json"'
    names = [each["name"] for each in answer.json()["traceEvents"]]
    assert {"turn 1", "queue", "prefill", "first token", "answer", "saving"} <= set(names)
    missing = await first.get(f"{root(first)}/watch/responses/resp_none.trace.json")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")


async def test_what_is_not_there_is_told_on_a_page_and_as_json(two: Two) -> None:
    first, _ = two
    for name in ("resp_none", "resp_none%00", "resp_none" * 50):
        for path in (f"/watch/responses/{name}", f"/watch/compare?left={name}&right={name}"):
            answer = await first.get(f"{root(first)}{path}")
            assert (answer.status_code, "resp_none" in answer.text) == (404, True)
    answer = await first.get(f"{root(first)}/watch/responses/resp_none.json")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")
    assert (await first.post(f"{root(first)}/watch/compare")).status_code in (403, 405)
