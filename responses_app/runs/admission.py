"""How a run begins: `Naming` says what clients are to call its response, and `Admission` lets it start.

Limits let it through, it is accepted, so that it is kept before anybody hears of it, and then it is started. A client
may leave while its response is accepted. What is kept by then is never lost: a background response runs, and a
foreground one ends as if its client had left a moment later.

`Approving`: an approved call is made by one response at a time, however often its approval is answered at once.

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
from typing import TYPE_CHECKING, Any

from responses_app.kit.clock import own_clock
from responses_app.kit.duty import end_tasks
from responses_app.kit.errors import StoreError
from responses_app.limits.rates import Rates
from responses_app.protocol import ids
from responses_app.protocol.errors import ApiError, JsonObject, conflict, previous_response_not_found
from responses_app.protocol.events.dialects import Dialect
from responses_app.protocol.ids import PublicId
from responses_app.protocol.items.calls import begins_turn, is_result
from responses_app.protocol.items.offers import approval_in_use
from responses_app.protocol.rate_limits import Slot
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.protocol.requests.resources import RUNNING
from responses_app.runs.driving.run import Run
from responses_app.runs.driving.tool_calls import NotPermitted
from responses_app.runs.plan.failures import store_away, store_errors
from responses_app.runs.plan.history import Context
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.plan.stores import Stores
from responses_app.runs.registry.registry import RunRegistry
from responses_app.stores.base import BaseResponseStore, ClaimLost, NameTaken, ParentGone

if TYPE_CHECKING:
    from responses_app.stores.approvals import ApprovalHolder

logger = logging.getLogger("respsite.runs")


class Naming:
    """The source of public ids, see `protocol.ids.PublicId`. Whether one is free the store decides, when it accepts."""

    def __init__(self, store: BaseResponseStore, registry: RunRegistry, *, new_id: Callable[[str], str]) -> None:
        self._store = store
        self._registry = registry
        self._new_id = new_id

    async def public_id(
        self, project: str, request: CreateRequest, context: Context, dialect: Dialect
    ) -> PublicId | None:
        """Return what clients are to call the response of a request in its context, None for its own id.
        Raises `ApiError` (409) where another response is called so, and `StoreError`.
        """
        if request.request_id is not None:
            chosen = PublicId(request.request_id)
            if self._runs(project, chosen) or await self._is_kept(project, chosen):
                raise id_taken(chosen)
            return chosen
        if not dialect.one_id_a_turn:
            return None
        next_leg = context.next_leg
        if next_leg is None or not goes_on(context.own.raw):
            return PublicId(self._new_id(ids.RESPONSE))
        if self._runs(project, next_leg):
            raise turn_in_progress(next_leg)
        # The next leg of the turn keeps its public name: the client goes on to know all of it by one id.
        return next_leg

    def _runs(self, project: str, public: PublicId) -> bool:
        """Whether a response that is called so runs here, kept or not."""
        return self._registry.named(project, public.name) is not None

    # A chosen id may be the public name of some response, or another response's own id: both are taken.
    async def _is_kept(self, project: str, public: PublicId) -> bool:
        if await self._store.newest_leg(project, public.name) is not None:
            return True
        return await self._store.knows(project, public.name)


def goes_on(items: Sequence[JsonObject]) -> bool:
    """Whether a request's items go on with a turn: they give back what came of calls, and the user says nothing new."""
    return any(map(is_result, items)) and not any(map(begins_turn, items))


def as_conflict(error: ApiError) -> ApiError:
    """Return an error as it is where a turn has one id: a create while a response of it runs is a conflict (409)."""
    if error.code != "previous_response_in_progress":
        return error
    return conflict(error.message, param=error.param, code=error.code)


def check_still_free(registry: RunRegistry, plan: RunPlan) -> None:
    """Raise `ApiError` (409) where another response that runs here has got a plan's public id meanwhile.

    For those that no store keeps: of the others the store takes one only.
    """
    if plan.public is not None and registry.named(plan.origin.project, plan.public.name) is not None:
        raise name_taken(plan)


def name_taken(plan: RunPlan) -> ApiError:
    """The public id of a plan is another response's (409)."""
    assert plan.public is not None, "only a public id can be another's"
    return (turn_in_progress if plan.request.request_id is None else id_taken)(plan.public)


def id_taken(public: PublicId) -> ApiError:
    """A client chose an id that another response has (409)."""
    message = f"There is a response with id '{public.name}' already. Choose another 'request_id', or leave it out."
    return conflict(message, param="request_id", code="request_id_taken")


def turn_in_progress(public: PublicId) -> ApiError:
    """A turn is to go on while one of its responses runs (409)."""
    message = (
        f"Response '{public.name}' is being continued already. Wait for its terminal event, then send the outputs."
    )
    return conflict(message, param="previous_response_id", code="previous_response_in_progress")


class Admission:
    """The way of a run into the registry: limits, its acceptance by the store, its start."""

    def __init__(self, registry: RunRegistry, rates: Rates) -> None:
        self._registry = registry
        self._rates = rates

    async def admit(self, run: Run) -> None:
        """Accept a run and start it. Raises `ApiError` for what it continues, for its id, for limits, and for
        the store.
        """
        if not run.plan.background:  # those have a queue of their own
            run.place.admit()
        try:
            run.ticket = await self._rates.admit(run.plan.origin.limited, run.plan.amount, Slot.RESPONSE)
        except BaseException:  # its client may leave, too
            run.settle()
            raise
        try:
            if run.plan.background:
                await self._enqueue(run)
            else:
                await self._admit(run)
        except Exception:  # where its client has left instead, it may start all the same
            run.settle()
            raise
        if run.plan.public is not None and run.plan.public.leg > 1:
            # As older servers word it; the setting RESPONSES_COMPATIBILITY_MODE is something else.
            logger.info("Response %s (compatibility mode): continuing from previous response", run.plan.public.name)

    async def admit_again(self, run: Run) -> None:
        """Start a durable run that another worker has accepted already. Raises `ClaimLost`, and `ApiError`."""
        run.ticket = self._rates.adopt(run.plan.origin.limited, run.plan.amount, Slot.RESPONSE)
        try:
            with self._registry.admission_again(run):  # a stop waits for it, and then gives it back
                await run.accept(again=True)
                if run.deleted:
                    raise ClaimLost(f"{run.response_id} was deleted")
                # From here to `start` nothing is awaited, so the queue's count and the run cannot drift apart.
                if run.plan.background:
                    self._registry.queue.enter()
                self._registry.start(run)
        except BaseException as error:
            run.ticket.hand_over()  # whoever goes on with it next takes a slot of its own
            if isinstance(error, StoreError) and not isinstance(error, ClaimLost):
                raise store_away(error) from error
            raise

    async def _enqueue(self, run: Run) -> None:
        """Accept a background response and start it, even if the client leaves meanwhile: then it is kept already."""
        queue = self._registry.queue

        # Called once the store has answered, if the client left before: undoes the `enter` of what was not accepted.
        def start(accepted: bool) -> None:
            self._registry.leave()
            if accepted:
                self._registry.start(run)
            else:
                queue.leave()
                run.settle()

        with self._registry.admission():
            with queue.admission():
                try:
                    await self._accept(run, left=start)
                except asyncio.CancelledError:
                    # The client left. `admission()` frees its place on the way out, so the place is taken again until
                    # `start` is called.
                    queue.enter()
                    raise
            self._registry.start(run)

    async def _admit(self, run: Run) -> None:
        """Accept a foreground response and start it."""

        def end(accepted: bool) -> None:
            self._registry.leave()
            if accepted:  # and its client has left meanwhile: it ends as if that had been a moment later
                self._registry.start(run)
                if not run.plan.durable:
                    self._registry.cancel(run, reason="its reader left")
            else:
                run.settle()

        with self._registry.admission():
            if run.plan.stored or run.plan.stored_parent:
                await self._accept(run, left=end)
            # Of a stored response the store has decided just now. Nothing is awaited between this check and `start`.
            if not run.plan.stored:
                check_still_free(self._registry, run.plan)
            try:
                run.begin()
            except Exception:  # it is accepted, so it is to end: its task begins it again, and ends it where that fails
                logger.exception("response %s could not begin at once", run.response_id)
            self._registry.start(run)

    async def _accept(self, run: Run, *, left: Callable[[bool], None]) -> None:
        """Accept a response; where the caller is cancelled meanwhile, tell `left` whether it was accepted then."""

        def tell(accepting: "asyncio.Future[None]") -> None:
            left(not accepting.cancelled() and accepting.exception() is None)

        # A task of its own: a cancelled request must not cut a transaction whose result nobody would know then.
        accepting = asyncio.ensure_future(run.accept())
        try:
            await asyncio.shield(accepting)
        except asyncio.CancelledError:
            # The registry counts it as one that is being admitted until `left` has acted, so that a stop waits for
            # it.
            self._registry.enter()
            accepting.add_done_callback(tell)
            raise
        except ParentGone as gone:
            raise previous_response_not_found(str(run.plan.request.previous_response_id)) from gone
        except NameTaken as taken:
            raise name_taken(run.plan) from taken
        except StoreError as error:
            raise store_away(error) from error


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

    async def _runs(self, project: str, holder: "ApprovalHolder") -> bool:
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
