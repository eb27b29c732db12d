"""`python -m tests.system.cluster.hour [SEED]`: everything at once for HOUR_MINUTES, with faults by chance.

Three workers, PostgreSQL, Redis, two engines and nginx. Answers are streamed to HOUR_STREAMS clients of all kinds, and
HOUR_CONNECTIONS WebSockets are open, most of them idle. Beside those, responses call a tool that must not be called
twice, batches run, roll-outs are recorded, and webhooks are sent. The seed decides which part is killed, stopped or
replaced when, and for how long. At the end everything that was acknowledged has to be there:

    response   stored, and whole
    tool       called exactly once for each answer, never twice
    batch      one answer for each line
    roll-out   its sequences have as many sampled tokens as the answers said
    webhook    arrived for each response in the background
"""

import asyncio
import logging
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from openai import APIError, OpenAI
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus

from tests.kit.batches import batch_of, has_ended, line, output_of
from tests.kit.clients import Frame, Socket
from tests.kit.sdk import sdk_of
from tests.kit.webhook_receiver import Receiver
from tests.system.cluster.batch_faults import LINE_HEADER, Result, counted_tool
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.faults import Faults
from tests.system.cluster.load import ASKED, BROKEN, Load

MINUTES = float(os.environ.get("HOUR_MINUTES") or 60)
STREAMS = int(os.environ.get("HOUR_STREAMS") or 500)
CONNECTIONS = int(os.environ.get("HOUR_CONNECTIONS") or 2000)  # with those of the streams
PACE = float(os.environ.get("HOUR_PACE") or 4.0)  # tokens a second of each answer
CALLERS, ROLLERS, BATCHERS = 4, 4, 1  # clients of the other kinds
LINES = 20  # of a batch
TURNS = 4  # of a roll-out
BATCH_SECONDS = 900.0
SETTLE_SECONDS = 600.0  # until all kinds of so many clients have been answered, on a slow machine
WEBHOOK_SECONDS = 400.0  # for what is left at the end
EVERY_SECONDS = 2.0  # between two looks at the memory
WARM = 1 / 6  # of the time: what memory grows by meanwhile does not count
FLAT = 0.03
SETTINGS: dict[str, object] = {
    "max_websocket_connections": 2 * CONNECTIONS,
    "webhook_allowed_hosts": "127.0.0.1",
    "mcp_allowed_hosts": "127.0.0.1",
    "responses_session_ttl": 20,
}


class HourLoad(Load):
    """Clients of the cluster's usual kinds, and of those that only an hour has."""

    def __init__(self, cluster: Cluster, tool_url: str, calls: Counter[str]) -> None:
        super().__init__(cluster.server, clients=STREAMS, settle_seconds=SETTLE_SECONDS)
        self._tool = {"type": "mcp", "server_label": "tests", "server_url": tool_url, "require_approval": "never"}
        self.calls = calls  # of the tool, by the request that made them
        self.answered: set[str] = set()  # requests whose answers have what the tool returned
        self.lines = 0  # of batches, each with one answer
        self.rollouts = 0  # whose trees were right
        self._idlers = count()
        self.background: set[str] = set()  # responses in the background that have completed
        others = {self._call: CALLERS, self._roll: ROLLERS, self._batch: BATCHERS}
        self._kinds |= {**others, self._idle: max(0, CONNECTIONS - STREAMS // 4)}

    def _ended(self, kind: str, response: Frame) -> None:
        super()._ended(kind, response)
        if kind == "background" and response["status"] == "completed":
            self.background.add(response["id"])

    async def _idle(self) -> None:
        """Hold a WebSocket open, and open another where it breaks."""
        # nginx lets one address have 1,000 connections, so they come from several.
        address = f"127.0.1.{1 + next(self._idlers) // 500}"
        while not self._enough:
            try:
                async with await Socket.open(self.server.ws_url, local_addr=(address, 0)) as socket:
                    while not self._enough:
                        await (await socket.raw.ping())
                        await asyncio.sleep(20)
            except ConnectionClosed as closed:
                await self._again(f"WebSocket {closed.rcvd.code if closed.rcvd else 1006}")
            except InvalidStatus as refused:
                await self._again(f"WebSocket {refused.response.status_code}")
            except (OSError, InvalidHandshake, InvalidMessage) as error:
                await self._again(f"WebSocket {type(error).__name__}")

    async def _call(self) -> None:
        """Have the model call a tool. A client that was not answered asks anew, under another name."""
        while not self._enough:
            name = f"call-{random.getrandbits(64):x}"
            tools = [{**self._tool, "headers": {LINE_HEADER: name}}]
            answer = await self._sent("POST", "/responses", json={"input": "call book", "tools": tools})
            if answer is None or answer.json()["status"] != "completed":
                continue
            self.tally.completed["tool"] += 1
            # Where the tools could not be listed, the model answers without them.
            if any(item["type"] == "mcp_call" and item["output"] for item in answer.json()["output"]):
                self.answered.add(name)

    async def _roll(self) -> None:
        """Record a roll-out of some turns, look at its tree, and delete it."""
        while not self._enough:
            name = f"hour-{random.getrandbits(64):x}"
            if await self._sent("POST", "/rollouts", json={"id": name}) is None:
                continue
            sampled, parent, whole = 0, {}, True
            for _ in range(TURNS):
                asked = {"input": ASKED, "metadata": {"rollout_id": name}, **parent}
                answer = await self._sent("POST", "/responses", json=asked)
                if answer is None or answer.json()["status"] != "completed":
                    whole = False  # what a client does not know of may be in the tree
                    break
                response = answer.json()
                sampled += response["usage"]["output_tokens"]
                parent = {"previous_response_id": response["id"]}
            tree = await self._sent("GET", f"/rollouts/{name}") if whole else None
            if tree is not None:
                found = sum(sum(sequence["mask"]) for sequence in tree.json()["sequences"])
                if found != sampled:
                    self.tally.failed.append(f"roll-out {name}: sampled {sampled}, its sequences have {found}")
                self.rollouts += 1
                self.tally.completed["roll-out"] += 1
            await self._sent("DELETE", f"/rollouts/{name}")

    async def _batch(self) -> None:
        """Have a batch run, and read its files."""
        for number in count():
            if self._enough:
                return
            try:
                with sdk_of(self.server, max_retries=8, timeout=30) as client:
                    await asyncio.to_thread(self._one_batch, client, number)
            except APIError as error:
                await self._again("503" if getattr(error, "status_code", 0) == 503 else "ReadTimeout")

    def _one_batch(self, client: OpenAI, number: int) -> None:
        batch = batch_of(client, [line(f"{number}-{each}", input=ASKED) for each in range(LINES)])
        deadline = time.monotonic() + BATCH_SECONDS
        while not has_ended(batch):
            assert time.monotonic() < deadline, batch
            time.sleep(1.0)
            batch = client.batches.retrieve(batch.id)
        output, errors = output_of(client, batch.output_file_id), output_of(client, batch.error_file_id)
        if batch.status != "completed" or len(output) + len(errors) != LINES or output.keys() & errors.keys():
            self.tally.failed.append(f"{batch.id}: {batch.status}, {len(output)} answers, {len(errors)} errors")
        self.lines += LINES
        self.tally.completed["batch"] += 1

    async def _sent(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """Ask; return None where a client would have to ask again."""
        try:
            answer = await self._http.request(method, path, **more)
        except httpx.TransportError as error:
            await self._again(type(error).__name__)
            return None
        if answer.is_success:
            return answer
        if answer.status_code in (429, 503):
            await self._again(str(answer.status_code))
        elif method != "DELETE" or answer.status_code != 404:  # the answer to the first may have been cut
            self.tally.failed.append(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return None


async def run(seed: int, folder: Path) -> bool:
    """Run the hour, print what came of it, and return whether all is as it has to be."""
    result = Result()
    async with counted_tool(result) as tool_url:
        cluster = Cluster(folder, tokens_per_second=PACE, **SETTINGS)
        await asyncio.to_thread(cluster.start)
        receiver = Receiver(folder / "receiver")
        try:
            await asyncio.to_thread(receiver.start)
            receiver.knows(await asyncio.to_thread(_endpoint, cluster, receiver.url))
            load, faults = HourLoad(cluster, tool_url, result.calls), Faults(cluster, seed)
            began = time.monotonic()
            samples: list[tuple[float, float]] = []
            async with load.running():
                async with faults.running():
                    while (at := time.monotonic() - began) < MINUTES * 60:
                        samples.append((at, _held(cluster)))
                        await asyncio.sleep(EVERY_SECONDS)
                print(f"the faults are over; completed so far {dict(load.tally.completed)}", flush=True)
                await load.more(2)
                print(f"all are answered again; completed {dict(load.tally.completed)}", flush=True)
            wrong = await _wrong(load, receiver)
            grown = _grown(samples)
        finally:
            receiver.kill()
            await asyncio.to_thread(cluster.stop)
    print(
        f"seed {seed}; {MINUTES:g} minutes; faults {dict(faults.done)}; completed {dict(load.tally.completed)}; "
        f"retried {dict(load.tally.retried)}; acknowledged {len(load.tally.acknowledged)}; "
        f"lines of batches {load.lines}; roll-outs {load.rollouts}; tools called {result.calls.total()}; "
        f"memory {grown:+.1%}; wrong {wrong or 0}",
        flush=True,
    )
    return not wrong and grown <= FLAT


def _endpoint(cluster: Cluster, url: str) -> str:
    with sdk_of(cluster.server) as client:
        return client.webhooks.create(name="hour", url=url, event_types=["response.completed"]).signing_secret


def _held(cluster: Cluster) -> float:
    """Return the bytes that a worker holds on average: one that was just started counts as little as it holds."""
    try:
        sizes = [size for name, size in cluster.sizes().items() if name.startswith("worker")]
    except OSError:  # one has ended between two looks
        return float("nan")
    return statistics.fmean(sizes) if sizes else float("nan")


def _grown(samples: list[tuple[float, float]]) -> float:
    """Return by how much the memory of the last third is above that of the first behind the warm-up."""
    known = [held for at, held in samples if not math.isnan(held) and at > WARM * MINUTES * 60]
    third = max(1, len(known) // 3)
    return statistics.median(known[-third:]) / statistics.median(known[:third]) - 1


async def _wrong(load: HourLoad, receiver: Receiver) -> list[str]:
    """Return what is not as it has to be, once what is under way has come."""
    tally = load.tally
    wrong = tally.failed[:10]
    odd = {why.removesuffix(" of a background stream") for why in tally.retried} - BROKEN - {"429"}
    wrong += [f"clients had to come again after {sorted(odd)}"] if odd else []
    twice = [name for name, calls in load.calls.items() if calls > 1]
    uncalled = [name for name in load.answered if load.calls[name] != 1]
    wrong += [f"tools called twice: {twice[:5]}"] if twice else []
    wrong += [f"answers without a call: {uncalled[:5]}"] if uncalled else []

    ends_at = time.monotonic() + WEBHOOK_SECONDS
    while missing := load.background - {each["data"]["id"] for each in receiver.received}:
        if time.monotonic() > ends_at:
            wrong.append(f"{len(missing)} of {len(load.background)} webhooks did not arrive: {sorted(missing)[:3]}")
            break
        await asyncio.sleep(1)
    return wrong


if __name__ == "__main__":
    logging.disable(logging.INFO)  # of the clients here
    with tempfile.TemporaryDirectory(prefix="respsite-hour-") as folder:
        is_right = asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1, Path(folder)))
    sys.exit(0 if is_right else 1)
