"""`Continuing`: how often, and how long, a turn that is cut is tried again.

The number is bounded, since a request may be what kills the replicas that get it. The time is, since a client waits: it
is there for the moment in which all that ran on a dead replica comes to those that are left, and finds them full.
"""

import asyncio

from engine.errors import EngineError, EngineOverloaded, EngineUnavailable, GenerationCut

MAX_CUTS = 4  # of one turn; the next one ends it
GO_ON_SECONDS = 5.0  # from a cut until the engine takes the turn again
RETRY_SECONDS = 0.2  # between two attempts at that


class Continuing:
    """Of one turn. `cuts` is how often it was cut."""

    def __init__(self) -> None:
        self.cuts = 0
        self._until: float | None = None

    async def wait(self, error: EngineError) -> None:
        """Return when the turn is to be tried again; raises `error` where it ends with it."""
        now = asyncio.get_running_loop().time()
        if isinstance(error, GenerationCut) and self.cuts < MAX_CUTS:
            self.cuts += 1
            self._until = now + GO_ON_SECONDS
            await asyncio.sleep(0)  # a turn that something else has ended meanwhile is cancelled here
            return
        refused = isinstance(error, EngineUnavailable | EngineOverloaded) and not isinstance(error, GenerationCut)
        if not refused or self._until is None or now >= self._until:
            raise error
        await asyncio.sleep(RETRY_SECONDS)
