"""The composition root: settings → objects. One `Site` per process; everything else gets what it needs handed in."""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings

from engine.formats.base import ModelFormat
from engine.formats.harmony.format import HarmonyFormat
from responses_app.auth.door import Door
from responses_app.auth.keyring import KeyRing
from responses_app.conf import Settings
from responses_app.engines import Engines, EngineStarter, collect_less_garbage
from responses_app.limits.base import BaseConnectionLimit
from responses_app.limits.memory import MemoryConnectionLimit
from responses_app.limits.memory_rates import MemoryRates
from responses_app.limits.rates import BaseRates
from responses_app.model_settings import ModelSettings
from responses_app.observing.metrics import Metrics, ModelMeter
from responses_app.observing.traces import Traces
from responses_app.protocol import ids
from responses_app.protocol.answer_headers import AnswerHeaders
from responses_app.protocol.dialects import Dialect, requested_dialect
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import IdFactory
from responses_app.protocol.requests import CreateRequest, parse_create
from responses_app.protocol.sealing import Sealer
from responses_app.protocol.session import SessionLimits
from responses_app.protocol.summaries import Summaries
from responses_app.protocol.tiers import ServiceTiers
from responses_app.protocol.tool_outputs import WAIT, requested_tool_mode
from responses_app.reading import JsonReader
from responses_app.relay import CANCEL, FOLLOW, FORGET, LOGGED, Relay
from responses_app.runs.by_id import ResponsesById
from responses_app.runs.draining import Draining
from responses_app.runs.fair_turns import FairTurns
from responses_app.runs.following import Followers
from responses_app.runs.forgetting import Forgetting
from responses_app.runs.history import History
from responses_app.runs.log import LiveLogs
from responses_app.runs.offering import Shelf
from responses_app.runs.outputs import GivenOutputs
from responses_app.runs.rebuilding import Machines
from responses_app.runs.registry import RunLimits, RunRegistry
from responses_app.runs.resumable import ResumableLimits
from responses_app.runs.served import ServedModel, ServedModels
from responses_app.runs.service import ResponseService, ServiceLimits
from responses_app.runs.upkeep import Upkeep
from responses_app.server_tools import server_tools
from responses_app.stores.base import BaseConversationStore, BaseResponseStore, StoreLimits, Stores, WorkerState
from responses_app.stores.memory import MemoryResponseStore
from responses_app.tools.base import BaseTool
from responses_app.tools.lazy import LazyTool
from responses_app.watching import Gauges, Watch

if TYPE_CHECKING:
    from responses_app.tools.code_interpreter import CodeInterpreter

logger = logging.getLogger("respsite")

FORMATS: dict[str, type[ModelFormat]] = {"harmony": HarmonyFormat}  # by MODEL_FORMAT; `conf` refuses any other
_SUMMARIES = {"model": Summaries.MODEL, "text": Summaries.TEXT, "off": None}  # by REASONING_SUMMARIES
LAST_WORDS_SECONDS = 1.0  # how long a stop waits for those who read what it stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Everything one process serves with."""

    settings: Settings
    engines: Engines
    store: BaseResponseStore
    conversations: BaseConversationStore
    connection_limit: BaseConnectionLimit
    rates: BaseRates
    answer_headers: AnswerHeaders
    registry: RunRegistry
    service: ResponseService
    responses: ResponsesById
    outputs: GivenOutputs
    forgetting: Forgetting
    followers: Followers
    upkeep: Upkeep
    relay: Relay
    reader: JsonReader
    door: Door
    watch: Watch
    draining: Draining
    traces: Traces
    tools: Sequence[BaseTool]
    new_id: Callable[[str], str]

    @property
    def interpreter(self) -> "LazyTool[CodeInterpreter] | None":
        """The code interpreter, whose containers have an API of their own; None with SANDBOX=off."""
        return next((tool for tool in self.tools if isinstance(tool, LazyTool)), None)

    @property
    def session_limits(self) -> SessionLimits:
        """The bounds of one WebSocket connection."""
        settings = self.settings
        return SessionLimits(
            max_queued=settings.websocket_max_queued,
            max_state_bytes=settings.websocket_max_state_bytes,
            reject_when_busy=settings.websocket_busy == "reject",
            warning_after=settings.websocket_warning_seconds,
            lifetime=settings.websocket_lifetime_seconds,
            grace=settings.websocket_grace_seconds,
        )

    def dialect(self, header: str | None) -> Dialect:
        """Return the dialect that a request asks for by its header. Raises `ApiError` (400) for one not known."""
        settings = self.settings
        return requested_dialect(header, settings.responses_dialect, usage_per_turn=settings.responses_usage_per_turn)

    def awaits_tools(self, header: str | None, dialect: Dialect) -> bool:
        """Whether a stream waits for the outputs of its client's tools. Raises `ApiError` (400) for an unknown mode.

        Never where a turn has one id: there its stream ends with its calls, and the next one goes on under that id.
        """
        wanted = requested_tool_mode(header, self.settings.responses_tool_mode) == WAIT
        return wanted and not dialect.one_id_a_turn

    def parse_create(self, data: JsonObject) -> CreateRequest:
        """Validate a request, with the fields that this server takes. Raises `ApiError`."""
        return parse_create(data, engine_fields=not self.settings.responses_compatibility_mode)

    async def start(self) -> None:
        """Start what must run before anything is served; the engine goes on loading beside."""
        self.traces.start()
        await self.store.start()
        await self.conversations.start()
        await self.connection_limit.start()
        await self.rates.start()
        await self.door.start()
        self.engines.start()
        await asyncio.gather(*(tool.start() for tool in self.tools))
        self.relay.start(
            {
                CANCEL: self.responses.cancel_here,
                FORGET: self.forgetting.here,
                FOLLOW: self.registry.follow,
                LOGGED: self.followers.ring,
            },
            take=self.outputs.take_here,
        )
        await self.upkeep.start()
        await self.watch.start()

    async def aclose(self) -> None:
        """Let what runs end, or stop it; write what is to be written, give back what is shared."""
        self.draining.begin()
        await self.followers.aclose()  # those who follow another worker's response may do so elsewhere
        await self.registry.aclose(grace=self.settings.shutdown_grace_seconds, last_words=LAST_WORDS_SECONDS)
        await self.draining.over(LAST_WORDS_SECONDS)
        await self.service.live.aclose()
        await self.upkeep.aclose()
        await self.relay.aclose()
        await asyncio.gather(
            *(tool.aclose() for tool in self.tools),
            self.connection_limit.aclose(),
            self.rates.aclose(),
            self.store.aclose(),
            self.conversations.aclose(),
            self.door.aclose(),
            self.engines.aclose(),
        )
        await self.watch.aclose()
        await self.traces.aclose()


def build_site(settings: Settings) -> Site:
    """Build everything from settings; nothing is started, and no event loop is needed yet."""
    new_id = IdFactory(lambda: time.time_ns() // 1_000_000, random.SystemRandom().getrandbits)
    worker = new_id(ids.WORKER)
    started_at = time.time()
    engines = Engines(settings, ready=collect_less_garbage)
    connection_limit = _connection_limit(settings)
    rates = _rates()
    stores, door = _stores(settings), _door(settings)
    registry = RunRegistry(_run_limits(settings))
    sealer = Sealer(settings.reasoning_encryption_keys or (django_settings.SECRET_KEY,), random_bytes=os.urandom)
    traces = Traces(enabled=settings.traces)
    metrics = Metrics(enabled=settings.metrics != "off")
    models = ServedModels(
        _served(model, engines[model.name], metrics.model(model.name), created=int(started_at))
        for model in settings.served
    )
    id_key = blake2b(django_settings.SECRET_KEY.encode(), person=b"respsite ids").digest()
    relay = Relay()
    forgetting = Forgetting(registry, others=relay)
    live = LiveLogs(
        stores.responses,
        lose=registry.lose,
        gone=lambda response_id: forgetting.here([response_id]),
        tell=relay.tell_followers,
    )
    tools = server_tools(settings)
    machines = Machines(models, id_key, sealer)
    service = ResponseService(
        machines=machines,
        stores=stores,
        history=History(stores, registry, sealer=sealer),
        registry=registry,
        sealer=sealer,
        new_id=new_id,
        now=time.time,
        limits=ServiceLimits(
            max_lag_bytes=settings.stream_max_lag_bytes,
            delta_seconds=settings.stream_delta_ms / 1000,
            tool_seconds=settings.responses_tool_timeout,
            patience_seconds=settings.database_patience_seconds,
            store_responses=settings.responses_store,
            tiers=ServiceTiers(
                default=settings.responses_default_service_tier, allowed=settings.responses_allowed_service_tiers
            ),
            worker=worker,
            summaries=_SUMMARIES[settings.reasoning_summaries],
        ),
        live=live,
        shelf=Shelf(tools),
        rates=rates,
        metrics=metrics,
        traces=traces,
        keys=door.keys.store,
    )
    followers = Followers(
        stores.responses,
        machine=machines.of,
        max_lag_bytes=settings.stream_max_lag_bytes,
        follow_here=registry.follow,
        others=relay,
    )
    upkeep = Upkeep(
        service,
        stores.responses,
        forgetting=forgetting,
        state=lambda: WorkerState(
            id=worker,
            started_at=started_at,
            connections=connection_limit.open_connections,
            in_flight=len(registry),
        ),
        ready=lambda: engines.any_started,
        lease_seconds=settings.worker_lease_seconds,
    )
    gauges = Gauges(
        metrics,
        service=service,
        connections=connection_limit,
        engines=engines,
        hears_store=lambda: upkeep.hears_store,
        has_redis=bool(settings.redis_url),
    )
    return Site(
        settings=settings,
        engines=engines,
        store=stores.responses,
        conversations=stores.conversations,
        connection_limit=connection_limit,
        rates=rates,
        answer_headers=AnswerHeaders(
            new_id=partial(new_id, ids.REQUEST),
            organization=settings.default_openai_organization,
            version=settings.default_openai_version,
            azure_region=settings.azure_region,
        ),
        registry=registry,
        service=service,
        responses=ResponsesById(
            stores.responses,
            registry,
            forgetting,
            replay=machines.replay,
            followers=followers,
            others=relay,
        ),
        outputs=GivenOutputs(stores.responses, registry, others=relay),
        forgetting=forgetting,
        followers=followers,
        upkeep=upkeep,
        relay=relay,
        door=door,
        watch=Watch(metrics, gauges.look, folder=Path(settings.metrics_dir) if settings.metrics_dir else None),
        draining=Draining(),
        traces=traces,
        tools=tools,
        reader=JsonReader(
            max_body_bytes=settings.max_body_bytes,
            max_values=settings.max_json_values,
            max_items=settings.max_input_items,
        ),
        new_id=new_id,
    )


@lru_cache(maxsize=1)
def get_site() -> Site:
    """Return the process's one site."""
    return build_site(django_settings.RESPSITE)


def _served(model: ModelSettings, starter: EngineStarter, meter: ModelMeter, *, created: int) -> ServedModel:
    return ServedModel(
        model.name,
        starter.engine,
        lambda: starter.info,
        created=created,
        format=FORMATS[model.format](),
        meter=meter,
        turns=FairTurns(max_running=model.max_running, bounds=model.max_queued, waited=meter.waited),
        aliases=model.aliases,
    )


def _stores(settings: Settings) -> Stores:
    """Return the stores; with RESPONSES_STORE=off no response is kept or found, and conversations stay."""
    from responses_app.stores.database.conversations import DatabaseConversationStore  # after Django's apps are ready
    from responses_app.stores.database.store import DatabaseResponseStore

    timeout = settings.database_timeout_seconds
    conversations = DatabaseConversationStore(max_entries=settings.conversations_max_entries, timeout=timeout)
    if not settings.responses_store:
        return Stores(MemoryResponseStore(max_entries=0), conversations)
    limits = StoreLimits(
        ttl=settings.responses_store_ttl,
        max_entries=settings.responses_store_max_entries,
        max_bytes=settings.responses_store_max_bytes,
    )
    return Stores(DatabaseResponseStore(limits=limits, timeout=timeout), conversations)


def _door(settings: Settings) -> Door:
    from responses_app.stores.database.api_keys import DatabaseKeyStore

    keys = KeyRing(DatabaseKeyStore(timeout=settings.database_timeout_seconds), now=time.time)
    serves_others = not settings.serves_loopback or settings.behind_proxy != "no"
    return Door(settings.auth, keys, is_exposed=serves_others)


def _run_limits(settings: Settings) -> RunLimits:
    return RunLimits(
        max_runs=settings.responses_max_in_flight,
        max_background=settings.background_max_running,
        max_queued=settings.background_max_queued,
        reconnect_grace=settings.reconnect_grace_seconds,
        resumable=ResumableLimits(
            ttl=settings.responses_session_ttl,
            max_streams=settings.responses_max_active_sessions,
            max_bytes=settings.responses_max_session_bytes,
        ),
    )


def _connection_limit(settings: Settings) -> BaseConnectionLimit:
    """Share the limit through the Redis that CHANNEL_LAYERS names, where there is one."""
    limit = settings.max_websocket_connections
    hosts = _redis_hosts()
    if not hosts:
        return MemoryConnectionLimit(limit)
    from responses_app.limits.redis import RedisConnectionLimit

    return RedisConnectionLimit(limit, connect=lambda: _redis(hosts[0]))


def _rates() -> BaseRates:
    """Share the limits of keys and projects through the same Redis."""
    hosts = _redis_hosts()
    if not hosts:
        return MemoryRates()
    from responses_app.limits.redis_rates import RedisRates

    return RedisRates(lambda: _redis(hosts[0]))


def _redis_hosts() -> Sequence[dict[str, Any]]:
    hosts: Sequence[dict[str, Any]] = django_settings.CHANNEL_LAYERS["default"].get("CONFIG", {}).get("hosts") or ()
    return hosts


def _redis(host: dict[str, Any]) -> Any:
    from redis.asyncio import Redis

    options = {name: value for name, value in host.items() if name != "address"}
    return Redis.from_url(host["address"], **options)
