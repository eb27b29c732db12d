"""What can come of a check."""

from dataclasses import dataclass
from enum import StrEnum


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


class Lost(Failed):
    """No whole answer came: in time, or before the connection was lost."""


class Unreachable(Lost):
    """No connection was made."""


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
class Exchange:
    """One request, or one frame that was sent, and what came back. Texts are bounded."""

    sent: str  # the method and the path, or `WebSocket`
    body: str  # "" for none
    status: int | None  # None where no answer came, and on a WebSocket
    came: str  # the beginning of what came
