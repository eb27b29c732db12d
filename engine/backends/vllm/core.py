"""Where an engine gets its `AsyncLLM` of vLLM from, and what replaces one whose engine core has died.

`BaseCore` makes AsyncLLMs: `OwnCore` with an engine core that is a child of this process, `SharedCore` at one that
several processes talk to. `KeptLlm` keeps one, which a dead one is replaced by. Its states:

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

`OwnCore` starts its core on a thread. A thread cannot be cancelled, and an engine core that was started must not
outlive us. `aclose()` sets `_closed` and then looks at `_launching`; the thread sets `_launching` and then looks at
`_closed`. So one of them sees the other's flag: the thread starts no core, or `aclose()` kills the core that loads.
Which process that is vLLM does not say before it is loaded: the children from before the launch are noted (`_foreign`),
and only a new one with its name is killed.
"""

import asyncio
import logging
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.backends.base import restart_pause
from engine.backends.vllm import config as vllm_config
from engine.errors import EngineError, EngineUnavailable
from engine.threads import in_thread

logger = logging.getLogger("respsite.engine")

CORE_STOP_SECONDS = 8  # an engine core takes 4 to 5 s to stop; then it is killed. Container runtimes kill us after 10.
WATCH_SECONDS = 0.5  # how soon a death is noticed while nothing is asked


class BaseCore(ABC):
    """Makes AsyncLLMs, one after the other. `lost` is called where the core of the last one is known to be gone."""

    lost: Callable[[], None] = staticmethod(lambda: None)  # set by `KeptLlm`; does nothing for a core that nobody keeps
    is_shared = False  # several processes have the same core

    def __init__(self, model: str, options: Mapping[str, object]) -> None:
        self._model = model
        self._options = options
        self._closed = False  # set first in `aclose()`: whatever is under way asks it before it goes on

    def _require_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The vLLM engine is closed.")

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

    @property
    def started_by(self) -> int | None:
        """The process that has started a core that is shared; None for one of this process, and while there is none."""
        return None

    def ended(self, request_id: str) -> None:  # noqa: B027 - most need not know
        """A generation is over, however it ended."""

    async def dispose(self, llm: Any) -> None:
        """Stop an AsyncLLM, dead or alive; what still waits for it gets `EngineDeadError`. Raises nothing."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            # First of all: those who wait get an error now, and not when the shutdown is over.
            llm.output_processor.propagate_error(EngineDeadError())
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # it would log the end of its engine core as an error
            # 2 s more than vLLM itself takes until it kills: the timeout is only for a shutdown that hangs.
            async with asyncio.timeout(CORE_STOP_SECONDS + 2):
                await in_thread(partial(llm.shutdown, timeout=CORE_STOP_SECONDS))
        except Exception:
            logger.exception("the vLLM engine did not stop cleanly")

    def version(self, llm: Any) -> str:
        """Name vLLM's version, and what an operator of a server would set `--prefix-cache-retention-interval` to."""
        import vllm

        return f"vLLM {vllm.__version__}, block size {llm.vllm_config.cache_config.block_size}"


class KeptLlm:
    """The `AsyncLLM` of a core. `llm` is the one that takes requests, None while there is none."""

    def __init__(self, core: BaseCore) -> None:
        self.core = core
        self.llm: Any = None
        self._keeping: asyncio.Task[None] | None = None  # None before `start()`
        self._died = asyncio.Event()  # set by whoever meets a death; cleared when another engine has been loaded
        self._closed = False
        core.lost = self._died.set

    async def start(self) -> Any:
        """Load it, and keep it from now on. Raises as `BaseCore.load` does."""
        llm = await self.core.load()
        # It may have been closed while it loaded; `core.aclose()` disposes of the engine then.
        self.require_open()
        self.llm = llm
        self._keeping = asyncio.create_task(self._keep(), name="keep the vLLM engine alive")
        return llm

    def serving(self) -> Any:
        """Return it while it takes requests. Raises `EngineUnavailable`."""
        self.require_open()
        if self.llm is None:
            raise EngineUnavailable("The vLLM engine is loading.")
        # `errored` is asked here too, so that a request never goes to a dead engine, and its death is noted at once.
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
        # Before anything is awaited: who asks from now on is refused, and a load that ends now is not kept.
        self._closed = True
        if self._keeping:
            self._keeping.cancel()
            # `wait`, not `await`: it raises nothing of the task's.
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
            # Taken away before anything is awaited: from here on requests hear that it is loading.
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
                # `_died` may have been set again by the dead one's last requests. It has to be clear before `serving`
                # reads it.
                self._died.clear()
                self.llm = llm
                logger.info("the vLLM engine is back")
                return


class OwnCore(BaseCore):
    """Starts engine cores, one at a time."""

    def __init__(self, model: str, options: Mapping[str, object]) -> None:
        super().__init__(model, options)
        self._loading: asyncio.Future[Any] | None = None  # an AsyncLLM that a thread is building, or built last
        self._launching = False  # that thread may have started an engine core
        self._foreign: set[int | None] = set()  # processes that were there before it
        self._vocabulary = TemporaryDirectory(prefix="respsite-vocabulary-", ignore_cleanup_errors=True)

    async def load(self) -> Any:
        """Return a new AsyncLLM. A cancelled caller leaves it to `aclose()`."""
        self._require_open()
        # A load that a cancelled caller left behind is waited for; one that is done was fetched by its caller, or
        # failed.
        if self._loading is None or self._loading.done():
            # An import of its own: libraries keep exceptions of their imports, with the frames of all callers, and
            # through those an AsyncLLM would live until the interpreter has gone, where its `__del__` fails.
            await in_thread(vllm_config.import_vllm)
            # Between the import and here it may have been closed; the thread below would find that out only later.
            self._require_open()
            # Noted before the launch: a child that is not among these belongs to it.
            self._foreign = {process.pid for process in multiprocessing.active_children()}
            self._launching = False
            self._loading = in_thread(self._build)
            self._loading.add_done_callback(_result)  # so that asyncio does not miss somebody who asks for it
        try:
            return await asyncio.shield(self._loading)  # the thread goes on anyway; `aclose()` needs the future then
        except EngineError:
            self._require_open()  # it failed because it was stopped
            raise

    async def aclose(self) -> None:
        """Stop the engine core, also one that is still loading: gently for `CORE_STOP_SECONDS`, then with a kill."""
        self._closed = True
        # Taken out first: a second call finds nothing to stop.
        loading, self._loading = self._loading, None
        if loading:
            if self._launching:
                # A thread that has not launched a core yet starts none any more: it sees `_closed`.
                await _abandon(loading, self._foreign)
            if llm := _result(loading):
                await self.dispose(llm)
        # Last of all: a core that loads reads the tokenizer there.
        self._vocabulary.cleanup()

    def described(self, llm: Any) -> str:
        return f"in this process, {self.version(llm)}"

    def _build(self) -> Any:
        from vllm.v1.engine.async_llm import AsyncLLM

        config, engine_args = vllm_config.configure(self._model, self._options, Path(self._vocabulary.name))
        self._launching = True  # before the look at `_closed`, which `aclose()` sets before it looks at this
        self._require_open()
        vllm_config.spawn_processes()
        try:
            return AsyncLLM.from_vllm_config(
                config,
                disable_log_stats=engine_args.disable_log_stats,
                enable_log_requests=engine_args.enable_log_requests,
            )
        except Exception as error:
            raise vllm_config.not_loaded(error) from error


def _result(loading: "asyncio.Future[Any]") -> Any:
    """Return the AsyncLLM that a thread has built, None if it has not."""
    # `exception()` also marks it as read; else asyncio would log it when it is collected.
    if not loading.done() or loading.cancelled() or loading.exception():
        return None
    return loading.result()


async def _abandon(loading: "asyncio.Future[Any]", foreign: Collection[int | None]) -> None:
    """Return once nothing is being loaded any more; an engine core that loads is killed, so that its thread ends."""
    # Polling: vLLM gives no handle of the process before it is loaded.
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CORE_STOP_SECONDS
    while not loading.done() and loop.time() < deadline:
        for process in multiprocessing.active_children():  # it may come to be only now: so again every 0.1 s
            if process.name.startswith("EngineCore") and process.pid and process.pid not in foreign:
                from psutil import NoSuchProcess  # vLLM's own
                from vllm.utils.system_utils import kill_process_tree

                with suppress(NoSuchProcess):  # it has ended meanwhile: the next look sees what is left
                    kill_process_tree(process.pid)
        await asyncio.wait([loading], timeout=0.1)
