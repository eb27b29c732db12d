"""`Compacting`: the model sums up what came before; the summary, sealed, then stands for that.

What the model writes meanwhile is not an item of its own: clients see a compaction that begins with its first word.
"""

from collections.abc import Sequence

from engine.formats.base import ItemKind, ItemStarted, Text, TurnEvent
from responses_app.protocol.events.events import Event
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.response.commands import Seal
from responses_app.protocol.response.inputs import Sealed
from responses_app.protocol.response.turns import Budget


class Compacting:
    """Of one response, which has at most one compaction, at its beginning."""

    def __init__(self, stream: ResponseStream, budget: Budget) -> None:
        self._stream = stream
        self._budget = budget
        self._summary: _Summary | None = None

    @property
    def running(self) -> bool:
        """Whether a summary is being written, or waits for its seal."""
        return self._summary is not None

    def begin(self) -> None:
        """What the model says from now on is the summary."""
        self._summary = _Summary()

    def hear(self, said: Sequence[TurnEvent]) -> list[Event]:
        """Take what the model says of it."""
        assert self._summary is not None
        for each in said:
            self._summary.take(each)
        return self._stream.begin_compaction() if said and not self._stream.is_compacting else []

    def due(self) -> Seal | None:
        """Return what is to be sealed, once the model has said all; None where it gave no summary."""
        assert self._summary is not None
        return Seal(self._summary.text) if self._summary.text else None

    def end(self, given: Sealed) -> list[Event]:
        """Take the seal: the budget counts from here on."""
        assert self._summary is not None
        events = self._stream.end_compaction(given.text)
        self._summary, self._budget.limit, self._budget.since = None, given.budget, len(self._budget.turns)
        return events


class _Summary:
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
