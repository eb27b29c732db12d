"""What people read of items, and look for in them: their text, its first words, its words as they are found.

A search:

    list "out of memory" kern*          three phrases: each of them has to be there
    list                            a word
    "out of memory"                 words that stand next to each other
    kern*                           a word that begins so

Words are made as in files (`protocol.files.searches`): small letters, no accents, pairs of Chinese characters. Unlike
there no word is reduced to its stem: who looks for `prices` wants no `priced`, and can ask for `pric*`. Signs part
words, and are never looked for: `%`, `don't` (the words `don` and `t` next to each other).
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import regex

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files import searches

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


MOST_ASKED = MOST_ANSWERED = 8_000  # characters of a response that can be found: the last asked, the first answered
MAX_SEARCH = 1_000  # characters of a search that are looked at
MAX_WORDS = 32  # of a search

_PHRASES = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that stand next to each other; of the last one only the beginning may be there."""

    words: Sequence[str]
    is_open: bool = False  # the last word may go on


def phrases_of(search: str) -> list[Phrase]:
    """Return what a search is for; none where it has neither letters nor digits."""
    phrases: list[Phrase] = []
    left = MAX_WORDS
    for quoted, star, bare in _PHRASES.findall(search[:MAX_SEARCH]):
        words = list(searches.words_of(quoted or bare))[:left]
        left -= len(words)
        if words:
            phrases.append(Phrase(words, is_open=bool(star) or bare.endswith("*")))
    return phrases


def words_said(asked: Iterable[object], answered: Iterable[object]) -> str:
    """Return the words that a response is found by, with spaces between: of what users wrote, and of its messages."""
    last = "".join(reversed(list(_texts_of(reversed(list(asked)), "user", MOST_ASKED))))
    first = "".join(_texts_of(answered, "assistant", MOST_ANSWERED))
    return " ".join(searches.words_of(f"{last} {first}"))


def _texts_of(items: Iterable[object], role: str, most: int) -> Iterator[str]:
    """Yield the texts of the messages of a role, with a space behind each, of `most` characters together."""
    for item in items:
        text = text_of(item) if isinstance(item, dict) and item.get("role") == role else ""
        if text:
            yield text[:most] + " "
            most -= len(text)
        if most <= 0:
            return
