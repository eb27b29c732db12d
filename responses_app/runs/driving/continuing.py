"""`Continuing`: how often, and how long, a turn that is cut is tried again.

The number is bounded, since a request may be what kills the replicas that get it. The time is, since a client waits: it
is there for the moment in which all that ran on a dead replica comes to those that are left, and finds them full.
"""

import asyncio

from engine.backends.base import BaseEngine
from engine.errors import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    GrammarBroken,
    GrammarCut,
)

MAX_CUTS = 4  # of one turn; the next one ends it
GO_ON_SECONDS = 5.0  # from a cut until the engine takes the turn again
RETRY_SECONDS = 0.2  # between two attempts at that


class Continuing:
    """Of one turn. `cuts` is how often it was cut, `avoid` where it was then."""

    def __init__(self, engine: BaseEngine) -> None:
        self.cuts = 0
        self.avoid = ""
        self._engine = engine
        self._until: float | None = None
        self._grammar_cut = False

    async def wait(self, error: EngineError) -> None:
        """Return when the turn is to be tried again; raises `error`, or what it means, where it ends with it."""
        if self._grammar_cut and isinstance(error, GrammarCut | GenerationFailed):
            raise GrammarBroken(str(error)) from error
        if isinstance(error, GenerationCut):
            self._note(error)
            await asyncio.sleep(0)  # a turn that something else has ended meanwhile is cancelled here
        elif not isinstance(error, EngineUnavailable | EngineOverloaded) or self._is_over:
            raise error
        else:
            await asyncio.sleep(RETRY_SECONDS)
        await self._engine_is_there()

    @property
    def _is_over(self) -> bool:
        """Whether it has not been cut, or the time is over since it was."""
        return self._until is None or asyncio.get_running_loop().time() >= self._until

    def _note(self, cut: GenerationCut) -> None:
        if self.cuts == MAX_CUTS:
            raise cut
        self._grammar_cut = self._grammar_cut or isinstance(cut, GrammarCut)
        self.cuts += 1
        self.avoid = cut.at
        self._until = asyncio.get_running_loop().time() + GO_ON_SECONDS

    async def _engine_is_there(self) -> None:
        """Return when the engine can take a request: to plan a long turn that nobody takes is work for nothing."""
        while True:
            try:
                await self._engine.health()
            except EngineUnavailable:
                if self._is_over:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return
