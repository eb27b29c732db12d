"""`OwnCore`: an engine core that is a child of this process, and the AsyncLLM that talks to it.

A thread cannot be cancelled, and an engine core that was started must not outlive us. `aclose()` sets `_closed` and
then looks at `_launching`; the thread sets `_launching` and then looks at `_closed`. So one of them sees the other's
flag: the thread starts no core, or `aclose()` kills the core that loads. Which process that is vLLM does not say before
it is loaded: the children from before the launch are noted (`_foreign`), and only a new one with its name is killed.
"""

import asyncio
import multiprocessing
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.backends.threads import in_thread
from engine.backends.vllm import config as vllm_config
from engine.backends.vllm.core import CORE_STOP_SECONDS, BaseCore
from engine.errors import EngineError, EngineUnavailable


class OwnCore(BaseCore):
    """Starts engine cores, one at a time."""

    def __init__(self, model: str, options: Mapping[str, object]) -> None:
        self._model = model
        self._options = options
        self._loading: asyncio.Future[Any] | None = None  # an AsyncLLM that a thread is building, or built last
        self._launching = False  # that thread may have started an engine core
        self._foreign: set[int | None] = set()  # processes that were there before it
        self._closed = False
        self._vocabulary = TemporaryDirectory(prefix="respsite-vocabulary-", ignore_cleanup_errors=True)

    async def load(self) -> Any:
        """Return a new AsyncLLM. A cancelled caller leaves it to `aclose()`."""
        self._require_open()
        if self._loading is None or self._loading.done():
            # An import of its own: libraries keep exceptions of their imports, with the frames of all callers, and
            # through those an AsyncLLM would live until the interpreter has gone, where its `__del__` fails.
            await in_thread(vllm_config.import_vllm)
            self._require_open()
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
        loading, self._loading = self._loading, None
        if loading:
            if self._launching:
                await _abandon(loading, self._foreign)
            if llm := _result(loading):
                await self.dispose(llm)
        self._vocabulary.cleanup()

    def described(self, llm: Any) -> str:
        """Say that it is in this process."""
        return f"in this process, {self.version(llm)}"

    def _require_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The vLLM engine is closed.")

    def _build(self) -> Any:
        config, engine_args = vllm_config.configure(self._model, self._options, Path(self._vocabulary.name))
        self._launching = True  # before the look at `_closed`, which `aclose()` sets before it looks at this
        self._require_open()
        return _launch(config, engine_args)


def _launch(config: Any, engine_args: Any) -> Any:
    """Start the engine core and load the weights."""
    from vllm.v1.engine.async_llm import AsyncLLM

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
    if not loading.done() or loading.cancelled() or loading.exception():
        return None
    return loading.result()


async def _abandon(loading: "asyncio.Future[Any]", foreign: Collection[int | None]) -> None:
    """Return once nothing is being loaded any more; an engine core that loads is killed, so that its thread ends."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CORE_STOP_SECONDS
    while not loading.done() and loop.time() < deadline:
        for process in multiprocessing.active_children():  # it may come to be only now: so again every 0.1 s
            if process.name.startswith("EngineCore") and process.pid and process.pid not in foreign:
                from vllm.utils.system_utils import kill_process_tree

                kill_process_tree(process.pid)
        await asyncio.wait([loading], timeout=0.1)
