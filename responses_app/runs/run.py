"""`ResponseRun`: one response from its first event to its terminal one, turn by turn.

A run belongs to the registry, never to a request or a socket. Its journal is all that transports see. Cancelling its
task ends it with status `cancelled`, keeping what was said; everything else that goes wrong ends it with `failed`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from engine.backends.base import BaseEngine
from engine.errors import EngineError
from engine.harmony.parser import HarmonyEvent
from engine.harmony.prompt import RenderedMessage, Tokens, as_tokens, generation_start, render_tool_output
from engine.types import FinishReason, GenerationRequest
from responses_app.protocol.chain import ChainLink, new_link
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events import Event
from responses_app.protocol.requests import CreateRequest
from responses_app.protocol.resources import CONTINUABLE, Status
from responses_app.protocol.stream import FUNCTIONS, Ending, ResponseStream
from responses_app.protocol.usage import TurnUsage, usage
from responses_app.runs.failures import failure
from responses_app.runs.journal import EventJournal
from responses_app.runs.turn import Turn
from responses_app.stores.base import BaseResponseStore, StoredResponse, StoreError

logger = logging.getLogger("respsite.runs")

MAX_CORRECTIONS = 1  # how often the model is told, in one response, that a tool does not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a request came from: for ownership and for the log."""

    transport: str
    project: str = "default"
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything that was decided before a run starts. `link` is the chain with the request's own input at its end."""

    response_id: str
    request: CreateRequest
    origin: Origin
    link: ChainLink
    parent: ChainLink | None
    input_messages: list[RenderedMessage]
    generation: GenerationRequest  # of the first turn
    stored: bool


@dataclass(slots=True)
class _Clockwork:
    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None


class ResponseRun:
    """Runs a plan. `status` and `link` (for continuing it) hold once `journal.closed`."""

    def __init__(
        self,
        plan: RunPlan,
        *,
        engine: BaseEngine,
        stream: ResponseStream,
        journal: EventJournal,
        store: BaseResponseStore,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.link: ChainLink | None = None
        self.finishing = False  # from here on a cancellation changes nothing
        self.abandoned_reason = ""  # why the readers went away, for the log
        self._engine = engine
        self._stream = stream
        self._store = store
        self._now = now
        self._turns: list[TurnUsage] = []
        self._repairs = 0
        self._clockwork = _Clockwork()

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return self.plan.response_id

    @property
    def status(self) -> Status:
        """The status as far as readers know it."""
        return self._stream.status

    def response(self) -> JsonObject:
        """Return the response object as it stands."""
        return self._stream.snapshot()

    async def execute(self) -> None:
        """Run to the terminal event. Raises nothing; a cancellation becomes the status `cancelled`."""
        try:
            self._publish(self._stream.start(warm_up=self.plan.request.warm_up))
            if self.plan.request.warm_up:
                await self._prefill()
                await self._finish(Status.COMPLETED)
            else:
                await self._converse()
        except asyncio.CancelledError:
            await self._finish(Status.CANCELLED)
        except EngineError as error:
            logger.warning("response %s: the engine failed: %s: %s", self.response_id, type(error).__name__, error)
            await self._finish(Status.FAILED, error=failure(error, self.plan.origin.request_id))
        except Exception:
            logger.exception("response %s broke", self.response_id)
            await self._finish(Status.FAILED, error=failure(None, self.plan.origin.request_id))

    async def _prefill(self) -> None:
        """Leave the prompt in the engine's prefix cache. A warm-up whose prefill fails is still a warm-up."""
        if not self._engine.supports_prefill:
            return
        generation = self.plan.generation
        one_token = replace(generation, sampling=replace(generation.sampling, max_output_tokens=1, top_logprobs=None))
        try:
            async with aclosing(self._engine.generate(one_token)) as chunks:
                async for _ in chunks:
                    pass
        except EngineError as error:
            logger.warning("response %s: not prefilled: %s: %s", self.response_id, type(error).__name__, error)

    async def _converse(self) -> None:
        prompt, corrections = self.plan.generation.prompt_token_ids, 0
        while True:
            turn = await self._take_turn(prompt)
            correction = self._correction(turn)
            if correction is None or corrections >= MAX_CORRECTIONS or self._budget() == 0:
                break
            corrections += 1
            self._stream.interject(correction)
            prompt = self._continued()
        if turn.finish_reason is FinishReason.LENGTH:
            await self._finish(Status.INCOMPLETE, reason="max_output_tokens")
        elif turn.finish_reason is FinishReason.ABORT:
            await self._finish(Status.CANCELLED)
        else:
            await self._finish(Status.COMPLETED if self._stream.output else Status.INCOMPLETE)

    async def _take_turn(self, prompt: Sequence[int]) -> Turn:
        request = replace(
            self.plan.generation,
            request_id=f"{self.response_id}-{len(self._turns)}",
            prompt_token_ids=prompt,
            sampling=replace(self.plan.generation.sampling, max_output_tokens=self._budget()),
        )
        turn = Turn(self._engine, request)
        self._turns.append(turn.usage)
        await turn.run(self._receive)
        self._repairs += turn.repairs
        return turn

    def _receive(self, events: list[HarmonyEvent]) -> None:
        if self._clockwork.first_token is None:
            self._clockwork.first_token = time.monotonic()
        for event in events:
            self._publish(self._stream.receive(event))

    def _correction(self, turn: Turn) -> RenderedMessage | None:
        """Return what to tell a model that has just called a tool which does not exist."""
        if not (turn.called and self._stream.unknown_tools and self._stream.output[-1]["type"] == "reasoning"):
            return None
        names = ", ".join(FUNCTIONS + tool.name for tool in self.plan.request.offered_functions) or "none"
        text = f"Error: this tool does not exist. Available tools: {names}."
        return render_tool_output(self._stream.unknown_tools[-1], text)

    def _continued(self) -> "Tokens[int]":
        """Return the prompt with everything said in this response."""
        start = generation_start()
        longer = as_tokens(self.plan.generation.prompt_token_ids[: -len(start)])
        for message in self._stream.messages:
            longer.extend(message.tokens)
        longer.extend(start)
        return longer

    def _budget(self) -> int | None:
        limit = self.plan.generation.sampling.max_output_tokens
        return None if limit is None else max(0, limit - sum(turn.output_tokens for turn in self._turns))

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            self.journal.append(event)

    async def _finish(self, status: Status, *, error: JsonObject | None = None, reason: str | None = None) -> None:
        """End the response; a stored one is committed before its terminal event goes out."""
        if self.finishing:
            return
        self.finishing = True
        if status is not Status.FAILED:
            self._publish(self._stream.close())
        ending = Ending(
            status=status,
            completed_at=int(self._now()),
            usage=usage(self._turns) if self._turns else None,
            error=error,
            reason=reason,
        )
        link = self._final_link() if status in CONTINUABLE else None
        if not await self._is_kept(self._stream.outcome(ending), link):
            ending = replace(
                ending, status=Status.FAILED, error=failure(None, self.plan.origin.request_id), reason=None
            )
            link = None
        self.link = link
        self._publish(self._stream.finish(ending))
        self._log()

    def _final_link(self) -> ChainLink:
        return new_link(
            self.plan.parent,
            response_id=self.response_id,
            started_on=self.plan.link.started_on,
            messages=[*self.plan.input_messages, *self._stream.messages],
            items=[*self.plan.request.input_json, *self._stream.output],
        )

    async def _is_kept(self, response: JsonObject, link: ChainLink | None) -> bool:
        """Store the response, if it is to be; return False if that failed."""
        try:
            await self._keep(response, link)
        except StoreError as problem:
            logger.error("response %s could not be stored: %s", self.response_id, problem)
        except Exception:
            logger.exception("response %s: the store broke", self.response_id)
        else:
            return True
        return False

    async def _keep(self, response: JsonObject, link: ChainLink | None) -> None:
        if self.plan.stored:
            stored = StoredResponse(
                project=self.plan.origin.project,
                response=response,
                link=link,
                input_items=tuple(self.plan.request.input_json),
                sampled=tuple(self._stream.sampled),
            )
            await self._store.save(stored)

    def _log(self) -> None:
        times = self._clockwork
        first = f"{(times.first_token - times.started) * 1000:.0f}ms" if times.first_token else "-"
        logger.info(
            "response %s %s %s input=%d cached=%d output=%d ttft=%s duration=%.0fms%s",
            self.response_id,
            self.plan.origin.transport,
            self.status.value,
            sum(turn.input_tokens for turn in self._turns),
            sum(turn.cached_tokens for turn in self._turns),
            sum(turn.output_tokens for turn in self._turns),
            first,
            (time.monotonic() - times.started) * 1000,
            self._remarks(),
        )

    def _remarks(self) -> str:
        remarks = ""
        if self._repairs:
            remarks += f" repaired={self._repairs}"
        if self._stream.unknown_tools:
            remarks += f" unknown_tools={len(self._stream.unknown_tools)}"
        if self.abandoned_reason:
            remarks += f" ({self.abandoned_reason})"
        return remarks
