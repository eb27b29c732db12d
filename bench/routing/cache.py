"""`PrefixCache`: the blocks of one replica, and which of them go first.

A prompt is a beginning that many share, and behind it what only its chain has. A chain's blocks are used together and
given back together, the last one first, as vLLM does it (vllm/v1/core/block_pool.py). So the blocks of a chain that are
left are always its first ones, and one number says which: what is evicted here is what would be block by block.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

Part = tuple[str, int]  # a name, and how many blocks it has


@dataclass(slots=True)
class _Held:
    """What is there of one part."""

    blocks: int = 0
    users: int = 0  # requests that run on it: as long as there are any, nothing of it is evicted
    since: float = 0.0  # when it was used last
    expected: float = 0.0  # seconds for which it is probably not used, as a hint said; inf: it is about to be used


class PrefixCache:
    """So many blocks, of a GPU's memory or of the host's. `keeps`: what is expected back is kept, as long as there is
    anything else."""

    def __init__(self, size: int, *, keeps: bool = False) -> None:
        self.size = size
        self._keeps = keeps
        self.used = 0
        self._held: dict[str, _Held] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()  # parts that no request uses, the least recently used first
        self._idle_blocks = 0
        self._over: OrderedDict[str, None] = OrderedDict()  # those of them that will not be used again
        self._hinted = False

    def has(self, name: str) -> int:
        """Return how many of the first blocks of a part are there."""
        held = self._held.get(name)
        return held.blocks if held else 0

    def take(self, parts: Sequence[Part], now: float) -> bool:
        """Hold all blocks of a request; say whether there is room for them now."""
        needed = sum(max(0, blocks - self.has(name)) for name, blocks in parts)
        kept = sum(self.has(name) for name, _ in parts if name in self._idle)
        if self.size - self.used + self._idle_blocks - kept < needed:
            return False
        for name, _ in parts:
            held = self._held.setdefault(name, _Held())
            held.users += 1
            if name in self._idle:
                self._drop_idle(name)
        self._evict(needed - (self.size - self.used), now)
        for name, blocks in parts:
            self._held[name].blocks = max(self._held[name].blocks, blocks)
        self.used += needed
        return True

    def give_back(self, parts: Sequence[Part], now: float, *, away: float = 0.0, over: bool = False) -> None:
        """Let go of a request's blocks. The hints are about the last part, which nobody else has.

        `away`: for so many seconds it is probably not used. `over`: it never is again.
        """
        # The shared beginning last: it is evicted behind what follows it.
        for name, _ in reversed(parts):
            held = self._held[name]
            held.users -= 1
            held.since = now
            if self._keeps:
                held.expected = away  # the whole prompt is kept, also what it shares
            if not held.users:
                self._idle[name] = None
                self._idle_blocks += held.blocks
        own = parts[-1][0]
        if own in self._idle:
            self._held[own].expected = away
            self._hinted = self._hinted or away > 0
            if over:
                self._over[own] = None

    def keep(self, part: Part, now: float) -> None:
        """Keep a copy of what another tier has computed, if there is room."""
        if self.take([part], now):
            self.give_back([part], now)

    def _drop_idle(self, name: str) -> None:
        del self._idle[name]
        self._idle_blocks -= self._held[name].blocks
        self._over.pop(name, None)

    def _evict(self, blocks: int, now: float) -> None:
        while blocks > 0:
            name = self._next(now)
            held = self._held[name]
            gone = min(held.blocks, blocks)
            held.blocks -= gone
            self.used -= gone
            self._idle_blocks -= gone
            blocks -= gone
            if not held.blocks:
                self._drop_idle(name)
                del self._held[name]

    def _next(self, now: float) -> str:
        """Return the part that loses blocks next: what is over, then what is probably away for longest.

        What was away for long will most probably be for as long again. That is the order of last use, where nobody
        says anything; the same order holds where all is kept.
        """
        if self._over:
            return next(iter(self._over))
        if not self._hinted:
            return next(iter(self._idle))

        def away(name: str) -> float:
            held = self._held[name]
            return max(held.expected, now - held.since)

        if self._keeps:
            free = (name for name in self._idle if self._held[name].expected <= now - self._held[name].since)
            return next(free, None) or next(iter(self._idle))
        return max(self._idle, key=away)
