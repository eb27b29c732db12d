"""One engine per process under the name clients know, from its settings to its last breath."""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from importlib import import_module

from engine.backends.base import BaseEngine
from engine.errors import EngineConfigurationError, EngineError
from engine.types import EngineInfo
from responses_app.conf import Settings

logger = logging.getLogger("respsite.engine")

BACKENDS = {  # imported when chosen: a backend may need packages that others do without
    "demo": "engine.backends.demo.DemoEngine",
    "scripted": "engine.backends.scripted.ScriptedEngine",
    "vllm": "engine.backends.vllm_local.VllmEngine",
    "vllm-server": "engine.backends.vllm_server.VllmServerEngine",
}
COLLECT_AFTER = (20_000, 20, 20)  # new objects (some MB), and collections of the younger generation
RETRY_SECONDS = (1, 2, 5, 10, 30)  # between attempts to start; the last one repeats


def make_engine(settings: Settings) -> BaseEngine:
    """Build the engine that the settings name; nothing is loaded yet."""
    module, _, name = BACKENDS[settings.engine].rpartition(".")
    options = dict(settings.engine_options)
    if settings.engine == "scripted":
        options["script"] = settings.engine_script
    if settings.engine == "vllm-server":
        options |= {"urls": settings.engine_url, "api_key": settings.engine_api_key}
    more = {"core": settings.engine_core} if settings.engine == "vllm" else {}
    make = getattr(import_module(module), name)
    engine: BaseEngine = make(model=settings.model or settings.engine, options=options, **more)
    return engine


def check_engine(settings: Settings) -> None:
    """Raise `EngineConfigurationError` if the engine that the settings name cannot work; nothing is loaded."""
    make_engine(settings).check()


def stop_serving() -> None:
    """End this process as its operator would: what cannot work stops the start."""
    signal.raise_signal(signal.SIGTERM)


def collect_less_garbage() -> None:
    """Let the garbage collector leave alone what there is now, and look less often for new garbage.

    Modules, models and tables are there for good. To look through them takes the event loop some 30 ms, again and
    again, and finds nothing. What runs is hundreds of tasks with thousands of objects, nearly all of them alive or gone
    without the collector: as it is set by default, it takes a sixth of a short response's CPU and more, so a twelfth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


class EngineStarter:
    """Starts an engine beside everything else, again and again where that can help; `fatal` is called where not.

    `ready` is called once it has started.
    """

    def __init__(
        self,
        engine: BaseEngine,
        *,
        fatal: Callable[[], None] = stop_serving,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self._fatal = fatal
        self._ready = ready
        self.info: EngineInfo | None = None
        self.problem = "the engine is starting"
        self.started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to start; `info` is there once it worked, until then `problem` says what is the matter."""
        self._task = asyncio.create_task(self._start(), name="start the engine")

    async def wait(self) -> None:
        """Wait until the engine has started, or never will."""
        if self._task:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Stop the engine, started or not."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.engine.aclose()

    async def _start(self) -> None:
        attempt = 0
        while True:
            try:
                self.info = await self.engine.start()
            except EngineConfigurationError as error:
                self.problem = str(error)
                logger.error("the engine cannot start, so the server stops: %s", error)
                self._fatal()
                return
            except EngineError as error:
                self.problem = "the engine is away"
                wait = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                logger.warning("the engine did not start: %s; trying again in %d s", error, wait)
                attempt += 1
                await asyncio.sleep(wait)
            else:
                _announce(self.info)
                self._ready()
                self.started.set()
                return


def _announce(info: EngineInfo) -> None:
    """Say how an engine is reached, where there is anything to say: the start lines came before it was known."""
    if info.detail:
        about = f"{info.backend}, {info.model}, {info.max_model_len} tokens of context, {info.detail}"
        logger.info("the engine is ready: %s", about)
