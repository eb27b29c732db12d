"""Limits of keys and projects: `admit` a request by all of them at once, settle what it used.

    ticket = await rates.admit(who, Amount(1, 250, 1), Slot.RESPONSE)    raises `RateLimited`
    …                                                                    the response runs
    ticket.settle(Amount(1, 250, 87))                                    once, at its end; returns at once

`ConnectionLimit`: that of open WebSockets, of all workers together.

Input tokens are never given back: a request counts, also where it fails, as it does at OpenAI. How buckets and slots
work is told in `ledger`.

A response that goes on at another worker was let in once, and is settled once, by the last of them:

    the first    ticket.hand_over()                                  if it can still say so: its slot is free
    the next     ticket = rates.adopt(who, amount, Slot.RESPONSE)    takes a slot, and what is reserved stays reserved
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from responses_app.limits.ledger import Answer, Ask, BaseLedger, Charge, Hold, LedgerJob
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.rate_limits import (
    NOTHING,
    Amount,
    LimitedSubject,
    LimitLine,
    Rate,
    RateLimited,
    Slot,
    SlotLimit,
    as_event,
    line_of,
    places_taken,
    rate_reached,
    tightest,
)

logger = logging.getLogger("respsite.limits")

# Raises `QuotaExceeded` where one of these, or all together, have spent what they may.
CheckSpending = Callable[[Sequence[LimitedSubject]], Awaitable[None]]
MAX_HEARD = 20_000  # buckets of which a worker remembers what it heard last


class Ticket:
    """The right of a request to run. Whoever gets one settles it once; a second time does nothing."""

    __slots__ = ("_rates", "_taken", "id", "places", "reserved", "who")

    def __init__(
        self,
        rates: "Rates | None",
        who: Sequence[LimitedSubject],
        reserved: Amount,
        taken: Sequence[tuple[Rate, int]],
        places: Sequence[SlotLimit],
        id: str,
    ) -> None:
        self._rates = rates
        self._taken = taken  # how much of each limit
        self.who = who
        self.reserved = reserved
        self.places = places
        self.id = id

    def settle(self, used: Amount = NOTHING) -> None:
        """Count what was really used, and give the slots back."""
        # Taken away first: a second call finds nothing to do.
        rates, self._rates = self._rates, None
        if rates is None:
            return
        reserved = self.reserved
        # Input tokens are never given back, output tokens that were not used are.
        used = used._replace(requests=reserved.requests, input_tokens=max(used.input_tokens, reserved.input_tokens))
        job = LedgerJob(release=[(places.key, self.id) for places in self.places])
        for rate, taken in self._taken:
            # Below 0 where less was used than was reserved.
            more = rate.needed(used) - taken
            if more:
                job.settle[rate.key] = more * rate.each
        if not job.is_empty:
            rates.ledger.post(job)

    def release(self) -> None:
        """Give the slots back, and nothing else: it runs no more, and what it used is counted later."""
        places, self.places = self.places, ()
        if self._rates is not None and places:
            self._rates.ledger.post(LedgerJob(release=[(each.key, self.id) for each in places]))

    def hand_over(self) -> None:
        """Give the slots back; what was used is for another worker to count, which goes on with it."""
        self.release()
        self._rates = None

    def lines(self) -> list[JsonObject]:
        """Return what its client is told of its limits now, as far as this worker knows."""
        return as_event(self._rates.heard(self.who)) if self._rates is not None else []


FREE = Ticket(None, (), NOTHING, (), (), "")


class Rates:
    """The limits of keys and projects of one worker, counted in its ledger."""

    def __init__(self, ledger: BaseLedger, check_spending: CheckSpending | None = None) -> None:
        self.ledger = ledger
        self._check_spending = check_spending
        self._heard: OrderedDict[str, tuple[float, float]] = OrderedDict()  # left, and the loop's time then

    async def admit(self, who: Sequence[LimitedSubject], amount: Amount, slot: Slot | None) -> Ticket:
        """Take what a request needs from all limits of `who`, or nothing. Raises `RateLimited`, and `QuotaExceeded`.

        Cancelled, it has taken no slot.
        """
        if self._check_spending is not None and amount.requests:
            await self._check_spending(who)
        if not who:
            return FREE
        taken, places = _needs(who, amount, slot)
        if not taken and not places:
            return FREE
        for rate, needed in taken:
            # It would never go through, however long its client waits.
            if needed > rate.limit:
                raise rate_reached(rate, needed, 0.0)
        charges = [Charge(rate.key, needed * rate.each, rate.window) for rate, needed in taken]
        # New for each try: slots of a call whose answer was lost are another holder's, and end with their lease.
        id = self.ledger.new_id()
        answer = await self.ledger.ask(Ask(charges, [Hold(each.key, each.limit) for each in places], id))
        self._hear((rate for rate, _ in taken), answer.left)
        if not answer.granted:
            raise _longest(taken, places, answer)
        return Ticket(self, who, amount, taken, places, id)

    def adopt(self, who: Sequence[LimitedSubject], amount: Amount, slot: Slot) -> Ticket:
        """Return the ticket of a request that another worker let in, by this amount, and that goes on here.

        Whatever the limits say: it runs.
        """
        taken, places = _needs(who, amount, slot)
        if not taken and not places:
            return FREE
        id = self.ledger.new_id()
        for each in places:
            self.ledger.hold(each.key, id)
        return Ticket(self, who, amount, taken, places, id)

    async def lines(self, who: Sequence[LimitedSubject], *, since: float) -> list[LimitLine]:
        """Return what clients are told of their limits, heard at the loop's time `since` or later."""
        rates = [rate for owner in who for rate in owner.rates]
        # Charges of 0 take nothing, and say how much is left.
        if any(self._heard.get(rate.key, _NEVER)[1] < since for rate in rates):
            answer = await self.ledger.ask(Ask([Charge(rate.key, 0.0, rate.window) for rate in rates]))
            self._hear(rates, answer.left)
        return self.heard(who)

    def heard(self, who: Sequence[LimitedSubject]) -> list[LimitLine]:
        """Return the same as this worker heard it last."""
        now = asyncio.get_running_loop().time()
        lines = []
        for owner in who:
            for rate in owner.rates:
                left, at = self._heard.get(rate.key, (0.0, now))
                # As a bucket does: it empties while nobody asks.
                left -= (now - at) * 1000
                lines.append(line_of(rate, left if left > 0 else 0.0))
        return tightest(lines)

    def _hear(self, rates: Iterable[Rate], left: Sequence[float]) -> None:
        now = asyncio.get_running_loop().time()
        for rate, each in zip(rates, left, strict=True):
            self._heard[rate.key] = each, now
            self._heard.move_to_end(rate.key)
        while len(self._heard) > MAX_HEARD:
            self._heard.popitem(last=False)


def _needs(
    who: Sequence[LimitedSubject], amount: Amount, slot: Slot | None
) -> tuple[list[tuple[Rate, int]], list[SlotLimit]]:
    """Return how much a request takes of each limit, and where it takes a slot."""
    taken = [(rate, rate.to_take(amount)) for owner in who for rate in owner.rates]
    return taken, [each for owner in who if (each := owner.places(slot)) is not None]


_NEVER = (0.0, float("-inf"))


def _longest(taken: Sequence[tuple[Rate, int]], places: Sequence[SlotLimit], answer: Answer) -> RateLimited:
    """Return the refusal that takes longest to wait for."""
    reached = [
        rate_reached(rate, needed, left)
        for (rate, needed), left in zip(taken, answer.left, strict=True)
        if needed and left + needed * rate.each > rate.window
    ]
    reached += [places_taken(each, held) for each, held in zip(places, answer.held, strict=True) if held >= each.limit]
    return max(reached, key=lambda error: error.retry_after or 0)


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
        self.ledger.post(LedgerJob(release=[(CONNECTIONS, self._ids.pop())]))
