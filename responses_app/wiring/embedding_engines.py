"""The embedding models of a process: made of settings, started, asked how they are, and closed; and their service."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import PurePath

from engine.embeddings.base import BaseEmbeddings
from engine.errors import EngineConfigurationError
from responses_app.limits.rates import Rates
from responses_app.observing.metrics import Metrics
from responses_app.runs.queues.fair_turns import FairTurns
from responses_app.runs.stateless.embedding import EmbeddingModels, EmbeddingService, ServedEmbeddings
from responses_app.settings.conf import Settings
from responses_app.settings.models import ModelSettings
from responses_app.wiring.engines import EngineStarter

ENGINES = {  # imported when chosen
    "hashing": "engine.embeddings.hashing.HashingEmbeddings",
    "vllm-embeddings": "engine.embeddings.vllm_server.VllmServerEmbeddings",
}
IN_PROCESS = "engine.embeddings.vllm_local.VllmEmbeddings"  # a `vllm-embeddings` without a URL
UNNAMED = "embeddings"  # what clients call the model at EMBEDDINGS_URL, where EMBEDDINGS_MODEL does not say it
OF_THE_DEMO = "hashing-256"  # `engine.embeddings.hashing` says the same


def embedding_models(settings: Settings) -> tuple[ModelSettings, ...]:
    """Return the models that make embeddings: those of MODELS, and EMBEDDINGS_MODEL; the demo has one itself."""
    own = tuple(model for model in settings.all_models if model.embeds)
    one = replace(settings.all_models[0], aliases=(), format="harmony", options={}, script="", url=())
    model, at = settings.embeddings_model, settings.embeddings_url
    if model or at:
        there = replace(one, engine="vllm-embeddings", url=at, api_key=settings.engine_api_key)
        own_options = {} if at else settings.embeddings_options
        return (*own, replace(there, name=_called(model) or UNNAMED, model=model, options=own_options))
    if not settings.models and settings.engine == "demo":
        return (replace(one, name=OF_THE_DEMO, model=OF_THE_DEMO, engine="hashing"),)
    return own


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


class Embeddings:
    """The embedding models of a process, with what serves them. None of them stops the server."""

    def __init__(
        self,
        settings: Settings,
        *,
        created: int,
        rates: Rates,
        metrics: Metrics,
        guest: Callable[[], AbstractContextManager[None]],
        generates: Callable[[str], bool],
    ) -> None:
        models = embedding_models(settings)
        self._starters: Mapping[str, EngineStarter[BaseEmbeddings]] = {
            model.name: EngineStarter(make_embeddings(model), fatal=lambda: None, model=model.name) for model in models
        }
        self.service = EmbeddingService(
            EmbeddingModels(_served(model, self._starters[model.name], created) for model in models),
            rates=rates,
            metrics=metrics,
            guest=guest,
            generates=generates,
        )

    def start(self) -> None:
        """Begin to start them all, beside each other."""
        for starter in self._starters.values():
            starter.start()

    async def troubles(self) -> dict[str, str]:
        """Return how each of them is: `ok`, or why it takes no request now."""
        found = await asyncio.gather(*(each.trouble() for each in self._starters.values()))
        return {name: trouble or "ok" for name, trouble in zip(self._starters, found, strict=True)}

    async def aclose(self) -> None:
        """Stop them all."""
        await asyncio.gather(*(starter.aclose() for starter in self._starters.values()))


def _served(model: ModelSettings, starter: EngineStarter[BaseEmbeddings], created: int) -> ServedEmbeddings:
    return ServedEmbeddings(
        model.name,
        starter.engine,
        partial(getattr, starter, "info"),
        created=created,
        turns=FairTurns(max_running=model.max_running, bounds=model.max_queued),
        aliases=model.aliases,
    )
