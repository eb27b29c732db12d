"""A turn, as the engine is asked for it: its prompt, its grammar, and how it goes on where it was cut.

A turn that is cut goes on behind what of it was sampled: where its worker died, on another worker that has its log;
where only a replica of the engine died, here. Both are the same: the machine wants a `Generate` that has begun.
Example: of a turn with a prompt of 9 tokens and a budget of 50, 20 tokens were sampled when the replica went away. The
engine is asked again with a prompt of 29 tokens and a budget of 30, and readers see nothing of it but a pause.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from engine.backends.base import BaseEngine
from engine.errors import EngineError, GrammarBroken
from engine.formats.base import ItemEnded, as_tokens
from engine.grammar import TurnGrammar
from engine.types import FinishReason, GenerationRequest, TokenChunk
from responses_app.observing.traces import NO_SPAN, Span
from responses_app.protocol.response.commands import Generate
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.queues.fair_turns import Place

logger = logging.getLogger("respsite.runs")


async def prefill(engine: BaseEngine, plan: RunPlan, place: Place) -> None:
    """Leave the prompt in the engine's prefix cache, if it can. Where that fails, a warm-up is one all the same."""
    if not engine.supports_prefill:
        return
    generation = plan.generation
    sampling = replace(generation.sampling, max_output_tokens=1, top_logprobs=None)
    try:
        async with place.turn(), aclosing(engine.generate(replace(generation, sampling=sampling))) as said:
            async for _ in said:
                pass
    except EngineError as error:
        logger.warning("response %s: not prefilled: %s: %s", plan.response_id, type(error).__name__, error)


def span_of(plan: RunPlan, turn: int, request: GenerationRequest) -> Span:
    """Begin the span of a turn, in which the engine works."""
    attributes = {"respsite.turn": turn, "respsite.prompt_tokens": len(request.prompt_token_ids)}
    return plan.origin.span.child("turn", attributes, calls=True)


async def request_of(plan: RunPlan, wanted: Generate, *, cuts: int, avoid: str) -> GenerationRequest:
    """Return what `request_for` returns, of a thread where that takes long."""
    if plan.format.renders_elsewhere and wanted.said:
        return await asyncio.to_thread(request_for, plan, wanted, cuts=cuts, avoid=avoid)
    return request_for(plan, wanted, cuts=cuts, avoid=avoid)


def request_for(plan: RunPlan, wanted: Generate, *, cuts: int = 0, avoid: str = "") -> GenerationRequest:
    """Return what generates a turn, behind what of it was sampled already.

    `cuts`: how often it was cut here; what was asked then may still run somewhere, and so ids differ. `avoid`: where it
    was cut last.
    """
    generation = plan.generation
    return replace(
        generation,
        request_id=f"{plan.response_id}{f'.{cuts}' if cuts else ''}-{wanted.turn}",
        prompt_token_ids=_prompt(plan, wanted),
        sampling=replace(generation.sampling, max_output_tokens=wanted.budget),
        avoid=avoid,
        grammar=None if wanted.aside else _grammar(plan, wanted),
    )


def generated(
    engine: BaseEngine, plan: RunPlan, wanted: Generate, request: GenerationRequest, span: Span
) -> AsyncGenerator[TokenChunk, None]:
    """Return what the engine samples, traced below `span`.

    Raises `GrammarBroken` before the end of a content that does not fit its rule.
    """
    if span is not NO_SPAN:
        request = replace(request, trace_headers=span.headers)
    if plan.details is not None and not wanted.aside:
        request = plan.details.asked_of(request)
    chunks = engine.generate(request)
    if request.grammar is None or not request.grammar.loose:
        return chunks
    return _checked(chunks, plan, wanted, request.grammar)


async def _checked(
    chunks: AsyncGenerator[TokenChunk, None], plan: RunPlan, wanted: Generate, grammar: TurnGrammar
) -> AsyncGenerator[TokenChunk, None]:
    """Yield chunks; a content that was cut in its middle is checked before its end is told to anybody.

    No engine can be held to the rest of a content. A model that has begun one nearly always ends it well.
    """
    said, parser = list(wanted.sampled), plan.format.parser([rule.name for rule in grammar.rules.calls])
    parser.feed(said)
    async with aclosing(chunks):
        async for chunk in chunks:
            said.extend(chunk.token_ids)
            ended = any(isinstance(event, ItemEnded) for event in parser.feed(chunk.token_ids))
            if ended or any(map(parser.is_end, chunk.token_ids)):
                problem = await asyncio.to_thread(plan.format.problem_of, grammar.rules, said)
                if problem is not None:  # it shows what the model said, and so stays out of the log
                    raise GrammarBroken("What went on behind a cut does not fit its schema or grammar.")
            yield chunk


def _grammar(plan: RunPlan, wanted: Generate) -> TurnGrammar | None:
    """Return what the turn is held to: a call that was demanded is not demanded again, and a summary is free."""
    if plan.rules is None or wanted.summary:
        return None
    rules = plan.rules.after_call if wanted.after_call else plan.rules.first
    if not wanted.hosted:
        rules = replace(rules, calls=tuple(rule for rule in rules.calls if not rule.hosted))
    return plan.format.grammar(rules, wanted.sampled)


def _prompt(plan: RunPlan, wanted: Generate) -> Sequence[int]:
    """Return the plan's prompt with everything said in this response, and what of this turn was said already."""
    prompt = plan.generation.prompt_token_ids
    if wanted.said:
        start = plan.format.generation_start()
        draft = plan.draft[: -len(start)]
        for message in wanted.said:
            draft.extend(message.tokens)
        draft.extend(start)
        prompt = plan.format.prompt_of(draft)
    if not wanted.sampled:
        return prompt
    longer = as_tokens(prompt)
    longer.extend(wanted.sampled)
    return longer


def unlogged_finish(plan: RunPlan, wanted: Generate) -> FinishReason | None:
    """Return why a turn that was cut has ended all the same; None where it has not.

    The worker that began it may have logged the turn's last token without the engine's reason for the end.
    """
    if wanted.budget == 0:
        return FinishReason.LENGTH
    if wanted.sampled and wanted.sampled[-1] in plan.generation.sampling.stop_token_ids:
        return FinishReason.STOP
    return None
