"""`KnownTurns`: the sampled tokens of models' turns, for a while: bounded, per project, whether stored or not.

A later request continues with these tokens (see `protocol.prompt.replaying`) where its client keeps the history and
sends it whole. They cannot be read over the API; whoever sends the same turn back in the same project makes the model
read them again.
They are in this process's memory, where the turn that was asked for last is forgotten last. Where workers share a Redis
(`RedisTurns`), they are there too, sealed for their project: another worker may get the next request of a chat.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from responses_app.kit.retention import Retentions
from responses_app.protocol.prompt.replaying import KnownTurn
from responses_app.protocol.sealing import MAX_BYTES, SealBroken, Sealer
from responses_app.runs.plan.settings import RunSettings

if TYPE_CHECKING:
    from responses_app.stores.redis_turns import RedisTurns

logger = logging.getLogger("respsite.runs")

PURPOSE = "turn"  # of seals
OF_MESSAGES = ("chat", "messages")  # transports that find and remember the turns of their messages themselves
MAX_ASKED = 64  # turns of one history that others are asked for: the latest
# The objects of one, and of each of its messages, beside its tokens.
_BYTES_OF_TURN, _BYTES_OF_MESSAGE = 560, 144
_BYTES_OF_TOKEN = 4


@dataclass(slots=True)
class _KeptTurn:
    turn: KnownTurn  # what the model said
    bytes: int  # memory that it takes, about
    until: float  # by the clock of `KnownTurns`


class KnownTurns:
    """The turns that are known here, by their projects and keys.

    Their bounds of number, bytes and seconds are those that streams have, too.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        sealer: Sealer,
        shared: "RedisTurns | None" = None,
        retentions: Retentions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._sealer = sealer
        self._shared = shared
        self._retentions = retentions or Retentions()
        self._clock = clock
        # By project and key, the one that was asked for last at the end
        self._turns: OrderedDict[tuple[str, bytes], _KeptTurn] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    async def remember(self, project: str, key: bytes, turn: KnownTurn) -> None:
        """Keep a turn, here and where others find it, unless its project keeps nothing. Raises nothing."""
        if self._retentions.keeps_nothing(project):
            return
        self.keep(project, key, turn)
        data = turn.as_bytes() if self._shared is not None else b""
        # A longer turn is known here only: elsewhere its text is rendered anew.
        if self._shared is not None and len(data) <= MAX_BYTES:
            sealed = self._sealer.seal(PURPOSE, project, data).encode()
            await self._shared.put(_shared_key(project, key), sealed, seconds=self._settings.responses_session_ttl)

    async def recall(self, project: str, keys: Sequence[bytes]) -> Mapping[bytes, KnownTurn]:
        """Return those of these turns that are known, by their keys; their time begins anew. Raises nothing."""
        if self._retentions.keeps_nothing(project):
            return {}
        turns = {key: turn for key in keys if (turn := self.find(project, key)) is not None}
        # The latest come last, and are the ones worth most: the prefix cache ends at the first turn that differs.
        missing = [key for key in keys if key not in turns][-MAX_ASKED:]
        if self._shared is None or not missing:
            return turns
        shared_keys = [_shared_key(project, key) for key in missing]
        for key, sealed in zip(missing, await self._shared.get(shared_keys), strict=True):
            turn = None if sealed is None else self._opened(project, sealed)
            if turn is not None:
                self.keep(project, key, turn)
                turns[key] = turn
        return turns

    def keep(self, project: str, key: bytes, turn: KnownTurn) -> None:
        """Keep a turn here; the oldest ones go where there is no room for it."""
        # The same turn again replaces its entry, so that its bytes are not counted twice.
        self._drop((project, key))
        kept = _KeptTurn(turn, _size(turn), self._clock() + self._settings.responses_session_ttl)
        self._turns[project, key] = kept
        self.bytes += kept.bytes
        self._make_room()

    async def purge(self) -> None:
        """Forget turns whose time is over, also where no other turn comes that would make them go."""
        self._make_room()

    def find(self, project: str, key: bytes) -> KnownTurn | None:
        """Return a turn that is kept here, whose time begins anew; None for one that is not known (any more)."""
        kept = self._turns.get((project, key))
        if kept is None or kept.until <= self._clock():
            self._drop((project, key))
            return None
        kept.until = self._clock() + self._settings.responses_session_ttl
        self._turns.move_to_end((project, key))
        return kept.turn

    def _opened(self, project: str, sealed: bytes) -> KnownTurn | None:
        try:
            return KnownTurn.from_bytes(self._sealer.open(PURPOSE, project, sealed.decode("ascii")))
        except (SealBroken, ValueError) as problem:
            logger.warning("a turn of another worker cannot be read: %s", problem)
            return None

    def _make_room(self) -> None:
        """Forget what is past its time, which stands first, and what is over the bounds."""
        now = self._clock()
        while self._turns:
            first, kept = next(iter(self._turns.items()))
            over = (
                len(self._turns) > self._settings.responses_max_active_sessions
                or self.bytes > self._settings.responses_max_session_bytes
            )
            if not over and kept.until > now:
                # All behind it were asked for later, and so last longer.
                break
            self._drop(first)

    def _drop(self, key: tuple[str, bytes]) -> None:
        kept = self._turns.pop(key, None)
        if kept is not None:
            self.bytes -= kept.bytes


def _size(turn: KnownTurn) -> int:
    messages = turn.exact.messages
    return _BYTES_OF_TURN + sum(_BYTES_OF_MESSAGE + _BYTES_OF_TOKEN * len(message.tokens) for message in messages)


def _shared_key(project: str, key: bytes) -> str:
    """Return one key for a project and a turn: no project can name another one's."""
    # A keyed hash; the project's name is hashed first, since a key of BLAKE2b has 64 bytes at most.
    return blake2b(key, key=blake2b(project.encode()).digest(), digest_size=20).hexdigest()
