"""What a check is, and what can come of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from responses_app.command_line.conformance.talk import Talk

Run = Callable[["Talk"], Awaitable[None]]


class Verdict(StrEnum):
    """What came of a check, the worst first."""

    FAILED = "failed"
    ABSENT = "absent"  # the server does not have what is checked
    SKIPPED = "skipped"  # a precondition was not met
    PASSED = "passed"


class Unmet(Exception):
    """A check ends without having passed. The text says what came."""

    verdict = Verdict.FAILED


class Failed(Unmet):
    """The server did other than the rule says."""


class Absent(Unmet):
    """The server does not have what is checked."""

    verdict = Verdict.ABSENT


class Skipped(Unmet):
    """Nothing can be said about the rule here."""

    verdict = Verdict.SKIPPED


def expect(is_so: object, came: str) -> None:
    """Fail with what came instead, unless it is so."""
    if not is_so:
        raise Failed(came)


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
    """Checks of one surface. The others are run only where the first has passed."""

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
class Exchange:
    """One request, or one frame that was sent, and what came back. Texts are bounded."""

    sent: str  # the method and the path, or `WebSocket`
    body: str  # "" for none
    status: int | None  # None where no answer came, and on a WebSocket
    came: str  # the beginning of what came


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one check."""

    check: Check
    verdict: Verdict
    came: str  # why it has not passed; "" where it has
    exchanges: tuple[Exchange, ...]  # the last ones, in their order
    seconds: float
