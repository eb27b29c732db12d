"""`CompletionService`: completes raw prompts: no conversation, no items, nothing that is kept.

    create() ──> Completing ── deltas() ──> whoever encodes them
                     └── one task a choice: a turn at the engine, tokens → text

A choice is a generation of its own. It waits for its turn as a response does, goes on where a replica of the engine
dies, and ends with its reader: who lets go of a `Completing` ends all its generations.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from engine.errors import EngineError, EngineUnavailable, GenerationCut
from engine.formats.base import as_tokens
from engine.types import FinishReason, GenerationRequest, SamplingOptions, TokenChunk
from responses_app.limits.rates import Ticket
from responses_app.observing.metrics import Outcome
from responses_app.protocol import ids
from responses_app.protocol.completion_text import CompletionText
from responses_app.protocol.completions import ChoiceDelta, CompletionHead, CompletionUsage, CompletionWanted
from responses_app.protocol.errors import (
    ApiError,
    server_error,
    too_slow,
    unsupported_parameter,
)
from responses_app.protocol.rate_limits import Amount, Slot
from responses_app.protocol.tiers import PRIORITIES
from responses_app.runs.completion_prompts import check_tokens, read_prompts
from responses_app.runs.continuing import Continuing
from responses_app.runs.deltas import Deltas
from responses_app.runs.failures import refusal, unanswered_by_stopped_server
from responses_app.runs.fair_turns import Place
from responses_app.runs.journal import ReaderTooSlow
from responses_app.runs.plan import Origin
from responses_app.runs.planning import project_salt
from responses_app.runs.served import ServedModel
from responses_app.runs.service import ResponseService

logger = logging.getLogger("respsite.runs")

LONG_PROMPTS = 4096  # characters, or tokens, of a request's prompts; what is longer is read on a thread


@dataclass(slots=True)
class CompletionService:
    """Starts completions, and stops them all at the server's end. What it needs it has in common with `service`."""

    service: ResponseService
    running: "set[Completing]" = field(default_factory=set)

    async def create(self, wanted: CompletionWanted, origin: Origin) -> "Completing":
        """Start what is asked. Raises `ApiError` for all that can be known before."""
        registry, count = self.service.registry, len(wanted.prompts) * wanted.n
        registry.take_places(count)  # at once, or others would take the same places meanwhile
        try:
            return await self._start(wanted, origin)
        except BaseException:
            for _ in range(count):
                registry.give_place()
            raise

    async def _start(self, wanted: CompletionWanted, origin: Origin) -> "Completing":
        model = self.service.models.chosen(wanted.fields.model, origin.models)
        if wanted.fields.logprobs is not None and not model.engine.supports_logprobs:
            raise unsupported_parameter("logprobs", "The engine here gives no log probabilities; leave it out.")
        head = CompletionHead(id=self.service.new_id(ids.COMPLETION), created=int(self.service.now()), model=model.name)
        tier = self.service.limits.tiers.choose(None)
        choices = await _choices(wanted, model, origin, head.id, PRIORITIES[tier])
        places = [model.turns.place(origin.project, tier, PRIORITIES[tier]) for _ in choices]
        try:
            for place in places:
                place.admit()
            prompt_tokens = sum(len(each.request.prompt_token_ids) for each in choices[:: wanted.n])
            amount = Amount(1, prompt_tokens, max(1, sum(choice.left for choice in choices)))
            ticket = await self.service.rates.admit(origin.limited, amount, Slot.RESPONSE)
        except BaseException:
            for place in places:
                place.leave()
            raise
        deltas = Deltas(max_bytes=self.service.limits.max_lag_bytes)
        completing = Completing(head, model, origin, ticket, deltas=deltas, left=self.running.discard)
        completing.ended_one = self.service.registry.give_place
        completing.usage.prompt_tokens = prompt_tokens
        self.running.add(completing)
        completing.start(choices, places)
        return completing

    async def aclose(self, *, grace: float) -> None:
        """Give what runs `grace` seconds to end, and then stop it; its readers are told."""
        if self.running:
            waits = [asyncio.create_task(each) for each in (self._all_ended(), self.service.registry.hurried())]
            await asyncio.wait(waits, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        for each in list(self.running):
            each.stop()

    async def _all_ended(self) -> None:
        while self.running:
            await next(iter(self.running)).ended.wait()


@dataclass(slots=True)
class _Choice:
    """One completion of a prompt: what the engine is asked, and its text so far."""

    request: GenerationRequest
    text: CompletionText
    left: int  # tokens that may still be sampled


async def _choices(
    wanted: CompletionWanted, model: ServedModel, origin: Origin, response_id: str, priority: int
) -> list[_Choice]:
    """Return all choices, in their order. Raises `ApiError`."""
    try:
        await model.engine.health()
        if (info := model.info()) is None:
            raise EngineUnavailable("The engine is starting.")
    except EngineError as error:
        raise refusal(error, origin.request_id) from error
    fields, choices = wanted.fields, list[_Choice]()
    stop_tokens = tuple(fields.stop_token_ids or ())
    check_tokens(stop_tokens, model, "stop_token_ids")
    sampling = SamplingOptions(
        temperature=fields.temperature,
        top_p=fields.top_p,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        top_logprobs=fields.logprobs,
        stop_token_ids=tuple(dict.fromkeys((*model.format.stop_tokens, *stop_tokens))),
    )
    read = partial(read_prompts, wanted, model, info.max_model_len)
    long = sum(map(len, wanted.prompts)) > LONG_PROMPTS
    for tokens, begin in await asyncio.to_thread(read) if long else read():
        for _ in range(wanted.n):
            request = GenerationRequest(
                request_id=f"{response_id}-{len(choices)}",
                prompt_token_ids=tokens,
                sampling=sampling,
                priority=priority if model.engine.supports_priority else 0,
                cache_salt=project_salt(origin) if model.engine.supports_cache_salt else None,
                affinity=response_id,
            )
            text = CompletionText(
                len(choices),
                model.format,
                stops=wanted.stops,
                stop_tokens=stop_tokens,
                logprobs=fields.logprobs is not None,
                begin=begin,
            )
            choices.append(_Choice(request, text, min(info.max_model_len - len(tokens), wanted.max_tokens)))
    return choices


class Completing:
    """The completions of one request, as they come. Whoever has it lets go of it with `aclose`."""

    def __init__(
        self,
        head: CompletionHead,
        model: ServedModel,
        origin: Origin,
        ticket: Ticket,
        *,
        deltas: Deltas,
        left: "Callable[[Completing], None]",
    ) -> None:
        self.head = head
        self.usage = CompletionUsage()
        self.ended = asyncio.Event()
        self.ended_one: Callable[[], None] = lambda: None  # called when a choice has ended
        self._model = model
        self._origin = origin
        self._ticket = ticket
        self._left = left
        self._deltas = deltas
        self._tasks: list[asyncio.Task[None]] = []
        self._began = time.monotonic()
        self._first_token: float | None = None
        self._status = "cancelled"
        self._error: str | None = None
        self._stopped = False
        self._closing = False

    def start(self, choices: Sequence[_Choice], places: Sequence[Place]) -> None:
        """Begin to generate all choices."""
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
        self._closing = True
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            usage = self.usage
            self._ticket.settle(Amount(1, usage.prompt_tokens, usage.completion_tokens))
            self._note()
            self._left(self)
            self.ended.set()

    async def _run(self, choice: _Choice, place: Place) -> None:
        try:
            async with place.turn():
                await self._complete(choice)
        except asyncio.CancelledError:
            if not self._stopped or self._closing:
                raise
            self._deltas.fail(unanswered_by_stopped_server())
        except EngineError as error:
            logger.warning("completion %s: the engine failed: %s: %s", self.head.id, type(error).__name__, error)
            self._deltas.fail(refusal(error, self._origin.request_id))
        except Exception:
            logger.exception("completion %s broke", self.head.id)
            self._deltas.fail(server_error(self._origin.request_id))
        finally:
            place.leave()

    def _give_up_reader(self) -> None:
        """End all other choices too; the reader is told why, where it reads on."""
        logger.warning("completion %s: its reader fell more than STREAM_MAX_LAG_BYTES behind", self.head.id)
        problem = too_slow()
        self._fail(problem)
        self._deltas.give_up(problem)
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _complete(self, choice: _Choice) -> None:
        """Generate a choice, as often as it is cut and can go on."""
        continuing, meter = Continuing(self._model.engine), self._model.meter.turn()
        while True:
            if not choice.left:
                await self._take(choice, TokenChunk(token_ids=(), finish_reason=FinishReason.LENGTH))
                return
            request = _further(choice, continuing)
            try:
                async with aclosing(self._sampled(request)) as chunks:
                    async for chunk in chunks:
                        if meter is not None and chunk.token_ids:
                            meter.note(len(chunk.token_ids))
                        if await self._take(choice, chunk):
                            return
                await self._take(choice, TokenChunk(token_ids=(), finish_reason=FinishReason.STOP))
                return
            except EngineError as error:
                await continuing.wait(error)
                if isinstance(error, GenerationCut):
                    self._model.meter.continued()

    async def _sampled(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        attributes = {"respsite.prompt_tokens": len(request.prompt_token_ids)}
        with self._origin.span.child("completion", attributes, calls=True) as span:
            traced = replace(request, trace_headers=span.headers)
            async with aclosing(self._model.engine.generate(traced)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _take(self, choice: _Choice, chunk: TokenChunk) -> bool:
        """Count a chunk and tell what it says; return whether its choice has ended."""
        count = len(chunk.token_ids)
        if count and self._first_token is None:
            self._first_token = time.monotonic() - self._began
        choice.left -= count
        self.usage.completion_tokens += count
        if chunk.finish_reason is not None:
            self.usage.cached_tokens += chunk.cached_tokens or 0
        delta = choice.text.feed(chunk)
        if delta is not None:
            try:
                self._deltas.put(delta, count)
            except ReaderTooSlow:
                self._give_up_reader()
                return True
            if self._deltas.are_many:
                await asyncio.sleep(0)  # an engine that gives many at once lets the reader have its turn
        return choice.text.ended

    def _note(self) -> None:
        seconds, usage = time.monotonic() - self._began, self.usage
        self._model.meter.ended(
            Outcome(
                transport=self._origin.transport,
                status=self._status,
                error=self._error,
                input_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
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


def _further(choice: _Choice, continuing: Continuing) -> GenerationRequest:
    """Return what generates the rest of a choice, behind what of it was sampled before it was cut."""
    request, said = choice.request, choice.text.tokens
    sampling = replace(request.sampling, max_output_tokens=choice.left)
    if not continuing.cuts:
        return replace(request, sampling=sampling)
    prompt = as_tokens(request.prompt_token_ids)
    prompt.extend(said)
    again = f"{request.request_id}.{continuing.cuts}"
    return replace(request, request_id=again, prompt_token_ids=prompt, sampling=sampling, avoid=continuing.avoid)
