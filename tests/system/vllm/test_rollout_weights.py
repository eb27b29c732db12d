"""A roll-out in whose middle the weights of a real vLLM change twice: its tokens and versions are those of vLLM.

Only this finds a token that is said to be of other weights than those that sampled it.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.kit.clients import http_client, server_sent
from tests.kit.engine_relay import EngineRelay, Generated
from tests.kit.rollouts import assert_laws_of_trees, path_tokens, tree_of
from tests.kit.sdk import MODEL
from tests.kit.server import Server
from tests.system.vllm.fronts import relayed
from tests.system.vllm.server import VllmServer

ROLLOUT = {"x-rollout-id": "task"}
PROMPT = list(range(1000, 1050))
LONG, SHORT = 600, 10  # tokens
MORE = 20  # chunks between two updates


async def test_two_updates_in_one_rollout(seeded_server: VllmServer, tmp_path: Path) -> None:
    async with relayed(seeded_server, tmp_path, engine_weights="on") as (server, relay):
        await change_twice(server, relay)


async def change_twice(server: Server, relay: EngineRelay) -> None:
    """Have a turn run through two updates, and another one follow."""
    async with http_client(server) as http:
        http.timeout = 120

        async def update(version: str, seed: int) -> None:
            body = {"action": "apply", "version": version, "info": {"seed": seed}}
            answer = await http.post("/engine/weights", json=body)
            assert answer.status_code == 200, answer.text

        body: Any = {"model": MODEL, "prompt": PROMPT, "ignore_eos": True, "temperature": 0}
        assert (await http.post("/rollouts", json={"id": "task", "max_staleness": 2})).status_code == 200
        await update("v1", 1)
        relay.generations.clear()
        turn = {**body, "max_tokens": LONG, "stream": True}
        async with http.stream("POST", "/completions", json=turn, headers=ROLLOUT) as answer:
            events = aiter(server_sent(answer))
            for version, seed in (("v2", 2), ("v3", 3)):
                await some(events, MORE)
                await update(version, seed)
            assert "error" not in str([data async for _, data in events])
        again = await http.post("/completions", json={**body, "max_tokens": SHORT}, headers=ROLLOUT)
        assert again.status_code == 200, again.text
        tree = await tree_of(http, "task")
        check(tree, relay.generations)
        assert (tree["versions"], tree["staleness"], tree["stale"]) == (["v1", "v2", "v3"], 2, False)
        await update("v4", 4)
        refused = await http.post("/completions", json={**body, "max_tokens": SHORT}, headers=ROLLOUT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "rollout_stale")


async def some(events: AsyncIterator[Any], count: int) -> None:
    """Read so many events."""
    for _ in range(count):
        await anext(events)


def check(tree: Any, generations: list[Generated]) -> None:
    """Check that a tree has what vLLM has written down: tokens, log probabilities to the bit, versions."""
    assert_laws_of_trees(tree, logprob=None)
    had = [each for each in generations if each.logprobs]
    assert [len(each.sampled) for each in had] == [LONG, SHORT]
    assert [version for version, _ in had[0].weights] == ["v1", "v2", "v3"]
    assert had[1].weights == [("v3", SHORT)]
    for generation, engine in zip(tree["generations"], had, strict=True):
        assert path_tokens(tree, generation["nodes"]) == [*engine.prompt, *engine.sampled]
        nodes = [node for node in tree["nodes"] if node["generation"] == generation["id"] and node["mask"]]
        assert [each for node in nodes for each in node["logprobs"]] == engine.logprobs
        spans = [(span["version"], span["tokens"]) for node in nodes for span in node["weights"]]
        assert spans == engine.weights
