"""Completions beside each other: how their prompts are read, how many there may be, and who reads them too slowly."""

import asyncio
import threading

import pytest

from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.completions import parse_completion
from responses_app.runs.completing import LONG_PROMPTS, Completing, CompletionService
from responses_app.runs.plan import Origin
from responses_app.runs.registry import RunLimits
from tests.runs.fakes import FakeEngine, Site

PROMPT = "a" * (LONG_PROMPTS - 1)
MANY = RunLimits(max_runs=128)
ORIGIN = Origin(transport="sse", project="p")


async def begin(service: CompletionService, **body: object) -> Completing:
    """Start completions."""
    return await service.create(parse_completion(body), ORIGIN)


@pytest.mark.parametrize("count", [1, 128])
async def test_prompts_that_are_long_together_are_read_on_a_thread(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is long by itself, and the loop would stand still for as long as all take."""
    threads: list[int] = []
    read = HarmonyFormat.raw_prompt

    def noted(written: HarmonyFormat, text: str) -> object:
        threads.append(threading.get_ident())
        return read(written, text)

    monkeypatch.setattr(HarmonyFormat, "raw_prompt", noted)
    engine = FakeEngine([["<|channel|>final", asyncio.Event(), "<|return|>"]])
    completing = await begin(CompletionService(Site(engine, run_limits=MANY).service), prompt=[PROMPT] * count)
    await completing.aclose()
    assert len(threads) == count
    assert len(set(threads)) == 1
    assert (threading.get_ident() in threads) == (count == 1)
