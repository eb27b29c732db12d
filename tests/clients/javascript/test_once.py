"""OpenAI's JavaScript SDK with an `Idempotency-Key`, whose server dies."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.clients.javascript.node import installed, run
from tests.kit.balancer import Balancer
from tests.kit.scripts import BEGIN
from tests.kit.waiting import eventually
from tests.system.takeover.test_idempotency_kills import is_running, owner_of, rows
from tests.wire.transports.test_takeover import HELD, LONG, NUMBERS, two_workers


async def test_openai_node(folder: Path, tmp_path: Path) -> None:
    packages = installed()
    may_end = folder / "may-end"
    held = {"when": "[long]", "say": LONG, "hang_after": HELD, "wait_for_file": str(may_end)}
    script = [held, {"say": f"{BEGIN}Hello.<|return|>"}]
    async with two_workers(folder, script=script) as pair, Balancer(pair.workers) as balancer:
        arguments = ("openai", balancer.base_url, uuid4().hex)
        asking = asyncio.create_task(run("once.mjs", *arguments, packages=packages, folder=tmp_path / "run"))
        await eventually(lambda: is_running(pair, "[long]"))
        owner = await owner_of(pair)
        pair.alive.remove(owner)
        await asyncio.to_thread(owner.kill)
        may_end.touch()
        told: dict[str, Any] = await asking
        assert told["text"] == NUMBERS
        assert [row[:2] for row in rows(pair, "[long]")] == [(told["id"], "completed")]
        assert told["types"] == told["again"]
        assert told["types"][-1][0] == "response.completed"
        assert len(rows(pair, '"Hi"')) == 1
