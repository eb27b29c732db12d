"""What passes between the agents of a response: `Letter`, and `Done`, what came of an action."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to an agent that it has not read."""

    author: str
    text: str


class Done(NamedTuple):
    """What came of an action."""

    text: str  # what its agent reads
    waits: float | None = None  # it waits first, so many seconds, unless a message is there
