"""The figures see what they count: a prompt that goes on with other tokens than those that were sampled."""

import pytest

from tests.system.agents.figures import BLOCK, computed_twice

EARLIER = {"prompt_tokens": list(range(100)), "sampled_tokens": list(range(100, 200)), "finish": "stop"}


@pytest.mark.parametrize(
    ("same", "twice"), [(200, 0), (199, 0), (192, 0), (191, BLOCK), (100, 6 * BLOCK), (0, 12 * BLOCK)]
)
def test_tokens_behind_the_first_other_one_are_computed_twice(same: int, twice: int) -> None:
    later = {"prompt_tokens": [*range(same), *[7_000] * 300]}
    assert computed_twice(EARLIER, later) == twice
