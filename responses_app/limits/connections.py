"""The limit of open WebSocket connections, of all workers together."""

import logging

from responses_app.limits.base import BaseLedger
from responses_app.limits.ledger import Ask, Hold, Job

logger = logging.getLogger("respsite.limits")

CONNECTIONS = "connections"  # the slots' key


class ConnectionLimit:
    """Hands out at most `limit` slots, one for each open connection.

    Every `acquire()` that gave True is answered by exactly one `release()`.
    """

    def __init__(self, ledger: BaseLedger, limit: int) -> None:
        self.limit = limit
        self.ledger = ledger
        self._ids: list[str] = []  # of the slots that were handed out

    @property
    def open_connections(self) -> int:
        """How many slots this worker holds."""
        return len(self.ledger.holders.get(CONNECTIONS, ()))

    @property
    def degraded(self) -> str | None:
        """One sentence for the operator why the limit is not global at present; None when it is.

        It is public, so it names no address.
        """
        away = self.ledger.away
        return away and (
            f"The connection limit cannot use Redis ({away}): "
            f"until it is back, each worker allows {self.limit} connections of its own."
        )

    async def acquire(self) -> bool:
        """Take a slot; True if there was one, False if the limit is reached or the ledger closed.

        Cancelled, it has taken none. Raises `RuntimeError` where the ledger was not started.
        """
        if not self.ledger.is_started:
            raise RuntimeError("The ledger was not started.")
        if self.ledger.is_closed:
            return False
        id = self.ledger.new_id()
        answer = await self.ledger.ask(Ask((), [Hold(CONNECTIONS, self.limit)], id))
        if not answer.granted or self.ledger.is_closed:  # which gives back all slots
            return False
        self._ids.append(id)
        return True

    def release(self) -> None:
        """Give one slot back; never block and never raise, so that a cancelled consumer's cleanup may call it."""
        if self.ledger.is_closed:
            return
        if not self._ids:
            logger.error("A connection slot was released that nobody held.", stack_info=True)
            return
        self.ledger.post(Job(release=[(CONNECTIONS, self._ids.pop())]))
