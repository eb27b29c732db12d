"""Runs checks: groups beside each other, in each the first check before the others."""

import asyncio
import time
from collections.abc import Callable, Sequence

from responses_app.command_line.conformance.asking.checks import Check, Group, Result
from responses_app.command_line.conformance.asking.talk import Server, Talk, attempt
from responses_app.command_line.conformance.asking.verdicts import Unmet, Verdict

Tell = Callable[[Result], None]


async def run_checks(
    server: Server, groups: Sequence[Group], chosen: Sequence[Check], *, at_once: int, tell: Tell
) -> list[Result]:
    """Return the results of the chosen checks, in their order; `tell` is called with each as it comes.

    Where a group's first check has not passed, the others get its verdict, or are skipped, and nothing is asked.
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
        made = await _checked(server, check, free) if result.verdict is Verdict.PASSED else _after(result, check)
        tell(made)
        return made

    return [*results, *await asyncio.gather(*map(one, others))]


def _after(first: Result, check: Check) -> Result:
    if first.verdict is Verdict.FAILED:
        return Result(check, Verdict.SKIPPED, f"{first.check.name} has failed", (), 0.0)
    return Result(check, first.verdict, first.came, (), 0.0)


async def _checked(server: Server, check: Check, free: asyncio.Semaphore) -> Result:
    async with free:
        talk, began = Talk(server), time.perf_counter()
        verdict, came = Verdict.PASSED, ""
        try:
            await attempt(check.run(talk), server.seconds)
        except Unmet as problem:
            verdict, came = problem.verdict, str(problem)
        return Result(check, verdict, came, tuple(talk.exchanges), time.perf_counter() - began)
