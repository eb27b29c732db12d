"""The page of the documentation shows each agent, in the version that the tests run, and nothing that failed."""

from tests.project.docs.pages import DOCS
from tests.system.agents.every import AGENTS
from tests.system.agents.page import HEAD, version

PAGE = DOCS / "reference" / "agents.md"


def test_each_agent_has_its_rows_and_nothing_failed() -> None:
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [dict(zip(HEAD, line, strict=True)) for line in lines[2:]]
    shown = [(row["agent"], row["version"], row["API"]) for row in rows]
    assert shown == [(agent.name, version(agent), way.value) for agent in AGENTS for way in agent.ways]
    assert {(row["cut off"], row["failed"], row["tokens computed twice"]) for row in rows} == {("1", "0", "0")}
