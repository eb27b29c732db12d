"""The row `rollout_purge`: how long others wait to write while many roll-outs whose time is over are removed."""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from bench.loads import database_of
from bench.report import Result
from bench.servers import Bench
from engine.formats.base import as_tokens

ROLLOUTS = 1000  # unless ROLLOUTS_PURGED says how many
TURNS = 30
PROMPT, SAMPLED = 300, 72  # tokens that a turn adds: what `training` measures
TARGET = 500.0  # ms that a write may wait at most
PAUSE = 0.005  # seconds between two writes
TOGETHER = 100  # roll-outs that are filled in at once


def rollout_purge(bench: Bench) -> Iterator[Result]:
    """Purge many on both databases, with a writer beside."""
    rollouts = int(os.environ.get("ROLLOUTS_PURGED", str(ROLLOUTS)))
    for name in ("SQLite", "PostgreSQL"):
        bench.report.step(name)
        with database_of(bench, name) as alias:
            _fill(alias, rollouts)
            waits, seconds = asyncio.run(_purge(alias, rollouts))
        waits.sort()
        yield Result(
            what=f"the slowest write while {rollouts:,} roll-outs of {TURNS} turns are purged, {name}",
            measured=waits[-1] * 1e3,
            unit="ms",
            target=TARGET,
            details={
                "median ms": waits[len(waits) // 2] * 1e3,
                "p99 ms": waits[int(len(waits) * 0.99)] * 1e3,
                "seconds": seconds,
                "tokens": rollouts * TURNS * (PROMPT + SAMPLED),
            },
        )


def _fill(alias: str, rollouts: int) -> None:
    from django.db import connections, transaction

    from responses_app.protocol.rollouts.generations import EngineCall, Generation, as_logprobs
    from responses_app.resources.rollouts.fields import RolloutRecord
    from responses_app.resources.rollouts.model import Rollout, RolloutGeneration
    from responses_app.resources.rollouts.rows import generation_row, row_of

    call = EngineCall(
        response_id="resp_1", sampled=as_tokens(range(SAMPLED)), logprobs=as_logprobs([-0.5] * SAMPLED), finish="stop"
    )
    row = generation_row("", Generation(number=0, call=call, tail=as_tokens(range(PROMPT))))
    columns = {
        field.attname: getattr(row, field.attname) for field in RolloutGeneration._meta.fields if not field.primary_key
    }
    for first in range(0, rollouts, TOGETHER):
        with transaction.atomic(using=alias):
            names = [f"old-{number:08}" for number in range(first, min(first + TOGETHER, rollouts))]
            made = [RolloutRecord(id=name, project="p", name=name, created_at=1, last_at=1) for name in names]
            Rollout.objects.using(alias).bulk_create(map(row_of, made))
            RolloutGeneration.objects.using(alias).bulk_create(
                RolloutGeneration(**{**columns, "rollout_id": name, "number": turn})
                for name in names
                for turn in range(TURNS)
            )
    connections[alias].close()


async def _purge(alias: str, rollouts: int) -> tuple[list[float], float]:
    from responses_app.resources.rollouts.fields import UNLIMITED, RolloutRecord
    from responses_app.resources.rollouts.store import RolloutStore

    purger, writer = (
        RolloutStore(using=alias, settings=replace(UNLIMITED, rollout_ttl=3600.0), now=time.time) for _ in range(2)
    )
    waits: list[float] = []

    async def write() -> None:
        for number in count():
            now, began = int(time.time()), time.perf_counter()
            await writer.create(
                RolloutRecord(id=f"new-{number}", project="p", name=f"new-{number}", created_at=now, last_at=now)
            )
            waits.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE)

    writing, began, removed, more = asyncio.create_task(write()), time.perf_counter(), 0, True
    while more:
        done, more = await purger.purge()
        removed += done
    seconds = time.perf_counter() - began
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await asyncio.gather(purger.aclose(), writer.aclose())
    assert removed == rollouts, "all of them are gone"
    return waits, seconds
