"""`AnswerStops`: where a request ends an answer, by strings (`stop`) and by tokens (`stop_token_ids`).

They end what the model says to the user, and with it the turn: neither its thoughts nor its calls. What has ended an
answer is not part of it, but of what the model reads of it later, as it has sampled it.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from engine.formats.base import ItemEnded, ItemKind, ItemStarted, Text, TextLogprob, TurnEvent
from engine.types import FinishReason
from responses_app.protocol.response.inputs import Sampled
from responses_app.protocol.response.turns import Turn
from responses_app.protocol.stop_strings import StopStrings


class AnswerStops:
    """The stop strings and tokens of one response, whose turns are read one after the other; at least one of them."""

    def __init__(self, stops: Sequence[str], tokens: Collection[int]) -> None:
        self._tokens = frozenset(tokens)
        self._stops = tuple(stops)
        self._text: StopStrings | None = None  # of the answer that is being said
        self._held: tuple[TextLogprob, ...] = ()  # of its text that was not said yet

    def without_stop_token(self, chunk: Sampled) -> tuple[Sampled, bool]:
        """Return what is to be read of tokens, and whether one of the request's own has ended them."""
        if chunk.finish is not FinishReason.STOP or not chunk.token_ids or chunk.token_ids[-1] not in self._tokens:
            return chunk, False
        logprobs = None if chunk.logprobs is None else chunk.logprobs[:-1]
        return replace(chunk, token_ids=chunk.token_ids[:-1], logprobs=logprobs), True

    def read(self, turn: Turn, said: Sequence[TurnEvent]) -> list[TurnEvent]:
        """Return what is said up to a stop string, which ends the turn."""
        if not self._stops:
            return list(said)
        told: list[TurnEvent] = []
        for index, each in enumerate(said):
            if isinstance(each, ItemStarted):
                self._text = StopStrings(self._stops) if each.kind is ItemKind.ANSWER else None
            elif self._text is not None:
                told += self._read(self._text, each)
                if self._text.matched is not None:
                    return [*told, *self.end(turn, said[index + 1 :])]
                if isinstance(each, Text):
                    continue
            told.append(each)
        return told

    def _read(self, answer: StopStrings, said: TurnEvent) -> list[TurnEvent]:
        """Return what can be said of an answer now."""
        if isinstance(said, Text):
            self._held += said.logprobs
            text = answer.feed(said.text)
        else:
            text = answer.rest()
        if not text:
            return []
        logprobs, self._held = self._held, ()
        return [Text(text, logprobs)]

    def end(self, turn: Turn, said: Sequence[TurnEvent] = ()) -> list[TurnEvent]:
        """End the turn, and the answer in it, which is whole: nothing of what else was `said` is told."""
        turn.is_over, self._text, self._held = True, None, ()
        ended = next((each for each in (*said, *turn.parser.close()) if isinstance(each, ItemEnded)), None)
        return [] if ended is None else [replace(ended, truncated=False)]
