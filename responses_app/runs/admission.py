"""`Admission`: how a run begins: limits let it through, it is accepted, so that it is kept before anybody hears of it,
and then it is started.

A client may leave while its response is accepted. What is kept by then is never lost: a background response runs, and
a foreground one ends as if its client had left a moment later.
"""

import asyncio
import logging
from collections.abc import Callable

from responses_app.limits.rates import Rates
from responses_app.protocol.errors import previous_response_not_found
from responses_app.protocol.rate_limits import Slot
from responses_app.runs.driving.run import Run
from responses_app.runs.planning.history import store_away
from responses_app.runs.planning.naming import check_still_free, name_taken
from responses_app.runs.registry.registry import RunRegistry
from responses_app.stores.base import ClaimLost, NameTaken, ParentGone, StoreError

logger = logging.getLogger("respsite.runs")


class Admission:
    """Admits runs to a registry."""

    def __init__(self, registry: RunRegistry, rates: Rates) -> None:
        self._registry = registry
        self._rates = rates

    async def admit(self, run: Run) -> None:
        """Accept a run and start it. Raises `ApiError` for what it continues, for its id, for limits, and for
        the store.
        """
        await self._let_through(run)
        try:
            if run.plan.background:
                await self._enqueue(run)
            else:
                await self._admit(run)
        except Exception:  # where its client has left instead, it may start all the same
            run.settle()
            raise

    async def _let_through(self, run: Run) -> None:
        """Raise `ApiError` where too many wait for the engine, or a limit is reached."""
        if not run.plan.background:  # those have a queue of their own
            run.place.admit()
        try:
            run.ticket = await self._rates.admit(run.plan.origin.limited, run.plan.amount, Slot.RESPONSE)
        except BaseException:  # its client may leave, too
            run.settle()
            raise

    async def admit_again(self, run: Run) -> None:
        """Start a background run that another worker has accepted already. Raises `ClaimLost`, and `ApiError`."""
        run.ticket = self._rates.adopt(run.plan.origin.limited, run.plan.amount, Slot.RESPONSE)
        try:
            with self._registry.admission_again(run):  # a stop waits for it, and then gives it back
                await run.accept(again=True)
                if run.deleted:
                    raise ClaimLost(f"{run.response_id} was deleted")
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

        def start(accepted: bool) -> None:
            self._registry.leave()
            if accepted:
                self._registry.start(run)
            else:
                queue.leave()
                run.settle()

        with queue.admission():
            try:
                await self._accept(run, left=start)
            except asyncio.CancelledError:
                queue.enter()
                raise
        self._registry.start(run)

    async def _admit(self, run: Run) -> None:
        """Accept a foreground response and start it."""

        def end(accepted: bool) -> None:
            self._registry.leave()
            if accepted:  # and its client has left meanwhile: it ends as if that had been a moment later
                self._registry.start(run)
                self._registry.cancel(run, reason="its reader left")
            else:
                run.settle()

        with self._registry.admission():
            if run.plan.stored or run.plan.stored_parent:
                await self._accept(run, left=end)
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

        accepting = asyncio.ensure_future(run.accept())
        try:
            await asyncio.shield(accepting)
        except asyncio.CancelledError:
            self._registry.enter()
            accepting.add_done_callback(tell)
            raise
        except ParentGone as gone:
            raise previous_response_not_found(str(run.plan.request.previous_response_id)) from gone
        except NameTaken as taken:
            raise name_taken(run.plan) from taken
        except StoreError as error:
            raise store_away(error) from error
