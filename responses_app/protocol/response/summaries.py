"""Summaries by the model itself: of what it thinks, and of all that came before.

`SummaryTurns`: a request that sets `reasoning.summary` gets one for each of its reasoning items. Where the model is to
write it, the generation is cut at the end of the thought, as for a call of a tool, and this happens before the model
goes on:

    … <thought>                     ──> the turn ends here; the item stays open
    … <thought> <request> <answer:  ──> an aside: its prompt begins the answer already, so that nothing is thought
                                        about the summary, and all but the request lies in the engine's prefix cache
    … <thought>                     ──> the next turn, which reads nothing of the aside

Nobody waits for what a summary is not worth: a thought of up to `MIN_TOKENS` tokens is as short as a summary, one that
ended the generation has nothing behind it, and where little of the budget is left that is the answer's. Those, and all
behind the first `MAX_ASIDES` of a response, get their first sentences (see `ReasoningBuilder`), and so does a thought
whose aside fails or says nothing.

`Compacting`: the model sums up what came before; the summary, sealed, then stands for that. What the model writes
meanwhile is not an item of its own: clients see a compaction that begins with its first word.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.formats.base import (
    ItemEnded,
    ItemKind,
    ItemStarted,
    MessageKind,
    ModelFormat,
    RenderedMessage,
    Text,
    TurnEvent,
    as_tokens,
)
from responses_app.protocol.response.steps import Generate, Seal
from responses_app.protocol.usage import TurnUsage


@dataclass(slots=True)
class Budget:
    """How many tokens a response may sample in all its turns."""

    turns: Sequence[TurnUsage]
    limit: int | None = None  # None: as many as the model gives
    since: int = 0  # the number of the first turn that counts: those before it are a summary

    @property
    def left(self) -> int | None:
        """How many tokens may still be sampled; None: as many as the model gives."""
        spent = sum(turn.output_tokens for turn in self.turns[self.since :])
        return None if self.limit is None else max(0, self.limit - spent)


MIN_TOKENS = 80  # of a thought that the model sums up
MAX_ASIDES = 8  # in one response
SHARE = 4  # an aside gets this part of the tokens that are left, or is left out

_REQUESTS = {  # by `reasoning.summary`, with how many tokens the summary may have
    "concise": ("in one or two sentences", 120),
    "auto": ("in two to four sentences", 200),
    "detailed": ("in one or two paragraphs, with every step that led somewhere", 400),
}
REQUEST = "Write a summary of the thought above, which you had just now"


class SummaryTurns:
    """The asides of one response."""

    def __init__(self, model_format: ModelFormat, style: str) -> None:
        self._format = model_format
        self._style = style  # the request's `reasoning.summary`: a key of `_REQUESTS`
        self._asides = 0  # how many were begun
        self._in_answer = self._has_begun = False  # of the aside that runs: its answer, and text of that
        self.by_model = False  # else a thought's first sentences are its summary
        self._was_last = False  # the last turn was an aside
        self.running = False  # an aside has been asked for, and has not ended

    def is_due(self, kind: ItemKind, ended: ItemEnded, *, left: int | None) -> bool:
        """Whether an item that has just ended gets an aside; `left` is how many tokens may still be sampled."""
        _, tokens = _REQUESTS[self._style]
        long_enough = kind is ItemKind.REASONING and ended.reasoning_tokens > MIN_TOKENS and not ended.truncated
        affordable = left is None or left >= SHARE * tokens
        return long_enough and affordable and self._asides < MAX_ASIDES

    def begin(self, turn: int, messages: Sequence[RenderedMessage]) -> Generate:
        """Return what asks for the aside; `messages` end with the thought."""
        self._asides += 1
        self._in_answer, self._has_begun, self.running = False, False, True
        length, tokens = _REQUESTS[self._style]
        # Not a message of the user: that would settle the thought which it is about.
        request = RenderedMessage(MessageKind.OTHER, self._format.user(_request(length)).tokens)
        sampled = as_tokens(self._format.answer_start())  # with them an answer begins, behind those that ask for one
        return Generate(turn, (*messages, request), sampled=sampled, budget=tokens, aside=True)

    def begins_turn(self) -> bool:
        """Note that a turn begins; return whether what tools gave back may stand before it."""
        # An aside's prompt has its request, and the turn behind it lacks that again: tools gave nothing back.
        beside = self.running or self._was_last
        self._was_last = self.running
        return not beside

    def end(self) -> None:
        """The aside has ended, however that came."""
        self.running = False

    def take(self, turn_events: Sequence[TurnEvent]) -> str:
        """Return what of an aside is the summary's: the text of its answer."""
        texts: list[str] = []
        for each in turn_events:
            if isinstance(each, ItemStarted):
                self._in_answer = each.kind is ItemKind.ANSWER
            elif isinstance(each, Text) and self._in_answer:
                texts.append(each.text)
        text = "".join(texts)
        # White space before the summary is dropped, however it was cut into chunks.
        text = text if self._has_begun else text.lstrip()
        self._has_begun = self._has_begun or bool(text)
        return text


def _request(length: str) -> str:
    return (
        f"{REQUEST}, for the person who reads along. Begin with a headline of two to five words in bold (**…**) and an "
        f"empty line; then say {length}, in the language of the conversation, what you considered and what you "
        "decided. Add nothing that you did not think, do not answer the person, and write the summary and nothing else."
    )


class Compacting:
    """The compaction of one response, which has at most one, at its beginning."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._summary: _Summary | None = None
        self.running = False  # a summary is being written, or waits for its seal

    def begin(self) -> None:
        """What the model says from now on is the summary."""
        self._summary, self.running = _Summary(), True

    def take(self, turn_events: Sequence[TurnEvent]) -> None:
        """Take what the model says of it."""
        assert self._summary is not None
        for each in turn_events:
            self._summary.take(each)

    def due(self) -> Seal | None:
        """Return what is to be sealed, once the model has said all; None where it gave no summary."""
        assert self._summary is not None
        return Seal(self._summary.text) if self._summary.text else None

    def end(self, budget: int | None) -> None:
        """The summary is sealed; `budget` is what may be sampled from here on."""
        # The summary's own tokens do not count for the answer: turns before `since` are left out.
        self._budget.limit, self._budget.since = budget, len(self._budget.turns)
        self._summary, self.running = None, False


class _Summary:
    """What a model says when it is asked for a summary: its final answer or, if it gives none, all it said."""

    def __init__(self) -> None:
        self._answer: list[str] = []  # the final answer
        self._other: list[str] = []  # all else: thoughts and preambles
        self._saying = self._answer  # the list of the item that is being said

    def take(self, turn_event: TurnEvent) -> None:
        """Read on."""
        match turn_event:
            case ItemStarted(kind=kind):
                self._saying = self._answer if kind is ItemKind.ANSWER else self._other
                self._saying.append("\n")
            case Text(text=text):
                self._saying.append(text)

    @property
    def text(self) -> str:
        """The summary; "" where there is none."""
        return "".join(self._answer).strip() or "".join(self._other).strip()
