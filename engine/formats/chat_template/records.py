"""Messages as this format keeps them in a chain: what was said, as JSON, and beside it the tokens it was sampled as.

A chat template renders a conversation as a whole, so a message has no tokens of its own. It is kept as a record, in an
array of the same kind as tokens, where all other parts of the server take it for a message like any other:

    MARK, words of JSON, tokens, the JSON (4 bytes of UTF-8 a word, spaces at its end), the tokens

A word of JSON is about what a token is, so the length of a record is an estimate of its message's. No token has the
number of `MARK`, so a record is never taken for the tokens of another format. The JSON of a message that was sampled
says of which vocabulary its tokens are: a model with another one reads its text alone.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from engine.formats.base import MessageKind, RenderedMessage, Tokens, as_tokens
from engine.told import Told, ToldKind

MARK = 0xF0C4A701  # a record of the first version; far above any vocabulary
_HEAD = 3  # words before the JSON

Saying = dict[str, Any]  # "is": what it is, and its fields


class Record(NamedTuple):
    """What was said, and the tokens it was sampled as, if it was sampled here."""

    said: Saying
    sampled: "Tokens[int]"

    def sampled_in(self, vocabulary: str) -> "Tokens[int]":
        """Return the tokens, where they are those of a vocabulary (its fingerprint)."""
        return self.sampled if self.said.get("of") == vocabulary else as_tokens()


def record(said: Saying, sampled: Sequence[int] = (), *, vocabulary: str = "") -> "Tokens[int]":
    """Write a record; `vocabulary` is the fingerprint of that of its tokens."""
    text = orjson.dumps({**said, "of": vocabulary} if sampled else said)
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


_TOLD = {
    "user": ToldKind.USER,
    "reasoning": ToldKind.REASONING,
    "call": ToldKind.CALL,
    "output": ToldKind.OUTPUT,
}


def told_of(message: RenderedMessage) -> list[Told]:
    """Return what a message of a chain says, in no format's words."""
    return [_told(each.said, message.kind) for each in records(message.tokens)]


def _told(said: Saying, kind: MessageKind) -> Told:
    match said["is"]:
        case "system":
            told = ToldKind.NOTE if said.get("note") else ToldKind.DEVELOPER
        case "answer":
            told = ToldKind.PREAMBLE if kind is MessageKind.COMMENTARY else ToldKind.ANSWER
        case other:
            told = _TOLD[other]
    flags = {flag: bool(said.get(flag)) for flag in ("hosted", "freeform")}
    return Told(told, said["text"], said.get("name", ""), **flags)
