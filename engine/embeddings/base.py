"""The contract every embeddings engine fulfils, and what such a model refuses, in words that a client may read.

`tests/contracts/embeddings.py` runs over each of them.
"""

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import EmbeddingRefused
from engine.types import EngineInfo

Vector = array  # of 32-bit floats
EmbeddingInput = str | Sequence[int]  # text, or token ids of the model's own vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """Inputs to embed, each by itself."""

    inputs: Sequence[EmbeddingInput]  # none is empty
    dimensions: int | None = None  # of shorter vectors: the beginning of each, brought to length 1 again


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """The answer to an `EmbeddingRequest`."""

    vectors: Sequence["Vector[float]"]  # one for each input, in their order
    tokens: int  # of all inputs together


class BaseEmbeddings(ABC):
    """One embedding model in one process, or at servers.

    Life: construct with options (cheap, no I/O), `check()`, `await start()`, any number of `embed()` at once,
    `await aclose()`. Everything runs on one event loop.
    """

    dimensions: int = 0  # of a whole vector; known once it has started

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        """Keep `model` (what is loaded, or asked for) and own `options`, which `check()` and `start()` read."""
        self.model = model
        self.options = dict(options or {})

    def check(self) -> None:  # noqa: B027 - most have nothing to check
        """Raise `EngineConfigurationError` if the options cannot work. Loads nothing and opens nothing."""

    @abstractmethod
    async def start(self) -> EngineInfo:
        """Load the model or reach the server, and say what it is; `max_model_len` counts the tokens of one input.

        Raises `EngineConfigurationError` where trying again cannot help, `EngineUnavailable` where it can.
        """

    def count(self, inputs: Sequence[EmbeddingInput]) -> int:
        """Return how many tokens these inputs have at least, as far as that is known without embedding them."""
        return sum(1 if isinstance(each, str) else len(each) for each in inputs)

    @abstractmethod
    async def embed(self, request: EmbeddingRequest) -> Embedded:
        """Embed inputs; cancelling it ends the work.

        Raises `EngineUnavailable`, `EngineOverloaded`, `EmbeddingRefused` for inputs or dimensions that the model does
        not take, and `GenerationFailed` for what no engine says.
        """

    async def health(self) -> None:  # noqa: B027 - healthy unless an engine knows better
        """Return if inputs can be embedded now, else raise `EngineUnavailable`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice, and before `start()` is done."""


def unit(values: Sequence[float]) -> "Vector[float]":
    """Return a vector of length 1 in the same direction; one of zeros stays as it is."""
    length = math.sqrt(math.fsum(value * value for value in values))
    return array("f", (value / length for value in values) if length else values)


def input_too_long(index: int | None, max_model_len: int, tokens: int | None = None) -> EmbeddingRefused:
    """One input has more tokens than the model takes; `index` says which, if that is known."""
    which = "An input" if index is None else f"Input {index}"
    has = "is too long" if tokens is None else f"has {tokens} tokens"
    return EmbeddingRefused(
        f"{which} {has}, and this model takes {max_model_len} tokens for each. Cut it into several inputs.",
        param="input",
    )


def too_many_dimensions(more: int, dimensions: int) -> EmbeddingRefused:
    """More dimensions are wanted than the model's vectors have."""
    return EmbeddingRefused(
        f"This model's embeddings have {dimensions} dimensions, and {more} were asked for. Ask for {dimensions} or "
        "fewer.",
        param="dimensions",
    )


def not_resizable(dimensions: int) -> EmbeddingRefused:
    """The model's vectors cannot be cut to as many dimensions as are wanted."""
    return EmbeddingRefused(
        f"This model's embeddings cannot be cut to that number of dimensions. Leave 'dimensions' out: they have "
        f"{dimensions}.",
        param="dimensions",
    )


def strange_token() -> EmbeddingRefused:
    """There is a token id that the model's vocabulary lacks."""
    return EmbeddingRefused("A token id of the input is not in this model's vocabulary.", param="input")
