"""Ids: a prefix and a UUID v7 (RFC 9562) as 32 lowercase hex digits, ordered and unique within a millisecond too."""

from collections.abc import Callable

RESPONSE = "resp_"
MESSAGE = "msg_"
REASONING = "rs_"
FUNCTION_CALL = "fc_"
FUNCTION_CALL_OUTPUT = "fco_"
COMPACTION = "cmp_"
ITEM = "item_"  # of a type that only clients use
CALL = "call_"
CONVERSATION = "conv_"
WORKER = "worker_"
CONNECTION = "ws-"
REQUEST = "req_"

_COUNTER_BITS = 12  # rand_a of RFC 9562 section 5.7, used as a counter (section 6.2, method 1)


class IdFactory:
    """Makes ids. Clock and randomness are passed in: `now_ms()` is Unix milliseconds, `random_bits(n)` an n-bit int."""

    def __init__(self, now_ms: Callable[[], int], random_bits: Callable[[int], int]) -> None:
        self._now_ms = now_ms
        self._random_bits = random_bits
        self._last = 0  # milliseconds and counter as one number, so that a full counter carries into the time

    def __call__(self, prefix: str) -> str:
        """Return a new id; a clock that stands still or goes back does not disturb the order."""
        self._last = max(self._last + 1, self._now_ms() << _COUNTER_BITS)
        milliseconds, counter = divmod(self._last, 1 << _COUNTER_BITS)
        value = milliseconds << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | self._random_bits(62)
        return f"{prefix}{value:032x}"
