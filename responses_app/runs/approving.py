"""`Approving`: an approved call is made by one response at a time, however often its approval is answered at once.

Before a response begins that makes approved calls, it claims their requests. One that another response holds is a 409
while that one runs. Behind its end another branch of the conversation may approve the same, and the call is made there
again: each branch has its own calls.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from responses_app.protocol.approvals import approval_in_use
from responses_app.protocol.errors import ApiError
from responses_app.protocol.resources import RUNNING
from responses_app.runs.history import store_away
from responses_app.runs.plan import RunPlan
from responses_app.runs.registry import RunRegistry
from responses_app.stores.approvals import ApprovalHolder
from responses_app.stores.base import StoreError
from responses_app.stores.stores import Stores

UNSEEN_SECONDS = 60.0  # a holder that no store knows (it is not kept, or not yet) counts as running for so long


class Approving:
    """Of one process. `now` is the clock, in Unix seconds."""

    def __init__(self, stores: Stores, registry: RunRegistry, *, now: Callable[[], float]) -> None:
        self._claims = stores.approvals
        self._responses = stores.responses
        self._registry = registry
        self._now = now

    @asynccontextmanager
    async def claimed(self, plan: RunPlan) -> AsyncIterator[None]:
        """Hold the requests whose calls a plan makes, and let go of them where its response is refused in here.

        Raises `ApiError`: 409 for one that a response that runs holds, 503 where the store is away.
        """
        requests = [call.request_id for call in plan.tools.approved]
        try:
            for request_id in requests:
                await self._claim(plan, request_id)
            yield
        except ApiError:
            await self._release(plan, requests)
            raise

    async def _claim(self, plan: RunPlan, request_id: str) -> None:
        project, own = plan.origin.project, plan.response_id
        try:
            holder = await self._claims.claim(project, request_id, own)
            if holder.response_id != own and not await self._runs(project, holder):
                holder = await self._claims.claim(project, request_id, own, instead_of=holder.response_id)
        except StoreError as error:
            raise store_away() from error
        if holder.response_id != own:
            raise approval_in_use(request_id, holder.response_id)

    async def _runs(self, project: str, holder: ApprovalHolder) -> bool:
        """Whether a holder still runs, as far as can be known."""
        if self._registry.get(holder.response_id) is not None:
            return True
        response = await self._responses.response(project, holder.response_id)
        if response is None:
            return self._now() - holder.claimed_at < UNSEEN_SECONDS
        return response["status"] in RUNNING

    async def _release(self, plan: RunPlan, requests: list[str]) -> None:
        try:
            for request_id in requests:
                await self._claims.release(plan.origin.project, request_id, plan.response_id)
        except StoreError as error:
            raise store_away() from error
