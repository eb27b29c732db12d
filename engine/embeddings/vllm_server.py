"""`VllmServerEmbeddings`: an embedding model at one or several running vLLM servers, asked by `/v1/embeddings`.

Vectors come as base64 of little-endian 32-bit floats (`encoding_format`, `embed_dtype` and `endianness` of vLLM 0.32,
`entrypoints/pooling`): reading a thousand of them as JSON numbers would hold the event loop for 0.3 s. Each request
goes to the server that has the fewest of ours; one that is out of reach is passed over for a few seconds.
"""

import asyncio
import sys
from array import array
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import aiohttp

from engine import orjson
from engine.backends.base import OptionReader
from engine.backends.client import BROKEN, error_text, open_session, shown
from engine.backends.vllm.server_lists import as_server, named_servers
from engine.embeddings.base import (
    BaseEmbeddings,
    Embedded,
    EmbeddingRequest,
    Vector,
    input_too_long,
    not_resizable,
    strange_token,
    too_many_dimensions,
)
from engine.errors import (
    EngineConfigurationError,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationFailed,
    reason_of,
)
from engine.types import EngineInfo

PROBE = "respsite"  # what is embedded once, to see how long vectors are
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 120.0  # for a whole request
PASS_OVER_SECONDS = 3.0  # a server that was out of reach
MAX_ANSWER = 256 * 1024 * 1024  # bytes: 2048 vectors of 16,000 dimensions in base64 are 175 MB
_PATH = "/v1/embeddings"


@dataclass(slots=True)
class _EmbeddingServer:
    """One server, as it was seen last."""

    url: str
    running: int = 0  # requests of ours that it has now
    away_until: float = 0.0  # a time of the event loop; 0: it was there


class VllmServerEmbeddings(BaseEmbeddings):
    """Options: `urls` (one at least), `api_key` and `answer_seconds` (120). `model` "": the first that is there."""

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(model=model, options=options)
        self._servers: Sequence[_EmbeddingServer] = ()
        self._session: aiohttp.ClientSession | None = None
        self._max_model_len = 0  # tokens of one input, as the server says; 0: it does not

    def check(self) -> None:
        options = OptionReader("The vllm-embeddings engine", self.options, known=("urls", "api_key", "answer_seconds"))
        urls = named_servers(
            options,
            self.options.get("urls"),
            as_server,
            secret="One of the urls has a user or a password in it: a key belongs into the API key.",
            expected="a list of URLs of vLLM servers, like http://127.0.0.1:8002",
        )
        self._servers = [_EmbeddingServer(url) for url in urls]
        self._api_key = options.text("api_key") or ""
        self._timeout = aiohttp.ClientTimeout(
            total=options.rate("answer_seconds") or ANSWER_SECONDS, connect=CONNECT_SECONDS
        )

    async def start(self) -> EngineInfo:
        """Find the model at the first server that answers, and how long its vectors are."""
        self.check()
        if self._session is None:
            self._session = open_session(self._api_key)
        _, content = await self._somewhere("GET", "/v1/models", b"")
        card = next((each for each in _listed(content) if self.model in ("", each.get("id"))), None)
        if card is None:
            names = ", ".join(sorted(str(each.get("id")) for each in _listed(content)))
            raise EngineConfigurationError(f"The vLLM server has no model {self.model!r}; it has {shown(names)}.")
        self.model = str(card.get("id"))
        self._max_model_len = int(card.get("max_model_len") or 0)
        probe = await self.embed(EmbeddingRequest(inputs=[PROBE]))
        self.dimensions = len(probe.vectors[0])
        return EngineInfo(
            backend="vllm-embeddings",
            model=self.model,
            max_model_len=self._max_model_len,
            detail=f"{len(self._servers)} server(s), vectors of {self.dimensions}",
        )

    async def embed(self, request: EmbeddingRequest) -> Embedded:
        """Ask a server for all inputs at once; one that cannot be reached is passed over for another."""
        dimensions = request.dimensions
        # 0 before the first answer: the probe finds out how many there are.
        if dimensions is not None and self.dimensions and dimensions > self.dimensions:
            raise too_many_dimensions(dimensions, self.dimensions)
        body: dict[str, Any] = {
            "model": self.model,
            "input": request.inputs if isinstance(request.inputs[0], str) else [list(each) for each in request.inputs],
            "encoding_format": "base64",
            "embed_dtype": "float32",
            "endianness": "little",
        }
        # vLLM refuses the field for models that cannot be shortened, whatever it says.
        if dimensions is not None and dimensions != self.dimensions:
            body["dimensions"] = dimensions
        status, content = await self._somewhere("POST", _PATH, orjson.dumps(body))
        if status != 200:
            raise self._refusal(status, content, request)
        return await asyncio.to_thread(_read, content, len(request.inputs))

    async def health(self) -> None:
        status, _ = await self._somewhere("GET", "/health", b"", seconds=CONNECT_SECONDS)
        if status != 200:
            raise EngineUnavailable(f"The vLLM server answers {status} when it is asked how it is.")

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _refusal(self, status: int, content: bytes, request: EmbeddingRequest) -> EngineError:
        """Return the error that an answer means. vLLM says only in words which field it refuses."""
        text = error_text(content)
        if status == 400:
            words = text.lower()
            if request.dimensions is not None and ("matryoshka" in words or "dimension" in words):
                return not_resizable(self.dimensions)
            if "vocabulary" in words:
                return strange_token()
            return input_too_long(None, self._max_model_len)
        if status == 429:
            return EngineOverloaded(f"The vLLM server is full: {text}")
        if status in (401, 403, 502, 503, 504):
            return EngineUnavailable(f"The vLLM server answers {status}: {text}")
        return GenerationFailed(f"The vLLM server answers {status}: {text}")

    async def _somewhere(
        self, method: str, path: str, body: bytes, *, seconds: float | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the content of an answer of the first server that can be reached."""
        if self._session is None or self._session.closed:
            raise EngineUnavailable("The vllm-embeddings engine is closed, or not started yet.")
        loop = asyncio.get_running_loop()
        problem: Exception | None = None
        # Those that were away come last, and are asked all the same: all may be away.
        for server in sorted(self._servers, key=lambda each: (each.away_until > loop.time(), each.running)):
            server.running += 1
            try:
                async with asyncio.timeout(seconds):
                    answer = await self._ask(self._session, server, method, path, body)
            except BROKEN as error:
                problem = error
                server.away_until = loop.time() + PASS_OVER_SECONDS
            else:
                server.away_until = 0.0
                return answer
            finally:
                server.running -= 1
        named = f" with {self.model!r}" if self.model else ""
        raise EngineUnavailable(
            f"no vLLM server{named} is in reach ({reason_of(problem or ConnectionError())})."
        ) from problem

    async def _ask(
        self, session: aiohttp.ClientSession, server: _EmbeddingServer, method: str, path: str, body: bytes
    ) -> tuple[int, bytes]:
        async with session.request(
            method,
            server.url + path,
            data=BytesIO(body) if body else None,
            headers={"Content-Type": "application/json"},
            timeout=self._timeout,
            allow_redirects=False,
        ) as response:
            return response.status, await _content(response)


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """Return what an answer holds. Raises `aiohttp.ClientPayloadError` for more than a vLLM would send."""
    parts: list[bytes] = []
    size = 0
    while part := await response.content.readany():
        parts.append(part)
        size += len(part)
        # Counted as it comes: an endless answer never fills the memory.
        if size > MAX_ANSWER:
            raise aiohttp.ClientPayloadError(f"more than {MAX_ANSWER} bytes")
    return b"".join(parts)


def _listed(content: bytes) -> list[dict[str, Any]]:
    try:
        return [each for each in orjson.loads(content)["data"] if isinstance(each, dict)]
    except (ValueError, LookupError, TypeError) as error:
        raise EngineUnavailable("The server does not list its models as vLLM does.") from error


def _read(content: bytes, count: int) -> Embedded:
    """Read an answer; raises `GenerationFailed` for what no vLLM says."""
    try:
        answer = orjson.loads(content)
        entries = sorted(answer["data"], key=lambda each: int(each["index"]))  # they may come in any order
        vectors = [_vector(each["embedding"]) for each in entries]
        tokens = int(answer["usage"]["prompt_tokens"])
    except (ValueError, LookupError, TypeError) as error:
        raise GenerationFailed("vLLM sent embeddings that cannot be read.") from error
    if len(vectors) != count:
        raise GenerationFailed(f"vLLM sent {len(vectors)} embeddings for {count} inputs.")
    return Embedded(vectors=vectors, tokens=tokens)


# `array` reads floats in the machine's own byte order; the answer's is little-endian.
def _vector(encoded: str) -> "Vector[float]":
    vector = array("f", b64decode(encoded, validate=True))
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
