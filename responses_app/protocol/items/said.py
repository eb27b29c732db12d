"""What people wrote and the model answered, as it is looked for: its text, its words, and what a search is for.

    list "out of memory" kern*          three phrases: each of them has to be there
        list                            a word
        "out of memory"                 words that stand next to each other
        kern*                           a word that begins so

Words are made as in files (`protocol.files.searches`): small letters, no accents, pairs of Chinese characters. Unlike
there no word is reduced to its stem: who looks for `prices` wants no `priced`, and can ask for `pric*`. Signs part
words, and are never looked for: `%`, `don't` (the words `don` and `t` next to each other).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from responses_app.protocol.files.searches import words_of
from responses_app.protocol.items.words import text_of

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
        words = list(words_of(quoted or bare))[:left]
        left -= len(words)
        if words:
            phrases.append(Phrase(words, is_open=bool(star) or bare.endswith("*")))
    return phrases


def words_said(asked: Iterable[object], answered: Iterable[object]) -> str:
    """Return the words that a response is found by, with spaces between: of what users wrote, and of its messages."""
    last = "".join(reversed(list(_texts(reversed(list(asked)), "user", MOST_ASKED))))
    first = "".join(_texts(answered, "assistant", MOST_ANSWERED))
    return " ".join(words_of(f"{last} {first}"))


def _texts(items: Iterable[object], role: str, most: int) -> Iterator[str]:
    """Yield the texts of the messages of a role, with a space behind each, of `most` characters together."""
    for item in items:
        text = text_of(item) if isinstance(item, dict) and item.get("role") == role else ""
        if text:
            yield text[:most] + " "
            most -= len(text)
        if most <= 0:
            return
