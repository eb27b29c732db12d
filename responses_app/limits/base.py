"""The contract for the global cap on open WebSocket connections."""

import enum
import logging
from abc import ABC, abstractmethod

logger = logging.getLogger(__name__)


class _State(enum.Enum):
    NEW = enum.auto()
    RUNNING = enum.auto()
    CLOSED = enum.auto()


class BaseConnectionLimit(ABC):
    """Hand out at most `limit` slots, one for each open connection.

    One object serves one worker process: `start()` once, then `acquire()` and `release()` from the event loop that
    started it, then `aclose()`, also where `start()` was cancelled. Every `acquire()` that gave True is answered by
    exactly one `release()`.
    """

    def __init__(self, limit: int) -> None:
        """Take the number of connections that may be open at once.

        Raises:
            ValueError: `limit` is negative.
        """
        if limit < 0:
            raise ValueError(f"A connection limit is 0 or more, not {limit}.")
        self.limit = limit
        self._open = 0
        self._state = _State.NEW

    @property
    def open_connections(self) -> int:
        """Say how many slots this worker holds."""
        return self._open

    @property
    def degraded(self) -> str | None:
        """Say in one sentence for the operator why the limit is not global at present; None when it is."""
        return None

    async def start(self) -> None:
        """Make the limit ready.

        Raises:
            RuntimeError: it was started before.
        """
        if self._state is not _State.NEW:
            raise RuntimeError("A connection limit is started once.")
        self._state = _State.RUNNING

    @abstractmethod
    async def acquire(self) -> bool:
        """Take a slot; True if there was one, False if the limit is reached or closed.

        Cancelled, it has taken none.

        Raises:
            RuntimeError: `start()` was not called.
        """

    def release(self) -> None:
        """Give one slot back; never block and never raise, so that a cancelled consumer's cleanup may call it.

        Do nothing after `aclose()`, which gave back all of them.
        """
        if self._state is _State.CLOSED:
            return
        if self._open == 0:
            logger.error("A connection slot was released that nobody held.", stack_info=True)
            return
        self._open -= 1

    @abstractmethod
    async def total(self) -> int:
        """Count the open connections of all workers; those of this worker only while `degraded`."""

    async def aclose(self) -> None:
        """Give all slots back and refuse further ones; do nothing the second time."""
        self._state = _State.CLOSED
        self._open = 0

    def _accepts(self) -> bool:
        """Say whether slots are handed out at all now.

        Raises:
            RuntimeError: `start()` was not called.
        """
        if self._state is _State.NEW:
            raise RuntimeError("The connection limit was not started.")
        return self._state is _State.RUNNING

    def _take(self) -> bool:
        """Take a slot by this worker's own count alone."""
        if self._open >= self.limit:
            return False
        self._open += 1
        return True
