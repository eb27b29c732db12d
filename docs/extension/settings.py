"""The settings, as the rooms declare them and `responses_app/settings/conf.py` gathers them."""

import re
from collections.abc import Callable
from dataclasses import Field, fields
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from docs.extension.tables import code
from responses_app.management.flags import FLAGS
from responses_app.protocol.setting import names
from responses_app.settings.conf import secret_files, settings_class, table

NO_VALUE = "\N{NULL}"  # that no setting takes, but for those that take any text
ANYTHING = "text"
KIB = 1024
DOCS = Path(__file__).parent.parent


def markdown() -> str:
    """Return a heading for each group, and below it a section for each setting: its name, what it takes and is for."""
    known = {field.name.upper(): field for field in fields(settings_class())}
    groups = [
        "\n\n".join([f"## {group}", *(_section(row.name, row.default, row.about, known[row.name]) for row in rows)])
        for group, rows in groupby(table(), key=lambda row: row.group)
    ]
    return "\n\n".join(groups)


def _section(name: str, default: str, about: str, field: "Field[Any]") -> str:
    flags = [code(flag) for flag, meant in FLAGS.items() if meant == name]
    lines = [
        f"### {name}",
        "",
        _sentence(_linked(about)),
        "",
        f"- takes: {takes(field.metadata['parse'])}",
        f"- default: {_default(default, field)}",
        *([f"- flag of `serve`: {', '.join(flags)}"] if flags else []),
        *([f"- as a file: `{name}_FILE`"] if f"{name}_FILE" in secret_files() else []),
    ]
    return "\n".join(lines)


def _default(shown: str, field: "Field[Any]") -> str:
    """Return a default: a value as it is written, with the size of many bytes; or words for what is none."""
    if not _is_value(shown, field):
        return shown
    size = f" ({sized(field.default)})" if field.name.endswith("_bytes") and field.default >= KIB else ""
    return f"{code(shown)}{size}"


def _is_value(shown: str, field: "Field[Any]") -> bool:
    default = field.default_factory() if callable(field.default_factory) else field.default
    try:
        return bool(field.metadata["parse"](shown) == default)
    except ValueError:
        return False


def sized(number: int) -> str:
    """Return a number of bytes for people: `32 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if number % KIB or number < KIB:
            return f"{number} {unit}"
        number //= KIB
    return f"{number} GiB"


def takes(parse: Callable[[str], object]) -> str:
    """Return what a setting takes, as it says it to who gives it something else."""
    try:
        parse(NO_VALUE)
    except ValueError as wanted:
        return str(wanted)
    return "names, separated by commas" if parse is names else ANYTHING


def _sentence(text: str) -> str:
    first = text if text.startswith(("`", "vLLM")) else text[0].upper() + text[1:]
    return first if first.endswith(".") else f"{first}."


def _linked(about: str) -> str:
    """Make a link of each `(see Chapter)`. Raises `KeyError` where there is no such chapter."""

    def link(found: re.Match[str]) -> str:
        return f"see [{found[1]}](../{headings()[found[1]]})"

    return re.sub(r"\bsee ([^);]+)(?=\))", link, about)


@cache
def headings() -> dict[str, str]:
    """Return where each page is by its title, or by that up to a colon or bracket, and each chapter by its heading."""
    found: dict[str, str] = {}
    for page in sorted(DOCS.glob("*/**/*.md")):
        name, text = str(page.relative_to(DOCS)), page.read_text()
        for heading in re.findall(r"^## (.*)$", text, re.MULTILINE):
            found.setdefault(heading, f"{name}#{anchor(heading)}")
        title = text.partition("\n")[0].removeprefix("# ")
        found[title] = found[re.split(r": | \(", title)[0]] = name
    return found


def anchor(heading: str) -> str:
    """Return how a link names a heading, as on GitHub."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
