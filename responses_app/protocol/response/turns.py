"""A turn as it is read: one generation's tokens, its usage, and what it says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from engine.formats.base import (
    ItemEnded,
    ItemKind,
    ItemStarted,
    Text,
    TextLogprob,
    Tokens,
    TurnEvent,
    TurnParser,
    as_tokens,
)
from engine.types import TokenLogprob
from responses_app.protocol.usage import TurnUsage

Ends = Callable[[ItemStarted, ItemEnded], bool]  # whether nothing is to follow an item
Spelled = Callable[[TokenLogprob], TextLogprob]


@dataclass(slots=True)
class Turn:
    """The generation that runs."""

    parser: TurnParser
    usage: TurnUsage
    tokens: "Tokens[int]" = field(default_factory=as_tokens)
    _unsaid: list[TextLogprob] = field(default_factory=list)  # of tokens whose text has not come yet
    called: bool = False  # its last item waits for what a call gives back
    has_called: bool = False  # a tool of the client's
    holds: bool = False  # its last item is open until its tool has run: nothing can follow, even if the engine goes on
    is_over: bool = False
    sums_up: bool = False  # it ended with a thought that gets a summary now
    _started: ItemStarted = field(default_factory=lambda: ItemStarted(ItemKind.ANSWER))  # the last item

    def begin_with(self, token_ids: "Tokens[int]") -> list[TurnEvent]:
        """Read tokens that stand at the end of the prompt as if they had been sampled, and do not count them."""
        self.tokens.extend(token_ids)
        return self.parser.feed(token_ids)

    def read(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None, *, ends: Ends | None, spelled: Spelled
    ) -> list[TurnEvent]:
        """Return what tokens say, up to the one that ends the turn: what follows is neither read nor counted.

        `ends` is None where nothing but the model ends it.
        """
        if ends is None and logprobs is None:  # nearly always
            self._count(token_ids)
            said = self.parser.feed(token_ids)
            for each in said:
                if isinstance(each, ItemStarted):
                    self._note(each)
            return said
        said = []
        for index, token in enumerate(token_ids):
            self._count((token,))
            events = self.parser.feed((token,))
            end = self._end_in(events, ends)
            if end is not None:  # one token may end an item and begin the next
                self.is_over, events = True, events[:end]
            said += events if logprobs is None else self._with_logprob(token, spelled(logprobs[index]), events)
            if self.is_over:
                break
        return said

    def close(self, *, ends: Ends | None) -> list[TurnEvent]:
        """Return what the parser still holds of the turn, up to the item that nothing is to follow."""
        said = self.parser.close()
        return said[: self._end_in(said[:-1], ends)]

    def _end_in(self, said: list[TurnEvent], ends: Ends | None) -> int | None:
        """Return how much of this is said up to the end of the turn; None where it does not end here."""
        for count, each in enumerate(said):
            if self.holds and isinstance(each, ItemStarted):
                return count
            if self._is_end(each, ends):
                return count + 1
        return None

    def _is_end(self, said: TurnEvent, ends: Ends | None) -> bool:
        if isinstance(said, ItemStarted):
            self._note(said)
        return ends is not None and isinstance(said, ItemEnded) and ends(self._started, said)

    def _note(self, started: ItemStarted) -> None:
        self._started = started
        self.has_called = self.has_called or started.kind is ItemKind.CALL

    def _count(self, token_ids: Sequence[int]) -> None:
        self.tokens.extend(token_ids)
        self.usage.output_tokens += len(token_ids)

    def _with_logprob(self, token: int, logprob: TextLogprob, events: list[TurnEvent]) -> list[TurnEvent]:
        """Give a text the log probabilities of the tokens that made it; these are a token's events."""
        if not self.parser.is_end(token):
            self._unsaid.append(logprob)
        if not events:
            return events
        unsaid = tuple(self._unsaid)
        self._unsaid.clear()
        return [replace(event, logprobs=unsaid) if isinstance(event, Text) else event for event in events]


@dataclass(slots=True)
class Budget:
    """How many tokens a response may sample: `limit` in all `turns` from number `since` on, which is not a summary."""

    turns: Sequence[TurnUsage]
    limit: int | None = None
    since: int = 0

    @property
    def left(self) -> int | None:
        """How many tokens may still be sampled; None: as many as the model gives."""
        spent = sum(turn.output_tokens for turn in self.turns[self.since :])
        return None if self.limit is None else max(0, self.limit - spent)


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
