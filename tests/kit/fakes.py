"""A tiny engine, a store that waits, and a service around them."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from engine import orjson
from engine.backends.base import BaseEngine
from engine.formats.base import ModelFormat
from engine.formats.harmony.encoding import CALL, RETURN, encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.models import plain_messages
from engine.types import EngineInfo, FinishReason, GenerationRequest, TokenChunk
from responses_app.kit.errors import StoreError
from responses_app.limits.memory import MemoryLedger
from responses_app.limits.rates import Rates
from responses_app.observing.metrics import Metrics
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.media import ReadDocument
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.sealing import Sealer
from responses_app.resources.usage.fields import UsageEntry
from responses_app.runs.by_id import ResponsesById
from responses_app.runs.driving.run import Run
from responses_app.runs.driving.unsaved import UsageBook
from responses_app.runs.log.following import Followers
from responses_app.runs.log.journal import ResponseReader, Waiter
from responses_app.runs.log.run_log import LiveLogs, Machines
from responses_app.runs.outputs import GivenOutputs
from responses_app.runs.plan.history import History
from responses_app.runs.plan.offering import ServedTools
from responses_app.runs.plan.pictures import Fetch, PictureCache, PictureReading, Read, no_fetch, no_pictures
from responses_app.runs.plan.plan import Origin
from responses_app.runs.plan.reading import no_reader
from responses_app.runs.plan.served import ServedModel, ServedModels
from responses_app.runs.plan.settings import RunSettings
from responses_app.runs.plan.stores import Stores
from responses_app.runs.plan.turns import FairTurns
from responses_app.runs.registry.registry import Forgetting, RunRegistry
from responses_app.runs.service import ResponseService
from responses_app.stores.base import AcceptedResponse, Appended, BasePictureStore, LogAppend, StoredResponse
from responses_app.stores.nothing import NoChatStore
from responses_app.tools.base import BaseTool
from responses_app.tools.settings import PictureSettings
from tests.kit.laws import assert_laws, counting_ids
from tests.kit.memory_pictures import MemoryPictureStore
from tests.kit.memory_stores import MemoryResponseStore

ANSWER = "<|channel|>final<|message|>Hello.<|return|>"
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CALL_F = f'{THOUGHT}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"a":1}}<|call|>'
TOOL_F: JsonObject = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
NOW = 1_700_000_000.5

Step = str | Exception | asyncio.Event | FinishReason  # say, raise, wait for, end with
Turn = str | Sequence[Step]


class FakeEngine(BaseEngine):
    """Plays one turn a generation, the last one for ever; a text at the end of a turn ends it with `stop`."""

    ends = (RETURN, CALL)  # tokens, one of which ends a turn

    def __init__(self, turns: Iterable[Turn] = (ANSWER,), *, max_model_len: int = 10_000) -> None:
        super().__init__(model="fake")
        self.info = EngineInfo(backend="fake", model="fake", max_model_len=max_model_len)
        self.turns = [[turn] if isinstance(turn, str) else list(turn) for turn in turns]
        self.requests: list[GenerationRequest] = []
        self.running = 0
        self.ill: Exception | None = None
        self.supports_priority = self.supports_cache_salt = self.supports_prefill = True
        self.waits = asyncio.Event()  # a generation has come to an event that is not set

    @property
    def prompts(self) -> list[list[int]]:
        """The prompts of all generations so far."""
        return [list(request.prompt_token_ids) for request in self.requests]

    def encode(self, said: str) -> list[int]:
        """Return the tokens of what the model says."""
        return encode_harmony(said)

    async def start(self) -> EngineInfo:
        return self.info

    async def health(self) -> None:
        if self.ill is not None:
            raise self.ill

    async def aclose(self) -> None:
        pass

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        turn = self.turns[min(len(self.requests), len(self.turns) - 1)]
        self.requests.append(request)
        self.running += 1
        try:
            for index, step in enumerate(turn):
                match step:
                    case Exception():
                        raise step
                    case asyncio.Event():
                        if not step.is_set():
                            self.waits.set()
                        await step.wait()
                    case FinishReason():
                        yield TokenChunk(token_ids=(), finish_reason=step, cached_tokens=0)
                    case str():
                        last = index == len(turn) - 1
                        tokens = self.encode(step)
                        assert not last or tokens[-1] in self.ends, "a turn ends with a stop token"
                        reason = FinishReason.STOP if last else None
                        yield TokenChunk(token_ids=tokens, finish_reason=reason, cached_tokens=3 if last else None)
                await asyncio.sleep(0)
        finally:
            self.running -= 1


class FakeStore(MemoryResponseStore):
    """A memory store that can be told to fail, and to wait before it has saved."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.saving = asyncio.Event()
        self.saved: list[StoredResponse] = []

    async def save(self, stored: StoredResponse) -> None:
        self.saving.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await super().save(stored)
        self.saved.append(stored)

    async def accept(self, accepted: AcceptedResponse) -> None:
        if isinstance(self.failure, StoreError):
            raise self.failure
        await super().accept(accepted)

    async def append(self, appends: Collection[LogAppend]) -> Appended:
        if isinstance(self.failure, StoreError):
            raise self.failure
        return await super().append(appends)

    async def chain(self, project: str, response_id: str) -> ChainLink | None:
        if isinstance(self.failure, StoreError):
            raise self.failure
        return await super().chain(project, response_id)


class SlowStore(FakeStore):
    """A store that waits before it accepts anything."""

    def __init__(self) -> None:
        super().__init__()
        self.accepting = 0
        self.go_on = asyncio.Event()

    async def accept(self, accepted: AcceptedResponse) -> None:
        self.accepting += 1
        await self.go_on.wait()
        await super().accept(accepted)


class FakeOthers:
    """The relay of workers in one process; `reaches_others` can be switched while they run."""

    def __init__(self, *, reaches_others: bool = True) -> None:
        self.reaches_others = reaches_others
        self.sites: list[Site] = []
        self.told: list[tuple[str, list[str]]] = []

    def connect(self, site: "Site") -> None:
        """Let a worker hear."""
        self.sites.append(site)

    async def ask_to_cancel(self, response_id: str) -> bool:
        return self._tell("cancel", [response_id])

    async def ask_to_take(self, told: JsonObject) -> JsonObject | None:
        if not self.reaches_others:
            return None
        answers = [await site.outputs.take_here(told) for site in self.sites]
        return next((answer for answer in answers if answer is not None), None)

    async def ask_to_forget(self, response_ids: Collection[str]) -> bool:
        return self._tell("forget", response_ids)

    async def ask_to_follow(self, response_id: str) -> bool:
        return self._tell("follow", [response_id])

    async def tell_followers(self, response_ids: Collection[str]) -> bool:
        return self._tell("logged", response_ids)

    def _tell(self, word: str, response_ids: Collection[str]) -> bool:
        if not self.reaches_others:
            return False
        self.told.append((word, list(response_ids)))
        for site in self.sites:
            hear = {
                "cancel": site.responses.cancel_here,
                "forget": site.forgetting.here,
                "follow": site.registry.follow,
                "logged": site.followers.ring,
            }
            hear[word](response_ids)
        return True


def run_settings(**changes: Any) -> RunSettings:
    """Return the settings of what runs: a store that is away is not waited for."""
    few = {"responses_max_in_flight": 10, "stream_max_lag_bytes": 1_000_000, "responses_max_unsaved_bytes": 1_000_000}
    return RunSettings(**{"database_patience_seconds": 0.0, **few, **changes})


async def no_usage(entries: Sequence[UsageEntry]) -> None:
    """Keep nothing of what was used."""


@dataclass
class Site:
    """A service with its parts at hand. `lent` are stores of fixtures, for all sites of a test that name none."""

    lent: ClassVar[dict[str, Any]] = {}

    engine: FakeEngine = field(default_factory=FakeEngine)
    store: FakeStore = field(default_factory=FakeStore)
    settings: RunSettings = field(default_factory=lambda: run_settings())
    conversations: Any = None  # who names one brings the store, here and below
    model_format: ModelFormat = field(default_factory=HarmonyFormat)
    tools: Sequence[BaseTool] = ()
    turns: FairTurns = field(default_factory=FairTurns)
    more_models: Sequence[ServedModel] = ()
    worker: str = ""
    others: "FakeOthers" = field(default_factory=lambda: FakeOthers(reaches_others=False))
    rates: Rates = field(default_factory=lambda: Rates(MemoryLedger()))
    metrics: Metrics = field(default_factory=Metrics)
    new_id: Callable[[str], str] = field(default_factory=counting_ids)
    files: Any = None
    approvals: Any = None
    skills: Any = None
    pictures: BasePictureStore = field(default_factory=MemoryPictureStore)
    rollouts: Any = None
    picture_settings: PictureSettings = field(default_factory=PictureSettings)
    read_picture: Read = no_pictures
    fetch_picture: Fetch = no_fetch
    read_document: ReadDocument = no_reader
    sealer: Sealer = field(default_factory=lambda: Sealer(["a secret of these tests"], random_bytes=os.urandom))

    def __post_init__(self) -> None:
        for name, store in self.lent.items():
            setattr(self, name, getattr(self, name) or store)
        self.registry = RunRegistry(self.settings, now=time.time)
        self.forgetting = Forgetting(self.registry, others=self.others)
        self.live = LiveLogs(
            self.store,
            lose=self.registry.lose,
            gone=lambda response_id: self.forgetting.here([response_id]),
            tell=self.others.tell_followers,
        )
        meter = self.metrics.model("fake")
        model = ServedModel("fake", self.engine, lambda: self.engine.info, 0, self.model_format, meter, self.turns)
        stores = Stores(
            self.store,
            NoChatStore(),
            self.conversations,
            self.files,
            self.approvals,
            self.pictures,
            self.rollouts,
        )
        machines = Machines(ServedModels([model, *self.more_models], told=plain_messages), b"key", self.sealer)
        self.service = ResponseService(
            machines=machines,
            stores=stores,
            history=History(
                stores,
                runs=self.registry.runs,
                sealer=self.sealer,
                read_document=self.read_document,
                pictures=PictureReading(
                    PictureCache(self.pictures, max_bytes=self.picture_settings.input_images_memory_bytes),
                    self.files,
                    read=self.read_picture,
                    fetch=self.fetch_picture,
                    settings=self.picture_settings,
                ),
            ),
            registry=self.registry,
            sealer=self.sealer,
            new_id=self.new_id,
            now=lambda: NOW,
            settings=self.settings,
            worker=self.worker,
            live=self.live,
            rates=self.rates,
            metrics=self.metrics,
            usage=UsageBook(no_usage, new_id=self.new_id, now=lambda: NOW, metrics=self.metrics),
            server_tools=ServedTools(self.tools, self.skills),
        )
        self.followers = Followers(
            self.store,
            machines=machines,
            settings=self.settings,
            follow_here=self.registry.follow,
            here=self.registry.readable,
            others=self.others,
        )
        self.responses = ResponsesById(
            self.store,
            self.registry,
            self.forgetting,
            machines=machines,
            followers=self.followers,
            others=self.others,
        )
        images_max = self.picture_settings.input_images_max
        self.outputs = GivenOutputs(self.store, self.registry, others=self.others, images_max=images_max)
        self.others.connect(self)

    async def begin(
        self, *, project: str = "default", transport: str = "test", awaits_tools: bool = False, **fields: object
    ) -> "Reading":
        """Start a run and attach a reader."""
        origin = Origin(transport=transport, project=project, request_id="req_1", awaits_tools=awaits_tools)
        return Reading(self, await self.service.create(parse_create(fields, engine_fields=True), origin))

    async def follow(self, response_id: str, *, starting_after: int | None = None) -> "Reading":
        return Reading(self, await self.responses.follow("default", response_id, starting_after=starting_after))

    async def ask(self, **fields: object) -> JsonObject:
        """Let a run go to its end; return the response of its terminal event."""
        events = await (await self.begin(**fields)).to_the_end()
        response = events[-1]["response"]
        assert isinstance(response, dict)
        return response

    async def events(self, **fields: object) -> list[JsonObject]:
        """Let a streamed run go to its end; return its events, which keep the laws of all streams."""
        events = await (await self.begin(**{"input": "hi", "transport": "sse", **fields})).to_the_end()  # type: ignore[arg-type]
        assert_laws(events)
        return events

    async def refusal(self, **fields: object) -> ApiError:
        """Return the error that a run is refused with."""
        with pytest.raises(ApiError) as refused:
            await self.begin(**fields)  # type: ignore[arg-type]
        return refused.value


class Reading:
    """A reader, and what it has read."""

    def __init__(self, site: Site, reader: ResponseReader) -> None:
        self.site = site
        self.reader = reader
        self.wake = Waiter()
        reader.listen(self.wake)
        self.events: list[JsonObject] = []

    @property
    def run(self) -> Run:
        run = self.site.registry.get(self.reader.source.response_id) or self.reader.source
        assert isinstance(run, Run)
        return run

    async def to_the_end(self) -> list[JsonObject]:
        """Read all events."""
        return await self.until(None)

    async def until(self, type: str | None) -> list[JsonObject]:
        """Read until an event of this type was taken, or to the end."""
        async with asyncio.timeout(30):
            while not self.reader.ended:
                taken = self.take()
                if type is not None and any(event["type"] == type for event in taken or self.events):
                    break
                if not taken and not self.reader.ended:
                    await self.wake.wait()
        return self.events

    def take(self) -> list[JsonObject]:
        taken = [orjson.loads(entry.json) for entry in self.reader.take()]
        self.events += taken
        return taken

    def leave(self) -> None:
        """Go away."""
        self.reader.leave()


async def collect(engine: BaseEngine, request: GenerationRequest) -> list[TokenChunk]:
    """Return all chunks of a generation."""
    async with aclosing(engine.generate(request)) as chunks:
        return [chunk async for chunk in chunks]
