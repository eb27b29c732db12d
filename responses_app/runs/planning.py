"""A request and what it continues → the plan of its run. Pure computation, off the event loop where it is long."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from engine.backends.base import BaseEngine
from engine.harmony.encoding import STOP_TOKENS
from engine.types import EngineInfo, GenerationRequest, SamplingOptions
from responses_app.protocol.chain import new_link
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.prompt import build_prompt, render_items
from responses_app.protocol.requests import CreateRequest
from responses_app.protocol.tiers import PRIORITIES
from responses_app.runs.history import Context
from responses_app.runs.plan import Origin, RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a plan is made of. `input_items` are the request's own, each with an id; `created_at` in Unix seconds."""

    response_id: str
    created_at: float
    request: CreateRequest
    origin: Origin
    context: Context
    input_items: list[JsonObject]
    tier: str
    stored: bool


def make_plan(draft: Draft, engine: BaseEngine, info: EngineInfo) -> RunPlan:
    """Render what is new, and decide how to generate. Raises `ApiError` for what the model cannot take."""
    request, context = draft.request, draft.context
    messages = render_items(
        context.items, context.items_json, parent=context.parent, sampled=context.sampled, own=context.own
    )
    today = datetime.fromtimestamp(draft.created_at, UTC).date().isoformat()
    link = new_link(context.parent, response_id=draft.response_id, started_on=today, messages=messages)
    prompt = build_prompt(request, link, max_model_len=info.max_model_len)
    return RunPlan(
        response_id=draft.response_id,
        created_at=draft.created_at,
        request=request,
        origin=draft.origin,
        link=link,
        parent=context.parent,
        conversation=context.conversation,
        input_messages=messages,
        context_items=context.items_json,
        input_items=draft.input_items,
        generation=GenerationRequest(
            request_id=draft.response_id,
            prompt_token_ids=prompt,
            sampling=_sampling(request, engine, room=info.max_model_len - len(prompt)),
            priority=PRIORITIES[draft.tier] if engine.supports_priority else 0,
            cache_salt=_cache_salt(request, draft.origin) if engine.supports_cache_salt else None,
            affinity=request.prompt_cache_key or link.root_id,
        ),
        stored=draft.stored,
    )


def _cache_salt(request: CreateRequest, origin: Origin) -> str | None:
    """Return what separates the engine's prefix cache: one salt for each key of each project."""
    if request.prompt_cache_key is None:
        return None
    return hashlib.sha256(orjson.dumps([origin.project, request.prompt_cache_key])).hexdigest()


def _sampling(request: CreateRequest, engine: BaseEngine, *, room: int) -> SamplingOptions:
    limit = request.max_output_tokens
    return SamplingOptions(
        max_output_tokens=None if limit is None else min(limit, room),
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        top_logprobs=request.logprobs if engine.supports_logprobs else None,
        stop_token_ids=STOP_TOKENS,
    )
