"""`EmbeddingService`: makes embeddings: whose limits hold, when the engine has a turn, what is counted of it.

Nothing of it is kept: a request is answered while its client waits, or not at all.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from engine.embeddings.base import BaseEmbeddings, Embedded, EmbeddingRequest
from engine.errors import EmbeddingRefused, EngineError, EngineUnavailable
from engine.types import EngineInfo
from responses_app.limits.rates import Rates
from responses_app.observing import gen_ai
from responses_app.observing.metrics import Metrics
from responses_app.protocol.api_keys import model_not_allowed
from responses_app.protocol.errors import invalid_request, model_not_found
from responses_app.protocol.rate_limits import Amount
from responses_app.protocol.stateless.embeddings import EmbeddingsWanted
from responses_app.resources.usage.fields import UsedTokens
from responses_app.runs.driving.spans import operation_span
from responses_app.runs.driving.unsaved import UsageBook
from responses_app.runs.plan.failures import refusal
from responses_app.runs.plan.plan import Origin
from responses_app.runs.plan.turns import FairTurns

logger = logging.getLogger("respsite.runs")

TIER = "default"  # that embeddings wait in, where they do


@dataclass(frozen=True, slots=True)
class ServedEmbeddings:
    """An embedding model under the names that clients know."""

    name: str  # that clients know, and that answers have
    engine: BaseEmbeddings
    info: Callable[[], EngineInfo | None]  # None until its engine has started
    created: int  # Unix seconds
    turns: FairTurns = field(default_factory=FairTurns)
    aliases: Sequence[str] = ()  # other names for it

    @property
    def names(self) -> Sequence[str]:
        """All names of it; answers have the first."""
        return (self.name, *self.aliases)


class EmbeddingModels:
    """The embedding models of this server, in order; there may be none."""

    def __init__(self, models: Iterable[ServedEmbeddings]) -> None:
        self._models = tuple(models)
        self._by_name = {name: model for model in self._models for name in model.names}

    def __iter__(self) -> Iterator[ServedEmbeddings]:
        return iter(self._models)

    def named(self, name: str) -> ServedEmbeddings | None:
        """Return the model with this name or alias."""
        return self._by_name.get(name)

    def allowed(self, names: Sequence[str]) -> Sequence[ServedEmbeddings]:
        """Return those that somebody may use who may use these names; no names mean all."""
        return [each for each in self._models if not names or not set(names).isdisjoint(each.names)]


@dataclass(slots=True)
class EmbeddingService:
    """Makes embeddings for clients."""

    models: EmbeddingModels
    rates: Rates
    metrics: Metrics
    usage: UsageBook
    # A place beside what runs; raises `ApiError` where there is none
    guest: Callable[[], AbstractContextManager[None]]
    generates: Callable[[str], bool]  # whether a name is that of a model that generates text

    async def embed(self, wanted: EmbeddingsWanted, origin: Origin) -> tuple[str, Embedded]:
        """Return the name of the model that answers, and its vectors. Raises `ApiError`."""
        model = self.chosen(wanted.model, origin.models)
        with self.guest():
            return await self._answer(wanted, model, origin)

    async def _answer(self, wanted: EmbeddingsWanted, model: ServedEmbeddings, origin: Origin) -> tuple[str, Embedded]:
        began, status = time.monotonic(), "failed"
        # At least so many, for the limits; the engine's own count takes its place below.
        tokens = model.engine.count(wanted.inputs)
        place = model.turns.place(origin.project, TIER, origin.priority(0))
        place.admit()
        try:
            ticket = await self.rates.admit(origin.limited, Amount(1, tokens), None)
        except BaseException:
            place.leave()
            raise
        try:
            name = wanted.model or model.name
            with operation_span(origin, gen_ai.EMBEDDINGS, name, calls=True) as span:
                async with place.turn():
                    if model.info() is None:
                        raise EngineUnavailable("The engine is starting.")
                    request = EmbeddingRequest(inputs=wanted.inputs, dimensions=wanted.dimensions)
                    embedded = await model.engine.embed(request)
                span.note({"gen_ai.response.model": model.name, "gen_ai.usage.input_tokens": embedded.tokens})
                if wanted.dimensions is not None:
                    span.note({"gen_ai.embeddings.dimension.count": wanted.dimensions})
            tokens, status = embedded.tokens, "completed"
        except EmbeddingRefused as error:
            raise invalid_request(error.reason, param=error.param, code="invalid_value") from error
        except EngineError as error:
            logger.warning("embeddings: the engine failed: %s: %s", type(error).__name__, error)
            raise refusal(error, origin.request_id) from error
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            place.leave()
            ticket.settle(Amount(1, tokens))
            billed = tokens if status == "completed" else 0  # else it is only an estimate
            self.usage.note(origin, model.name, "embeddings", UsedTokens(input=billed, cached=0, output=0))
            self._note(model, status, len(wanted.inputs), tokens, time.monotonic() - began)
        return model.name, embedded

    def chosen(self, name: str | None, names: Sequence[str]) -> ServedEmbeddings:
        """Return the model a request asks for; without a name the first of those that its key may use.

        Raises `ApiError`.
        """
        allowed = self.models.allowed(names)
        model = next(iter(allowed), None) if name is None else self.models.named(name)
        if model is None:
            if name is not None and self.generates(name):
                raise _makes_none(name, [each.name for each in allowed])
            raise model_not_found(name or "", [each.name for each in allowed])
        if model not in allowed:
            raise model_not_allowed(name or model.name, names)
        return model

    def _note(self, model: ServedEmbeddings, status: str, inputs: int, tokens: int, seconds: float) -> None:
        metrics = self.metrics
        metrics.embeddings.count(model.name, status)
        metrics.embedding_seconds.note(seconds, model.name)
        metrics.gen_ai.ended(gen_ai.EMBEDDINGS, model.name, seconds, error="error" if status == "failed" else "")
        if status == "completed":
            metrics.embedded_inputs.count(model.name, by=inputs)
            metrics.embedded_tokens.count(model.name, by=tokens)
        logger.info(
            "embeddings %s %s inputs=%d tokens=%d duration=%dms", model.name, status, inputs, tokens, seconds * 1000
        )


def _makes_none(name: str, others: Sequence[str]) -> Exception:
    hint = f"These do: {', '.join(others)}." if others else "This server has no model that does (EMBEDDINGS_URL)."
    return invalid_request(
        f"The model '{name[:80]}' generates text, and makes no embeddings. {hint}", param="model", code="invalid_value"
    )
