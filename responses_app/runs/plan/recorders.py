"""Recorders of responses: how a plan gets one, and how another worker that goes on with the response knows of it."""

from collections.abc import Callable, Mapping
from typing import Any

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.rollouts.generations import NOWHERE, RolloutRef
from responses_app.protocol.rollouts.recording import AboutPrompts, Recorder
from responses_app.protocol.rollouts.weights import WeightsRule
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.plan.served import ServedModel

ROLLOUT = "respsite_rollout"  # of the request, as it is kept for another worker


def record(plan: RunPlan, model: ServedModel, *, now: Callable[[], float], rule: WeightsRule | None) -> None:
    """Have what a plan generates recorded, for its roll-out or for its client, who wants the tokens."""
    ref = plan.origin.rollout
    if plan.request.warm_up:
        return
    prompt, written = plan.generation.prompt_token_ids, plan.format
    # Where a template renders the whole, nobody knows how much of it stands before the first message.
    rest = 0 if written.renders_elsewhere else len(plan.link.prompt_tokens()) + len(written.generation_start())
    plan.recorder = Recorder(
        plan.response_id,
        ref or NOWHERE,
        now=now,
        logged=plan.durable,
        hides=plan.request.logprobs is None or not model.engine.supports_logprobs,
        about=AboutPrompts(
            model=model.name,
            instructions=max(0, len(prompt) - rest) if rest else 0,
            # By a summary among them, or by one that is asked for (`compaction_trigger`) and written here.
            compacted=any(str(item["type"]).startswith("compaction") for item in plan.input_items),
            format=written,
        ),
        rule=rule,
    )


def as_fields(ref: RolloutRef) -> JsonObject:
    """Return what is kept of it with the request."""
    return {"name": ref.name, "branch": ref.branch, "api": ref.api, "id": ref.id}


def of_fields(fields: Mapping[str, Any]) -> RolloutRef | None:
    """Read what was kept with a request."""
    kept = fields.get(ROLLOUT)
    return RolloutRef(**kept) if kept else None
