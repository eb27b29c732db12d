"""`BaseCore`: where a `VllmEngine` gets its AsyncLLM from: one with an engine core of its own, or of a shared one."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from engine.backends.threads import in_thread

logger = logging.getLogger("respsite.engine")

CORE_STOP_SECONDS = 8  # an engine core takes 4 to 5 s to stop; then it is killed. Container runtimes kill us after 10.


class BaseCore(ABC):
    """Makes AsyncLLMs, one after the other. `lost` is called where the core of the last one is known to be gone."""

    lost: Callable[[], None] = staticmethod(lambda: None)

    @abstractmethod
    async def load(self) -> Any:
        """Return a new AsyncLLM.

        Raises `EngineConfigurationError` where trying again cannot help, `EngineUnavailable` where it can, and when
        it is closed. A cancelled caller leaves what is being loaded to `aclose()`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything, of what is still being loaded too. It may be called twice."""

    @abstractmethod
    def described(self, llm: Any) -> str:
        """Say for the operator where the engine core is."""

    def ended(self, request_id: str) -> None:  # noqa: B027 - most need not know
        """A generation is over, however it ended."""

    async def dispose(self, llm: Any) -> None:
        """Stop an AsyncLLM, dead or alive; what still waits for it gets `EngineDeadError`. Raises nothing."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            llm.output_processor.propagate_error(EngineDeadError())
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # it would log the end of its engine core as an error
            async with asyncio.timeout(CORE_STOP_SECONDS + 2):
                await in_thread(partial(llm.shutdown, timeout=CORE_STOP_SECONDS))
        except Exception:
            logger.exception("the vLLM engine did not stop cleanly")

    def version(self, llm: Any) -> str:
        """Name vLLM's version, and what an operator of a server would set `--prefix-cache-retention-interval` to."""
        import vllm

        return f"vLLM {vllm.__version__}, block size {llm.vllm_config.cache_config.block_size}"
