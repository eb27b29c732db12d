"""Claims of approved calls in this process's memory: for tests, and where no response is stored."""

import time
from collections.abc import Callable

from responses_app.stores.approvals import ApprovalHolder, BaseApprovalStore

MAX_CLAIMS = 10_000  # the oldest go first: what they hold has long ended


class MemoryApprovalStore(BaseApprovalStore):
    """`now` is the clock, in Unix seconds."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._holders: dict[tuple[str, str], ApprovalHolder] = {}

    async def claim(self, project: str, request_id: str, response_id: str, *, instead_of: str = "") -> ApprovalHolder:
        key = project, request_id
        holder = self._holders.get(key)
        if holder is None or holder.response_id == instead_of:
            self._holders.pop(key, None)  # so that it is the youngest
            holder = self._holders[key] = ApprovalHolder(response_id, self._now())
            if len(self._holders) > MAX_CLAIMS:
                del self._holders[next(iter(self._holders))]
        return holder

    async def release(self, project: str, request_id: str, response_id: str) -> None:
        holder = self._holders.get((project, request_id))
        if holder is not None and holder.response_id == response_id:
            del self._holders[project, request_id]

    async def aclose(self) -> None:
        """Nothing is held."""
