"""A check, a group of checks, their results, and how they are run."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from responses_app.extensions.conformance.shapes import CheckVerdict, Lost, RoundTrip, Unmet
from responses_app.extensions.conformance.talk import Server, Talk, attempt

Run = Callable[[Talk], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """One rule, and how it is tried."""

    name: str  # its group's name, a dot, its own
    rule: str  # what is expected, in a sentence or two
    source: str  # the address of the document, or of the type, that has the rule
    pain: str  # the key of what users report where it is broken (see `telling`); "" for none
    run: Run


@dataclass(slots=True)
class CheckGroup:
    """Checks of one surface. Where the first finds it absent, or gets no answer, the others are not run."""

    name: str
    title: str
    checks: list[Check] = field(default_factory=list)

    def check(self, name: str, source: str, *, pain: str = "") -> Callable[[Run], Run]:
        """Add a function as a check. Its docstring is the rule."""

        def added(run: Run) -> Run:
            rule = " ".join((run.__doc__ or "").split())
            self.checks.append(Check(f"{self.name}.{name}", rule, source, pain, run))
            return run

        return added


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check."""

    check: Check
    verdict: CheckVerdict
    came: str  # why it has not passed; "" where it has
    exchanges: tuple[RoundTrip, ...]  # the last ones, in their order
    seconds: float
    is_lost: bool = False  # no whole answer came


Tell = Callable[[Result], None]


async def run_checks(
    server: Server, groups: Sequence[CheckGroup], chosen: Sequence[Check], *, at_once: int, tell: Tell
) -> list[Result]:
    """Return the results of the chosen checks, in their order; `tell` is called with each as it comes.

    Where a group's first check finds nothing, or gets no whole answer, nothing more is asked.
    """
    free = asyncio.Semaphore(at_once)
    wanted = {check.name for check in chosen}
    found = await asyncio.gather(*(_group(server, group, wanted, free, tell) for group in groups))
    return [result for results in found for result in results]


async def _group(
    server: Server, group: CheckGroup, wanted: set[str], free: asyncio.Semaphore, tell: Tell
) -> list[Result]:
    first, *others = group.checks
    others = [check for check in others if check.name in wanted]
    if not others and first.name not in wanted:
        return []
    result = await _checked(server, first, free)
    results = [result] if first.name in wanted else []
    for each in results:
        tell(each)

    async def one(check: Check) -> Result:
        if result.is_lost:
            made = Result(check, CheckVerdict.SKIPPED, f"{first.name} got no answer", (), 0.0)
        elif result.verdict is CheckVerdict.ABSENT:
            made = Result(check, result.verdict, result.came, (), 0.0)
        else:
            made = await _checked(server, check, free)
        tell(made)
        return made

    return [*results, *await asyncio.gather(*map(one, others))]


async def _checked(server: Server, check: Check, free: asyncio.Semaphore) -> Result:
    async with free:
        talk, began = Talk(server), time.perf_counter()
        verdict, came, is_lost = CheckVerdict.PASSED, "", False
        try:
            await attempt(check.run(talk), server.seconds)
        except Unmet as problem:
            verdict, came, is_lost = problem.verdict, str(problem), isinstance(problem, Lost)
        return Result(check, verdict, came, tuple(talk.exchanges), time.perf_counter() - began, is_lost)
