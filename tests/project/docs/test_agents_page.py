"""The page of coding agents has each of them, in the version that the tests run; its figures see what they count."""

import pytest

from tests.project.docs.pages import DOCS
from tests.system.agents.every import AGENTS
from tests.system.agents.figures import BLOCK, computed_twice
from tests.system.agents.page import HEAD, version

PAGE = DOCS / "reference" / "agents.md"
EARLIER = {"prompt_tokens": list(range(100)), "sampled_tokens": list(range(100, 200)), "finish": "stop"}


def test_each_agent_has_its_rows_and_nothing_failed() -> None:
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [dict(zip(HEAD, line, strict=True)) for line in lines[2:]]
    shown = [(row["agent"], row["version"], row["API"]) for row in rows]
    assert shown == [(agent.name, version(agent), way.value) for agent in AGENTS for way in agent.ways]
    assert {(row["cut off"], row["failed"], row["tokens computed twice"]) for row in rows} == {("1", "0", "0")}


@pytest.mark.parametrize(
    ("same", "twice"), [(200, 0), (199, 0), (192, 0), (191, BLOCK), (100, 6 * BLOCK), (0, 12 * BLOCK)]
)
def test_tokens_behind_the_first_other_one_are_computed_twice(same: int, twice: int) -> None:
    """A prompt goes on with other tokens than those that were sampled."""
    later = {"prompt_tokens": [*range(same), *[7_000] * 300]}
    assert computed_twice(EARLIER, later) == twice
