"""`ResponseService`: the one door that all transports use. A request goes in, a run comes out."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import orjson

from engine.backends.base import BaseEngine
from engine.errors import EngineError
from engine.harmony.encoding import STOP_TOKENS
from engine.types import EngineInfo, GenerationRequest, SamplingOptions
from responses_app.protocol import ids
from responses_app.protocol.chain import new_link
from responses_app.protocol.errors import model_not_found, unsupported_parameter
from responses_app.protocol.prompt import build_prompt, omitted_media, render_items
from responses_app.protocol.requests import CreateRequest
from responses_app.protocol.resources import new_response
from responses_app.protocol.stream import ResponseStream
from responses_app.protocol.tiers import PRIORITIES, ServiceTiers
from responses_app.protocol.validation import missing
from responses_app.runs.failures import refusal
from responses_app.runs.history import History, Recall
from responses_app.runs.journal import EventJournal
from responses_app.runs.registry import RunRegistry
from responses_app.runs.run import Origin, ResponseRun, RunPlan
from responses_app.stores.base import BaseResponseStore

logger = logging.getLogger("respsite.runs")

LONG_INPUT = 20_000  # bytes of JSON; rendering more than this happens off the event loop (1.2 µs a token)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An engine under the name that clients know; `info` is None until it has started."""

    name: str
    engine: BaseEngine
    info: Callable[[], EngineInfo | None]
    created: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Bounds of the service."""

    max_lag_bytes: int
    store_responses: bool
    tiers: ServiceTiers = field(default_factory=ServiceTiers)


@dataclass(slots=True)
class ResponseService:
    """Prepares and starts runs. `models` is ordered; a request without `model` uses the first."""

    models: dict[str, ServedModel]
    store: BaseResponseStore
    registry: RunRegistry
    new_id: Callable[[str], str]
    now: Callable[[], float]
    limits: ServiceLimits
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.history = History(self.store, self.registry)

    async def create(self, request: CreateRequest, origin: Origin, *, recall: Recall = lambda _: None) -> ResponseRun:
        """Prepare a request and start its run; the caller attaches a reader before it awaits anything.

        `recall` finds the chains that the caller's connection remembers. Raises `ApiError` for everything that can be
        known before `response.created`.
        """
        if not (request.input or request.previous_response_id or request.warm_up):
            raise missing("input")
        model = self._model(request.model)
        engine = model.engine
        tier = self.limits.tiers.choose(request.service_tier)
        _check_logprobs(request, engine)
        self.registry.check_capacity()
        info = await self._ready(model, origin)
        parent = await self.history.parent(origin.project, request.previous_response_id, recall)
        sampled = await self.history.sampled_items(origin.project, request)
        response_id = self.new_id(ids.RESPONSE)
        now = self.now()

        def prepare() -> RunPlan:
            messages = render_items(request.input, request.input_json, parent=parent, sampled=sampled)
            today = datetime.fromtimestamp(now, UTC).date().isoformat()
            link = new_link(parent, response_id=response_id, started_on=today, messages=messages)
            prompt = build_prompt(request, link, max_model_len=info.max_model_len)
            return RunPlan(
                response_id=response_id,
                request=request,
                origin=origin,
                link=link,
                parent=parent,
                input_messages=messages,
                generation=GenerationRequest(
                    request_id=response_id,
                    prompt_token_ids=prompt,
                    sampling=_sampling(request, engine, room=info.max_model_len - len(prompt)),
                    priority=PRIORITIES[tier] if engine.supports_priority else 0,
                    cache_salt=_cache_salt(request, origin) if engine.supports_cache_salt else None,
                    affinity=request.prompt_cache_key or link.root_id,
                ),
                stored=self._stores(request),
            )

        plan = await asyncio.to_thread(prepare) if request.size > LONG_INPUT else prepare()
        self._note_omissions(plan)
        run = self._run(plan, model, created_at=int(now), service_tier=tier)
        self.registry.start(run)
        return run

    def _run(self, plan: RunPlan, model: ServedModel, *, created_at: int, service_tier: str) -> ResponseRun:
        request = plan.request
        response = new_response(
            request,
            response_id=plan.response_id,
            created_at=created_at,
            model=model.name,
            store=plan.stored,
            service_tier=service_tier,
        )
        functions = [tool.name for tool in request.offered_functions]
        return ResponseRun(
            plan,
            engine=model.engine,
            stream=ResponseStream(response, functions=functions, new_id=self.new_id),
            journal=EventJournal(max_lag_bytes=self.limits.max_lag_bytes),
            store=self.store,
            now=self.now,
        )

    def _model(self, name: str | None) -> ServedModel:
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise model_not_found(name, list(self.models))
        return self.models[name]

    async def _ready(self, model: ServedModel, origin: Origin) -> EngineInfo:
        try:
            await model.engine.health()
        except EngineError as error:
            raise refusal(error, origin.request_id) from error
        info = model.info()
        assert info is not None, "a healthy engine has started"
        return info

    def _stores(self, request: CreateRequest) -> bool:
        return self.limits.store_responses and request.store is not False

    def _note_omissions(self, plan: RunPlan) -> None:
        omitted = omitted_media(plan.request.input)
        if omitted:
            logger.info("response %s: %d parts the model cannot read were left out", plan.response_id, omitted)


def _check_logprobs(request: CreateRequest, engine: BaseEngine) -> None:
    """Refuse `top_logprobs` where the engine has none; an `include` that cannot be served is left out silently."""
    if request.top_logprobs and not engine.supports_logprobs:
        raise unsupported_parameter("top_logprobs", "The engine here gives no log probabilities; leave it out.")


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
