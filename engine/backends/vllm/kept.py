"""`KeptLlm`: an `AsyncLLM` of vLLM that is replaced whenever its engine core has died. The states:

    state      llm        a request gets       left by
    loading    None       "is loading"         the core: it is loaded, or it failed
    serving    set        an answer            a death, or `aclose()`
    dead       set        "died"               `_keep`, which disposes of it and loads another one
    closed     None       "is closed"          nothing

A death is noticed in three ways: what runs fails at once, a new request sees `errored`, and where nothing is asked
`_keep` looks every half second. (That a shared one is gone, its connection tells.) All lead to `_keep`, the only one
that replaces an engine: it lets the rest of the dead one go (0.1 s, `CORE_STOP_SECONDS` + 2 at most), waits 1 s, and
loads another one, which takes a minute. Until then requests get a 503. If that fails, it tries again after 2, 5, 10 and
then every 30 s.
"""

import asyncio
import logging
from contextlib import suppress
from itertools import count
from typing import Any

from engine.backends.vllm.core import BaseCore
from engine.errors import EngineError, EngineUnavailable
from engine.restarts import restart_pause

logger = logging.getLogger("respsite.engine")

WATCH_SECONDS = 0.5  # how soon a death is noticed while nothing is asked


class KeptLlm:
    """The `AsyncLLM` of a core. `llm` is the one that takes requests, None while there is none."""

    def __init__(self, core: BaseCore) -> None:
        self.core = core
        self.llm: Any = None
        self._keeping: asyncio.Task[None] | None = None
        self._died = asyncio.Event()
        self._closed = False
        core.lost = self._died.set

    async def start(self) -> Any:
        """Load it, and keep it from now on. Raises as `BaseCore.load` does."""
        llm = await self.core.load()
        self.require_open()
        self.llm = llm
        self._keeping = asyncio.create_task(self._keep(), name="keep the vLLM engine alive")
        return llm

    def serving(self) -> Any:
        """Return it while it takes requests. Raises `EngineUnavailable`."""
        self.require_open()
        if self.llm is None:
            raise EngineUnavailable("The vLLM engine is loading.")
        if self._died.is_set() or self.llm.errored:
            self._died.set()
            raise EngineUnavailable("The vLLM engine died and will be started again.")
        return self.llm

    def note_failure(self, llm: Any) -> None:
        """Something failed that `llm` did: if it has died, it is replaced."""
        if llm is self.llm and llm.errored:  # not one that was replaced meanwhile
            self._died.set()

    def require_open(self) -> None:
        """Raise `EngineUnavailable` once it is closed."""
        if self._closed:
            raise EngineUnavailable("The vLLM engine is closed.")

    async def aclose(self) -> None:
        """Let go of the engine core: one of its own is stopped."""
        self._closed = True
        if self._keeping:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        self.llm = None
        await self.core.aclose()

    async def _keep(self) -> None:
        """Replace the engine whenever it has died, until cancelled."""
        while True:
            # `_died` is set by whoever meets the death; `errored` is vLLM's own flag, for when nobody asks anything.
            while not (self._died.is_set() or self.llm.errored):
                with suppress(TimeoutError):  # nobody has noticed a death: time to look again
                    async with asyncio.timeout(WATCH_SECONDS):
                        await self._died.wait()
            dead, self.llm = self.llm, None
            logger.error("the vLLM engine died; what was running failed, and the engine is started again")
            await self.core.dispose(dead)
            del dead  # its memory, before another one takes as much
            await self._restart()

    async def _restart(self) -> None:
        for failed in count():
            await asyncio.sleep(restart_pause(failed))
            try:
                llm = await self.core.load()
            except EngineError as error:
                logger.warning("the vLLM engine did not start again: %s", error)
            except Exception:  # whatever it is: nobody else would try again
                logger.exception("the vLLM engine did not start again")
            else:
                self._died.clear()
                self.llm = llm
                logger.info("the vLLM engine is back")
                return
