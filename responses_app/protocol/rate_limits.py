"""Limits of keys and projects, as data: what may be limited, what a request costs, and what clients are told.

A request is one that the model works for: a create over any transport, a compaction, a count of input tokens. Its input
tokens are known when it is admitted. Its output tokens are not: as at OpenAI, `max_output_tokens` counts until the
response ends, and then what was sampled; a request without it counts as one token until then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from math import ceil
from typing import NamedTuple

from responses_app.protocol.errors import NO_RETRY, ApiError, JsonObject

_MINUTE, _DAY = 60_000, 86_400_000  # milliseconds
_WAIT_FOR_SLOT = 1  # seconds; when a response ends nobody knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be asked for; None: as much as anybody likes."""

    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent_responses: int | None = None
    websockets: int | None = None  # open at once
    monthly_spend_cents: int | None = None  # of the currency of the prices, in a calendar month of UTC

    @classmethod
    def of(cls, row: object) -> "Limits":
        """Return the limits of something that has them by these names; where there are none, always the same."""
        values = {name: getattr(row, name) for name in LIMITS}
        return cls(**values) if any(value is not None for value in values.values()) else NO_LIMITS


LIMITS = tuple(field.name for field in fields(Limits))  # their names: flags, forms and columns have the same
NO_LIMITS = Limits()
MOST = 2**31 - 1  # that a limit may be; at least 1


class Amount(NamedTuple):
    """What a request takes."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0  # `max_output_tokens` at first, and what was sampled once that is known


NOTHING = Amount()


class Quantity(Enum):
    """What is limited over time. Each member has, in this order, what `__init__` takes."""

    REQUESTS = ("requests_per_minute", _MINUTE, "requests per min (RPM)", "requests", (1, 0, 0))
    INPUT = ("input_tokens_per_minute", _MINUTE, "input tokens per min", "tokens", (0, 1, 0))
    OUTPUT = ("output_tokens_per_minute", _MINUTE, "output tokens per min", "tokens", (0, 0, 1))
    DAY = ("tokens_per_day", _DAY, "tokens per day (TPD)", "tokens", (0, 1, 1))

    def __init__(self, field: str, window: int, label: str, line: str, counts: tuple[int, int, int]) -> None:
        self.field = field  # of `Limits`
        self.window = window  # milliseconds
        self.label = label  # as OpenAI's messages have it
        self.line = line  # its line in the headers, which several quantities share
        self.counts = counts  # how often requests, input and output tokens count in it


class Slot(Enum):
    """What is limited at once. Each member has, in this order, what `__init__` takes."""

    RESPONSE = ("concurrent_responses", "concurrent responses")
    WEBSOCKET = ("websockets", "open WebSockets")

    def __init__(self, field: str, label: str) -> None:
        self.field = field  # of `Limits`
        self.label = label  # as messages have it


@dataclass(frozen=True)
class LimitedSubject:
    """Whose limits they are. What follows from them is worked out once, as each request asks for it."""

    subject: str  # `key:ID` or `project:NAME`
    limits: Limits

    def __str__(self) -> str:
        kind, _, name = self.subject.partition(":")
        return f"this API key ({name})" if kind == "key" else f"project '{name}'"

    @cached_property
    def rates(self) -> "Sequence[Rate]":
        """Its limits over time."""
        limits = ((quantity, getattr(self.limits, quantity.field)) for quantity in Quantity)
        return [Rate(self, quantity, limit) for quantity, limit in limits if limit is not None]

    @cached_property
    def _places(self) -> "dict[Slot, SlotLimit]":
        limits = ((slot, getattr(self.limits, slot.field)) for slot in Slot)
        return {slot: SlotLimit(self, slot, limit) for slot, limit in limits if limit is not None}

    def places(self, slot: Slot | None) -> "SlotLimit | None":
        """Its limit of how much there may be at once."""
        return None if slot is None else self._places.get(slot)


def limited_by(key_id: str, project: str, own: Limits, all_keys: Limits) -> Sequence[LimitedSubject]:
    """Return those whose limits hold for a key: itself and its project, as far as they have any."""
    both = ((f"key:{key_id}", own), (f"project:{project}", all_keys))
    return tuple(LimitedSubject(subject, limits) for subject, limits in both if limits is not NO_LIMITS)


class Rate:
    """One limit over time: a bucket that empties evenly, over the window."""

    __slots__ = ("each", "key", "limit", "owner", "quantity", "window")

    def __init__(self, owner: LimitedSubject, quantity: Quantity, limit: int) -> None:
        self.owner = owner
        self.quantity = quantity
        self.limit = limit
        self.window = quantity.window
        self.key = f"{quantity.field}:{owner.subject}"  # what its bucket is called in the ledger
        self.each = quantity.window / limit if limit else 0.0  # milliseconds until one token is good again

    def needed(self, amount: Amount) -> int:
        """Return how much of this an amount is."""
        requests, input_tokens, output_tokens = self.quantity.counts
        return requests * amount.requests + input_tokens * amount.input_tokens + output_tokens * amount.output_tokens

    def to_take(self, amount: Amount) -> int:
        """Return how much a request takes at first: more output than fits counts as a full bucket."""
        needed = self.needed(amount)
        if needed <= self.limit:
            return needed
        # Its input is known, so that may be too large for good; of its output only the bound is known.
        # much.
        return max(self.limit, self.needed(amount._replace(output_tokens=min(amount.output_tokens, 1))))


class SlotLimit:
    """One limit of how much there may be at once."""

    __slots__ = ("key", "limit", "owner", "slot")

    def __init__(self, owner: LimitedSubject, slot: Slot, limit: int) -> None:
        self.owner = owner
        self.slot = slot
        self.limit = limit
        self.key = f"{slot.field}:{owner.subject}"  # what its holders are kept under


class LimitLine(NamedTuple):
    """A limit as clients are told it."""

    name: str  # `requests` or `tokens`
    limit: int
    remaining: int  # how much of it is left now
    reset: float  # milliseconds until all of it is left


def line_of(rate: Rate, left: float) -> LimitLine:
    """Return the state of a limit whose bucket is full in `left` milliseconds."""
    limit, window = rate.limit, rate.window
    # A limit of 0 allows nothing: there is no rate at which it would become good again.
    if not limit:
        return LimitLine(rate.quantity.line, 0, 0, window)
    # A hundredth of a token: what floating point loses on the way is not to look like a token.
    remaining = int(limit * (1 - left / window) + 0.01) if left < window else 0
    return LimitLine(rate.quantity.line, limit, remaining, left)


def tightest(lines: Sequence[LimitLine]) -> list[LimitLine]:
    """Return one line for requests and one for tokens: that of which the least is left, as it is the next to end."""
    tightest_of: dict[str, LimitLine] = {}
    for line in lines:
        if line.name not in tightest_of or line.remaining < tightest_of[line.name].remaining:
            tightest_of[line.name] = line
    return list(tightest_of.values())


def as_headers(lines: Sequence[LimitLine]) -> dict[str, str]:
    """Return OpenAI's headers."""
    return {
        f"x-ratelimit-{what}-{line.name}": value
        for line in lines
        for what, value in (
            ("limit", str(line.limit)),
            ("remaining", str(line.remaining)),
            ("reset", duration(line.reset)),
        )
    }


def as_anthropic_headers(lines: Sequence[LimitLine], date_in: Callable[[float], str]) -> dict[str, str]:
    """Return Anthropic's headers; `date_in` gives the date so many milliseconds from now."""
    return {
        f"anthropic-ratelimit-{line.name}-{what}": value
        for line in lines
        for what, value in (
            ("limit", str(line.limit)),
            ("remaining", str(line.remaining)),
            ("reset", date_in(line.reset)),
        )
    }


def as_event(lines: Sequence[LimitLine]) -> list[JsonObject]:
    """Return the limits of `response.rate_limits.updated`."""
    return [
        {"name": line.name, "limit": line.limit, "remaining": line.remaining, "reset_seconds": round(line.reset) / 1000}
        for line in lines
    ]


def duration(milliseconds: float) -> str:
    """Write a time as OpenAI does: `120ms`, `1s`, `8.64s`, `6m0s`, `23h59m8s`; rounded up to a millisecond."""
    # A millionth is what floating point adds: 120.0000000001 is 120 ms.
    whole = ceil(milliseconds - 1e-6)
    if whole < 1000:
        return f"{max(0, whole)}ms"
    minutes, rest = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{seconds}s"


class QuotaExceeded(ApiError):
    """As much was spent this month as may be (429); OpenAI's error for it, which its SDK does not send again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=429, type="insufficient_quota", code="insufficient_quota")
        self.with_headers(NO_RETRY)

    @property
    def helps_to_wait(self) -> bool:
        """Not within the time for which anybody would send the same request again."""
        return False


class RateLimited(ApiError):
    """A limit is reached (429); SDKs do not send a request again that never fits."""

    def __init__(self, message: str, *, retry_after: int | None) -> None:
        super().__init__(
            message, status=429, type="rate_limit_error", code="rate_limit_exceeded", retry_after=retry_after
        )
        self.with_headers(NO_RETRY if retry_after is None else {})


def rate_reached(rate: Rate, needed: int, left: float) -> RateLimited:
    """A bucket that is full in `left` milliseconds has not as much as a request needs now."""
    what = f"{rate.owner} on {rate.quantity.label}"
    if needed > rate.limit:
        return RateLimited(
            f"Request too large for {what}: Limit {rate.limit}, Requested {needed}. It never fits: make it smaller, "
            "or ask the operator of this server for a higher limit.",
            retry_after=None,
        )
    # What the bucket holds already, and this, minus all that it may hold: the time until there is room.
    wait = max(0.0, left + needed * rate.each - rate.window)
    used = rate.limit - line_of(rate, left).remaining
    return RateLimited(
        f"Rate limit reached for {what}: Limit {rate.limit}, Used {used}, Requested {needed}. "
        f"Please try again in {duration(wait)}.",
        retry_after=max(1, ceil(wait / 1000)),
    )


def places_taken(places: SlotLimit, held: int) -> RateLimited:
    """As many are there at once as may be."""
    return RateLimited(
        f"Rate limit reached for {places.owner} on {places.slot.label}: Limit {places.limit}, Used {held}. "
        "Please try again when one has ended.",
        retry_after=_WAIT_FOR_SLOT,
    )
