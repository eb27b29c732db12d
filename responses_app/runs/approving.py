"""`Approving`: an approved call is made by one response at a time, however often its approval is answered at once.

Before a response begins that makes approved calls, it claims their requests. One that another response holds is a 409
while that one runs. Behind its end another branch of the conversation may approve the same, and the call is made there
again: each branch has its own calls.

    claimed(run) ──> run.settle()     it has ended, was refused, or its client left before it began

A response that is not stored is known to nobody but its worker. So its claims are renewed while it runs, and one that
is old belongs to a worker that died. One that stood still for so long makes none of its calls when it goes on: another
response may have made them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from responses_app.kit.clock import own_clock
from responses_app.kit.duty import end_tasks
from responses_app.kit.errors import StoreError
from responses_app.protocol.items.offers import approval_in_use
from responses_app.protocol.requests.resources import RUNNING
from responses_app.runs.driving.run import Run
from responses_app.runs.driving.tool_calls import NotPermitted
from responses_app.runs.plan.failures import store_errors
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.plan.stores import Stores
from responses_app.runs.registry.registry import RunRegistry
from responses_app.stores.stores import ApprovalHolder

logger = logging.getLogger("respsite.runs")

UNSEEN_SECONDS = 60.0  # a holder that no store knows (it is not kept, or not yet) counts as running for so long
RENEW_SECONDS = UNSEEN_SECONDS / 4  # so that two renewals may be missed, and the clocks of workers may differ


class Approving:
    """Who holds approvals in a process. `now` is the clock, in Unix seconds."""

    def __init__(self, stores: Stores, registry: RunRegistry, *, now: Callable[[], float]) -> None:
        self.renew_seconds = RENEW_SECONDS
        self._now = now
        self.claims = stores.approvals
        self._responses = stores.responses
        self._registry = registry
        self._tasks: set[asyncio.Task[None]] = set()  # claims, renewals and releases under way

    @asynccontextmanager
    async def claimed(self, run: Run) -> AsyncIterator[None]:
        """Hold the requests whose calls a run makes until it settles, and so also where it is refused in here.

        Raises `ApiError`: 409 for one that a response that runs holds, 503 where the store is away.
        """
        requests = [call.request_id for call in run.plan.tools.approved]
        held = HeldApprovals(self, run.plan, requests)
        try:
            await held.claim()
            # From here on the run lets go of them itself, when it settles.
            run.settled, run.effects.check_approvals = held.release, held.check
            yield
        except Exception:
            held.release()
            await held.released()  # its client may try again at once
            raise

    async def aclose(self) -> None:
        """Let go of all that was held; those that hold anything have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def own(self, act: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Run something until it ends."""
        task = asyncio.create_task(act, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def claim(self, project: str, request_id: str, response_id: str) -> None:
        """Claim one request for a response. Raises `ApiError`."""
        with store_errors():
            holder = await self.claims.claim(project, request_id, response_id)
            # Two steps. The second takes the claim only from the holder that was seen to have ended.
            # Where another response was quicker, that one is the holder now.
            if holder.response_id != response_id and not await self._runs(project, holder):
                holder = await self.claims.claim(project, request_id, response_id, instead_of=holder.response_id)
        if holder.response_id != response_id:
            raise approval_in_use(request_id, holder.response_id)

    async def _runs(self, project: str, holder: ApprovalHolder) -> bool:
        """Whether a holder still runs, as far as can be known."""
        if self._registry.get(holder.response_id) is not None:
            return True
        response = await self._responses.response(project, holder.response_id)
        # Neither here nor in the store: not stored, not stored yet, or deleted. Only the age of its claim tells.
        if response is None:
            return self._now() - holder.claimed_at < UNSEEN_SECONDS
        return response["status"] in RUNNING


class HeldApprovals:
    """The requests that one response holds, or is about to claim."""

    def __init__(self, approving: Approving, plan: RunPlan, requests: Sequence[str]) -> None:
        self._approving = approving
        self._project = plan.origin.project
        self._own = plan.response_id
        self._is_stored = plan.stored
        self._requests = requests
        self._held_at = 0.0  # when all of them were held for sure, by our own clock
        self._claiming: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None

    async def claim(self) -> None:
        """Claim all of them; whoever leaves meanwhile holds none. Raises `ApiError`."""
        # A task of its own: were it cancelled between two claims, nobody would know which ones it holds.
        self._claiming = self._approving.own(self._claim(), f"claims of {self._own}")
        try:
            await asyncio.shield(self._claiming)
        except asyncio.CancelledError:
            self.release()
            raise
        if not self._is_stored:
            self._renewing = self._approving.own(self._renew(), f"renewals of {self._own}")

    def check(self) -> None:
        """Raise `NotPermitted` where others may hold them by now, of a response that only this worker knows."""
        if not self._is_stored and own_clock() - self._held_at >= UNSEEN_SECONDS:
            raise NotPermitted("the server stood still, and the approval may have been used elsewhere meanwhile.")

    def release(self) -> None:
        """Let go of them soon. Twice is not an error."""
        if self._releasing is None:
            self._releasing = self._approving.own(self._release(), f"release of {self._own}")

    async def released(self) -> None:
        """Return once they are let go of."""
        if self._releasing is not None:
            await asyncio.shield(self._releasing)

    async def _claim(self) -> None:
        # The time before the first claim, not behind the last one: others count from when the store heard of it.
        began = own_clock()
        for request_id in self._requests:
            await self._approving.claim(self._project, request_id, self._own)
        self._held_at = began

    async def _renew(self) -> None:
        """Hold on to them, until others may hold them: what is renewed then is not what was held."""
        while True:
            await asyncio.sleep(self._approving.renew_seconds)
            began = own_clock()
            if began - self._held_at >= UNSEEN_SECONDS:
                return
            try:
                for request_id in self._requests:
                    holder = await self._approving.claims.claim(
                        self._project, request_id, self._own, instead_of=self._own
                    )
                    if holder.response_id != self._own:
                        return
                self._held_at = began
            except StoreError as problem:
                logger.warning("response %s: its approvals are not renewed: %s", self._own, problem)

    async def _release(self) -> None:
        if self._claiming is not None:
            # Claims that are still on their way would come behind the release, and stay.
            await asyncio.wait([self._claiming])
        # Nor may a renewal take back what is released here.
        await end_tasks([self._renewing])
        try:
            for request_id in self._requests:
                await self._approving.claims.release(self._project, request_id, self._own)
        except StoreError as problem:  # they count as held for UNSEEN_SECONDS, or until the response's end is kept
            logger.warning("response %s: its approvals are not let go of: %s", self._own, problem)
