"""Weights of vLLM in this process, through its own interface: `pause_generation`, `update_weights` and their like.

vLLM counts from which token of a generation on its weights have which version, and tells it with the last output
(`RequestState.weight_version_starts`, 0.32). `Versions` reads it as the tokens come.

A pause clears vLLM's prefix caches, also of what is frozen: it is computed again by the weights that there are then.
"""

import logging
import os
import socket
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from engine.backends.vllm.async_llm import translated
from engine.backends.vllm.config import reason
from engine.backends.vllm.core import KeptLlm
from engine.errors import EngineError, EngineUnavailable, WeightsRefused
from engine.types import TokenChunk
from engine.weights import FAILED, BaseWeights, PauseMode, ReplicaState, WeightsCall, WeightsStep

logger = logging.getLogger("respsite.engine")

CHANGES = (WeightsStep.UPDATE, WeightsStep.FINISH)  # where one of these fails, weights may be new and old


class LocalWeights(BaseWeights):
    """The doors of the `AsyncLLM` of this process; other processes may share its engine core."""

    def __init__(self, kept: KeptLlm) -> None:
        self._kept = kept
        self._of: Any = None  # the AsyncLLM whose version is known: another one that replaces it has its own
        self._version: str | None = None
        self.ends = False  # a pause has ended what was running, which is no failure of vLLM's

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
        """Have vLLM schedule nothing."""
        llm = self._kept.serving()
        self.ends = mode is PauseMode.ABORT  # before its outputs come
        await self._done(llm.pause_generation(mode=mode.value, clear_cache=True))

    async def resume(self) -> None:
        """Have vLLM schedule again."""
        llm = self._kept.serving()
        await self._done(llm.resume_generation())
        self.ends = False

    async def call(self, call: WeightsCall) -> None:
        """Take a step on all workers of vLLM."""
        llm = self._kept.serving()
        try:
            await self._done(self._step(llm, call))
        except WeightsRefused as refused:
            if call.step not in CHANGES:
                raise
            # The core may refuse this, too: then it goes on under the old name, and the caller is told all the same.
            await self._name(llm, FAILED + call.version)
            raise WeightsRefused(refused.reason, changed=True) from refused

    async def replicas(self) -> Sequence[ReplicaState]:
        """Return the one that there is."""
        try:
            return [ReplicaState(name=self.place, version=await self.ask())]
        except EngineError as error:
            return [ReplicaState(name=self.place, version=None, problem=str(error))]

    async def learn(self, *, paused: PauseMode | None, version: str, is_settled: bool) -> None:
        """Note what another process has done to the core."""
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
                    await self._finish(llm, is_cancelled=call.step is WeightsStep.CANCEL)
                if call.version:
                    await llm.update_weight_version(call.version)
                    self._note(llm, call.version)

    async def _finish(self, llm: Any, *, is_cancelled: bool) -> None:
        """End an update: without that vLLM would take no other one."""
        try:
            await llm.finish_weight_update()
        except Exception as error:
            # vLLM says so where no update is open: one failed in its middle, or had not come so far.
            if not is_cancelled or isinstance(translated(error), EngineUnavailable):
                raise

    async def _name(self, llm: Any, version: str) -> None:
        try:
            await self._done(llm.update_weight_version(version))
        except EngineError as error:
            logger.warning("weights that are a mixture go on under their old version: %s", error)
        else:
            self._note(llm, version)

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
