"""The composition root: `Site` is everything one process serves with, how it is started, and how it is closed.

It is made of the settings, each of its parts when it is first asked for (`wiring.parts`); a part gets what it needs
handed in. What a new resource needs is one more part.
"""

import asyncio
import os
import time
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from django.conf import settings as django_settings

from engine.models import make_format, plain_messages
from responses_app.auth.origins import is_listed
from responses_app.kit.clock import IdFactory
from responses_app.kit.pool import end_within
from responses_app.observing.logs import keep_silent
from responses_app.observing.memory import TrimmedMemory
from responses_app.observing.metrics import Metrics
from responses_app.observing.traces import Traces
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Caller
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.dialects import Dialect, requested_dialect
from responses_app.protocol.fields import header_choice, note_ignored
from responses_app.protocol.requests.requests import CreateRequest, parse_create
from responses_app.protocol.requests.server_tools import weighs_meaning
from responses_app.protocol.sealing import Sealer
from responses_app.protocol.session.tool_outputs import COMPLETE, TOOL_MODE_HEADER, WAIT
from responses_app.protocol.transport import AnswerHeaders
from responses_app.resources.batches.handlers import LineOf
from responses_app.resources.webhooks.sender import WebhookSender
from responses_app.runs.admission import Approving
from responses_app.runs.by_id import ResponsesById
from responses_app.runs.chats import StoredChats
from responses_app.runs.driving.unsaved import UsageBook
from responses_app.runs.duties import Draining, Upkeep
from responses_app.runs.engines.doors import EngineDoors
from responses_app.runs.engines.following import EngineFollower
from responses_app.runs.idempotency import IdempotencyKeys
from responses_app.runs.log.following import Followers
from responses_app.runs.log.run_log import LiveLogs, Machines
from responses_app.runs.outputs import GivenOutputs
from responses_app.runs.plan.history import History
from responses_app.runs.plan.offering import ServedTools
from responses_app.runs.plan.served import ServedModel, ServedModels
from responses_app.runs.plan.turns import FairThreads, FairTurns
from responses_app.runs.registry.registry import Forgetting, RunRegistry
from responses_app.runs.retention import Expiry, RetentionWatch
from responses_app.runs.rollouts import Rollouts
from responses_app.runs.service import ResponseService
from responses_app.runs.stateless.completions import CompletionService
from responses_app.runs.stateless.deciding import DecisionService
from responses_app.runs.words import WordReader
from responses_app.settings.conf import Settings
from responses_app.settings.models import ModelSettings
from responses_app.stores.base import WorkerState
from responses_app.tools.base import BaseTool
from responses_app.wiring.adapters import Adapters
from responses_app.wiring.engines import (
    Embeddings,
    Engines,
    collect_less_garbage,
    embedding_names,
    family_of,
    search_model,
)
from responses_app.wiring.extensions import ExtensionWork
from responses_app.wiring.parts import duty, early, late, part
from responses_app.wiring.pictures import Pictures
from responses_app.wiring.reading import JsonReader
from responses_app.wiring.relay import CANCEL, ENGINE, FOLLOW, FORGET, LOGGED
from responses_app.wiring.search_embedding import search_by_meaning
from responses_app.wiring.server_tools import document_text, server_tools, tool_parts
from responses_app.wiring.watching import Watch

if TYPE_CHECKING:
    from responses_app.resources.batches.duty import BatchWork
    from responses_app.resources.webhooks.duty import WebhookDeliverer

EMBEDDINGS = "/v1/embeddings"  # whose models are others than those of all other endpoints
LAST_WORDS_SECONDS = 1.0  # how long a stop waits for those who read what it stopped
LAST_ROWS_SECONDS = 5.0  # how long behind the grace a stop may ask the database: what is not kept, others take over


class Site(Adapters):
    """Everything one process serves with. What it is made of is started by `start` alone, which needs an event loop."""

    end_database: Callable[[float], None] = staticmethod(end_within)  # all that is asked of it ends within seconds

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.new_id = IdFactory(self.clock)  # so that ids sort by the store's time
        self.worker = self.new_id(ids.WORKER)  # its id among the workers
        self.started_at = time.time()  # Unix seconds
        # Whether clients may send the fields of requests that are for the engine's operator
        self.takes_engine_fields = not settings.responses_compatibility_mode

    # What is seen of the process.

    @part
    def metrics(self) -> Metrics:
        return Metrics(enabled=self.settings.metrics != "off")

    @late
    def traces(self) -> Traces:
        own = self.settings
        return Traces(enabled=own.traces, content=own.traces_content, content_in=own.traces_content_in)

    @late
    def watch(self) -> Watch:
        return Watch(
            self.metrics,
            self.settings,
            service=self.service,
            connections=self.connection_limit,
            engines=self.engines,
            hears_store=lambda: self.upkeep.heartbeat.is_heard,
        )

    # What reads requests, and what is the same of each answer.

    @part
    def body_threads(self) -> FairThreads:
        """Bodies have threads of their own: what has been read is counted and let go of before much more is read."""
        return FairThreads()

    @part
    def reader(self) -> JsonReader:  # of all bodies but those that the next one reads, and of frames
        most = self.settings.max_input_items
        return JsonReader(self.body_threads, self.settings, self.service.running, max_items=most)

    @part
    def token_reader(self) -> JsonReader:  # of bodies whose `input` may be token ids
        most = self.settings.max_json_values
        return JsonReader(self.body_threads, self.settings, self.service.running, max_items=most)

    @part
    def reading_pictures(self) -> Pictures:
        return Pictures(self.settings, self.stores)

    @part
    def answer_headers(self) -> AnswerHeaders:
        listed = self.settings.trusted_pages
        is_trusted = partial(is_listed, listed=listed) if listed else None
        return AnswerHeaders(self.settings, partial(self.new_id, ids.REQUEST), is_trusted)

    @part
    def sealer(self) -> Sealer:
        keys = self.settings.reasoning_encryption_keys or (django_settings.SECRET_KEY,)
        return Sealer(keys, random_bytes=os.urandom)

    # What generates, and the tools of this server, which are started and closed with it.

    @part
    def engines(self) -> Engines:
        return Engines(self.settings, ready=collect_less_garbage)

    @part
    def models(self) -> ServedModels:
        served = (self._served(model) for model in self.settings.served)
        return ServedModels(served, told=plain_messages, embedding=embedding_names(self.settings))

    @part
    def embeddings(self) -> Embeddings:
        made = Embeddings(
            self.settings,
            created=int(self.started_at),
            rates=self.rates,
            metrics=self.metrics,
            usage=self.usage_book,
            guest=self.registry.guest,
            generates=lambda name: self.models.named(name) is not None,
        )
        search_by_meaning(self.tools, self.settings, search_model(self.settings), made.service.models, self.metrics)
        return made

    @part
    def searches_meaning(self) -> bool:  # whether files are searched by more than their words
        return search_model(self.settings) is not None

    @part
    def tools(self) -> tuple[BaseTool, ...]:
        return server_tools(tool_parts(self.settings, self, self.clock))

    # What runs responses, and what finds them.

    @part
    def machines(self) -> Machines:
        # Of the secret that all workers share; `person` keeps it apart from all else that is made of it.
        id_key = blake2b(django_settings.SECRET_KEY.encode(), person=b"respsite ids").digest()
        return Machines(self.models, id_key, self.sealer)

    @early
    def registry(self) -> RunRegistry:
        return RunRegistry(self.settings, now=self.clock, retentions=self.retentions)

    @part
    def forgetting(self) -> Forgetting:
        return Forgetting(self.registry, others=self.relay)

    @early
    def followers(self) -> Followers:
        return Followers(
            self.store,
            machines=self.machines,
            settings=self.settings,
            follow_here=self.registry.follow,
            here=self.registry.readable,
            others=self.relay,
        )

    @part
    def responses(self) -> ResponsesById:
        return ResponsesById(
            self.store,
            self.registry,
            self.forgetting,
            machines=self.machines,
            followers=self.followers,
            others=self.relay,
        )

    @part
    def outputs(self) -> GivenOutputs:  # of tools of clients, to the runs that wait for them
        most = self.settings.input_images_max
        return GivenOutputs(self.store, self.registry, others=self.relay, images_max=most)

    @part
    def service(self) -> ResponseService:
        return ResponseService(
            machines=self.machines,
            stores=self.stores,
            history=History(
                self.stores,
                runs=self.registry.runs,
                sealer=self.sealer,
                read_document=document_text(),
                pictures=self.reading_pictures.reading,
            ),
            registry=self.registry,
            sealer=self.sealer,
            new_id=self.new_id,
            now=self.clock,
            settings=self.settings,
            worker=self.worker,
            live=self.live_logs,
            server_tools=ServedTools(self.tools, self.skills, self.settings),
            rates=self.rates,
            metrics=self.metrics,
            usage=self.usage_book,
            traces=self.traces,
            retention=self.retention,
            keys=self.door.keys.store,
            shared_turns=self.shared_turns,
        )

    @part
    def completions(self) -> CompletionService:
        return CompletionService(self.service)

    @part
    def decisions(self) -> DecisionService:
        return DecisionService(self.service)

    @part
    def chats(self) -> StoredChats:  # chat completions
        return StoredChats(self.chat_store, self.responses, stores=self.settings.responses_store)

    @part
    def rollouts(self) -> Rollouts:
        return self.service.rollouts

    @early  # closed by the deliverer
    def webhook_sender(self) -> WebhookSender:
        return WebhookSender(self.settings, self.sealer)

    @part
    def draining(self) -> Draining:  # tells connections that the server stops
        return Draining()

    # What this worker does by itself. A stop ends these from the last to the first, once nothing runs any more.

    @early
    def webhook_deliverer(self) -> "WebhookDeliverer":
        from responses_app.resources.webhooks.duty import WebhookDeliverer

        return WebhookDeliverer(self.webhooks, self.webhook_sender, worker=self.worker, now=self.clock)

    @duty
    def usage_book(self) -> UsageBook:
        return UsageBook(self.usage.keep, new_id=self.new_id, now=self.clock, metrics=self.metrics)

    @duty
    def retention(self) -> RetentionWatch:  # knows how long each project keeps things; the process's log goes by it
        keep_silent(self.retentions.keeps_nothing)
        return RetentionWatch(self.retentions, self.retention_store.read)

    @duty
    def upkeep(self) -> Upkeep:  # the heartbeat, and what dead workers left
        upkeep = Upkeep(
            self.service,
            self.stores,
            forgetting=self.forgetting,
            state=self._state,
            ready=lambda: self.engines.any_started,
            settings=self.settings,
        )
        upkeep.purges += (
            self.service.known_turns.purge,
            TrimmedMemory(is_busy=lambda: self.registry.busy).trim,
            self.uploads.purge,
            self.skills.purge,
            self.idempotency_store.purge,
            self.usage.fold,
            self.retention_store.forget_places,
        )
        return upkeep

    @duty
    def expiry(self) -> Expiry:  # removes what projects keep no longer
        return Expiry(
            self.retentions,
            expire=self.retention_store.expire,
            forget=self.forgetting.everywhere,
            expire_tools=self._expire_tools,
            now=self.clock,
        )

    @duty
    def word_reader(self) -> WordReader:  # for the search of the admin
        return WordReader(self.words)

    @duty
    def extensions(self) -> ExtensionWork:  # what they do beside requests
        return ExtensionWork()

    @duty
    def engine_doors(self) -> EngineDoors:  # what trainers do to engines
        follower = EngineFollower(self.models, self.engine_store, worker=self.worker, now=self.clock)
        self.rollouts.follow(follower.state)
        return EngineDoors(
            self.engine_store,
            follower,
            worker=self.worker,
            now=self.clock,
            settings=self.settings,
            tell=self.relay.tell_of_engine,
        )

    @duty
    def live_logs(self) -> LiveLogs:
        return LiveLogs(
            self.store,
            lose=self.registry.lose,
            gone=lambda response_id: self.forgetting.here([response_id]),
            tell=self.relay.tell_followers,
            now=self.clock,
        )

    @duty
    def approving(self) -> Approving:
        return self.service.approving

    @duty
    def batch_work(self) -> "BatchWork":
        from responses_app.resources.batches.duty import BatchWork
        from responses_app.resources.batches.runner import BatchContext

        context = BatchContext(
            store=self.batches,
            files=self.files,
            keys=self.door.keys.store,
            settings=self.settings,
            max_line_bytes=self.settings.max_body_bytes,
            read=self.reader.read,
            loads=self.reader.loads,
            check_model=self._check_model,
            new_id=self.new_id,
            now=self.clock,
        )
        ready = partial(getattr, self.engines, "any_started")
        return BatchWork(context, worker=self.worker, dead_before=self._dead_before, ready=ready)

    @duty
    def idempotency(self) -> IdempotencyKeys:  # of requests that are to be carried out once
        return IdempotencyKeys(
            self.idempotency_store,
            self.settings,
            sealer=self.sealer,
            worker=self.worker,
            dead_before=self._dead_before,
        )

    def dialect(self, header: str | None) -> Dialect:
        """Return the dialect that a request asks for by its header. Raises `ApiError` (400) for one not known."""
        return self.own_dialect if header is None else self._dialect(header)

    @part
    def own_dialect(self) -> Dialect:  # of requests that ask for none
        return self._dialect(None)

    def _dialect(self, header: str | None) -> Dialect:
        settings = self.settings
        return requested_dialect(header, settings.responses_dialect, usage_per_turn=settings.responses_usage_per_turn)

    def awaits_tools(self, header: str | None, dialect: Dialect) -> bool:
        """Whether a stream waits for the outputs of its client's tools. Raises `ApiError` (400) for an unknown mode.

        Never where a turn has one id: there its stream ends with its calls, and the next one goes on under that id.
        """
        own = self.settings.responses_tool_mode
        mode = own if header is None else header_choice(TOOL_MODE_HEADER, header, (COMPLETE, WAIT), own)
        return mode == WAIT and not dialect.one_id_a_turn

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
        await self.retention.start()  # before anything is kept, also by duties
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
        self.usage_book.start()
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
        await self.close()  # the duties, then all else
        self.service.threads.close()
        self.body_threads.close()

    def _served(self, model: ModelSettings) -> ServedModel:
        starter, meter = self.engines[model.name], self.metrics.model(model.name)
        turns = FairTurns(
            max_running=model.max_running,
            bounds=model.max_queued,
            rollout_share=self.settings.rollout_share,
            waited=meter.waited,
        )
        starter.when_started = lambda info: turns.bound(info.at_once)
        return ServedModel(
            model.name,
            starter.engine,
            partial(getattr, starter, "info"),
            created=int(self.started_at),
            format=make_format(family_of(model), starter.engine),
            meter=meter,
            turns=turns,
            aliases=model.aliases,
        )

    def _state(self) -> WorkerState:
        connections, in_flight = self.connection_limit.open_connections, len(self.registry)
        return WorkerState(id=self.worker, started_at=self.started_at, connections=connections, in_flight=in_flight)

    def _dead_before(self) -> float:
        return self.upkeep.heartbeat.pulse.dead_before

    def _check_model(self, endpoint: str, name: str | None, caller: Caller) -> None:
        models = self.embeddings.service if endpoint == EMBEDDINGS else self.models
        models.chosen(name, caller.models)

    async def _expire_tools(self, project: str, oldest: float) -> None:
        for tool in self.tools:
            await tool.expire(project, oldest)


@lru_cache(maxsize=1)
def get_site() -> Site:
    """Return the process's one site."""
    return Site(django_settings.RESPSITE)
