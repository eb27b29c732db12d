"""The page of coding agents has each of them, in the version that the tests run; its figures see what they count."""

from collections.abc import Sequence
from itertools import takewhile

import pytest

from engine.formats.harmony.encoding import encode_harmony
from tests.project.docs.pages import DOCS
from tests.system.agents.agent import Agent
from tests.system.agents.every import AGENTS
from tests.system.agents.figures import BLOCK, computed_twice
from tests.system.agents.loop import LOOP, measured
from tests.system.agents.others.every import OTHERS
from tests.system.agents.page import HEAD, LOOP_HEAD, version

PAGE = DOCS / "reference" / "agents.md"
EARLIER = {"prompt_tokens": list(range(100)), "sampled_tokens": list(range(100, 200)), "finish": "stop"}


def rows_under(head: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of the page's table with this head."""
    lines = PAGE.read_text().splitlines()
    begin = lines.index(f"| {' | '.join(head)} |") + 2
    cells = [line.strip("| ").split(" | ") for line in takewhile(lambda line: line.startswith("| "), lines[begin:])]
    return [dict(zip(head, row, strict=True)) for row in cells]


def names_of(agents: Sequence[Agent]) -> list[tuple[str, str, str]]:
    return [(agent.name, version(agent), way.value) for agent in agents for way in agent.ways]


def test_each_agent_has_its_rows_and_nothing_failed() -> None:
    rows = rows_under(HEAD)
    assert [(row["agent"], row["version"], row["API"]) for row in rows] == names_of(AGENTS)
    assert {(row["cut off"], row["failed"], row["tokens computed twice"]) for row in rows} == {("1", "0", "0")}


def test_each_other_client_has_its_rows_and_computes_nothing_again() -> None:
    rows = rows_under(LOOP_HEAD)
    assert [(row["client"], row["version"], row["API"]) for row in rows] == names_of(OTHERS)
    assert {(row["turns"], row["tokens computed again"]) for row in rows} == {(str(len(LOOP)), "0")}


def test_each_token_from_the_first_difference_on_is_computed_again() -> None:
    said = [encode_harmony(f"<|channel|>analysis<|message|>Step {n} of the work.<|end|>") for n in (1, 2)]
    first = {"prompt_tokens": [1, 2], "sampled_tokens": said[0], "finish": "stop"}
    for read, again in ([1, 2, *said[0]], 0), ([1, 2, *said[0][:-2], 7, 7], 1), ([1, 3], len(said[0])):
        second = {"prompt_tokens": read, "sampled_tokens": said[1], "finish": "stop"}
        assert (measured([first, second]).turns, measured([first, second]).again) == (2, again)


@pytest.mark.parametrize(
    ("same", "twice"), [(200, 0), (199, 0), (192, 0), (191, BLOCK), (100, 6 * BLOCK), (0, 12 * BLOCK)]
)
def test_full_blocks_from_the_first_difference_on_are_computed_twice(same: int, twice: int) -> None:
    """A prompt goes on with other tokens than those that were sampled."""
    later = {"prompt_tokens": [*range(same), *[7_000] * 300]}
    assert computed_twice(EARLIER, later) == twice
