"""Compaction: a summary that stands for a conversation, and how the model is asked to write one.

A `compaction` item carries a sealed `Compacted`: clients keep it and send it back, and cannot read it. The model gets
the same tokens from a chain with a compaction and from a client that sends the item again.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from engine import orjson
from engine.formats.base import IMAGE_OMITTED, MessageKind, ModelFormat, RenderedMessage, as_tokens
from responses_app.protocol.sealing import SealBroken

PURPOSE = "compaction"  # what it is sealed for
MIN_SUMMARY = 512  # tokens that a summary may have in any case; less than this is never worth one
MIN_THRESHOLD = 1000  # tokens; OpenAI's bound

REQUEST = (
    "Write a handoff summary of this conversation, for a model that will go on with it and sees nothing else of it. "
    "Cover, as far as there is any: what the user wants; decisions and facts, with exact names, numbers, paths and "
    "identifiers; instructions and preferences that still hold; what was done and what came of it; open work and the "
    "next step. Quote what must stay exact. Call no tools, answer nothing and do no work now: write the summary and "
    "nothing else."
)
UNREADABLE = "[a summary of the conversation up to here is left out: it was sealed elsewhere, and cannot be read here]"

# Read by the model.
_HEADING = "# Summary of the conversation so far\n\nIt stands for all that was said before this point.\n\n"


@dataclass(frozen=True, slots=True)
class Compacted:
    """A summary of what came before, and messages that follow it as they were."""

    summary: str  # as the model wrote it
    kept: Sequence[RenderedMessage] = ()  # messages behind it, in their tokens
    # What a client sends before the item is in it already. Else that is the client's choice of what the model should
    # read once more.
    replaces_all: bool = False
    # Digests of messages of the user that are in it, whatever the client sends before it: it was given them beside the
    # item.
    stands_for: frozenset[str] = frozenset()

    def messages(self, model_format: ModelFormat) -> list[RenderedMessage]:
        """Return what the model reads of it."""
        return [summary_message(model_format, self.summary), *self.kept]

    def as_bytes(self) -> bytes:
        """Return it as it is sealed."""
        fields: dict[str, object] = {"summary": self.summary}
        if self.replaces_all:
            fields["replaces_all"] = True
        if self.stands_for:
            fields["stands_for"] = sorted(self.stands_for)
        if self.kept:
            fields["kinds"] = "".join(message.kind.value for message in self.kept)
            fields["lengths"] = [len(message.tokens) for message in self.kept]
            fields["tokens"] = [token for message in self.kept for token in message.tokens]
        return orjson.dumps(fields)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Compacted":
        """Read what `as_bytes` wrote. Raises `SealBroken` for what it cannot have written."""
        try:
            return cls._read(orjson.loads(data))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise SealBroken(f"its content is not that of a compaction: {error}") from error

    @classmethod
    def _read(cls, fields: dict[str, Any]) -> "Compacted":
        ends = accumulate(fields.get("lengths", ()), initial=0)
        kept = [
            RenderedMessage(MessageKind(kind), as_tokens(fields["tokens"][start:end]))
            for kind, (start, end) in zip(fields.get("kinds", ""), pairwise(ends), strict=True)
        ]
        stands_for = frozenset(fields.get("stands_for", ()))
        return cls(fields["summary"], kept, bool(fields.get("replaces_all")), stands_for)


def digest(text: str) -> str:
    """Return what a summary knows a message of the user by, whether the model sees its images or not."""
    # A note for an image stands in a line of its own, and a picture in the middle of the text.
    text = text.replace(f"\n{IMAGE_OMITTED}", IMAGE_OMITTED).replace(f"{IMAGE_OMITTED}\n", IMAGE_OMITTED)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]  # 96 bits


def summary_message(model_format: ModelFormat, summary: str) -> RenderedMessage:
    """Return the message that stands for what was compacted."""
    return model_format.note(_HEADING + summary)


def summary_request(model_format: ModelFormat) -> RenderedMessage:
    """Return the message that asks the model for a summary.

    It settles nothing, and is not a user's: the thoughts before it stay, and the oldest messages can be left out.
    """
    return RenderedMessage(MessageKind.OTHER, model_format.user(REQUEST).tokens)


def summary_room(max_model_len: int) -> int:
    """Return how many tokens a summary may have."""
    return min(max(MIN_SUMMARY, max_model_len // 8), max_model_len // 2)


def split(messages: Sequence[RenderedMessage], before: Sequence[RenderedMessage]) -> int:
    """Return from where on messages are kept beside a summary; negative where it lies in those `before` them.

    What is new since the model last spoke is kept, and the call whose output that may be.
    """
    whole = [*before, *messages]
    start = len(whole)
    # First over what came in since the model spoke, then over what it said last: that may be the call of these
    # outputs.
    while start and whole[start - 1].kind in (MessageKind.USER, MessageKind.OTHER):
        start -= 1
    while start and whole[start - 1].kind in (MessageKind.ANALYSIS, MessageKind.COMMENTARY):
        start -= 1
    return start - len(before)
