"""The README: a newcomer's page, short, and true. What all pages have in common is tried in `tests/project/docs/`."""

import re
import shlex
import sys
from pathlib import Path

import httpx

from tests.kit.server import ROOT, Server, manage
from tests.project.docs.pages import ADDRESS, blocks, blocks_of, needs_a_venv_of_its_own, text_of

__all__ = ["ADDRESS", "blocks", "needs_a_venv_of_its_own"]  # tests of clients run what the pages show of them
README = ROOT / "README.md"
MAX_LINES = 110


def test_it_is_short() -> None:
    assert len(text_of(README).splitlines()) <= MAX_LINES


def test_it_has_pictures_and_an_example_of_each_way_to_ask() -> None:
    pictures = re.findall(r"^!\[.{20,}\]\(docs/images/(.*)\.\w+\)$", text_of(README), re.MULTILINE)
    assert pictures == ["playground-answer", "watch-a-run"]
    code = "\n".join(block.code for block in blocks_of(README))
    for way in ("make run", "curl ", "responses.create(", "responses.connect()", "codex exec"):
        assert way in code


class AsTheReadmeSays(Server):
    """A server that is started with the README's own command, on a port of its own."""

    def _command(self) -> list[str]:
        (line,) = re.findall(r"^\.venv/bin/(daphne .*)$", text_of(README), re.MULTILINE)
        words = shlex.split(line)
        return [sys.executable, "-m", *(str(self.port) if word == "8000" else word for word in words)]


def test_daphne_serves_as_the_readme_starts_it(tmp_path: Path) -> None:
    """The command before it migrates."""
    (words,) = re.findall(r"^\.venv/bin/respsite manage (migrate)$", text_of(README), re.MULTILINE)
    url = f"sqlite:///{tmp_path / 'own.sqlite3'}"
    manage(*shlex.split(words), DATA_DIR=str(tmp_path), DATABASE_URL=url)
    with AsTheReadmeSays(tmp_path, database_url=url) as server:
        answer = httpx.post(f"{server.base_url}/responses", json={"input": "Hello"}, timeout=30)
        assert answer.json()["status"] == "completed"
