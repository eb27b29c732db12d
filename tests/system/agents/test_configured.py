"""Coding agents with what `respsite configure` writes or prints, and nothing else: each gets its answer at once.

The fault that only these tests can find: a setting that an agent's own version does not read as its page says. Each
starts a program of some hundred MB, and installs it where nobody has done so.
"""

import platform
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from responses_app.command_line import main
from responses_app.extensions.terminal.agents import AGENTS
from tests.kit import npm, pip
from tests.kit.closed import ClosedServer
from tests.kit.home import empty_home  # noqa: F401 - a fixture
from tests.kit.programs import Finished, run_program, secluded
from tests.system.agents.every import CLIENTS

TURN_SECONDS = 120.0  # bound of one run; the first one on a machine reads hundreds of MB
SHELL = 'eval "$1"; shift; exec "$@"'  # what is printed for a shell, and the program then


@dataclass(frozen=True)
class Program:
    """How an agent is started with one prompt, and how it asks."""

    command: Callable[[], list[str | Path]]  # before the prompt; installs it
    transport: str  # as the server's log names it


def of_npm(name: str, program: str, *arguments: str) -> Callable[[], list[str | Path]]:
    """Return what installs an agent with npm."""
    return lambda: [npm.program(CLIENTS / name / "package.json", program), *arguments]


def aider() -> list[str | Path]:
    python = pip.installed(CLIENTS / "aider" / "requirements.txt")
    return [python, "-m", "aider", "--no-git", "--yes", "--message"]


PROGRAMS = {
    "codex": Program(of_npm("codex", ".bin/codex", "exec", "--skip-git-repo-check"), "websocket"),
    "claude": Program(of_npm("claude", "@anthropic-ai/claude-code-*/claude", "--print"), "messages"),
    "opencode": Program(of_npm("opencode", "opencode-*/bin/opencode", "run"), "sse"),
    "copilot": Program(of_npm("copilot", ".bin/copilot", "--prompt"), "websocket"),
    "qwen": Program(of_npm("qwen", ".bin/qwen", "--prompt"), "chat"),
    "aider": Program(aider, "chat"),
}
NO_AIDER = f"aider-chat asks for Python 3.12 or older, and this is {platform.python_version()}"
MARKS = {
    "codex": pytest.mark.representative,
    "aider": pytest.mark.skipif(sys.version_info >= (3, 13), reason=NO_AIDER),
}
# Open WebUI is a server with pages, tried by hand: its page in the documentation says with what result.
RUNS = [pytest.param(name, marks=MARKS.get(name, ())) for name in AGENTS if name != "open-webui"]
QUIET = {  # that nobody waits for hosts of others
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "AIDER_CHECK_UPDATE": "false",
    "AIDER_ANALYTICS": "false",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedServer]:
    """The demo engine behind a key."""
    with ClosedServer(tmp_path_factory.mktemp("guarded"), auth="on") as server:
        yield server


def texts_in(folder: Path) -> list[str]:
    """Return what stands in all files of a folder."""
    return [path.read_text() for path in folder.rglob("*") if path.is_file()]


async def ask(agent: str, text: str, home: Path, key: str) -> Finished:
    """Run an agent with a prompt; `text` is for the shell of those that are configured so."""
    work = home / "work"
    work.mkdir()
    command = [*PROGRAMS[agent].command(), "count to 5"]
    if AGENTS[agent].place is None:
        command = ["sh", "-c", SHELL, "sh", text, *command]
    # Copilot unpacks itself into its cache, 230 MB: that is to happen once.
    cache = str(npm.folder_of(CLIENTS / "copilot" / "package.json") / "cache")
    environ = secluded(home, RESPSITE_API_KEY=key, **QUIET, **({"XDG_CACHE_HOME": cache} if agent == "copilot" else {}))
    return await run_program(*command, cwd=work, environ=environ, seconds=TURN_SECONDS)


@pytest.mark.parametrize("agent", RUNS)
async def test_an_agent_answers_with_what_is_written(
    agent: str, guarded: ClosedServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = len(guarded.output)
    given = ["configure", agent, "--url", guarded.base_url, "--model", "demo"]
    writes = AGENTS[agent].place is not None
    assert main([*given, *(["--write"] if writes else [])]) == 0
    text, _ = capsys.readouterr()
    written = texts_in(home)
    assert len(written) == writes
    assert guarded.key not in "".join([text, *written])
    done = await ask(agent, text, home, guarded.key)
    assert (done.exit_code, "1 2 3 4 5" in done.printed) == (0, True), done
    answered = re.findall(r" response resp_\w+ (\w+) completed", guarded.output[begin:])
    assert set(answered) == {PROGRAMS[agent].transport}
    assert not re.search(r"\b401\b", guarded.output[begin:])
