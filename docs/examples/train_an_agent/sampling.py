"""Samples roll-outs for TRL's asynchronous GRPO: the agent runs, respsite records, and its export is what TRL reads."""

import asyncio
import json
import queue
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from statistics import mean, pstdev
from typing import Any

import httpx
import numpy as np
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from walk import walk

ATTEMPTS = 16  # of a group


class Sampler:
    """TRL's `RolloutWorkerProtocol`: fills `rollout_buffer`, group by group, while TRL trains."""

    def __init__(self, server: str, run: str, ahead: int) -> None:
        self.server = server
        self.run = run  # begins the names of all groups
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue(maxsize=ahead)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.sampling: Future[None] | None = None
        self.is_stopping = False

    def start(self) -> None:
        """Begin to sample."""
        self.sampling = ThreadPoolExecutor(1).submit(self._sample)

    def stop(self) -> None:
        """Sample no other group."""
        self.is_stopping = True
        while self.sampling and not self.sampling.done():
            with suppress(queue.Empty):
                self.rollout_buffer.get(timeout=0.1)  # it may wait for room

    def update_model_version(self, model_version: int) -> None:
        """Do nothing: respsite knows which weights have sampled which token."""

    def check_health(self, stale_after_s: float) -> None:
        """Raise what has ended the sampling."""
        if self.sampling and self.sampling.done():
            self.sampling.result()

    def _sample(self) -> None:
        for number in count(1):
            for sample in asyncio.run(self._group(f"{self.run}-{number}")):
                self.rollout_buffer.put(sample)
            if self.is_stopping:
                return

    async def _group(self, group: str) -> list[RolloutSample]:
        async with httpx.AsyncClient(base_url=f"{self.server}/v1", timeout=120) as api:
            await asyncio.gather(*(self._attempt(api, group, f"{group}.{place}") for place in range(ATTEMPTS)))
            rows = await asked(api, "GET", "/rollouts/export", params={"format": "trl", "group": group})
        return samples_of([json.loads(row) for row in rows.splitlines()])

    async def _attempt(self, api: httpx.AsyncClient, group: str, name: str) -> None:
        await asked(api, "POST", "/rollouts", json={"id": name, "group": group, "sampling": {"temperature": 1.0}})
        reward = await walk(f"{self.server}/rollouts/{name}/v1")
        await asked(api, "POST", f"/rollouts/{name}/reward", json={"reward": reward})
        await asked(api, "POST", f"/rollouts/{name}/end")


async def asked(api: httpx.AsyncClient, method: str, path: str, **fields: Any) -> str:
    """Return the answer to a request. Raises what the server says."""
    answer = await api.request(method, path, **fields)
    if answer.is_error:
        raise RuntimeError(f"{path}: {answer.text}")
    return answer.text


def samples_of(rows: list[dict[str, Any]]) -> list[RolloutSample]:
    """Make samples of the rows of a group: the advantage is how much better an attempt was than the others."""
    rewards = {row["rollout_id"]: row["reward"] for row in rows}  # an attempt may have several rows
    middle, spread = mean(rewards.values()), pstdev(rewards.values())
    return [
        RolloutSample(
            prompt=row["prompt"],
            completion=row["completion"],
            input_ids=np.array(row["input_ids"]),
            completion_mask=np.array(row["completion_mask"]),
            old_log_probs=np.array(row["old_log_probs"], dtype=np.float32),
            advantage=(row["reward"] - middle) / (spread + 1e-4),
            model_version=row["model_version"],
            group_id=row["group_id"],
            metrics={"reward": row["reward"]},
        )
        for row in rows
    ]
