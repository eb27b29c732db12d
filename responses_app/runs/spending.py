"""`Spending`: whether those with a limit of what they spend in a month may spend more.

What was spent is this month's usage times the prices that hold now, read of the store and remembered for a while, so
that a request costs no query. It is asked before a request is admitted, and never again: what runs is not cut. So a
limit is passed by what is used within `STALE_SECONDS`, and by what runs then.

    older than FRESH_SECONDS    what is known counts, and it is read again beside
    older than STALE_SECONDS    a request waits for it, for `WAIT_SECONDS` at most

While the database is away, what was known last counts, and who is not known may spend: limits of spending are to refuse
nobody because of that.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from responses_app.kit.clock import StoreClock
from responses_app.kit.duty import end_tasks
from responses_app.kit.errors import StoreError
from responses_app.protocol.prices import CENTS, Price, amount_text
from responses_app.protocol.rate_limits import LimitedSubject, QuotaExceeded
from responses_app.resources.projects.fields import ORGANIZATION
from responses_app.resources.usage.fields import UsageQuery, UsageSum

logger = logging.getLogger("respsite.limits")

FRESH_SECONDS = 5.0
STALE_SECONDS = 15.0
WAIT_SECONDS = 2.0
MAX_SUBJECTS = 10_000  # of which is remembered what they have spent
MAX_MODELS = 10_000  # that one has used in a month


@dataclass(frozen=True, slots=True)
class _KnownSpending:
    """What was spent, as it was read."""

    at: float  # the loop's clock
    month: datetime
    spent: Decimal
    limit: int | None  # the organization's, in cents; others' limits come with them


class Spending:
    """What was spent, of one worker. Without prices nothing is limited or read, and the log says so.

    `sums` are the usage store's. `limit_of_all` asks for what all projects together may spend in a month, in cents;
    None: as much as they like.
    """

    def __init__(
        self,
        sums: Callable[[UsageQuery], Awaitable[Sequence[UsageSum]]],
        limit_of_all: Callable[[], Awaitable[int | None]],
        *,
        prices: Mapping[str, Price],
        currency: str,
        now: StoreClock,
    ) -> None:
        self._sums = sums
        self._limit_of_all = limit_of_all
        self._prices = prices
        self._currency = currency
        self._now = now
        self._known: OrderedDict[str, _KnownSpending] = OrderedDict()  # by subject, in the order of their use
        self._reading: dict[str, asyncio.Task[_KnownSpending]] = {}
        self._told_unpriced = False
        self._failed = float("-inf")  # when the store did not answer last, by the loop's clock

    async def aclose(self) -> None:
        """Stop. Safe to call twice."""
        await end_tasks([*self._reading.values()])

    async def check(self, who: Sequence[LimitedSubject]) -> None:
        """Raise `QuotaExceeded` where one of these, or all together, have spent what they may."""
        if not self._prices:
            if who:
                self._tell_unpriced(who)
            return
        known = await self._recent(ORGANIZATION)
        if known is not None and known.limit is not None:
            self._check(known, known.limit, None)
        for subject in who:
            limit = subject.limits.monthly_spend_cents
            if limit is not None and (known := await self._recent(subject.subject)) is not None:
                self._check(known, limit, subject)

    def _tell_unpriced(self, who: Sequence[LimitedSubject]) -> None:
        """Tell the operator, once, that somebody's limit limits nothing."""
        limited = next((each for each in who if each.limits.monthly_spend_cents is not None), None)
        if limited is not None and not self._told_unpriced:
            self._told_unpriced = True
            text = "%s has a spend limit that limits nothing, since no model has a price (PRICES)"
            logger.warning(text, limited.subject)

    async def is_reached(self, subject: str, cents: int) -> bool:
        """Whether a limit of a subject is reached, as the store has it now. Raises `StoreError`."""
        if not self._prices:
            return False
        return (await self._read(subject)).spent * CENTS >= cents

    def _check(self, known: _KnownSpending, cents: int, subject: LimitedSubject | None) -> None:
        if known.spent * CENTS < cents:
            return
        month = f"{known.month:%B %Y}"
        limit = amount_text(Decimal(cents) / CENTS, self._currency)
        # What all projects have spent is nobody's business.
        spent = f" of which {amount_text(known.spent, self._currency)} are spent" if subject is not None else ""
        raise QuotaExceeded(
            f"You exceeded your current quota: the spend limit of {subject or 'this server'} for {month} (UTC) is "
            f"{limit},{spent or ' and it is spent'}. Requests are taken again from the first day of the next month on, "
            "or once the operator of this server sets a higher limit."
        )

    async def _recent(self, subject: str) -> _KnownSpending | None:
        """Return what is known of a subject, read again where that is a while ago; None where nothing could be read."""
        known = self._known.get(subject)
        age = _clock() - known.at if known is not None and known.month == self._month() else STALE_SECONDS
        if age < FRESH_SECONDS:
            return known
        reading = self._reading.get(subject)
        if reading is None:
            reading = self._reading[subject] = asyncio.create_task(self._read(subject), name="spending")
            reading.add_done_callback(lambda done: self._learn(subject, done))
        if age >= STALE_SECONDS and _clock() - self._failed >= FRESH_SECONDS:  # else each request would wait in vain
            await asyncio.wait([reading], timeout=WAIT_SECONDS)
            if not reading.done():
                self._failed = _clock()
            known = self._known.get(subject)
        return known if known is not None and known.month == self._month() else None

    def _learn(self, subject: str, done: "asyncio.Task[_KnownSpending]") -> None:
        self._reading.pop(subject, None)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._known[subject] = done.result()
            self._known.move_to_end(subject)
            while len(self._known) > MAX_SUBJECTS:
                self._known.popitem(last=False)
            return
        self._failed = _clock()
        if isinstance(error, StoreError):
            logger.warning("what was spent cannot be read now: %s", error)
        else:
            logger.error("what was spent cannot be read", exc_info=error)

    async def _read(self, subject: str) -> _KnownSpending:
        """Read what a subject has spent. Raises `StoreError`."""
        at, month = _clock(), self._month()
        kind, _, name = subject.partition(":")
        whose = {"key": "keys", "project": "projects"}.get(kind)
        next_month = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
        query = UsageQuery(
            start=int(month.timestamp()),
            end=int(next_month.timestamp()),
            groups=["model"],
            limit=MAX_MODELS,
            **({whose: [name]} if whose else {}),  # type: ignore[arg-type]
        )
        spent = Decimal(0)
        for used in await self._sums(query):
            price = self._prices.get(str(used.model))
            if price is not None:
                tokens = used.tokens
                spent += price.cost(input=tokens.input, cached=tokens.cached, output=tokens.output)
        limit = await self._limit_of_all() if subject == ORGANIZATION else None
        return _KnownSpending(at, month, spent, limit)

    def _month(self) -> datetime:
        now = datetime.fromtimestamp(self._now(), UTC)
        return datetime(now.year, now.month, 1, tzinfo=UTC)


def _clock() -> float:
    return asyncio.get_running_loop().time()
