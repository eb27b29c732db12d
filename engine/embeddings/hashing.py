"""`HashingEmbeddings`: embeds without a model: words and pieces of words are hashed into a few hundred dimensions.

Texts that share words are near each other, and nothing else is: it knows no synonyms. It is what a server without a
model is tried with, and what tests compare with. The method is the hashing trick of Weinberger et al. (2009), with a
sign for each feature, so that collisions cancel out on average.
"""

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import log1p

from engine.backends.base import load_vocabulary
from engine.embeddings.base import (
    BaseEmbeddings,
    Embedded,
    EmbeddingInput,
    EmbeddingRequest,
    Vector,
    input_too_long,
    strange_token,
    too_many_dimensions,
    unit,
)
from engine.errors import EngineUnavailable
from engine.formats.harmony.encoding import SPECIAL_TOKENS, decode_tokens, encode_text
from engine.types import EngineInfo

DIMENSIONS = 256
NAME = f"hashing-{DIMENSIONS}"
MAX_MODEL_LEN = 8192  # tokens of one input, as OpenAI's embedding models take
PIECE = 4  # characters of a piece of a word
WEIGHT_OF_PIECES = 0.3  # of all pieces of a word together, beside the word itself
# Letters, digits and `_`, of any language.
_WORD = re.compile(r"\w+")
# The highest bit of a feature's hash: its lower ones say the place.
_SIGN = 1 << 31


class HashingEmbeddings(BaseEmbeddings):
    """Embeds on a thread, as it takes about a millisecond for a page. Token ids are those of the Harmony vocabulary."""

    dimensions = DIMENSIONS

    def __init__(self, *, model: str = NAME, options: Mapping[str, object] | None = None) -> None:
        """Keep the options, of which it knows none."""
        super().__init__(model=model, options=options)
        self._is_started = False
        self._is_closed = False

    async def start(self) -> EngineInfo:
        """Load the vocabulary that counts tokens."""
        await load_vocabulary()
        self._is_started = True
        return EngineInfo(backend="hashing", model=self.model, max_model_len=MAX_MODEL_LEN)

    async def embed(self, request: EmbeddingRequest) -> Embedded:
        """Embed inputs; raises `EmbeddingRefused` for one that is too long, and for more dimensions than there are."""
        await self.health()
        if request.dimensions is not None and request.dimensions > DIMENSIONS:
            raise too_many_dimensions(request.dimensions, DIMENSIONS)
        vectors: list[Vector[float]] = []
        tokens = 0
        for index, each in enumerate(request.inputs):
            # One by one: each thread ends soon, and a cancelled request embeds no more.
            vector, length = await asyncio.to_thread(_embed, each, index, request.dimensions)
            vectors.append(vector)
            tokens += length
        return Embedded(vectors=vectors, tokens=tokens)

    async def health(self) -> None:
        if self._is_closed or not self._is_started:
            raise EngineUnavailable(f"The hashing engine is {'closed' if self._is_closed else 'not started yet'}.")

    async def aclose(self) -> None:
        self._is_closed = True


def _embed(value: EmbeddingInput, index: int, dimensions: int | None) -> tuple["Vector[float]", int]:
    """Return the vector of an input, and how many tokens it has."""
    if not isinstance(value, str) and not all(0 <= token < SPECIAL_TOKENS.stop for token in value):
        raise strange_token()
    text, tokens = (value, len(encode_text(value))) if isinstance(value, str) else (decode_tokens(value), len(value))
    if tokens > MAX_MODEL_LEN:
        raise input_too_long(index, MAX_MODEL_LEN, tokens)
    return unit(hashed(text, dimensions or DIMENSIONS)), tokens


def hashed(text: str, dimensions: int) -> Sequence[float]:
    """Return the first of the sums of a text's features, each at the place and with the sign that its hash says."""
    sums = [0.0] * DIMENSIONS
    for feature, weight in _features(text.casefold()):
        # `crc32`, not `hash`: that of strings differs in each process.
        number = zlib.crc32(feature.encode("utf-8", errors="surrogatepass"))
        sums[number % DIMENSIONS] += weight if number & _SIGN else -weight
    first = sums[:dimensions]
    if not any(first):  # a text of signs alone, or one whose features all lie behind these dimensions
        first[zlib.crc32(text.encode("utf-8", errors="surrogatepass")) % dimensions] = 1.0
    return first


def _features(text: str) -> Iterator[tuple[str, float]]:
    """Yield words and their pieces; a word that stands there often counts little more than once."""
    for word, count in Counter(_WORD.findall(text)).items():
        weight = log1p(count)
        yield word, weight
        # Brackets mark the ends: the piece `<the` is not the one in the middle of a word.
        padded = f"<{word}>"
        pieces = [padded[begin : begin + PIECE] for begin in range(max(1, len(padded) - PIECE + 1))]
        for piece in pieces:
            # Divided by the root of their number: so all pieces of a word together weigh the same, however long it is.
            yield f"#{piece}", weight * WEIGHT_OF_PIECES / len(pieces) ** 0.5
