"""`Completing`: the completions of one request while they are generated.

    one task a choice: a turn at the engine, tokens → text ──> deltas ──> take() ──> whoever encodes them

A choice is a generation of its own. It waits for its turn as a response does, goes on where a replica of the engine
dies, and ends with its reader: who lets go of a `Completing` ends all its generations.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import EngineError, GenerationCut
from engine.formats.base import as_tokens
from engine.types import FinishReason, GenerationRequest, TokenChunk
from responses_app.limits.rates import Ticket
from responses_app.observing import gen_ai
from responses_app.observing.metrics import Outcome
from responses_app.observing.traces import NO_SPAN, Span
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import ApiError, server_error, too_slow
from responses_app.protocol.rate_limits import Amount
from responses_app.protocol.rollouts.generations import RecordedResponse
from responses_app.protocol.rollouts.recording import CompletionRecorder, asking_logprobs
from responses_app.protocol.stateless.completions import (
    ChoiceDelta,
    CompletionHead,
    CompletionText,
    CompletionTokens,
    in_completions_names,
)
from responses_app.resources.usage.fields import UsedTokens
from responses_app.runs.driving.generating import Continuing
from responses_app.runs.driving.spans import turn_span
from responses_app.runs.driving.unsaved import UsageBook
from responses_app.runs.log.journal import ENTRY_BYTES, ReaderTooSlow
from responses_app.runs.plan.failures import refusal, unanswered_by_stopped_server
from responses_app.runs.plan.plan import Origin
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.plan.turns import TurnPlace

logger = logging.getLogger("respsite.runs")

READ_AT_ONCE = 64  # that are taken and written together, where a reader is behind
TOKEN_BYTES = 16  # of memory for a token, about, and ten times that for each of its log probabilities


class Deltas:
    """A queue with one reader, which may be `max_bytes` behind."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: deque[tuple[ChoiceDelta, int]] = deque()  # with their bytes
        self._problem: ApiError | None = None
        self._news = asyncio.Event()

    @property
    def are_many(self) -> bool:
        """Whether more wait than are taken at once."""
        return len(self._waiting) > READ_AT_ONCE

    def put(self, delta: ChoiceDelta, tokens: int) -> None:
        """Add what this many tokens say. Raises `ReaderTooSlow` where too much waits already.

        An echo does not count: it comes at once, and is as long as the request.
        """
        # Looked at before adding: one delta may go over the bound, however large it is.
        if self._bytes > self._max_bytes:
            raise ReaderTooSlow
        size = ENTRY_BYTES + tokens * TOKEN_BYTES
        if delta.logprobs is not None:
            size += 10 * TOKEN_BYTES * sum(len(each or ()) for each in delta.logprobs["top_logprobs"])
        self._bytes += size
        self._waiting.append((delta, size))
        self._news.set()

    def fail(self, problem: ApiError) -> None:
        """Tell of a failure behind what waits; the first one is told."""
        self._problem = self._problem or problem
        self._news.set()

    def give_up(self, problem: ApiError) -> None:
        """Tell of a failure instead of what waits."""
        self._waiting.clear()
        self._bytes = 0
        self._problem = problem
        self._news.set()

    async def take(self, seconds: float | None = None) -> list[ChoiceDelta]:
        """Return the next ones, none where nothing came in these seconds. Raises the failure once it is their turn."""
        if not self._waiting and self._problem is None:
            # Nothing is awaited between the check above and this, so no news get lost.
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return []
        # What came before the failure is taken first.
        if not self._waiting and self._problem is not None:
            raise self._problem
        taken: list[ChoiceDelta] = []
        while self._waiting and len(taken) < READ_AT_ONCE:
            delta, size = self._waiting.popleft()
            self._bytes -= size
            taken.append(delta)
        return taken


@dataclass(slots=True)
class OpenChoice:
    """One completion of a prompt: what the engine is asked, and its text so far."""

    request: GenerationRequest  # as it is without a cut
    text: CompletionText  # what was said so far
    left: int  # tokens that may still be sampled
    gives_tokens: bool = False  # its deltas have token ids, too
    gives_logprobs: bool = False  # and the log probabilities of its prompt, in a list of their own
    only_reads: bool = False  # nothing is sampled: the engine is asked about the prompt alone
    counts: bool = False  # each part of its text says what it has used so far
    sampled: int = 0  # tokens
    recorder: CompletionRecorder | None = None  # of the roll-out that it is part of


class Completing:
    """The completions of one request, as they come. Whoever has it lets go of it with `aclose`."""

    def __init__(  # noqa: PLR0913 - all that it is made of
        self,
        head: CompletionHead,
        model: ServedModel,
        origin: Origin,
        ticket: Ticket,
        *,
        deltas: Deltas,
        book: UsageBook,
        left: "Callable[[Completing], None]",
    ) -> None:
        self.head = head
        self.usage = CompletionTokens()
        self.kv_transfer_params: Mapping[str, Any] | None = None  # what the engine gives for the next one
        self.ended_one: Callable[[], None] = lambda: None  # called when a choice has ended
        self.keep: Callable[[RecordedResponse], Awaitable[None]] = _kept_nowhere  # what a roll-out records
        self._model = model
        self._origin = origin
        self._ticket = ticket
        self._book = book
        self._left = left
        self._deltas = deltas
        self._tasks: list[asyncio.Task[None]] = []
        self._span: Span = NO_SPAN
        self._began = time.monotonic()
        self._first_token: float | None = None
        self._status = "cancelled"
        self._error: str | None = None
        self._stopped = False
        self._closing = False

    def start(self, choices: Sequence[OpenChoice], places: Sequence[TurnPlace], span: Span = NO_SPAN) -> None:
        """Begin to generate all choices, below a span that ends with them."""
        self._span = span
        self._open = len(choices)
        self._tasks = [
            asyncio.create_task(self._run(choice, place), name=choice.request.request_id)
            for choice, place in zip(choices, places, strict=True)
        ]
        for task in self._tasks:
            task.add_done_callback(lambda _: self.ended_one())

    async def take(self, seconds: float | None = None) -> list[ChoiceDelta]:
        """Return what comes next, nothing where nothing did in these seconds. Raises `ApiError` where one has failed.

        Whoever takes too little of it is given up: it never waits for its reader while the engine works for it.
        """
        try:
            deltas = await self._deltas.take(seconds)
        except ApiError as problem:
            self._fail(problem)
            raise
        # Counted when it is told, not when it is generated: `completed` means that the reader has had all of it.
        self._open -= sum(each.finish_reason is not None for each in deltas)
        if not self._open:
            self._status = "completed"
        return deltas

    def _fail(self, problem: ApiError) -> None:
        self._status, self._error = "failed", problem.code or problem.type

    @property
    def generating(self) -> int:
        """How many of its choices have not ended."""
        return sum(not task.done() for task in self._tasks)

    @property
    def is_over(self) -> bool:
        """Whether all choices have been told to their ends."""
        return not self._open

    def stop(self) -> None:
        """End it since the server stops; its reader is told so."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    async def aclose(self) -> None:
        """End what still runs, count what was used, and let go. Twice is not an error."""
        if self._closing:
            return
        # Set before the first await: a second call must not settle the ticket again.
        self._closing = True
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            usage = self.usage
            self._ticket.settle(Amount(1, usage.prompt_tokens, usage.completion_tokens))
            tokens = UsedTokens(input=usage.prompt_tokens, cached=usage.cached_tokens, output=usage.completion_tokens)
            self._book.note(self._origin, self.head.model, "completions", tokens, of=self.head.id)
            self._note()
            self._left(self)

    async def _run(self, choice: OpenChoice, place: TurnPlace) -> None:
        try:
            async with place.turn():
                if choice.recorder is not None:
                    choice.recorder.ask()
                try:
                    await self._complete(choice)
                finally:
                    await self._record(choice)
        except asyncio.CancelledError:
            # Only a stop of the server is told to the reader. Otherwise the reader itself has left.
            if not self._stopped or self._closing:
                raise
            self._deltas.fail(unanswered_by_stopped_server())
        except EngineError as error:
            logger.warning("completion %s: the engine failed: %s: %s", self.head.id, type(error).__name__, error)
            self._deltas.fail(in_completions_names(refusal(error, self._origin.request_id)))
        except Exception:
            logger.exception("completion %s broke", self.head.id)
            self._deltas.fail(server_error(self._origin.request_id))
        finally:
            # Also where the task was cancelled before it came to `turn`.
            place.leave()

    def _give_up_reader(self) -> None:
        """End all other choices too; the reader is told why, where it reads on."""
        logger.warning("completion %s: its reader fell more than STREAM_MAX_LAG_BYTES behind", self.head.id)
        problem = too_slow()
        self._fail(problem)
        self._deltas.give_up(problem)
        for task in self._tasks:
            # The one that found out ends by itself.
            if task is not asyncio.current_task():
                task.cancel()

    async def _complete(self, choice: OpenChoice) -> None:
        """Generate a choice, as often as it is cut and can go on."""
        continuing, meter = Continuing(self._model.engine), self._model.meter.turn()
        while True:
            if not choice.left and not choice.only_reads:
                await self._take(choice, TokenChunk(token_ids=(), finish_reason=FinishReason.LENGTH))
                return
            request = _further(choice, continuing)
            if choice.recorder is not None and self._model.engine.supports_logprobs:
                request = asking_logprobs(request)
            try:
                async with aclosing(self._sampled(request)) as chunks:
                    async for chunk in chunks:
                        if meter is not None and chunk.token_ids:
                            meter.note(len(chunk.token_ids))
                        if await self._take(choice, _only_read(chunk) if choice.only_reads else chunk):
                            return
                await self._take(choice, TokenChunk(token_ids=(), finish_reason=FinishReason.STOP))
                return
            except EngineError as error:
                if choice.recorder is not None:
                    choice.recorder.end(error)
                await continuing.wait(error)
                if isinstance(error, GenerationCut):
                    self._model.meter.continued()

    async def _sampled(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        with turn_span(request, below=self._span) as span:
            traced = replace(request, trace_headers=span.headers)
            async with aclosing(self._model.engine.generate(traced)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _take(self, choice: OpenChoice, chunk: TokenChunk) -> bool:
        """Count a chunk and tell what it says; return whether its choice has ended."""
        count = len(chunk.token_ids)
        if choice.recorder is not None:
            choice.recorder.take(chunk)
        if count and self._first_token is None:
            self._first_token = time.monotonic() - self._began
        choice.left -= count
        choice.sampled += count
        self.usage.completion_tokens += count
        # Of each generation once: after a cut there are several first chunks, and one last chunk.
        if chunk.finish_reason is not None:
            self.usage.cached_tokens += chunk.cached_tokens or 0
        if chunk.kv_transfer_params is not None:
            self.kv_transfer_params = chunk.kv_transfer_params
        # The log probabilities of a prompt are many.
        is_long = chunk.prompt_logprobs is not None
        told = await asyncio.to_thread(choice.text.feed, chunk) if is_long else choice.text.feed(chunk)
        delta = await self._with_details(choice, chunk, told)
        if choice.text.ended:
            await self._record(choice)  # before its end is told
        if delta is not None:
            if choice.counts:
                delta.counted = CompletionTokens(
                    prompt_tokens=len(choice.request.prompt_token_ids), completion_tokens=choice.sampled
                )
            try:
                self._deltas.put(delta, count)
            except ReaderTooSlow:
                self._give_up_reader()
                return True
            if self._deltas.are_many:
                await asyncio.sleep(0)  # an engine that gives many at once lets the reader have its turn
        return choice.text.ended

    async def _record(self, choice: OpenChoice) -> None:
        """Keep what a choice adds to its roll-out. Raises `StoreError`."""
        recorder, choice.recorder = choice.recorder, None
        if recorder is not None and recorder.has_tokens:
            await self.keep(recorder.recorded(self._origin.project, self.head.model))

    async def _with_details(
        self, choice: OpenChoice, chunk: TokenChunk, delta: ChoiceDelta | None
    ) -> ChoiceDelta | None:
        """Add what was asked for of the engine's work; there may be no text of it yet."""
        if choice.gives_tokens and (chunk.token_ids or delta is not None):
            delta = delta or ChoiceDelta(index=choice.text.index)
            delta.token_ids = list(chunk.token_ids)
            if len(choice.text.tokens) == len(chunk.token_ids):
                delta.prompt_token_ids = choice.request.prompt_token_ids
        if choice.gives_logprobs and chunk.prompt_logprobs is not None:
            delta = delta or ChoiceDelta(index=choice.text.index)
            details = EngineDetails(prompt_logprobs=chunk.prompt_logprobs, token_bytes=self._model.format.token_bytes)
            delta.prompt_logprobs = await asyncio.to_thread(details.logprobs_as_json)
        return delta

    def _note(self) -> None:
        seconds, usage = time.monotonic() - self._began, self.usage
        tokens = {"cached": usage.cached_tokens, "output": usage.completion_tokens}
        self._span.note(gen_ai.usage(input=usage.prompt_tokens, **tokens))
        self._span.note({"gen_ai.response.id": self.head.id, "gen_ai.response.model": self.head.model})
        if self._error is not None:
            self._span.fail(self._error)
        self._span.end()
        self._model.meter.ended(
            Outcome(
                transport=self._origin.transport,
                status=self._status,
                error=self._error,
                input_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.completion_tokens,
                operation=gen_ai.TEXT_COMPLETION,
                first_token=self._first_token,
                duration=seconds,
            )
        )
        logger.info(
            "completion %s %s %s input=%d output=%d duration=%dms",
            self.head.id,
            self._origin.transport,
            self._status,
            usage.prompt_tokens,
            usage.completion_tokens,
            seconds * 1000,
        )


async def _kept_nowhere(_: RecordedResponse) -> None:
    """Nothing is recorded where nobody has said where it is kept."""


def _only_read(chunk: TokenChunk) -> TokenChunk:
    """Return what the engine says of a prompt, without the token that it has sampled behind it."""
    return replace(chunk, token_ids=(), logprobs=None, finish_reason=FinishReason.LENGTH)


def _further(choice: OpenChoice, continuing: Continuing) -> GenerationRequest:
    """Return what generates the rest of a choice, behind what of it was sampled before it was cut."""
    request, sampled = choice.request, choice.text.tokens
    # No engine samples nothing: one token is, and is not looked at.
    sampling = request.sampling.but(max_output_tokens=choice.left or 1)
    if not continuing.cuts:
        return replace(request, sampling=sampling)
    prompt = as_tokens(request.prompt_token_ids)
    prompt.extend(sampled)
    again = f"{request.request_id}.{continuing.cuts}"
    if sampled:  # the prompt, and caches of others, are behind it
        sampling, request = sampling.but(prompt_logprobs=None), replace(request, kv_transfer_params=None)
    return replace(request, request_id=again, prompt_token_ids=prompt, sampling=sampling, avoid=continuing.avoid)
