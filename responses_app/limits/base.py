"""The contract of the ledger: everything that is limited is counted in one, all or nothing.

`rates` counts the requests, tokens and slots of keys and projects in it, `connections` the open WebSockets of all
workers. How buckets and slots work is told in `ledger`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from itertools import count
from uuid import uuid4

from responses_app.limits.ledger import Answer, Ask, Job


class BaseLedger(ABC):
    """One object serves one worker process.

    `start()` once, then all else from the loop that started it, then `aclose()`, also where `start()` was cancelled.
    """

    def __init__(self) -> None:
        self.is_started = False
        self.is_closed = False
        self._worker = uuid4().hex[:16]
        self._numbers = count(1)

    @property
    def away(self) -> str | None:
        """The name of the error for which this worker counts by itself at present; None: all count together."""
        return None

    @property
    @abstractmethod
    def holders(self) -> Mapping[str, Collection[str]]:
        """Who holds slots through this worker, by their keys."""

    def new_id(self) -> str:
        """Return an id for a holder of slots that no worker has used."""
        return f"{self._worker}:{next(self._numbers)}"

    async def start(self) -> None:
        """Make it ready. Raises `RuntimeError` the second time."""
        if self.is_started:
            raise RuntimeError("A ledger is started once.")
        self.is_started = True

    async def aclose(self) -> None:
        """Give back all slots that this worker holds; do nothing the second time."""
        self.is_closed = True

    @abstractmethod
    async def ask(self, ask: Ask) -> Answer:
        """Return what came of an ask; where this is cancelled, nothing is taken."""

    @abstractmethod
    def post(self, job: Job) -> None:
        """Settle and release what a job has, soon; return at once and never raise. It has no asks."""

    @abstractmethod
    def hold(self, key: str, id: str) -> None:
        """Take a slot whatever the limit says."""
