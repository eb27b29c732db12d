"""The contract of what keeps who makes an approved call: `tests/contracts/approvals.py` is its suite.

An answer to a request for approval may come twice at the same time, on two workers. Both would make the call, so the
response to each claims the request first, and one of them gets it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApprovalHolder:
    """The response that makes an approved call, and when it claimed that, in Unix seconds."""

    response_id: str
    claimed_at: float


class BaseApprovalStore(ABC):
    """Keeps the holder of each request for approval of a project. Every method raises `StoreError`."""

    @abstractmethod
    async def claim(self, project: str, request_id: str, response_id: str, *, instead_of: str = "") -> ApprovalHolder:
        """Claim a request that nobody holds, or that the response `instead_of` holds; return who holds it then.

        Of several that claim the same at once, one gets it. To claim again what one holds changes nothing.
        """

    @abstractmethod
    async def release(self, project: str, request_id: str, response_id: str) -> None:
        """Let go of a request, if this response holds it."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
