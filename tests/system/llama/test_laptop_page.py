"""The page "A model on your laptop", word for word, with a small model in place of the download.

Only this finds a command of the page that a real llama-server refuses.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from responses_app.command_line import main
from tests.clients.codex.cli import Codex, installed
from tests.kit.server import Server
from tests.project.docs.pages import DOCS, blocks_of
from tests.system.llama.model import CONTEXT, SHELL, spelled
from tests.system.llama.server import API_KEY, LlamaServer
from tests.wire.command_line.program import respsite, settings_of

DOWNLOADED = "-hf ggml-org/gpt-oss-20b-GGUF"
PORT = "8080"


def lines() -> list[list[str]]:
    codes = [block.code.replace("\\\n", " ") for block in blocks_of(DOCS / "how-to" / "laptop.md")]
    return [shlex.split(code) for code in codes[:3]]


@pytest.fixture
def llama(gguf: Path, tmp_path: Path) -> Iterator[LlamaServer]:
    """The llama-server of the page: its own flags, with our model and a free port."""
    program, *flags = lines()[0]
    assert program == "llama-server"
    asked = " ".join(flags)
    assert asked.startswith(f"{DOWNLOADED} --port {PORT} ")
    own = shlex.split(asked.removeprefix(f"{DOWNLOADED} --port {PORT} "))
    with LlamaServer(tmp_path, gguf, *own, context=CONTEXT) as server:
        yield server


async def test_the_three_commands(llama: LlamaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *assigned, program, command = lines()[1]
    assert (program, command) == ("respsite", "serve")
    settings = dict(each.split("=", 1) for each in assigned)
    assert settings["ENGINE_URL"] == f"http://127.0.0.1:{PORT}"
    settings |= {"ENGINE_URL": llama.url, "ENGINE_API_KEY": API_KEY}
    own = {name.lower(): value for name, value in settings.items()}
    with Server(tmp_path / "front", **own) as front:
        home = tmp_path / "home"
        monkeypatch.setenv("CODEX_HOME", str(home))
        program, *words = lines()[2]
        assert main([*words, "--url", front.base_url]) == 0
        written = (home / "config.toml").read_text()
        codex = Codex(installed(), tmp_path / "codex", config=written)
        turn = await codex.ask(f"Write a note, my{spelled(SHELL)}.")
        assert (turn.exit_code, turn.last_message) == (0, "Hello you"), turn
        doctor = respsite("doctor", "--json", "--seconds", "60", **settings_of(front), **settings)
        assert re.search(rf"gpt-oss-20b \(llama-server\): {CONTEXT} tokens of context, 1 at once at ", doctor.stdout)
    llama.kill()
    doctor = respsite("doctor", "--json", "--seconds", "60", **settings_of(front), **settings)
    assert "Check that llama-server runs there and has loaded its model" in doctor.stdout
