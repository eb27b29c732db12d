"""The engines of a process: made of settings, checked, started, asked how they are, and closed.

There is one for each model that generates (`Engines`), and one for each that makes embeddings (`Embeddings`). The
system checks at the end are what `respsite manage check` and `make run` say before anything is served.
"""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from engine.backends.base import BaseEngine, restart_pause
from engine.backends.model_folder import ModelFamily, check_tokenizer
from engine.embeddings.base import BaseEmbeddings
from engine.errors import EngineConfigurationError, EngineError
from engine.types import EngineInfo
from responses_app.kit.duty import end_tasks
from responses_app.limits.rates import Rates
from responses_app.observing.metrics import Metrics
from responses_app.runs.driving.unsaved import UsageBook
from responses_app.runs.plan.turns import FairTurns
from responses_app.runs.stateless.embedding import EmbeddingModels, EmbeddingService, ServedEmbeddings
from responses_app.settings.conf import Settings
from responses_app.settings.models import ModelSettings
from responses_app.tools.settings import OFF

logger = logging.getLogger("respsite.engine")

Engine = TypeVar("Engine", BaseEngine, BaseEmbeddings)

BACKENDS = {  # imported when chosen: a backend may need packages that others do without
    "demo": "engine.backends.demo.engine.DemoEngine",
    "llama-server": "engine.backends.llama.server.LlamaServerEngine",
    "scripted": "engine.backends.scripted.ScriptedEngine",
    "vllm": "engine.backends.vllm.local.VllmEngine",
    "vllm-server": "engine.backends.vllm.server.VllmServerEngine",
}
ASKED = ("vllm-server", "llama-server")  # those that ask servers
COLLECT_AFTER = (20_000, 20, 20)  # new objects (some MB), and collections of the younger generation
REFUSED = "the engine cannot start: the server's log says why"  # `/ready` tells it to everybody, so nothing more


def make_engine(model: ModelSettings, *, core: str = "") -> BaseEngine:
    """Build the engine of a model; nothing is loaded yet. `core` is the socket of an engine core that is shared."""
    module, _, name = BACKENDS[model.engine].rpartition(".")
    options = engine_options(model)
    if model.engine == "scripted":
        options["script"] = model.script
    if model.engine in ASKED:
        options |= {"urls": model.url, "api_key": model.api_key}
    more = {"core": core} if model.engine == "vllm" else {}
    make = getattr(import_module(module), name)
    engine: BaseEngine = make(model=model.model, options=options, **more)
    return engine


def engine_options(model: ModelSettings) -> dict[str, object]:
    """Return an engine's options, with what follows from its model's format; its engine core needs them, too."""
    options = dict(model.options)
    if not family_of(model).is_harmony:
        # Off: the server's model is not a gpt-oss, and is tried and asked as such.
        options |= {"harmony": False} if model.engine == "vllm-server" else {}
        if model.engine in ("vllm", "llama-server"):
            options.setdefault("tokenizer", model.tokenizer or model.model)
    return options


def family_of(model: ModelSettings) -> ModelFamily:
    """Return what the settings say of a model's format. The engines that play a model speak Harmony."""
    return ModelFamily(
        format="harmony" if model.engine in ("demo", "scripted") else model.format,
        model=model.model,
        tokenizer=model.tokenizer,
        reasoning_parser=model.reasoning_parser,
        tool_parser=model.tool_parser,
        image_token=model.image_token,
        template_kwargs=model.chat_template_kwargs,
    )


def _check_family(family: ModelFamily) -> None:
    """Raise `EngineConfigurationError` where a model that is not Harmony lacks its tokenizer."""
    if not family.is_harmony:
        check_tokenizer(family.tokenizer or family.model)
        if family.vllm_parsers and find_spec("vllm") is None:
            raise EngineConfigurationError(
                "REASONING_PARSER and TOOL_PARSER name parsers of vLLM, which is not installed."
            )


def stop_serving() -> None:
    """End this process as its operator would: what cannot work stops the start."""
    signal.raise_signal(signal.SIGTERM)


def collect_less_garbage() -> None:
    """Let the garbage collector leave alone what there is now, and look less often for new garbage.

    Modules, models and tables are there for good. To look through them takes the event loop some 30 ms, again and
    again, and finds nothing. What runs is hundreds of tasks with thousands of objects, nearly all of them alive or gone
    without the collector: as it is set by default, it takes a sixth of a short response's CPU and more, so a twelfth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


class EngineStarter(Generic[Engine]):
    """Starts an engine beside everything else, again and again where that can help; `fatal` is called where not.

    `ready` is called once it has started. `model` is for the log, where there are several.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        fatal: Callable[[], None] = stop_serving,
        ready: Callable[[], None] = lambda: None,
        model: str | None = None,
    ) -> None:
        self.engine: Engine = engine
        self._called = f"the engine of {model!r}" if model else "the engine"  # in the log
        self._then = "" if model else ", so the server stops"  # what its failure means, for the log
        self._fatal = fatal
        self._ready = ready
        self.info: EngineInfo | None = None  # None until it has started
        self.when_started: Callable[[EngineInfo], None] = lambda info: None  # called with `info`, before `ready`
        self.problem = "the engine is starting"  # for `/ready`, which everybody may read
        self.tried = asyncio.Event()  # once: it has started, or has not
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to start; `info` is there once it worked, until then `problem` says what is the matter."""
        self._task = asyncio.create_task(self._start(), name="start the engine")

    async def wait(self) -> None:
        """Wait until the engine has started, or never will."""
        if self._task:
            await asyncio.wait([self._task])

    async def trouble(self) -> str | None:
        """Return why it can take no request now; None where it can."""
        if self.info is None:
            return self.problem
        try:
            await self.engine.health()
        except EngineError:
            return "the engine is away"
        return None

    async def aclose(self) -> None:
        """Stop the engine, started or not."""
        await end_tasks([self._task])
        await self.engine.aclose()

    async def _start(self) -> None:
        failed = 0
        while True:
            try:
                self.info = await self.engine.start()
            except EngineConfigurationError as error:
                self.problem = REFUSED
                logger.error("%s cannot start%s: %s", self._called, self._then, error)
                # Before `fatal`: whoever waits for the first try is not to wait for a server that stops.
                self.tried.set()
                self._fatal()
                return
            except Exception as error:  # whatever it is: nobody else would try again
                self.problem = "the engine is away"
                wait = restart_pause(failed)
                unexpected = None if isinstance(error, EngineError) else error
                logger.warning(
                    "%s did not start: %s; trying again in %d s", self._called, error, wait, exc_info=unexpected
                )
                failed += 1
                self.tried.set()
                await asyncio.sleep(wait)
            else:
                # The start lines came before this was known.
                if (info := self.info).detail:
                    about = f"{info.backend}, {info.model}, {info.max_model_len} tokens of context, {info.detail}"
                    logger.info("%s is ready: %s", self._called, about)
                self.when_started(self.info)
                self._ready()
                self.tried.set()
                return


class Starters(Generic[Engine]):
    """Engines that are started and stopped beside each other, by the names of their models."""

    def __init__(self, starters: Mapping[str, EngineStarter[Engine]]) -> None:
        self._starters: Mapping[str, EngineStarter[Engine]] = starters

    def start(self) -> None:
        """Begin to start them all."""
        for starter in self._starters.values():
            starter.start()

    async def troubles(self) -> Mapping[str, str]:
        """Return the models that take no request now, and why."""
        troubles = await asyncio.gather(*(each.trouble() for each in self._starters.values()))
        return {name: trouble for name, trouble in zip(self._starters, troubles, strict=True) if trouble}

    async def aclose(self) -> None:
        """Stop them all."""
        await asyncio.gather(*(starter.aclose() for starter in self._starters.values()))


class Engines(Starters[BaseEngine]):
    """The engines of a process that generate. One that is away leaves the others alone."""

    def __init__(
        self,
        settings: Settings,
        *,
        fatal: Callable[[], None] = stop_serving,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._fatal = fatal
        self._ready = ready
        several = len(settings.served) > 1
        super().__init__(
            {
                model.name: EngineStarter(
                    make_engine(model, core=settings.engine_core),
                    fatal=self._refused,
                    ready=self._started,
                    model=model.name if several else None,
                )
                for model in settings.served
            }
        )
        self._families = {model.name: family_of(model) for model in settings.served}
        self._refusals = 0  # engines that can never start
        self._any = asyncio.Event()  # one has started at least

    def __getitem__(self, model: str) -> EngineStarter[BaseEngine]:
        return self._starters[model]

    def __iter__(self) -> Iterator[str]:
        return iter(self._starters)

    @property
    def any_started(self) -> bool:
        """Whether a model can be served, or could before its engine went away."""
        return self._any.is_set()

    def check(self) -> None:
        """Raise `EngineConfigurationError` for one that cannot work; nothing is loaded."""
        for name, starter in self._starters.items():
            try:
                starter.engine.check()
                _check_family(self._families[name])
            except EngineConfigurationError as error:
                if len(self._starters) == 1:
                    raise
                raise EngineConfigurationError(f"MODELS, {name!r}: {error}") from error

    async def begun(self) -> None:
        """Wait until one has started, and each of the others has, or has failed to for the first time."""
        for starter in self._starters.values():
            await starter.tried.wait()
        # Where each one has failed for now, this waits until the first can be served.
        await self._any.wait()

    def _started(self) -> None:
        self._ready()
        self._any.set()

    def _refused(self) -> None:
        """Go on with the other models, where there are any."""
        self._refusals += 1
        if self._refusals == len(self._starters):
            if self._refusals > 1:
                logger.error("no engine can start, so the server stops")
            self._fatal()


ENGINES = {  # imported when chosen
    "hashing": "engine.embeddings.hashing.HashingEmbeddings",
    "vllm-embeddings": "engine.embeddings.vllm_server.VllmServerEmbeddings",
}
IN_PROCESS = "engine.embeddings.vllm_local.VllmEmbeddings"  # a `vllm-embeddings` without a URL
UNNAMED = "embeddings"  # what clients call the model at EMBEDDINGS_URL, where EMBEDDINGS_MODEL does not say it
WITHOUT_MEANING = "hashing"  # an engine whose vectors say no more than words do: it is used where it is named
OF_THE_DEMO = "hashing-256"  # `engine.embeddings.hashing` says the same


def embedding_models(settings: Settings) -> tuple[ModelSettings, ...]:
    """Return the models that make embeddings: those of MODELS, and EMBEDDINGS_MODEL; the demo has one itself."""
    own = tuple(model for model in settings.all_models if model.embeds)
    one = replace(settings.all_models[0], aliases=(), format="harmony", options={}, script="", url=())
    model, at = settings.embeddings_model, settings.embeddings_url
    if model or at:
        # Without a URL it is loaded in this process: `make_embeddings` tells the two apart.
        there = replace(one, engine="vllm-embeddings", url=at, api_key=settings.engine_api_key)
        own_options = {} if at else settings.embeddings_options
        return (*own, replace(there, name=_called(model) or UNNAMED, model=model, options=own_options))
    if not settings.models and settings.engine == "demo":
        return (replace(one, name=OF_THE_DEMO, model=OF_THE_DEMO, engine="hashing"),)
    return own


def embedding_names(settings: Settings) -> Sequence[str]:
    """Return what clients may call the models that make embeddings."""
    return [name for model in embedding_models(settings) for name in model.names]


def _called(model: str) -> str:
    """Return what clients call a model: a folder by its last part."""
    return PurePath(model).name if model.startswith(("/", ".", "~")) else model


def make_embeddings(model: ModelSettings) -> BaseEmbeddings:
    """Build the engine of an embedding model; nothing is loaded yet."""
    is_server = model.engine == "vllm-embeddings" and len(model.url) > 0
    kind = IN_PROCESS if model.engine == "vllm-embeddings" and not is_server else ENGINES[model.engine]
    module, _, name = kind.rpartition(".")
    options = dict(model.options)
    if is_server:
        options |= {"urls": model.url, "api_key": model.api_key}
    engine: BaseEmbeddings = getattr(import_module(module), name)(model=model.model, options=options)
    return engine


def check_embeddings(settings: Settings) -> None:
    """Raise `EngineConfigurationError` if one that the settings name cannot work; nothing is loaded."""
    for model in embedding_models(settings):
        try:
            make_embeddings(model).check()
        except EngineConfigurationError as error:
            raise EngineConfigurationError(f"the embedding model {model.name!r}: {error}") from error
    search_model(settings)


def search_model(settings: Settings) -> ModelSettings | None:
    """Return the embedding model of file search; None where it searches words alone.

    Raises `EngineConfigurationError` for a name that no embedding model has.
    """
    wanted, known = settings.file_search_embedding_model, embedding_models(settings)
    if not settings.file_search or wanted == OFF:
        return None
    if not wanted:
        return next((model for model in known if model.engine != WITHOUT_MEANING), None)
    for model in known:
        if wanted in model.names:
            return model
    names = ", ".join(model.name for model in known) or "none"
    raise EngineConfigurationError(
        f"FILE_SEARCH_EMBEDDING_MODEL={wanted[:80]} is not an embedding model of this server. It has: {names}."
    )


class Embeddings(Starters[BaseEmbeddings]):
    """The embedding models of a process, with what serves them. None of them stops the server."""

    def __init__(  # noqa: PLR0913 - all that it is made of
        self,
        settings: Settings,
        *,
        created: int,
        rates: Rates,
        metrics: Metrics,
        usage: UsageBook,
        guest: Callable[[], AbstractContextManager[None]],
        generates: Callable[[str], bool],
    ) -> None:
        models = embedding_models(settings)
        super().__init__(
            {
                model.name: EngineStarter(make_embeddings(model), fatal=lambda: None, model=model.name)
                for model in models
            }
        )
        self.service = EmbeddingService(
            EmbeddingModels(_served(model, self._starters[model.name], created) for model in models),
            rates=rates,
            metrics=metrics,
            usage=usage,
            guest=guest,
            generates=generates,
        )

    async def states(self) -> Mapping[str, str]:
        """Return how each of them is: `ok`, or why it takes no request now."""
        return {**dict.fromkeys(self._starters, "ok"), **await self.troubles()}


def _served(model: ModelSettings, starter: EngineStarter[BaseEmbeddings], created: int) -> ServedEmbeddings:
    return ServedEmbeddings(
        model.name,
        starter.engine,
        partial(getattr, starter, "info"),
        created=created,
        turns=FairTurns(max_running=model.max_running, bounds=model.max_queued),
        aliases=model.aliases,
    )


@register()
def check_engine(app_configs: Sequence[Any] | None, **options: Any) -> list[CheckMessage]:
    """Tell wrong engine options before the engine is started."""
    try:
        Engines(settings.RESPSITE).check()
        check_embeddings(settings.RESPSITE)
    except EngineConfigurationError as error:
        return [Error(str(error), id="respsite.E001")]
    return []


@register()
def check_environment(app_configs: Sequence[Any] | None, **options: Any) -> list[CheckMessage]:
    """Pass on what the environment gave reason to doubt."""
    return [Warning(text, id="respsite.W001") for text in settings.RESPSITE_WARNINGS]
