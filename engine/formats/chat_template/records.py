"""Messages as this format keeps them in a chain: what was said, as JSON, and beside it the tokens it was sampled as.

A chat template renders a conversation as a whole, so a message has no tokens of its own. It is kept as a record, in an
array of the same kind as tokens, where all other parts of the server take it for a message like any other:

    MARK, words of JSON, tokens, the JSON (4 bytes of UTF-8 a word, spaces at its end), the tokens

A word of JSON is about what a token is, so the length of a record is an estimate of its message's. No token has the
number of `MARK`, so a record is never taken for the tokens of another format.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from engine.formats.base import Tokens, as_tokens

MARK = 0xF0C4A701  # a record of the first version; far above any vocabulary
_HEAD = 3  # words before the JSON

Said = dict[str, Any]  # "is": what it is, and its fields


class Record(NamedTuple):
    """What was said, and the tokens it was sampled as, if it was sampled here."""

    said: Said
    sampled: "Tokens[int]"


def record(said: Said, sampled: Sequence[int] = ()) -> "Tokens[int]":
    """Write a record."""
    text = orjson.dumps(said)
    text += b" " * (-len(text) % 4)
    words = as_tokens()
    words.frombytes(text)
    if sys.byteorder == "big":
        words.byteswap()
    written = as_tokens((MARK, len(words), len(sampled)))
    written.extend(words)
    written.extend(sampled)
    return written


def is_record(tokens: "Tokens[int]") -> bool:
    """Whether this begins with a record."""
    return len(tokens) >= _HEAD and tokens[0] == MARK


def records(draft: "Tokens[int]") -> Iterator[Record]:
    """Read the records that stand behind each other. Raises `ValueError` for what is not one."""
    start = 0
    while start < len(draft):
        if not is_record(draft[start : start + _HEAD]):
            raise ValueError("a conversation has something in it that is not a record")
        text = start + _HEAD
        tokens = text + draft[start + 1]
        end = tokens + draft[start + 2]
        words = draft[text:tokens]
        if sys.byteorder == "big":
            words.byteswap()
        yield Record(orjson.loads(words.tobytes()), draft[tokens:end])
        start = end
