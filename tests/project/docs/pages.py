"""The README and the pages of `docs/`, and the fenced blocks of code in them.

A block is written as on GitHub, and what stands behind its language says that the tests do not run it, and why:

    ```sh not-run: needs a GPU
    make install-vllm
    ```

The reader of the built pages sees that sentence under the block.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs.extension import NOT_RUN
from tests.kit.server import ROOT

ADDRESS = "127.0.0.1:8000"  # what the examples ask
PROXY = "127.0.0.1:4000"  # LiteLLM's, in front of it
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^( *)```(\w+)[ \t]*([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: `page` is its path in the repository, `why_not` why no test runs it."""

    page: str
    line: int
    language: str
    why_not: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def pages() -> tuple[Path, ...]:
    """Return the README and every page."""
    return (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))


@cache
def text_of(page: Path) -> str:
    return page.read_text()


def everything() -> str:
    """Return all pages, one after the other."""
    return "\n".join(map(text_of, pages()))


@cache
def all_blocks() -> tuple[Block, ...]:
    """Return the blocks of all pages, in their order."""
    return tuple(block for page in pages() for block in blocks_of(page))


def blocks_of(page: Path) -> Iterable[Block]:
    text = text_of(page)
    for found in _BLOCK.finditer(text):
        indent, language, rest, code = found.groups()
        name, line = str(page.relative_to(ROOT)), text.count("\n", 0, found.start()) + 1
        why_not = rest.removeprefix(NOT_RUN) if rest.startswith(NOT_RUN) else ""
        assert not rest or why_not, f"{name}:{line}: behind a language stands '{NOT_RUN}' and why, or nothing"
        yield Block(name, line, language, why_not, re.sub(f"^{indent}", "", code, flags=re.MULTILINE))


def blocks(language: str) -> list[str]:
    """Return the code of the blocks of a language that are to be run, of all pages."""
    return [block.code for block in all_blocks() if block.language == language and not block.why_not]


def needs_a_venv_of_its_own(code: str) -> bool:
    """Whether a Python example uses what these tests' environment lacks; `tests/clients/python_clients` runs it."""
    imported = re.search(r"^(?:from|import) (?:langchain_openai|litellm|pipecat|pydantic_ai)\b", code, re.MULTILINE)
    return bool(imported) or PROXY in code
