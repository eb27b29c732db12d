"""The Python of every page, as one session a page: what it prints is what the page says it prints, where it says so."""

import contextlib
import io
import re
from pathlib import Path

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.kit.server import Server
from tests.project.docs.pages import ADDRESS, Block, all_blocks, blocks, needs_a_venv_of_its_own

ON_EVERY_SERVER = ("README.md", "docs/tutorial/first-requests.md")


def to_run() -> dict[str, list[Block]]:
    """Return the blocks of Python by their pages."""
    found: dict[str, list[Block]] = {}
    for block in all_blocks():
        if block.language == "python" and not block.why_not and not needs_a_venv_of_its_own(block.code):
            found.setdefault(block.page, []).append(block)
    return found


SESSIONS = to_run()
SETTINGS = {"docs/how-to/weights.md": {"engine_weights": "on"}}  # of pages that tell readers to set something
ELSEWHERE = sorted(set(SESSIONS) - set(ON_EVERY_SERVER))


def run(page: str, server: Server) -> None:
    """Run a page's blocks in their order; each has to print what stands behind its arrows."""
    session: dict[str, object] = {"__name__": "example"}
    try:
        for block in SESSIONS[page]:
            printed = io.StringIO()
            code = "\n" * block.line + block.code.replace(ADDRESS, f"127.0.0.1:{server.port}")
            with contextlib.redirect_stdout(printed):
                exec(compile(code, page, "exec"), session)
            promised = re.findall(r"^# -> (.*)$", block.code, re.MULTILINE)
            if promised:
                assert [line for line in printed.getvalue().splitlines() if line.strip()] == promised, str(block)
    finally:
        for made in session.values():
            if isinstance(made, OpenAI | Anthropic | httpx.Client):
                made.close()


@pytest.mark.parametrize("page", ON_EVERY_SERVER)
def test_examples_print_what_they_say(
    page: str, demo_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(page, demo_server)


@pytest.mark.parametrize("page", ELSEWHERE)
def test_examples_of_other_pages_print_what_they_say(
    page: str, daphne_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if page not in SETTINGS:
        run(page, daphne_server)
        return
    with Server(tmp_path / "server", **SETTINGS[page]) as server:
        run(page, server)


def test_there_are_examples_of_each_way_to_ask() -> None:
    code = "\n".join(blocks("python"))
    for way in ("responses.create(", "stream=True", "with client.responses.connect()", "async with", "stream_id="):
        assert way in code
