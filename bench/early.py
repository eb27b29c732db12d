"""What calls that begin before they are asked for save: a scripted loop with tools of 300 ms, with and without them.

The engine gives 100 tokens a second. The clock of whoever waits counts, not the CPU: the tools sleep.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from statistics import median

from bench.report import Result
from bench.servers import Bench
from engine.types import GenerationRequest, TokenChunk
from responses_app.tools.base import ToolCall, ToolResult
from tests.kit.fakes import Site
from tests.unit.runs.early import WIKI, OnwardSite, Wiki, read, turn
from tests.unit.runs.test_early_calls import CALLED, program_site

ROUNDS = 3
TOOL_SECONDS = 0.3
TOKEN_SECONDS = 0.01
MOST = 0.7  # of the time without
ANSWER = "It is so."
AGAIN = [turn(*map(read, "abc")), turn(*map(read, "bc")), turn(read("c")), turn(ANSWER)]
OTHERS = [turn(*map(read, "abc")), turn(*map(read, "de")), turn(read("f")), turn(ANSWER)]


class SlowWiki(Wiki):
    """Takes its time for each read."""

    async def _read(self, call: ToolCall) -> ToolResult:
        await asyncio.sleep(TOOL_SECONDS)
        return await super()._read(call)


def early(bench: Bench) -> Iterator[Result]:
    """Let a program and a model make several calls that only read, and take the time until the answer has ended."""
    together = [("read", what) for what in "abcd"]
    yield _compared(
        "a program that makes 4 calls of 300 ms together",
        lambda setting: program_site(SlowWiki(), setting, together),
        ("off", "known"),
        CALLED,
    )
    yield _compared(
        "a model that writes 3 calls of 300 ms in one turn, and asks for each then",
        lambda setting: _written(AGAIN, setting),
        ("off", "predicted"),
        {"tools": [WIKI]},
    )
    yield _compared(
        "the same of a model that asks for other ones then",
        lambda setting: _written(OTHERS, setting),
        ("off", "predicted"),
        {"tools": [WIKI]},
        most=1.05,
    )


def _written(turns: Sequence[str], setting: str) -> Site:
    site = OnwardSite(turns, SlowWiki(), setting)
    generate = site.engine.generate

    async def paced(request: GenerationRequest) -> AsyncIterator[TokenChunk]:
        async for chunk in generate(request):
            await asyncio.sleep(TOKEN_SECONDS)
            yield chunk

    site.engine.generate = paced  # type: ignore[method-assign]
    return site


def _compared(
    what: str,
    make: Callable[[str], Site],
    ways: tuple[str, str],
    fields: Mapping[str, object],
    *,
    most: float = MOST,
) -> Result:
    """Return the time with calls that begin early, as a part of that without; rounds take turns."""
    took: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way in ways:
            took[way].append(asyncio.run(_seconds(make(way), fields)))
    without, with_early = (median(took[way]) for way in ways)
    details = {"without, s": without, "with, s": with_early}
    what = f"{what}: time with calls begun early / without"
    return Result(what=what, measured=with_early / without, target=most, details=details)


async def _seconds(site: Site, fields: Mapping[str, object]) -> float:
    began = time.perf_counter()
    response = await site.ask(input="hi", **fields)
    assert response["status"] == "completed", response
    return time.perf_counter() - began
