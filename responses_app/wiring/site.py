"""The composition root: `Site` is everything one process serves with, how it is started, and how it is closed.

`build_site` makes it of the settings; everything else gets what it needs handed in.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from django.conf import settings as django_settings

from engine.backends.base import BaseEngine
from engine.models import make_format, plain_messages
from responses_app.auth.door import Door
from responses_app.auth.origins import is_listed
from responses_app.kit.clock import StoreClock, id_factory
from responses_app.kit.deadline import end_within
from responses_app.limits.ledger import BaseLedger
from responses_app.limits.rates import ConnectionLimit, Rates
from responses_app.observing.memory import TrimmedMemory
from responses_app.observing.metrics import Metrics, ModelMeter
from responses_app.observing.traces import Traces
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Caller
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.dialects import Dialect, requested_dialect
from responses_app.protocol.fields import header_choice, note_ignored
from responses_app.protocol.ids import IdFactory
from responses_app.protocol.requests.requests import CreateRequest, parse_create
from responses_app.protocol.requests.server_tools import weighs_meaning
from responses_app.protocol.sealing import Sealer
from responses_app.protocol.session.tool_outputs import COMPLETE, TOOL_MODE_HEADER, WAIT
from responses_app.protocol.transport import AnswerHeaders
from responses_app.resources.batches.duty import BatchWork
from responses_app.resources.batches.handlers import LineOf
from responses_app.resources.batches.office import BatchOffice
from responses_app.resources.batches.records import BaseBatchStore
from responses_app.resources.webhooks.sender import WebhookSender
from responses_app.runs.by_id import ResponsesById
from responses_app.runs.chats import StoredChats
from responses_app.runs.driving.usage_book import UsageBook
from responses_app.runs.duties import Draining, Upkeep
from responses_app.runs.engines.doors import EngineDoors
from responses_app.runs.engines.following import EngineFollower
from responses_app.runs.idempotency import IdempotencyKeys
from responses_app.runs.kept_chats import KeptChats
from responses_app.runs.log.following import Followers
from responses_app.runs.log.replay import Machines
from responses_app.runs.log.run_log import LiveLogs
from responses_app.runs.outputs import GivenOutputs
from responses_app.runs.plan.served import ServedModel, ServedModels
from responses_app.runs.planning.history import History
from responses_app.runs.planning.offering import Shelf
from responses_app.runs.queues.turns import FairThreads, FairTurns
from responses_app.runs.registry.registry import Forgetting, RunRegistry
from responses_app.runs.retention import Expiry
from responses_app.runs.rollouts import Rollouts
from responses_app.runs.service import ResponseService
from responses_app.runs.spending import Spending
from responses_app.runs.stateless.completions import CompletionService
from responses_app.runs.stateless.deciding import DecisionService
from responses_app.runs.words import WordReader
from responses_app.settings.conf import Settings
from responses_app.settings.models import ModelSettings
from responses_app.stores.base import BaseResponseStore, WorkerState
from responses_app.stores.files import BaseFileStore
from responses_app.stores.pictures import BasePictureStore
from responses_app.stores.stores import BaseApprovalStore, BaseConversationStore
from responses_app.tools.base import BaseTool
from responses_app.wiring.adapters import Adapters, build_adapters
from responses_app.wiring.engines import (
    Embeddings,
    Engines,
    EngineStarter,
    collect_less_garbage,
    embedding_names,
    family_of,
    search_model,
)
from responses_app.wiring.extensions import ExtensionWork
from responses_app.wiring.meaning import search_by_meaning
from responses_app.wiring.pictures import Pictures
from responses_app.wiring.reading import JsonReader
from responses_app.wiring.relay import CANCEL, ENGINE, FOLLOW, FORGET, LOGGED, Relay
from responses_app.wiring.retention import expiry_of, retention_watch
from responses_app.wiring.server_tools import document_text, server_tools, tool_parts
from responses_app.wiring.watching import Watch

if TYPE_CHECKING:
    from responses_app.resources.audit.store import AuditTrail
    from responses_app.resources.setups.store import Setups
    from responses_app.resources.skills.store import Skills
    from responses_app.resources.usage.store import UsageStore
    from responses_app.resources.webhooks.duty import WebhookDeliverer
    from responses_app.resources.webhooks.store import Webhooks
    from responses_app.stores.database.files.uploads import DatabaseUploads
    from responses_app.stores.database.organization import DatabaseOrganization

EMBEDDINGS = "/v1/embeddings"  # whose models are others than those of all other endpoints
LAST_WORDS_SECONDS = 1.0  # how long a stop waits for those who read what it stopped
LAST_ROWS_SECONDS = 5.0  # how long behind the grace a stop may ask the database: what is not kept, others take over


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Everything one process serves with."""

    settings: Settings  # all of them; each room knows its own part only
    engines: Engines
    engine_doors: EngineDoors  # what trainers do to them
    embeddings: Embeddings
    completions: CompletionService
    decisions: DecisionService
    store: BaseResponseStore  # of responses
    chats: StoredChats  # chat completions
    kept_chats: KeptChats  # of the playground
    conversations: BaseConversationStore
    files: BaseFileStore
    uploads: "DatabaseUploads"
    idempotency: IdempotencyKeys  # of requests that are to be carried out once
    batches: BaseBatchStore
    batch_work: BatchWork  # of this worker
    setups: "Setups"  # of the playground
    skills: "Skills"
    rollouts: Rollouts
    usage: "UsageStore"  # what was used, and when
    webhooks: "Webhooks"  # endpoints, and what is sent to them
    organization: "DatabaseOrganization"  # projects and their keys, for who manages them
    expiry: Expiry  # removes what projects keep no longer
    webhook_sender: WebhookSender
    webhook_deliverer: "WebhookDeliverer"
    word_reader: WordReader  # for the search of the admin
    approvals: BaseApprovalStore
    pictures: BasePictureStore
    reading_pictures: Pictures
    ledger: BaseLedger
    connection_limit: ConnectionLimit
    rates: Rates
    spending: Spending  # what was spent of limits of spending
    answer_headers: AnswerHeaders
    registry: RunRegistry
    service: ResponseService
    responses: ResponsesById
    outputs: GivenOutputs  # of tools of clients, to the runs that wait for them
    forgetting: Forgetting
    followers: Followers
    upkeep: Upkeep  # the heartbeat, and what dead workers left
    relay: Relay  # to the other workers
    reader: JsonReader  # of all other bodies, and of frames
    token_reader: JsonReader  # of bodies whose `input` may be token ids
    door: Door
    audit: "AuditTrail"  # of what users of the admin do over the API
    watch: Watch  # metrics
    draining: Draining  # tells connections that the server stops
    traces: Traces
    tools: Sequence[BaseTool]  # those of this server, started and closed with it
    extensions: ExtensionWork  # what they do beside requests
    end_database: Callable[[float], None]  # all that is still asked of it ends within so many seconds
    new_id: Callable[[str], str]
    searches_meaning: bool  # whether files are searched by more than their words

    def dialect(self, header: str | None) -> Dialect:
        """Return the dialect that a request asks for by its header. Raises `ApiError` (400) for one not known."""
        settings = self.settings
        return requested_dialect(header, settings.responses_dialect, usage_per_turn=settings.responses_usage_per_turn)

    def awaits_tools(self, header: str | None, dialect: Dialect) -> bool:
        """Whether a stream waits for the outputs of its client's tools. Raises `ApiError` (400) for an unknown mode.

        Never where a turn has one id: there its stream ends with its calls, and the next one goes on under that id.
        """
        mode = header_choice(TOOL_MODE_HEADER, header, (COMPLETE, WAIT), self.settings.responses_tool_mode)
        return mode == WAIT and not dialect.one_id_a_turn

    @property
    def takes_engine_fields(self) -> bool:
        """Whether clients may send the fields of requests that are for the engine's operator."""
        return not self.settings.responses_compatibility_mode

    def parse_create(self, data: JsonObject) -> CreateRequest:
        """Validate a request, with the fields that this server takes. Raises `ApiError`."""
        request = parse_create(data, engine_fields=self.takes_engine_fields)
        for index, tool in enumerate(request.tools_json):
            if not self.searches_meaning and weighs_meaning(tool):
                note_ignored(f"tools[{index}].ranking_options.hybrid_search")
        return request

    async def start(self, line_of: LineOf) -> None:
        """Start what must run before anything is served; the engine goes on loading beside.

        `line_of` says how lines of batches are answered, as the endpoints do which stand above this.
        """
        self.traces.start()
        await self.store.start()
        await self.conversations.start()
        await self.ledger.start()
        await self.door.start()
        await self.service.retention.start()  # before anything is kept, also by duties
        self.engines.start()
        self.embeddings.start()
        await asyncio.gather(*(tool.start() for tool in self.tools))
        # Before the upkeep, which makes this worker known: from then on the others may ask it for something.
        self.relay.start(
            {
                CANCEL: self.responses.cancel_here,
                FORGET: self.forgetting.here,
                FOLLOW: self.registry.follow,
                LOGGED: self.followers.ring,
                ENGINE: self.engine_doors.hear,
            },
            take=self.outputs.take_here,
        )
        await self.upkeep.start()
        self.expiry.start()
        self.engine_doors.start()
        if self.settings.responses_store:  # without it there are no batches, and no worker is known to live
            self.batch_work.start(line_of)
        self.webhook_deliverer.start()
        self.service.usage.start()
        self.word_reader.start()
        await self.watch.start()
        await self.extensions.start(self)

    async def aclose(self) -> None:
        """Let what runs end, or stop it; write what is to be written, give back what is shared."""
        self.draining.begin()  # connections hear of it; then what is served gets its grace, and others' needs end last
        await self.batch_work.stop()
        await self.followers.aclose()  # those who follow another worker's response may do so elsewhere
        grace = self.settings.shutdown_grace_seconds
        draining = self.registry.drain(grace, self.batch_work.over, self.draining.served)
        await asyncio.gather(draining, self.webhook_deliverer.aclose())
        self.completions.stop()
        # Behind the grace: from here on a database that hangs cannot hold up the stop.
        self.end_database(LAST_ROWS_SECONDS)
        await self.registry.aclose(last_words=LAST_WORDS_SECONDS)
        await self.draining.over(LAST_WORDS_SECONDS)
        await self.idempotency.aclose()
        await self.batch_work.aclose()
        await self.service.approving.aclose()
        await self.service.live.aclose()
        await self.engine_doors.aclose()
        await self.extensions.aclose()
        await asyncio.gather(self.word_reader.aclose(), self.expiry.aclose())
        await self.upkeep.aclose()
        await self.service.retention.aclose()
        await self.service.usage.aclose()  # what runs has ended
        await self.spending.aclose()
        await self.relay.aclose()
        await asyncio.gather(
            *(tool.aclose() for tool in self.tools),
            self.ledger.aclose(),
            self.service.known_turns.aclose(),
            self.store.aclose(),
            self.chats.aclose(),
            self.kept_chats.aclose(),
            self.conversations.aclose(),
            self.files.aclose(),
            self.uploads.aclose(),
            self.setups.aclose(),
            self.skills.aclose(),
            self.rollouts.aclose(),
            self.webhooks.aclose(),
            self.usage.aclose(),
            self.organization.aclose(),
            self.approvals.aclose(),
            self.pictures.aclose(),
            self.reading_pictures.aclose(),
            self.door.aclose(),
            self.audit.aclose(),
            self.engines.aclose(),
            self.embeddings.aclose(),
        )
        await self.watch.aclose()
        await self.traces.aclose()
        self.service.threads.close()
        self.reader.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """What everything else of a process is built on."""

    settings: Settings
    clock: StoreClock
    new_id: IdFactory  # by `clock`, so that ids sort by the store's time
    worker: str  # its id among the workers
    started_at: float  # Unix seconds
    engines: Engines
    adapters: Adapters
    tools: Sequence[BaseTool]
    pictures: Pictures  # reads the images of requests
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
    # Models can be imported only where Django has its settings.
    from responses_app.resources.webhooks.duty import WebhookDeliverer

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
        tools=server_tools(tool_parts(settings, adapters, clock)),
        pictures=Pictures(settings, adapters.stores),
        relay=Relay(),
        sealer=Sealer(settings.reasoning_encryption_keys or (django_settings.SECRET_KEY,), random_bytes=os.urandom),
        metrics=Metrics(enabled=settings.metrics != "off"),
        traces=Traces(enabled=settings.traces, content=settings.traces_content, content_in=settings.traces_content_in),
    )
    runs = _runs(base)
    upkeep = _upkeep(base, runs)
    upkeep.purges.append(runs.service.known_turns.purge)
    upkeep.purges.append(TrimmedMemory(is_busy=lambda: runs.registry.busy).trim)
    upkeep.purges.append(base.adapters.skills.purge)
    upkeep.purges.append(base.adapters.idempotency.purge)
    upkeep.purges.append(base.adapters.usage.fold)
    upkeep.purges.append(base.adapters.retention_store.forget_places)
    embeddings = _embeddings(base, runs)
    meant = search_model(settings)
    search_by_meaning(base.tools, settings, meant, embeddings.service.models, base.metrics)
    webhooks, sender = base.adapters.webhooks, WebhookSender(settings, base.sealer)
    # Bodies have threads of their own: what has been read is counted and let go of before much more is read.
    reader = JsonReader(reading := FairThreads(), settings, runs.service.running, max_items=settings.max_input_items)
    return Site(
        settings=settings,
        engines=base.engines,
        engine_doors=_engine_doors(base, runs.service),
        embeddings=embeddings,
        completions=CompletionService(runs.service),
        decisions=DecisionService(runs.service),
        store=base.adapters.stores.responses,
        chats=StoredChats(base.adapters.stores.chats, runs.responses, stores=settings.responses_store),
        kept_chats=KeptChats(base.adapters.stores.kept_chats, runs.responses, sharing=settings.playground_sharing),
        conversations=base.adapters.stores.conversations,
        files=base.adapters.stores.files,
        uploads=base.adapters.uploads,
        idempotency=IdempotencyKeys(
            base.adapters.idempotency,
            settings,
            sealer=base.sealer,
            worker=base.worker,
            dead_before=lambda: upkeep.heartbeat.pulse.dead_before,
        ),
        batches=base.adapters.batches,
        batch_work=_batch_work(base, runs, embeddings, upkeep, reader),
        setups=base.adapters.setups,
        skills=base.adapters.skills,
        rollouts=runs.service.rollouts,
        usage=base.adapters.usage,
        word_reader=WordReader(base.adapters.words),
        webhooks=webhooks,
        organization=base.adapters.organization,
        expiry=expiry_of(base.adapters, base.tools, runs.forgetting, base.clock),
        webhook_sender=sender,
        webhook_deliverer=WebhookDeliverer(webhooks, sender, worker=base.worker, now=clock),
        approvals=base.adapters.stores.approvals,
        pictures=base.adapters.stores.pictures,
        reading_pictures=base.pictures,
        ledger=base.adapters.ledger,
        connection_limit=base.adapters.connection_limit,
        rates=base.adapters.rates,
        spending=base.adapters.spending,
        answer_headers=AnswerHeaders(
            settings,
            partial(new_id, ids.REQUEST),
            partial(is_listed, listed=settings.trusted_pages) if settings.trusted_pages else None,
        ),
        registry=runs.registry,
        service=runs.service,
        responses=runs.responses,
        outputs=runs.outputs,
        forgetting=runs.forgetting,
        followers=runs.followers,
        upkeep=upkeep,
        relay=base.relay,
        door=base.adapters.door,
        audit=base.adapters.audit,
        watch=_watch(base, runs.service, upkeep),
        draining=Draining(),
        traces=base.traces,
        tools=base.tools,
        extensions=ExtensionWork(),
        end_database=end_within,
        reader=reader,
        token_reader=JsonReader(reading, settings, runs.service.running, max_items=settings.max_json_values),
        new_id=new_id,
        searches_meaning=meant is not None,
    )


@lru_cache(maxsize=1)
def get_site() -> Site:
    """Return the process's one site."""
    return build_site(django_settings.RESPSITE)


def _runs(base: _Base) -> _Runs:
    settings, stores, relay = base.settings, base.adapters.stores, base.relay
    registry = RunRegistry(settings, now=base.clock, retentions=base.adapters.retentions)
    forgetting = Forgetting(registry, others=relay)
    machines = _machines(base)
    followers = Followers(
        stores.responses,
        machines=machines,
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
            stores.responses, registry, forgetting, machines=machines, followers=followers, others=relay
        ),
        outputs=GivenOutputs(stores.responses, registry, others=relay, images_max=settings.input_images_max),
    )


def _machines(base: _Base) -> Machines:
    served = (
        _served(
            model,
            base.engines[model.name],
            base.metrics.model(model.name),
            created=int(base.started_at),
            rollout_share=base.settings.rollout_share,
        )
        for model in base.settings.served
    )
    models = ServedModels(served, told=plain_messages, embedding=embedding_names(base.settings))
    # Of the secret that all workers share; `person` keeps it apart from all else that is made of it.
    id_key = blake2b(django_settings.SECRET_KEY.encode(), person=b"respsite ids").digest()
    return Machines(models, id_key, base.sealer)


def _service(base: _Base, machines: Machines, registry: RunRegistry, forgetting: Forgetting) -> ResponseService:
    stores = base.adapters.stores
    return ResponseService(
        machines=machines,
        stores=stores,
        history=History(
            stores,
            runs=registry.runs,
            sealer=base.sealer,
            read_document=document_text(),
            pictures=base.pictures.reading,
        ),
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
        shelf=Shelf(base.tools, base.adapters.skills, refuses_unserved=base.settings.unserved_tools == "refuse"),
        rates=base.adapters.rates,
        metrics=base.metrics,
        usage=UsageBook(base.adapters.usage.keep, new_id=base.new_id, now=base.clock, metrics=base.metrics),
        traces=base.traces,
        retention=retention_watch(base.adapters),
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


def _embeddings(base: _Base, runs: _Runs) -> Embeddings:
    return Embeddings(
        base.settings,
        created=int(base.started_at),
        rates=base.adapters.rates,
        metrics=base.metrics,
        usage=runs.service.usage,
        guest=runs.registry.guest,
        generates=lambda name: runs.service.models.named(name) is not None,
    )


def _batch_work(base: _Base, runs: _Runs, embeddings: Embeddings, upkeep: Upkeep, reader: JsonReader) -> BatchWork:
    def check_model(endpoint: str, name: str | None, caller: Caller) -> None:
        if endpoint == EMBEDDINGS:
            embeddings.service.chosen(name, caller.models)
        else:
            runs.service.models.chosen(name, caller.models)

    office = BatchOffice(
        store=base.adapters.batches,
        files=base.adapters.stores.files,
        keys=base.adapters.door.keys.store,
        settings=base.settings,
        max_line_bytes=base.settings.max_body_bytes,
        read=reader.read,
        loads=reader.loads,
        check_model=check_model,
        new_id=base.new_id,
        now=base.clock,
    )
    ready = partial(getattr, base.engines, "any_started")
    dead_before = partial(getattr, upkeep.heartbeat.pulse, "dead_before")
    return BatchWork(office, worker=base.worker, dead_before=dead_before, ready=ready)


def _engine_doors(base: _Base, service: ResponseService) -> EngineDoors:
    store = base.adapters.engines
    follower = EngineFollower(service.models, store, worker=base.worker, now=base.clock)
    service.rollouts.follow(follower.state)
    return EngineDoors(
        store,
        follower,
        worker=base.worker,
        now=base.clock,
        settings=base.settings,
        tell=base.relay.tell_of_engine,
    )


def _watch(base: _Base, service: ResponseService, upkeep: Upkeep) -> Watch:
    """Build what an operator sees of the process."""
    return Watch(
        base.metrics,
        base.settings,
        service=service,
        connections=base.adapters.connection_limit,
        engines=base.engines,
        hears_store=lambda: upkeep.heartbeat.is_heard,
    )


def _served(
    model: ModelSettings, starter: EngineStarter[BaseEngine], meter: ModelMeter, *, created: int, rollout_share: float
) -> ServedModel:
    turns = FairTurns(
        max_running=model.max_running, bounds=model.max_queued, rollout_share=rollout_share, waited=meter.waited
    )
    starter.when_started = lambda info: turns.bound(info.at_once)
    return ServedModel(
        model.name,
        starter.engine,
        lambda: starter.info,
        created=created,
        format=make_format(family_of(model), starter.engine),
        meter=meter,
        turns=turns,
        aliases=model.aliases,
    )
