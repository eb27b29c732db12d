"""`ResponseRun`: one response from its first event to its terminal one, turn by turn.

A run belongs to the registry, never to a request or a socket. Its journal is all that transports see. Cancelling its
task ends it with status `cancelled`, keeping what was said; everything else that goes wrong ends it with `failed`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from engine.backends.base import BaseEngine
from engine.errors import EngineError, GenerationFailed
from engine.harmony.parser import HarmonyEvent
from engine.harmony.prompt import RenderedMessage, Tokens, as_tokens, generation_start, render_tool_output
from engine.types import FinishReason
from responses_app.protocol.chain import ChainLink
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.events import Event
from responses_app.protocol.resources import Status
from responses_app.protocol.stream import Ending, ResponseStream
from responses_app.protocol.tool_items import FUNCTIONS
from responses_app.protocol.usage import TurnUsage, usage
from responses_app.runs.background import BackgroundQueue
from responses_app.runs.compaction import Summary, compacted, go_on
from responses_app.runs.failures import failure, server_stopped, unanswered, unanswered_by_stopped_server
from responses_app.runs.journal import EventJournal
from responses_app.runs.keeping import Measured, ResponseKeeper
from responses_app.runs.plan import CompactionPlan, RunPlan
from responses_app.runs.turn import Turn
from responses_app.stores.base import Claim, ClaimLost, ParentGone, StoreError

logger = logging.getLogger("respsite.runs")

MAX_CORRECTIONS = 1  # how often the model is told, in one response, that a tool does not exist


@dataclass(slots=True)
class _Clockwork:
    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None


class ResponseRun:
    """Runs a plan. `status`, `link` (for continuing it) and `problem` (why it failed) hold once `journal.closed`."""

    def __init__(
        self,
        plan: RunPlan,
        *,
        engine: BaseEngine,
        stream: ResponseStream,
        journal: EventJournal,
        keeper: ResponseKeeper,
        queue: BackgroundQueue,
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.link: ChainLink | None = None
        self.problem: ApiError | None = None
        self.finishing = False  # from here on a cancellation changes nothing
        self.stopping = False  # a cancellation means that the server stops
        self.deleted = False  # a client has deleted the response while it ran
        self.lost = False  # another worker took it over: this one was taken for dead, and was not
        self.abandoned_reason = ""  # why the readers went away, for the log
        self._engine = engine
        self._stream = stream
        self._keeper = keeper
        self._queue = queue
        self._turns: list[TurnUsage] = []
        self._compactions = 0  # turns that summed up
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

    @property
    def has_spoken(self) -> bool:
        """Whether the model has said anything."""
        return self._clockwork.first_token is not None

    def response(self) -> JsonObject:
        """Return the response object as it stands."""
        return self._stream.snapshot()

    async def execute(self) -> None:
        """Run to the terminal event. Raises nothing; a cancellation becomes the status `cancelled`."""
        try:
            if self.plan.background:
                await self._wait_and_answer()
            else:
                await self._answer_at_once()
        except asyncio.CancelledError:
            await self._stop()
        except ClaimLost:
            self._give_up()
        except StoreError as problem:
            logger.error("response %s could not begin: %s", self.response_id, problem)
            await self._fail(None)
        except EngineError as error:
            logger.warning("response %s: the engine failed: %s: %s", self.response_id, type(error).__name__, error)
            await self._fail(error)
        except Exception:
            logger.exception("response %s broke", self.response_id)
            await self._fail(None)

    async def accept(self, *, again: bool = False) -> None:
        """Keep the response before it runs; `again`: another start has kept it already.

        Raises `StoreError`; `ParentGone` where what it continues is gone. Else nobody knows whether one that raised is
        kept or will be: if so, it ends as failed, unless it is for another try.
        """
        status = Status.QUEUED if self.plan.background else Status.IN_PROGRESS
        try:
            await self._keeper.accept({**self.response(), "status": status.value}, again=again)
        except (ClaimLost, ParentGone):
            raise
        except StoreError:
            if not again:
                error = failure(None, self.plan.origin.request_id)
                self._keeper.refuse({**self.response(), "status": Status.FAILED.value, "error": error})
            raise

    @property
    def claim(self) -> Claim | None:
        """By what right it runs here; None for one that no other worker knows of."""
        return self._keeper.claim if self._keeper.accepted else None

    async def _wait_and_answer(self) -> None:
        self._publish(self._stream.enqueue())
        async with self._queue.turn():
            self._publish(self._stream.leave_queue())
            await self._answer()

    async def _answer_at_once(self) -> None:
        self._publish(self._stream.start(warm_up=self.plan.request.warm_up))
        await self._answer()

    async def _answer(self) -> None:
        if self.plan.request.warm_up:
            await self._prefill()
            await self._finish(Status.COMPLETED)
        elif self.plan.compaction is None or await self._compact(self.plan.compaction):
            await self._converse()

    async def _compact(self, compaction: CompactionPlan) -> bool:
        """Let the model sum up what came before, and go on from there; return whether there is to be an answer."""
        summary = Summary()
        turn = await self._take_turn(
            self.plan.generation.prompt_token_ids, take=summary.take, before=self._begin_compaction
        )
        if turn.finish_reason is FinishReason.ABORT:
            await self._finish(Status.CANCELLED)
            return False
        if not summary.text:
            raise GenerationFailed("the model gave no summary")
        now = compacted(compaction, summary.text)
        self.plan = await asyncio.to_thread(go_on, self.plan, compaction, now)  # a summary may be long
        self._keeper.go_on(self.plan)
        self._compactions = len(self._turns)
        sealed, message = compaction.seal(now.as_bytes()), self.plan.input_messages[0]
        self._publish(self._stream.end_compaction(sealed, message))
        if compaction.sampling is None:
            await self._finish(Status.COMPLETED)
        return compaction.sampling is not None

    async def _begin_compaction(self) -> None:
        await self._begin()
        self._publish(self._stream.begin_compaction())

    async def _stop(self) -> None:
        """End as cancelled; where the server stops, as failed, or go back to the queue if nothing was said."""
        if self.lost:
            self._give_up()
        elif not self.stopping:
            await self._finish(Status.CANCELLED)
        elif not self.plan.background or self.has_spoken:
            self.problem = unanswered_by_stopped_server()
            await self._finish(Status.FAILED, error=server_stopped())
        elif not self.finishing:
            self.finishing = True
            try:
                await self._keeper.give_back({**self.response(), "status": Status.QUEUED.value})
                logger.info("response %s goes back to the queue: the server stops", self.response_id)
            except StoreError as problem:
                logger.error("response %s could not go back to the queue: %s", self.response_id, problem)
            self.journal.end()

    def _give_up(self) -> None:
        """Stop without a word to the store: another worker has decided what becomes of the response.

        It has let fail what could not be run again, and readers are told that; else it runs the response itself, and
        the stream here ends without an end.
        """
        self.lost = self.finishing = True
        logger.warning("response %s: another worker took it over, so it stops here", self.response_id)
        self.problem = unanswered_by_stopped_server()
        if self._keeper.runs_nowhere_else:
            self._publish(self._stream.finish(Ending(status=Status.FAILED, completed_at=0, error=server_stopped())))
        else:
            self.journal.end()

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
            turn = await self._take_turn(prompt, take=self._receive, before=self._begin, enough=self._has_enough)
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
            answered = len(self._stream.output) > self._compactions
            await self._finish(Status.COMPLETED if answered else Status.INCOMPLETE)

    async def _take_turn(
        self,
        prompt: Sequence[int],
        *,
        take: Callable[[list[HarmonyEvent]], None],
        before: Callable[[], Awaitable[None]],
        enough: Callable[[], bool] | None = None,
    ) -> Turn:
        request = replace(
            self.plan.generation,
            request_id=f"{self.response_id}-{len(self._turns)}",
            prompt_token_ids=prompt,
            sampling=replace(self.plan.generation.sampling, max_output_tokens=self._budget()),
        )
        turn = Turn(self._engine, request, enough=enough)
        self._turns.append(turn.usage)
        await turn.run(take, before=before)
        self._repairs += turn.repairs
        return turn

    @property
    def _has_enough(self) -> Callable[[], bool] | None:
        """What says, after each token, whether the model is to be stopped; None where it stops by itself."""
        return (lambda: self._stream.calls > 0) if self.plan.request.parallel_tool_calls is False else None

    async def _begin(self) -> None:
        """Before the first thing is said: from here on this response is never run again."""
        if not self.has_spoken:
            self._clockwork.first_token = time.monotonic()
            await self._keeper.begin()

    def _receive(self, events: list[HarmonyEvent]) -> None:
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
        spent = sum(turn.output_tokens for turn in self._turns[self._compactions :])
        return None if limit is None else max(0, limit - spent)

    def _publish(self, events: list[Event]) -> None:
        self.journal.extend(events)

    async def _fail(self, error: EngineError | None) -> None:
        """End as failed; None stands for an error of this server."""
        request_id = self.plan.origin.request_id
        self.problem = unanswered(error, request_id)
        await self._finish(Status.FAILED, error=failure(error, request_id))

    async def _finish(self, status: Status, *, error: JsonObject | None = None, reason: str | None = None) -> None:
        """End the response; a stored one is committed before its terminal event goes out."""
        if self.finishing:
            return
        self.finishing = True
        if status is not Status.FAILED:
            self._publish(self._stream.close())
        ending = Ending(
            status=status,
            completed_at=int(self._keeper.now()),
            usage=usage(self._turns) if self._turns else None,
            error=error,
            reason=reason,
        )
        link = self._keeper.link(self._stream, status)
        try:
            kept = await self._keeper.save(self._stream.outcome(ending), link, self._stream.sampled, self._measured())
        except ClaimLost:
            self._give_up()
            return
        if not kept:
            ending = replace(
                ending, status=Status.FAILED, error=failure(None, self.plan.origin.request_id), reason=None
            )
            link = None
            self.problem = unanswered(None, self.plan.origin.request_id)
            self._keeper.owe(self._stream.outcome(ending), self._measured())
        self.link = link
        self._publish(self._stream.finish(ending))
        self._log()

    def _measured(self) -> Measured:
        times = self._clockwork
        first = times.first_token
        return Measured(
            first_token_ms=None if first is None else round((first - times.started) * 1000),
            duration_ms=round((time.monotonic() - times.started) * 1000),
        )

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
        if self._compactions:
            remarks += " compacted"
        if self._stream.unknown_tools:
            remarks += f" unknown_tools={len(self._stream.unknown_tools)}"
        if self.abandoned_reason:
            remarks += f" ({self.abandoned_reason})"
        return remarks
