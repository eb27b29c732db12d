"""`KnownTurns`: what models have said in chats that are not stored, for a while: in memory, bounded, per project.

It is what a later request needs to go on with the tokens that were sampled (see `protocol.chat.replaying`). Nothing of
it can be read over the API; whoever sends the same message back in the same project makes the model read it again.
It is as good as what clients send for answers' texts, and better for calls, since it has the thoughts before them.
The one that was asked for last is forgotten last.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from responses_app.protocol.chat.replaying import KnownTurn
from responses_app.runs.resumable import ResumableLimits

_BYTES_OF_TURN = 512  # the objects of one, beside its tokens
_BYTES_OF_TOKEN = 4


@dataclass(slots=True)
class _Kept:
    turn: KnownTurn
    bytes: int
    until: float


class KnownTurns:
    """Turns by their projects and keys; within the bounds of number, bytes and seconds that streams have, too."""

    def __init__(self, limits: ResumableLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._turns: OrderedDict[tuple[str, bytes], _Kept] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def remember(self, project: str, key: bytes, turn: KnownTurn) -> None:
        """Keep a turn; the oldest ones go where there is no room for it."""
        tokens = sum(len(message.tokens) for message in turn.exact.messages)
        self._drop((project, key))
        kept = _Kept(turn, _BYTES_OF_TURN + _BYTES_OF_TOKEN * tokens, self._clock() + self._limits.ttl)
        self._turns[project, key] = kept
        self.bytes += kept.bytes
        self._make_room()

    def recall(self, project: str, key: bytes) -> KnownTurn | None:
        """Return a turn, whose time begins anew; None for one that is not known (any more)."""
        kept = self._turns.get((project, key))
        if kept is None or kept.until <= self._clock():
            self._drop((project, key))
            return None
        kept.until = self._clock() + self._limits.ttl
        self._turns.move_to_end((project, key))
        return kept.turn

    def _make_room(self) -> None:
        """Forget what is past its time, which stands first, and what is over the bounds."""
        now = self._clock()
        while self._turns:
            first, kept = next(iter(self._turns.items()))
            over = len(self._turns) > self._limits.max_streams or self.bytes > self._limits.max_bytes
            if not over and kept.until > now:
                break
            self._drop(first)

    def _drop(self, key: tuple[str, bytes]) -> None:
        kept = self._turns.pop(key, None)
        if kept is not None:
            self.bytes -= kept.bytes
