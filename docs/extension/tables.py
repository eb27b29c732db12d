"""Markdown's tables."""

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar in a cell does not end it."""
    lines = [_row(head), "|" + "---|" * len(head), *map(_row, rows)]
    return "\n".join(lines)


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`"


def plain(text: str) -> str:
    """Return a text of the code as Markdown, where a star or a bracket means itself; what is code stays that."""
    parts = text.split("`")
    return "`".join(part if number % 2 else re.sub(r"([*_<>\[\]])", r"\\\1", part) for number, part in enumerate(parts))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
