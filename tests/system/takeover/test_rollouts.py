"""A worker is killed in the middle of a turn of a roll-out, behind a change of weights or across one.

Only this finds tokens that two workers have recorded, or none, where one of them died in the middle of a turn.

Each token has the weights that the engine's own record gives it, or none where nobody can know.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.kit.background import begin, until
from tests.kit.clients import http_client
from tests.kit.fake_vllm import MODEL, SELDOM_LOOKED_AT, Asked, FakeVllm
from tests.kit.rollouts import assert_laws_of_trees, path_tokens, tree_of
from tests.kit.scripts import BEGIN
from tests.kit.server import Server
from tests.kit.stored import end_lease, owner_of, stop_beside_its_writes
from tests.kit.waiting import eventually
from tests.wire.transports.test_engine_doors import done

TIMES = int(os.environ.get("ROLLOUT_TAKEOVERS", "1"))  # how often each is done
LEASE = 2.0  # WORKER_LEASE_SECONDS
SAID = " ".join(str(number) for number in range(400))
SCRIPT = (
    {"say": f"<|channel|>analysis<|message|>I count.<|end|><|start|>assistant{BEGIN}{SAID}<|return|>", "delay": 0.01},
)
CHUNKS = 40  # of a turn, behind which something happens


class Pair:
    """Two workers in front of a vLLM server. `other` is asked for updates, and takes over; `own` runs the turn."""

    def __init__(self, folder: Path, vllm: FakeVllm) -> None:
        settings: dict[str, Any] = {"engine": "vllm-server", "engine_url": vllm.url, "model": MODEL}
        settings |= {"engine_weights": "on", "worker_lease_seconds": LEASE, "engine_options": SELDOM_LOOKED_AT}
        self.vllm = vllm
        self.other, self.own = (Server(folder, **settings) for _ in range(2))
        self.own.log = folder / "own.log"

    async def sampled(self, chunks: int) -> None:
        """Return once the engine has sampled so much of the turn."""
        await eventually(lambda: any(each.sent >= chunks for each in self.asked()))

    def asked(self) -> Sequence[Asked]:
        """Return the engine's own record of the turn: several where it was cut."""
        return [each for each in self.vllm.generations if each.body["request_id"].startswith("resp_")]


@asynccontextmanager
async def two_workers(folder: Path) -> AsyncIterator[tuple[Pair, httpx.AsyncClient, httpx.AsyncClient]]:
    """Run two workers without Redis, where news take up to a second."""
    async with FakeVllm(*SCRIPT) as vllm:
        pair = Pair(folder, vllm)
        try:
            await asyncio.gather(*(asyncio.to_thread(server.start) for server in (pair.other, pair.own)))
            async with http_client(pair.other) as other, http_client(pair.own) as own:
                yield pair, other, own
        finally:
            await asyncio.gather(*(asyncio.to_thread(server.stop) for server in (pair.other, pair.own)))


def told(tree: Any) -> list[str | None]:
    """Return the version of each sampled token of the one turn of a roll-out."""
    [node] = [node for node in tree["nodes"] if node["mask"]]
    return [span["version"] for span in node["weights"] for _ in range(span["tokens"])]


def sampled_by(asked: Asked) -> list[str]:
    """Return the version of each token of a generation, as its engine has it."""
    return [span["version"] for span in asked.weights for _ in range(span["end"] - span["start"])]


def check(tree: Any, asked: Sequence[Asked]) -> tuple[int, int]:
    """Compare a turn that was cut once with the engine's record; return where it was cut, and how many are unknown."""
    assert_laws_of_trees(tree)
    [generation] = tree["generations"]
    tokens, prompt = path_tokens(tree, generation["nodes"]), generation["prompt_tokens"]
    first, then = asked
    cut = len(then.body["token_ids"]) - prompt
    assert cut > 0
    assert tokens[:prompt] == first.body["token_ids"]
    assert then.body["token_ids"] == [*first.body["token_ids"], *first.sampled[:cut]]
    assert tokens[prompt:] == [*first.sampled[:cut], *then.sampled]
    versions, expected = told(tree), [*sampled_by(first)[:cut], *sampled_by(then)]
    assert len(versions) == len(expected)
    wrong = [
        (place, *pair)
        for place, pair in enumerate(zip(versions, expected, strict=True))
        if pair[0] not in (None, pair[1])
    ]
    assert not wrong, wrong
    return cut, versions.count(None)


async def taken_over(pair: Pair, other: httpx.AsyncClient, response_id: str) -> None:
    """Kill the worker of a turn, and wait until the other one has ended it."""
    owner = owner_of(pair.other, response_id)
    await asyncio.to_thread(pair.own.kill)
    end_lease(pair.other, owner)
    ended = await until(other, response_id, "completed", "failed")
    assert ended["status"] == "completed", ended


async def test_a_turn_that_begins_behind_an_update_has_its_weights(tmp_path: Path) -> None:
    """Workers once heard of an update behind its end, up to a second later: until then they named the old weights."""
    for time in range(TIMES):
        async with two_workers(tmp_path / str(time)) as (pair, other, own):
            update = asyncio.create_task(done(other, "weights", action="apply", version="step-1", info={}))
            await eventually(lambda: "resume" in dict(pair.vllm.doors.asked))
            response = await begin(own, "Count.", metadata={"rollout_id": "cut"})
            await pair.sampled(CHUNKS)
            await taken_over(pair, other, response["id"])
            await update
            _, unknown = check(await tree_of(other, "cut"), pair.asked())
            assert unknown == 0


async def test_weights_that_change_in_a_turn_that_is_taken_over_are_not_made_up(tmp_path: Path) -> None:
    for time in range(TIMES):
        async with two_workers(tmp_path / str(time)) as (pair, other, own):
            response = await begin(own, "Count.", metadata={"rollout_id": "cut"})
            await pair.sampled(CHUNKS)
            await done(other, "weights", action="apply", version="step-1", info={})
            [before] = pair.asked()
            await pair.sampled(before.sent + CHUNKS)
            await taken_over(pair, other, response["id"])
            tree = await tree_of(other, "cut")
            cut, unknown = check(tree, pair.asked())
            first, _ = pair.asked()
            known = told(tree)
            assert "default" in known[:cut], "what came before the pause is known"
            assert set(known[cut:]) == {"step-1"}
            assert unknown <= cut - sampled_by(first)[:cut].count("default") + 1


async def test_a_worker_that_was_silent_and_the_one_that_took_over_record_a_turn_once(tmp_path: Path) -> None:
    """The first one wakes up in its turn, with tokens that it has not logged: these are nobody's."""
    for time in range(TIMES):
        async with two_workers(tmp_path / str(time)) as (pair, other, own):
            response = await begin(own, "Count.", metadata={"rollout_id": "cut"})
            await pair.sampled(CHUNKS)
            assert pair.own.process is not None
            await asyncio.to_thread(stop_beside_its_writes, pair.own)
            try:
                await eventually(lambda: len(pair.asked()) == 2)
            finally:
                os.killpg(pair.own.process.pid, signal.SIGCONT)
            ended = await until(other, response["id"], "completed", "failed")
            assert ended["status"] == "completed", ended
            await eventually(lambda: "took it over" in pair.own.output)
            _, unknown = check(await tree_of(other, "cut"), pair.asked())
            assert unknown == 0
