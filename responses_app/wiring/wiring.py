"""The composition root: settings → objects. One `Site` per process; everything else gets what it needs handed in."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path

from django.conf import settings as django_settings

from engine.backends.base import BaseEngine
from engine.models.formats import make_format, told_of
from responses_app.observing.metrics import Metrics, ModelMeter
from responses_app.observing.traces import Traces
from responses_app.protocol import ids
from responses_app.protocol.answer_headers import AnswerHeaders
from responses_app.protocol.ids import IdFactory
from responses_app.protocol.sealing import Sealer
from responses_app.runs.by_id import ResponsesById
from responses_app.runs.draining import Draining
from responses_app.runs.duties.upkeep import Upkeep
from responses_app.runs.log.following import Followers
from responses_app.runs.log.rebuilding import Machines
from responses_app.runs.log.run_log import LiveLogs
from responses_app.runs.outputs import GivenOutputs
from responses_app.runs.plan.served import ServedModel, ServedModels
from responses_app.runs.planning.history import History
from responses_app.runs.planning.offering import Shelf
from responses_app.runs.queues.fair_threads import FairThreads
from responses_app.runs.queues.fair_turns import FairTurns
from responses_app.runs.registry.forgetting import Forgetting
from responses_app.runs.registry.registry import RunRegistry
from responses_app.runs.service import ResponseService
from responses_app.runs.stateless.completion_service import CompletionService
from responses_app.runs.stateless.deciding import DecisionService
from responses_app.runs.stored_chats import StoredChats
from responses_app.settings.conf import Settings
from responses_app.settings.models import ModelSettings
from responses_app.stores.base import WorkerState
from responses_app.stores.clock import StoreClock
from responses_app.stores.database.deadline import end_within
from responses_app.stores.new_ids import id_factory
from responses_app.tools.base import BaseTool
from responses_app.wiring.adapters import Adapters, build_adapters
from responses_app.wiring.embedding_engines import Embeddings
from responses_app.wiring.engines import Engines, EngineStarter, collect_less_garbage, family_of
from responses_app.wiring.reading import JsonReader
from responses_app.wiring.relay import Relay
from responses_app.wiring.server_tools import document_text, server_tools
from responses_app.wiring.site import Site
from responses_app.wiring.watching import Gauges, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """What everything else of a process is built on. `started_at` is in Unix seconds."""

    settings: Settings
    clock: StoreClock
    new_id: IdFactory
    worker: str
    started_at: float
    engines: Engines
    adapters: Adapters
    tools: Sequence[BaseTool]
    relay: Relay
    sealer: Sealer
    metrics: Metrics
    traces: Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """What runs responses, and what finds them."""

    registry: RunRegistry
    forgetting: Forgetting
    followers: Followers
    service: ResponseService
    responses: ResponsesById
    outputs: GivenOutputs


def build_site(settings: Settings) -> Site:
    """Build everything from settings; nothing is started, and no event loop is needed yet."""
    clock = StoreClock()
    new_id, adapters = id_factory(clock), build_adapters(settings, clock)
    base = _Base(
        settings=settings,
        clock=clock,
        new_id=new_id,
        worker=new_id(ids.WORKER),
        started_at=time.time(),
        engines=Engines(settings, ready=collect_less_garbage),
        adapters=adapters,
        tools=server_tools(
            settings, files=adapters.stores.files, stored_items=adapters.stores.responses.items, now=clock
        ),
        relay=Relay(),
        sealer=Sealer(settings.reasoning_encryption_keys or (django_settings.SECRET_KEY,), random_bytes=os.urandom),
        metrics=Metrics(enabled=settings.metrics != "off"),
        traces=Traces(enabled=settings.traces),
    )
    runs = _runs(base)
    upkeep = _upkeep(base, runs)
    # Bodies have threads of their own: what has been read is counted and let go of before much more is read.
    reading = FairThreads()
    return Site(
        settings=settings,
        engines=base.engines,
        embeddings=Embeddings(
            settings,
            created=int(base.started_at),
            rates=base.adapters.rates,
            metrics=base.metrics,
            guest=runs.registry.guest,
            generates=lambda name: runs.service.models.named(name) is not None,
        ),
        completions=CompletionService(runs.service),
        decisions=DecisionService(runs.service),
        store=base.adapters.stores.responses,
        chats=StoredChats(base.adapters.stores.chats, runs.responses, stores=settings.responses_store),
        conversations=base.adapters.stores.conversations,
        files=base.adapters.stores.files,
        uploads=base.adapters.uploads,
        approvals=base.adapters.stores.approvals,
        ledger=base.adapters.ledger,
        connection_limit=base.adapters.connection_limit,
        rates=base.adapters.rates,
        answer_headers=AnswerHeaders(settings, partial(new_id, ids.REQUEST)),
        registry=runs.registry,
        service=runs.service,
        responses=runs.responses,
        outputs=runs.outputs,
        forgetting=runs.forgetting,
        followers=runs.followers,
        upkeep=upkeep,
        relay=base.relay,
        door=base.adapters.door,
        watch=_watch(base, runs.service, upkeep),
        draining=Draining(),
        traces=base.traces,
        tools=base.tools,
        end_database=end_within,
        reader=_reader(settings, reading, max_items=settings.max_input_items),
        token_reader=_reader(settings, reading, max_items=settings.max_json_values),
        new_id=new_id,
    )


def _reader(settings: Settings, threads: FairThreads, *, max_items: int) -> JsonReader:
    return JsonReader(
        threads,
        max_body_bytes=settings.max_body_bytes,
        max_values=settings.max_json_values,
        max_items=max_items,
        refuse_unknown=settings.unknown_fields == "refuse",
    )


@lru_cache(maxsize=1)
def get_site() -> Site:
    """Return the process's one site."""
    return build_site(django_settings.RESPSITE)


def _runs(base: _Base) -> _Runs:
    settings, stores, relay = base.settings, base.adapters.stores, base.relay
    registry = RunRegistry(settings, now=base.clock)
    forgetting = Forgetting(registry, others=relay)
    machines = _machines(base)
    followers = Followers(
        stores.responses,
        machine=machines.of,
        settings=settings,
        follow_here=registry.follow,
        here=registry.readable,
        others=relay,
    )
    return _Runs(
        registry=registry,
        forgetting=forgetting,
        followers=followers,
        service=_service(base, machines, registry, forgetting),
        responses=ResponsesById(
            stores.responses, registry, forgetting, replay=machines.replay, followers=followers, others=relay
        ),
        outputs=GivenOutputs(stores.responses, registry, others=relay),
    )


def _machines(base: _Base) -> Machines:
    served = (
        _served(model, base.engines[model.name], base.metrics.model(model.name), created=int(base.started_at))
        for model in base.settings.served
    )
    models = ServedModels(served, told=told_of)
    id_key = blake2b(django_settings.SECRET_KEY.encode(), person=b"respsite ids").digest()
    return Machines(models, id_key, base.sealer)


def _service(base: _Base, machines: Machines, registry: RunRegistry, forgetting: Forgetting) -> ResponseService:
    stores = base.adapters.stores
    return ResponseService(
        machines=machines,
        stores=stores,
        history=History(stores, registry, sealer=base.sealer, read_document=document_text()),
        registry=registry,
        sealer=base.sealer,
        new_id=base.new_id,
        now=base.clock,
        settings=base.settings,
        worker=base.worker,
        live=LiveLogs(
            stores.responses,
            lose=registry.lose,
            gone=lambda response_id: forgetting.here([response_id]),
            tell=base.relay.tell_followers,
            now=base.clock,
        ),
        shelf=Shelf(base.tools, base.settings.server_tool_max_output_bytes),
        rates=base.adapters.rates,
        metrics=base.metrics,
        traces=base.traces,
        keys=base.adapters.door.keys.store,
        shared_turns=base.adapters.shared_turns,
    )


def _upkeep(base: _Base, runs: _Runs) -> Upkeep:
    def state() -> WorkerState:
        return WorkerState(
            id=base.worker,
            started_at=base.started_at,
            connections=base.adapters.connection_limit.open_connections,
            in_flight=len(runs.registry),
        )

    return Upkeep(
        runs.service,
        base.adapters.stores,
        forgetting=runs.forgetting,
        state=state,
        ready=lambda: base.engines.any_started,
        settings=base.settings,
    )


def _watch(base: _Base, service: ResponseService, upkeep: Upkeep) -> Watch:
    """Build what an operator sees of the process."""
    gauges = Gauges(
        base.metrics,
        service=service,
        connections=base.adapters.connection_limit,
        engines=base.engines,
        hears_store=lambda: upkeep.hears_store,
        has_redis=bool(base.settings.redis_url),
    )
    folder = base.settings.metrics_dir
    return Watch(base.metrics, gauges.look, folder=Path(folder) if folder else None)


def _served(
    model: ModelSettings, starter: EngineStarter[BaseEngine], meter: ModelMeter, *, created: int
) -> ServedModel:
    return ServedModel(
        model.name,
        starter.engine,
        lambda: starter.info,
        created=created,
        format=make_format(family_of(model), starter.engine),
        meter=meter,
        turns=FairTurns(max_running=model.max_running, bounds=model.max_queued, waited=meter.waited),
        aliases=model.aliases,
    )
