"""What is asked of the engine for a turn, and what an engine that was cut has said without telling so."""

import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from engine.backends.base import BaseEngine
from engine.errors import EngineError
from engine.formats.base import as_tokens
from engine.grammar import TurnGrammar
from engine.types import FinishReason, GenerationRequest
from responses_app.protocol.commands import Generate
from responses_app.runs.plan import RunPlan

logger = logging.getLogger("respsite.runs")


def request_for(plan: RunPlan, wanted: Generate) -> GenerationRequest:
    """Return what generates a turn, behind what of it was sampled already."""
    generation = plan.generation
    return replace(
        generation,
        request_id=f"{plan.response_id}-{wanted.turn}",
        prompt_token_ids=_prompt(plan, wanted),
        sampling=replace(generation.sampling, max_output_tokens=wanted.budget),
        grammar=_grammar(plan, wanted),
    )


def _grammar(plan: RunPlan, wanted: Generate) -> TurnGrammar | None:
    """Return what the turn is held to: a call that was demanded is not demanded again, and a summary is free."""
    if plan.rules is None or wanted.summary:
        return None
    rules = plan.rules.after_call if wanted.after_call else plan.rules.first
    return plan.format.grammar(rules, wanted.sampled)


def _prompt(plan: RunPlan, wanted: Generate) -> Sequence[int]:
    """Return the plan's prompt with everything said in this response, and what of this turn was said already."""
    if not wanted.said and not wanted.sampled:
        return plan.generation.prompt_token_ids
    start = plan.format.generation_start()
    longer = as_tokens(plan.generation.prompt_token_ids[: -len(start)])
    for message in wanted.said:
        longer.extend(message.tokens)
    longer.extend(start)
    longer.extend(wanted.sampled)
    return longer


def unlogged_finish(plan: RunPlan, wanted: Generate) -> FinishReason | None:
    """Return why a turn that began on another worker has ended there; None where it has not.

    That worker may have logged the turn's last token without the engine's reason for the end.
    """
    if wanted.budget == 0:
        return FinishReason.LENGTH
    if wanted.sampled and wanted.sampled[-1] in plan.generation.sampling.stop_token_ids:
        return FinishReason.STOP
    return None


async def prefill(engine: BaseEngine, plan: RunPlan) -> None:
    """Leave the prompt in the engine's prefix cache. A warm-up whose prefill fails is still a warm-up."""
    if not engine.supports_prefill:
        return
    generation = plan.generation
    one_token = replace(generation, sampling=replace(generation.sampling, max_output_tokens=1, top_logprobs=None))
    try:
        async with aclosing(engine.generate(one_token)) as chunks:
            async for _ in chunks:
                pass
    except EngineError as error:
        logger.warning("response %s: not prefilled: %s: %s", plan.response_id, type(error).__name__, error)
