"""Calls that wait for their outputs, by their ids: which of them an output answers where several have the same id."""

from collections import deque
from collections.abc import Collection
from itertools import count
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Unanswered(Generic[Value]):
    """Calls in the order in which they were made, each with a value.

    Some models and proxies give all calls of a turn one id, or count from the same number in each turn. So outputs
    answer the calls of their id in order, and a call of a later turn takes the place of all earlier ones of its id.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._order = count()
        # By their ids: the turn, and the calls by their kinds.
        self._waiting: dict[str, tuple[int, dict[str, deque[tuple[int, Value]]]]] = {}
        self._latest: dict[str, Value] = {}

    def next_turn(self) -> None:
        """Begin another turn of the model."""
        self._turn += 1

    def add(self, call_id: str, value: Value, *, kind: str = "", waits: bool = True) -> None:
        """Add a call; one that does not wait is only the latest of its id."""
        self._latest[call_id] = value
        if waits:
            turn, kinds = self._waiting.get(call_id, (-1, {}))
            if turn != self._turn:
                self._waiting[call_id] = self._turn, (kinds := {})
            kinds.setdefault(kind, deque()).append((next(self._order), value))

    def answer(self, call_id: str, *, kinds: Collection[str] | None = None) -> Value | None:
        """Return the call of an id, and of one of these kinds, that an output answers; None where none waits."""
        waiting = self._waiting.get(call_id, (-1, {}))[1]
        firsts = [(calls[0][0], kind) for kind, calls in waiting.items() if calls and (kinds is None or kind in kinds)]
        return waiting[min(firsts)[1]].popleft()[1] if firsts else None

    def latest(self, call_id: str) -> Value | None:
        """Return the latest call of an id, be it answered or not."""
        return self._latest.get(call_id)

    def left(self) -> list[Value]:
        """Return the calls that no output has answered, by their ids."""
        return [
            value
            for _, kinds in self._waiting.values()
            for _, value in sorted((each for calls in kinds.values() for each in calls), key=lambda each: each[0])
        ]
