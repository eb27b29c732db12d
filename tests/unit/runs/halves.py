"""Runs that have said a half: their sites, their readers, and ways to wait for their end that do not last for ever."""

import asyncio

from responses_app.runs.driving.run import Run
from tests.kit.fakes import ANSWER, FakeEngine, Reading, Site, run_settings
from tests.kit.waiting import eventually

HALF = "<|channel|>final<|message|>Half of it"


def hanging(*, grace: float = 0.0, max_runs: int = 10, gate: asyncio.Event | None = None) -> Site:
    """Return a site whose engine says a half and then waits, for ever where there is no `gate`."""
    limits = run_settings(responses_max_in_flight=max_runs, reconnect_grace_seconds=grace)
    return Site(FakeEngine([[HALF, gate or asyncio.Event(), ANSWER]]), settings=limits)


async def half_said(site: Site, **fields: object) -> Reading:
    """Begin a streamed response; return its reader once the model has said a half."""
    reading = await site.begin(**{"input": "hi", "transport": "sse", **fields})
    await site.engine.waits.wait()
    return reading


async def close(site: Site, **patience: float) -> None:
    """Close the registry; a test that would wait for ever fails."""
    async with asyncio.timeout(10):
        await site.registry.aclose(**patience)


async def ended(site: Site, run: Run) -> None:
    """Return when a run has ended and is forgotten."""
    async with asyncio.timeout(10):
        await site.registry.wait_for_end(run)
    await eventually(lambda: run not in site.registry.running)


def runs(site: Site, reading: Reading) -> bool:
    return site.registry.get(reading.reader.source.response_id) is not None
