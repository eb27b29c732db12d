"""Runs checks: groups beside each other, in each the first check before the others."""

import asyncio
import time
from collections.abc import Callable, Sequence

from responses_app.command_line.conformance.asking.checks import Check, Group, Result
from responses_app.command_line.conformance.asking.talk import Server, Talk, attempt
from responses_app.command_line.conformance.asking.verdicts import Lost, Unmet, Verdict

Tell = Callable[[Result], None]


async def run_checks(
    server: Server, groups: Sequence[Group], chosen: Sequence[Check], *, at_once: int, tell: Tell
) -> list[Result]:
    """Return the results of the chosen checks, in their order; `tell` is called with each as it comes.

    Where a group's first check finds nothing, or gets no whole answer, nothing more is asked.
    """
    free = asyncio.Semaphore(at_once)
    wanted = {check.name for check in chosen}
    found = await asyncio.gather(*(_group(server, group, wanted, free, tell) for group in groups))
    return [result for results in found for result in results]


async def _group(server: Server, group: Group, wanted: set[str], free: asyncio.Semaphore, tell: Tell) -> list[Result]:
    first, *others = group.checks
    others = [check for check in others if check.name in wanted]
    if not others and first.name not in wanted:
        return []
    result = await _checked(server, first, free)
    results = [result] if first.name in wanted else []
    for each in results:
        tell(each)

    async def one(check: Check) -> Result:
        stops = result.is_lost or result.verdict is Verdict.ABSENT
        made = _after(result, check) if stops else await _checked(server, check, free)
        tell(made)
        return made

    return [*results, *await asyncio.gather(*map(one, others))]


def _after(first: Result, check: Check) -> Result:
    if first.is_lost:
        return Result(check, Verdict.SKIPPED, f"{first.check.name} got no answer", (), 0.0)
    return Result(check, first.verdict, first.came, (), 0.0)


async def _checked(server: Server, check: Check, free: asyncio.Semaphore) -> Result:
    async with free:
        talk, began = Talk(server), time.perf_counter()
        verdict, came, is_lost = Verdict.PASSED, "", False
        try:
            await attempt(check.run(talk), server.seconds)
        except Unmet as problem:
            verdict, came, is_lost = problem.verdict, str(problem), isinstance(problem, Lost)
        return Result(check, verdict, came, tuple(talk.exchanges), time.perf_counter() - began, is_lost)
