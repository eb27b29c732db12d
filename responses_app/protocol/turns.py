"""A turn as it is read: one generation's tokens, its usage, and what it says."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from engine.formats.base import ItemKind, ItemStarted, Text, TextLogprob, Tokens, TurnEvent, TurnParser, as_tokens
from responses_app.protocol.usage import TurnUsage


@dataclass(slots=True)
class Turn:
    """The generation that runs."""

    parser: TurnParser
    usage: TurnUsage
    tokens: "Tokens[int]" = field(default_factory=as_tokens)
    unsaid: list[TextLogprob] = field(default_factory=list)  # of tokens whose text has not come yet
    called: bool = False  # its last item waits for what a call gives back
    started: ItemStarted = field(default_factory=lambda: ItemStarted(ItemKind.ANSWER))  # the last item
    is_over: bool = False

    def take(self, token_ids: Sequence[int]) -> None:
        """Count tokens."""
        self.tokens.extend(token_ids)
        self.usage.output_tokens += len(token_ids)

    def with_logprob(self, token: int, logprob: TextLogprob, events: list[TurnEvent]) -> list[TurnEvent]:
        """Give a text the log probabilities of the tokens that made it; these are a token's events."""
        if not self.parser.is_end(token):
            self.unsaid.append(logprob)
        if not events:
            return events
        unsaid = tuple(self.unsaid)
        self.unsaid.clear()
        return [replace(event, logprobs=unsaid) if isinstance(event, Text) else event for event in events]


class Summary:
    """What a model says when it is asked for a summary: its final answer or, if it gives none, all it said."""

    def __init__(self) -> None:
        self._answer: list[str] = []
        self._other: list[str] = []
        self._saying = self._answer

    def take(self, said: TurnEvent) -> None:
        """Read on."""
        match said:
            case ItemStarted(kind=kind):
                self._saying = self._answer if kind is ItemKind.ANSWER else self._other
                self._saying.append("\n")
            case Text(text=text):
                self._saying.append(text)

    @property
    def text(self) -> str:
        """The summary; "" where there is none."""
        return "".join(self._answer).strip() or "".join(self._other).strip()


def merged(said: list[TurnEvent]) -> list[TurnEvent]:
    """Make one text of those that stand behind each other; linear, however many come at once."""
    if len(said) < 2:  # nearly always: a token at a time
        return said
    result: list[TurnEvent] = []
    texts: list[Text] = []  # that stand together
    for each in said:
        if isinstance(each, Text):
            texts.append(each)
            continue
        if texts:
            result.append(_joined(texts))
            texts = []
        result.append(each)
    return [*result, _joined(texts)] if texts else result


def _joined(texts: Sequence[Text]) -> Text:
    logprobs = tuple(chain.from_iterable([each.logprobs for each in texts]))
    return Text("".join([each.text for each in texts]), logprobs)
