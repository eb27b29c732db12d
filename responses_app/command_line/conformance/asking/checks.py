"""What a check is, a group of them, and its result."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from responses_app.command_line.conformance.asking.talk import Talk
from responses_app.command_line.conformance.asking.verdicts import Exchange, Verdict

Run = Callable[[Talk], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """One rule, and how it is tried."""

    name: str  # its group's name, a dot, its own
    rule: str  # what is expected, in a sentence or two
    source: str  # the address of the document, or of the type, that has the rule
    pain: str  # the key of what users report where it is broken (see `pains`); "" for none
    run: Run


@dataclass(slots=True)
class Group:
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
    """What came of one check."""

    check: Check
    verdict: Verdict
    came: str  # why it has not passed; "" where it has
    exchanges: tuple[Exchange, ...]  # the last ones, in their order
    seconds: float
    is_lost: bool = False  # no whole answer came
