"""`DecisionService`: answers questions by the first token that a model would say: one generation of one token each.

All questions of a request begin with the same prompt, the input: so the engine reads it once, where it has a prefix
cache, and the rest for each.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from engine.errors import EngineError, GenerationFailed
from engine.formats.base import ModelFormat, Tokens, as_tokens
from engine.types import GenerationRequest, SamplingOptions, TokenChunk
from responses_app.observing import gen_ai
from responses_app.observing.metrics import Outcome
from responses_app.observing.traces import Span
from responses_app.protocol import ids
from responses_app.protocol.errors import context_length_exceeded, invalid_request, unsupported_parameter
from responses_app.protocol.prompt.prompt import characters_of, check_can_fit, text_size
from responses_app.protocol.prompt.rendering import Items, render_items
from responses_app.protocol.rate_limits import Amount, Slot
from responses_app.protocol.stateless.decisions import (
    INSTRUCTIONS,
    LETTERS,
    Answer,
    Decision,
    DecisionsWanted,
    Predicate,
    Question,
    answer,
    decision,
    labels,
    question_text,
)
from responses_app.protocol.tiers import PRIORITIES, ServiceTier
from responses_app.resources.usage.fields import UsedTokens
from responses_app.runs.driving.spans import operation_span, turn_span
from responses_app.runs.plan.failures import refusal
from responses_app.runs.plan.plan import Origin, session_of
from responses_app.runs.plan.planning import project_salt
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.plan.turns import TurnPlace
from responses_app.runs.service import ResponseService

logger = logging.getLogger("respsite.runs")

AT_ONCE = 8  # questions of a request that the engine answers beside each other
Labels = Sequence[Sequence[str]]  # of a question: the forms of each option's
TOP = 20  # alternatives that are looked at: what vLLM and OpenAI give


@dataclass(slots=True)
class _Used:
    """Tokens of a request, so far."""

    input: int = 0  # of all prompts
    cached: int = 0  # of these, read from the engine's prefix cache
    output: int = 0


@dataclass(slots=True)
class DecisionService:
    """Decides for clients. What it needs it has in common with `service`."""

    service: ResponseService

    async def decide(self, wanted: DecisionsWanted, origin: Origin) -> Decision:
        """Return the answers to all questions, in their order. Raises `ApiError`."""
        model = self.service.models.chosen(wanted.model, origin.models)
        if not model.engine.supports_logprobs:
            raise unsupported_parameter("model", "Decisions are made of log probabilities, and its engine gives none.")
        # As many places as generations run at once.
        with self.service.registry.guest(min(AT_ONCE, len(wanted.questions))):
            return await self._decide(wanted, model, origin)

    async def _decide(self, wanted: DecisionsWanted, model: ServedModel, origin: Origin) -> Decision:
        try:
            info = await model.ready()
            now = datetime.fromtimestamp(self.service.now(), UTC)
            # `size` decides only which thread does it.
            size, threads = text_size(Items(wanted.items)), self.service.threads
            prompts = await threads.run(origin.project, size, prompts_of, wanted, model.format, now, info.max_model_len)
        except EngineError as error:
            raise refusal(error, origin.request_id) from error
        tier, began, status = self.service.settings.tier(None), time.monotonic(), "failed"
        used, place = _Used(), model.turns.place(origin.project, tier, PRIORITIES[tier])
        place.admit()
        try:
            amount = Amount(1, prompts.tokens, len(prompts.questions))
            ticket = await self.service.rates.admit(origin.limited, amount, Slot.RESPONSE)
        finally:
            place.leave()  # each question has a turn of its own
        try:
            name = wanted.model or model.name
            with operation_span(origin, gen_ai.CHAT, name) as span:
                below = replace(origin, span=span)
                answers = await self._answers(wanted, prompts, model, below, tier, used)
                span.note(gen_ai.usage(input=used.input, cached=used.cached, output=used.output))
            status = "completed"
        except EngineError as error:
            logger.warning("decisions: the engine failed: %s: %s", type(error).__name__, error)
            raise refusal(error, origin.request_id) from error
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            # Whatever came of it: what the engine has read counts.
            ticket.settle(Amount(1, used.input, used.output))
            tokens = UsedTokens(input=used.input, cached=used.cached, output=used.output)
            self.service.usage.note(origin, model.name, "decisions", tokens)
            _note(model, origin, status, len(prompts.questions), used, time.monotonic() - began)
        return decision(model.name, answers, input_tokens=used.input, cached=used.cached, output=used.output)

    async def _answers(
        self,
        wanted: DecisionsWanted,
        prompts: "Prompts",
        model: ServedModel,
        origin: Origin,
        tier: ServiceTier,
        used: _Used,
    ) -> list[Answer]:
        """Ask all questions, some at once. The first failure ends the others."""
        request_id, few = self.service.new_id(ids.DECISION), asyncio.Semaphore(AT_ONCE)
        priority = PRIORITIES[tier]

        async def ask(number: int, question: Question) -> Answer:
            async with few:
                waits = model.format.renders_elsewhere
                threads = self.service.threads
                prompt = await threads.wait(origin.project, prompts.whole, number) if waits else prompts.whole(number)
                place = model.turns.place(origin.project, tier, priority)
                first = await _first_token(model, request_for(number, prompt), place, used, origin.span)
            return answer(question, _read(prompts.labels[number], model.format, first))

        def request_for(number: int, prompt: "Tokens[int]") -> GenerationRequest:
            return GenerationRequest(
                request_id=f"{request_id}-{number}",
                prompt_token_ids=prompt,
                sampling=SamplingOptions(
                    max_output_tokens=1, temperature=0.0, top_logprobs=TOP, stop_token_ids=model.format.stop_tokens
                ),
                priority=priority if model.engine.supports_priority else 0,
                cache_salt=project_salt(origin) if model.engine.supports_cache_salt else None,
                session=session_of(origin, root=request_id),
            )

        tasks = [asyncio.create_task(ask(number, question)) for number, question in enumerate(wanted.questions)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            # After the first failure the others still run; after success this does nothing.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a request in parts: each whole prompt is a copy of the input."""

    written: ModelFormat  # how the model is written to
    shared: "Tokens[int]"  # the frame and the input, with which all prompts begin
    questions: Sequence["Tokens[int]"]  # what follows it, for each question
    labels: Sequence[Labels]  # of each question

    @property
    def tokens(self) -> int:
        """How many tokens all prompts have together; where they are rendered elsewhere an estimate."""
        before_each = len(self.shared) + len(self.written.answer_at_once())
        return before_each * len(self.questions) + sum(map(len, self.questions))

    def whole(self, number: int) -> "Tokens[int]":
        """Return the prompt of a question, behind which its answer begins. Raises `EngineError`.

        Blocks where it is rendered elsewhere.
        """
        prompt = as_tokens(self.written.prompt_of(self.shared + self.questions[number]))
        prompt.extend(self.written.answer_at_once())
        return prompt


def prompts_of(wanted: DecisionsWanted, written: ModelFormat, now: datetime, max_model_len: int) -> Prompts:
    """Return a prompt for each question; none that has no room in the context. Raises `ApiError`.

    How long prompts are that are rendered elsewhere is seen once they are.
    """
    check_can_fit(characters_of(Items(wanted.items, wanted.items_json)), written, max_model_len)
    labelled = [_labels(question, number, written) for number, question in enumerate(wanted.questions)]
    if written.renders_elsewhere:
        max_model_len = sys.maxsize
    start = len(written.answer_at_once())
    shared = as_tokens(
        written.frame(instructions=INSTRUCTIONS, functions=(), effort="low", date=now.date().isoformat())
    )
    for message in render_items(written, wanted.items, wanted.items_json, parent=None, sampled={}):
        shared.extend(message.tokens)
    _check_fits(len(shared), max_model_len)  # before each of hundreds of questions is looked at
    questions: list[Tokens[int]] = []
    for question, named in zip(wanted.questions, labelled, strict=True):
        behind = as_tokens(written.user(question_text(question, named)).tokens)
        behind.extend(written.generation_start())
        _check_fits(len(shared) + len(behind) + start, max_model_len)
        questions.append(behind)
    return Prompts(written, shared, questions, labelled)


def _labels(question: Question, number: int, written: ModelFormat) -> Labels:
    known = labels(question, written.is_one_token)
    if known is not None:
        return known
    if labels(Predicate(type="predicate", instructions="-"), written.is_one_token) is None:
        raise unsupported_parameter("model", "Its labels are not known as tokens here, so it makes no decisions.")
    raise invalid_request(
        f"Invalid value for 'questions[{number}]': this model has no token of its own for each of so many options. Ask "
        f"for {len(LETTERS)} at most.",
        param=f"questions[{number}]",
        code="invalid_value",
    )


def _check_fits(tokens: int, max_model_len: int) -> None:
    if tokens >= max_model_len:
        raise context_length_exceeded(tokens, max_model_len)


async def _first_token(
    model: ServedModel, request: GenerationRequest, place: TurnPlace, used: _Used, span: Span
) -> TokenChunk:
    """Return the chunk with the first token that the model would say. Raises `EngineError`."""
    first: TokenChunk | None = None
    async with place.turn():
        with turn_span(request, below=span) as turn:
            traced = replace(request, trace_headers=turn.headers)
            async with aclosing(model.engine.generate(traced)) as chunks:
                used.input += len(request.prompt_token_ids)
                async for chunk in chunks:
                    used.output += len(chunk.token_ids)
                    used.cached += chunk.cached_tokens or 0
                    if first is None and chunk.token_ids:
                        first = chunk
    if first is None or not first.logprobs:
        raise GenerationFailed("The engine gave no log probabilities of the first token.")
    return first


def _read(labelled: Labels, written: ModelFormat, chunk: TokenChunk) -> list[float]:
    """Return how likely each option is: the sum over the forms of its label that are among the likeliest tokens."""
    assert chunk.logprobs, "it was looked at"
    first = chunk.logprobs[0]
    # The sampled token is among the likeliest, or not: either way it counts once.
    known = {**dict(first.top), first.token_id: first.logprob}
    texts = [(written.token_bytes(token).strip().decode(errors="replace"), value) for token, value in known.items()]
    values = []
    for forms in labelled:
        mass = math.fsum(math.exp(value) for text, value in texts if text in forms)
        values.append(math.log(mass) if mass > 0 else -math.inf)
    return values


def _note(model: ServedModel, origin: Origin, status: str, questions: int, used: _Used, seconds: float) -> None:
    model.meter.ended(
        Outcome(
            transport=origin.transport,
            status=status,
            input_tokens=used.input,
            cached_tokens=used.cached,
            output_tokens=used.output,
            duration=seconds,
        )
    )
    logger.info(
        "decisions %s %s questions=%d input=%d output=%d duration=%dms",
        model.name,
        status,
        questions,
        used.input,
        used.output,
        seconds * 1000,
    )
