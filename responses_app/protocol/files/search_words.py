"""The words by which text is found: the same of a text that is searched, and of what is looked for.

A word is a run of letters and digits, in small letters and without accents. Chinese and Japanese have no spaces: there
every two characters that stand together are a word. A database's own index makes stems of what is English.
"""

import re
import unicodedata
from collections.abc import Iterator

import regex

MAX_QUERY = 10_000  # characters of a query that are looked at
MAX_TERMS = 32  # different words of a query that are looked for
MAX_WORD = 64  # characters; a longer one is cut, in both
_ASCII = re.compile("[a-z0-9]+")
_WORDS = regex.compile(r"[\p{L}\p{M}\p{N}]+")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]+")
_ACCENTS = regex.compile("[\u0300-\u036f]+")
# What tells nothing of what is looked for. PostgreSQL leaves out these and a few more; FTS5 none.
_COMMON = frozenset(
    "a about all also am an and any are as at be been but by can could did do does for from had has have he her his "
    "how i if in into is it its just me my no not of on or our please she should so some tell than that the their "
    "them then there these they this to us was we were what when where which who why will with would you your "
    "s t".split()
)


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text."""
    if text.isascii():  # twice as fast
        yield from (word[:MAX_WORD] for word in _ASCII.findall(text.lower()))
        return
    for word in _WORDS.findall(_plain(text)):
        if word.isascii() or _UNSPACED.search(word) is None:
            yield word[:MAX_WORD]
        else:
            yield from _parts(word)


def _parts(word: str) -> Iterator[str]:
    """Yield the pairs of characters of what has no spaces, and what stands between."""
    place = 0
    for found in _UNSPACED.finditer(word):
        yield from [word[place : found.start()][:MAX_WORD]] if found.start() > place else []
        run, place = found[0], found.end()
        yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))
    yield from [word[place:][:MAX_WORD]] if place < len(word) else []


def terms_of(query: str) -> list[str]:
    """Return the words to look for, each once, at most `MAX_TERMS`."""
    every = dict.fromkeys(words_of(query[:MAX_QUERY]))
    telling = [word for word in every if word not in _COMMON]
    return (telling or list(every))[:MAX_TERMS]


def _plain(text: str) -> str:
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold()))
    return unicodedata.normalize("NFKC", plain)
