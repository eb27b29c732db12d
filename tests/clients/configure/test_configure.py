"""`respsite configure` beside its pages, and with a server. See also `tests/system/agents/test_configured.py`."""

import json
from collections.abc import Iterator

import pytest

from responses_app.command_line import main
from responses_app.extensions.terminal.agents import AGENTS
from tests.kit.closed import ClosedServer
from tests.kit.home import empty_home  # noqa: F401 - a fixture
from tests.project.docs.pages import DOCS, blocks_of, text_of

PAGES = {"claude": "claude-code", "qwen": "qwen-code"}  # others have the name of the agent

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedServer]:
    """The demo engine behind a key."""
    with ClosedServer(tmp_path_factory.mktemp("guarded"), auth="on") as server:
        yield server


@pytest.mark.parametrize("agent", AGENTS)
def test_its_page_shows_what_is_printed(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configure", agent]) == 0
    text, _ = capsys.readouterr()
    page = DOCS / "how-to" / "clients" / f"{PAGES.get(agent, agent)}.md"
    shown = [block.code for block in blocks_of(page) if block.language == AGENTS[agent].format.value]
    assert text in shown
    assert f"respsite configure {agent}" in " ".join(text_of(page).split())


def test_a_server_elsewhere_is_asked_for_its_models(
    guarded: ClosedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = guarded.url
    assert main(["configure", "claude", "--url", url]) == 1
    assert "RESPSITE_API_KEY, which is not set" in capsys.readouterr().err
    monkeypatch.setenv("RESPSITE_API_KEY", guarded.key)
    assert main(["configure", "claude", "--url", url]) == 0
    variables = json.loads(capsys.readouterr().out)["env"]
    assert (variables["ANTHROPIC_BASE_URL"], variables["ANTHROPIC_MODEL"]) == (url, "demo")
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "131072"
