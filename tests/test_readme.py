"""The README: a newcomer's page, short, and true. What all pages have in common is tried in `tests/docs/`."""

import re

from tests.docs.pages import ADDRESS, blocks, blocks_of, needs_a_venv_of_its_own, text_of
from tests.server import ROOT

__all__ = ["ADDRESS", "blocks", "needs_a_venv_of_its_own"]  # tests of clients run what the pages show of them
README = ROOT / "README.md"
MAX_LINES = 150


def test_it_is_short() -> None:
    assert len(text_of(README).splitlines()) <= MAX_LINES


def test_it_has_a_picture_and_an_example_of_each_way_to_ask() -> None:
    assert re.search(r"^!\[.{20,}\]\(docs/images/.*\.svg\)$", text_of(README), re.MULTILINE)
    code = "\n".join(block.code for block in blocks_of(README))
    for way in ("make run", "curl ", "responses.create(", "responses.connect()", "codex exec"):
        assert way in code
