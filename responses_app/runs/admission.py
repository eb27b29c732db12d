"""How a run begins: `Naming` says what clients are to call its response, and `Admission` lets it start.

Limits let it through, it is accepted, so that it is kept before anybody hears of it, and then it is started. A client
may leave while its response is accepted. What is kept by then is never lost: a background response runs, and a
foreground one ends as if its client had left a moment later.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from responses_app.kit.errors import StoreError
from responses_app.limits.rates import Rates
from responses_app.protocol import ids
from responses_app.protocol.errors import ApiError, JsonObject, conflict, previous_response_not_found
from responses_app.protocol.events.dialects import Dialect
from responses_app.protocol.ids import PublicId
from responses_app.protocol.items.calls import begins_turn, is_result
from responses_app.protocol.rate_limits import Slot
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.runs.driving.run import Run
from responses_app.runs.plan.failures import store_away
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.planning.history import Context
from responses_app.runs.registry.registry import RunRegistry
from responses_app.stores.base import BaseResponseStore, ClaimLost, NameTaken, ParentGone

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
