"""What people read of items: a message's words, the first ones of what was asked, and a text as it is looked for."""

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import regex

from responses_app.protocol.errors import JsonObject

_CLUSTERS = regex.compile(r"\X")  # what people take for one character
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_TEXT_IN_JSON = re.compile(r'"(?:text|content)":("(?:[^"\\]|\\.)*")')


def text_of(item: JsonObject) -> str:
    """Return what a message says, its texts behind each other; "" for anything else."""
    return " ".join(_texts(item))


def words_of(items: object, most: int) -> str:
    """Return the beginning of what the user said last, or of what else came, in one line of `most` characters."""
    objects = [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []
    for item in reversed(objects):
        text = text_of(item) if item.get("role") in ("user", "developer", "system") else ""
        if line := in_one_line(text or _shown(item), most):
            return line
    return str(objects[-1].get("type") or "")[:most].replace("_", " ") if objects else ""


def words_of_json(text: str, most: int) -> str:
    """Return the same of a JSON list, of which only the beginning may be there: then its first text counts."""
    try:
        return words_of(json.loads(text), most)
    except ValueError:
        found = _TEXT_IN_JSON.search(text)
    return in_one_line(json.loads(found[1]), most) if found else ""


def in_one_line(text: str, most: int) -> str:
    """Return the beginning of a text, without what does not fit into a line."""
    # Four times as much is enough: `split` makes one space of many.
    line = " ".join(text[: 4 * most].split())
    return _beginning(line, most) + ("…" if len(line) > most else "")


def _beginning(text: str, most: int) -> str:
    """Return at most so many characters, cut where no letter loses its accent, and no emoji its parts."""
    if len(text) <= most:
        return text
    ends = [match.end() for match in _CLUSTERS.finditer(text[: most + 1])]
    # One that is longer than all there is room for is cut anyway.
    return text[: next((end for end in reversed(ends) if end <= most), most)]


def storable(text: str) -> str:
    """Return a text without what no column takes, or no line shows: lone surrogates and control characters."""
    return _CONTROLS.sub("", text)


def as_searched(text: str) -> str:
    """Return a text so that it is found whatever its case, and however its accents were written."""
    return text.casefold() if text.isascii() else unicodedata.normalize("NFC", text).casefold()


def _texts(item: JsonObject) -> Iterator[str]:
    content = item.get("content") if item.get("role") else None
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        for name in ("text", "refusal"):
            if isinstance(part, dict) and isinstance(part.get(name), str):
                yield part[name]


def _shown(item: JsonObject) -> str:
    """Return what stands for a message without words."""
    content: Any = item.get("content")
    parts = content if isinstance(content, list) else []
    kinds = {part.get("type") for part in parts if isinstance(part, dict)}
    if item.get("role") != "user":
        return ""
    return "an image" if "input_image" in kinds else "a file" if "input_file" in kinds else ""
