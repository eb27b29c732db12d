"""Searches in vector stores: filters by attributes, the chunks that are found, the words by which they are, and ranks.

Filters leave out files by their attributes:

    {"type": "and", "filters": [{"type": "eq", "key": "team", "value": "red"}, {"type": "gte", "key": "year", …}]}

Chunks are the parts of a text that a search finds, each of at most so many tokens, overlapping:

    OpenAI's `chunking_strategy`     {"type": "auto"} is {"type": "static", "static": {800 tokens, 400 of them overlap}}

Tokens are estimated by words, since a vocabulary takes 1.4 s and 70 MB to load wherever files are read: words of up to
nine letters, three digits, three signs, or one character of Chinese, Japanese or Korean are one token. Measured against
o200k_harmony: within 3 % for English, code, Chinese and tables of numbers; German has 27 % more, Russian 54 %.

Words are made in the same way of a text that is searched, and of what is looked for. A word is a run of letters and
digits, in small letters and without accents. Chinese and Japanese have no spaces: there every two characters that stand
together are a word. A database's own index makes stems of what is English.

The chunks that words found and those that vectors found become one order by reciprocal rank fusion. A chunk gets
1 / (60 + its rank) from each of the two lists that has it, times the list's weight. Divided by what the first of both
lists gets, that is a score from 0 to 1. Example with equal weights:

    first in both lists              1.0
    first in one, not in the other   0.5
    tenth in both lists              0.87
"""

import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import regex
from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from responses_app.protocol.errors import JsonObject, invalid_value
from responses_app.protocol.fields import MAX_KEY, MAX_VALUE, ClientModel, json_name, limit_pairs, validate

MAX_DEPTH = 5  # filters in filters
MAX_FILTERS = 100  # in one request
MAX_VALUES = 100  # that an `in` names
MAX_RESULTS, DEFAULT_RESULTS = 50, 10  # of one search

Value = str | int | float | bool


_Key = Annotated[str, Field(max_length=MAX_KEY)]
_Text = Annotated[StrictStr, Field(max_length=MAX_VALUE)]
Attributes = Annotated[dict[_Key, _Text | StrictBool | StrictInt | StrictFloat], BeforeValidator(limit_pairs)]


class RankingOptions(ClientModel):
    """How results are ranked. There is one ranker here, whatever is asked for."""

    ranker: Literal["none", "auto", "default-2024-11-15"] | None = None
    score_threshold: float | None = Field(default=None, ge=0, le=1)

    idle: ClassVar = {"ranker": "There is one ranker."}


class _Comparison(ClientModel):
    """One attribute, compared with a value, or with several."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: _Key
    value: (
        StrictBool
        | StrictInt
        | StrictFloat
        | _Text
        | Annotated[list[StrictBool | StrictInt | StrictFloat | _Text], Field(max_length=MAX_VALUES)]
    )


class Filter:
    """A filter that was validated. `matches` says which files stay."""

    def __init__(self, declared: JsonObject, *, at: str = "filters") -> None:
        """Read it. Raises `ApiError` that names what is wrong."""
        self._left = MAX_FILTERS  # filters that may still come
        self.matches = self._read(declared, at, MAX_DEPTH)

    def _read(self, declared: object, at: str, depth: int) -> Callable[[Mapping[str, Value]], bool]:
        self._left -= 1
        if not isinstance(declared, dict):
            raise invalid_value(at, f"it should be an object, and is {json_name(declared)}.")
        if self._left < 0 or depth == 0:
            raise invalid_value(at, f"there are at most {MAX_FILTERS} filters, in each other {MAX_DEPTH} deep.")
        if declared.get("type") not in ("and", "or"):
            return _comparison(validate(_Comparison, declared, at=at), at)
        inner = declared.get("filters")
        if not isinstance(inner, list) or not inner:
            raise invalid_value(f"{at}.filters", "it should be an array of filters.")
        parts = [self._read(each, f"{at}.filters[{index}]", depth - 1) for index, each in enumerate(inner)]
        every = all if declared["type"] == "and" else any
        return lambda attributes: every(part(attributes) for part in parts)


def _comparison(comparison: _Comparison, at: str) -> Callable[[Mapping[str, Value]], bool]:
    key, value = comparison.key, comparison.value
    if (comparison.type in ("in", "nin")) != isinstance(value, list):
        raise invalid_value(f"{at}.value", "an array belongs to 'in' and 'nin', and to them alone.")
    if isinstance(value, list):
        among, is_in = value, comparison.type == "in"
        return lambda attributes: any(_same(attributes.get(key), each) for each in among) == is_in
    match comparison.type:
        case "eq":
            return lambda attributes: _same(attributes.get(key), value)
        case "ne":
            return lambda attributes: not _same(attributes.get(key), value)
    # `True < 2` holds in Python, and means nothing to a client.
    if isinstance(value, bool):
        raise invalid_value(f"{at}.value", "a number or a string can be greater than others.")
    order = _ORDERS[comparison.type]
    return lambda attributes: _are_alike(attributes.get(key), value) and order(attributes[key], value)


_ORDERS: Mapping[str, Callable[[Value, Value], bool]] = {
    "gt": lambda one, other: one > other,  # type: ignore[operator]  # they are alike
    "gte": lambda one, other: one >= other,  # type: ignore[operator]
    "lt": lambda one, other: one < other,  # type: ignore[operator]
    "lte": lambda one, other: one <= other,  # type: ignore[operator]
}


def _same(one: Value | None, other: Value) -> bool:
    """Whether two values are equal; `true` is no 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _are_alike(one: Value | None, other: Value) -> bool:
    if isinstance(one, bool):
        return False
    return isinstance(one, str) == isinstance(other, str) and one is not None


DEFAULT_SIZE, DEFAULT_OVERLAP = 800, 400  # tokens
# Up to three digits, nine letters of scripts with spaces, one character of those without, underscores, or three signs.
_TOKEN = re.compile(r"\d{1,3}|[^\W\d_\u2e80-\u9fff\uac00-\ud7ff]{1,9}|[\u2e80-\u9fff\uac00-\ud7ff]|_+|[^\w\s]{1,3}")
_BREAKS = ("\n\n", "\n", "。", ". ")  # where a chunk ends, the best first


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a file is cut."""

    size: int = DEFAULT_SIZE  # tokens of a chunk, at most
    overlap: int = DEFAULT_OVERLAP  # tokens that a chunk shares with the next; less than `size`


def chunks_of(text: str, chunking: Chunking) -> Iterator[str]:
    """Yield the chunks of a text, none of which is empty. They end at the end of a paragraph, a line or a sentence
    where there is one in the half that the next chunk has not."""
    # Where each token begins, as 8-byte numbers: a list of a large file's would take some 36 bytes each.
    starts = array("Q", (match.start() for match in _TOKEN.finditer(text)))
    begin, count = 0, len(starts)
    while begin < count:
        end = min(begin + chunking.size, count)
        if end < count:
            # Behind the middle of what is new in this chunk, so each chunk goes on by half of that at least.
            earliest = begin + chunking.overlap + (chunking.size - chunking.overlap) // 2
            end = _good_end(text, starts, earliest, end)
        yield text[starts[begin] : starts[end] if end < count else len(text)].strip()
        if end == count:
            return
        begin = end - chunking.overlap


def _good_end(text: str, starts: "array[int]", earliest: int, latest: int) -> int:
    """Return the token, behind the earliest and not behind the latest, before which a chunk ends best."""
    for mark in _BREAKS:
        place = text.rfind(mark, starts[earliest], starts[latest])
        if place >= 0:
            return bisect_left(starts, place + len(mark), earliest + 1, latest)
    return latest


MAX_QUERY = 10_000  # characters of a query that are looked at
MAX_TERMS = 32  # different words of a query that are looked for
MAX_WORD = 64  # characters; a longer one is cut, in both
_ASCII = re.compile("[a-z0-9]+")  # a word of a text in small letters
_WORDS = regex.compile(r"[\p{L}\p{M}\p{N}]+")  # letters, marks and digits of any script
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]+")  # scripts that put no spaces between words
_ACCENTS = regex.compile("[\u0300-\u036f]+")  # combining marks, which NFKD splits off: `é` is `e` and one of them
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
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold()))
    # Together again what is left: Korean syllables are split by NFKD, too.
    for word in _WORDS.findall(unicodedata.normalize("NFKC", plain)):
        if word.isascii() or _UNSPACED.search(word) is None:
            yield word[:MAX_WORD]
        else:
            yield from _parts(word)


def _parts(word: str) -> Iterator[str]:
    """Yield the pairs of characters of what has no spaces, and what stands between."""
    place = 0
    for match in _UNSPACED.finditer(word):
        yield from [word[place : match.start()][:MAX_WORD]] if match.start() > place else []
        run, place = match[0], match.end()
        yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))
    yield from [word[place:][:MAX_WORD]] if place < len(word) else []


def terms_of(query: str) -> list[str]:
    """Return the words to look for, each once, at most `MAX_TERMS`."""
    every = dict.fromkeys(words_of(query[:MAX_QUERY]))
    telling = [word for word in every if word not in _COMMON]
    return (telling or list(every))[:MAX_TERMS]


CONSTANT = 60  # of the method, as Cormack et al. (2009) chose it: what is first counts little more than what is third


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each list counts; not both are 0."""

    embedding: float = 1.0  # of meanings
    text: float = 1.0  # of words


def fused(words: Sequence[int], meanings: Sequence[int], weights: Weights) -> Mapping[int, float]:
    """Return the scores of all that one of the lists has; each list begins with what fits best."""
    most = (weights.text + weights.embedding) / (CONSTANT + 1)
    scores: dict[int, float] = {}
    for ranked, weight in ((words, weights.text), (meanings, weights.embedding)):
        for rank, key in enumerate(ranked if weight else (), 1):
            scores[key] = scores.get(key, 0.0) + weight / (CONSTANT + rank) / most
    # Rounding may add up to a little more than 1.
    return {key: min(1.0, score) for key, score in scores.items()}
