"""Ids are UUID v7, ordered and unique, whatever the clock does."""

import re
import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from responses_app.kit.clock import IdFactory
from responses_app.protocol import ids


def factory(*times: int, bits: int = 0x2AAAAAAAAAAAAAAA) -> IdFactory:
    clock = iter(times)
    latest = times[-1]
    return IdFactory(lambda: next(clock, latest) / 1000, lambda n: bits & ((1 << n) - 1))


def test_a_prefix_and_32_lowercase_hex_digits() -> None:
    for prefix in (ids.RESPONSE, ids.MESSAGE, ids.REASONING, ids.FUNCTION_CALL, ids.CALL, ids.CONNECTION):
        assert re.fullmatch(re.escape(prefix) + "[0-9a-f]{32}", factory(1_700_000_000_000)(prefix))


def test_it_is_a_uuid_of_version_7() -> None:
    made = uuid.UUID(factory(1_700_000_000_125)("resp_").removeprefix("resp_"))
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == 1_700_000_000_125
    assert made.int & ((1 << 62) - 1) == 0x2AAAAAAAAAAAAAAA


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=50), st.integers(0, 2**62 - 1))
def test_ids_are_ordered_on_any_clock(times: list[int], bits: int) -> None:
    made = factory(*times, bits=bits)
    issued = [made("") for _ in times]
    assert sorted(set(issued)) == issued


def test_a_full_counter_carries_into_the_time() -> None:
    made = factory(1000)
    issued = [made("") for _ in range(5000)]
    assert sorted(set(issued)) == issued
    assert {uuid.UUID(each).version for each in issued} == {7}
