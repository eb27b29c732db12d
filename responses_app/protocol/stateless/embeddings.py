"""`/v1/embeddings`: what may be asked, and how vectors are answered: OpenAI's forms, and vLLM's bytes.

The forms are those of `openai.types.embedding_create_params` and, for `bytes` and `bytes_only`, of vLLM 0.32
(`entrypoints/pooling`): then the body is the vectors one behind the other, 32-bit floats, little-endian.
"""

import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from engine import orjson
from responses_app.protocol.errors import ApiError, JsonObject, array_too_long, invalid_value
from responses_app.protocol.fields import ClientModel, Refused, json_name, missing, validate, wrong_type

MAX_INPUTS = 2048  # as OpenAI takes
MAX_DESCRIBED = 64  # inputs whose places stand in a header, with `bytes`
MAX_TOKEN_ID = 2**31 - 1  # the largest number of 32 bits with a sign
_WANTED = "a string, an array of strings, an array of token ids, or an array of such arrays"  # what `input` takes

Vector = array  # of 32-bit floats
EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]


class EmbeddingFields(ClientModel):
    """The fields of a request beside its input."""

    model: str | None = Field(default=None, min_length=1, max_length=256)
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = Field(default=None, ge=1, le=65_536)
    user: str | None = Field(default=None, max_length=1024)

    beside: ClassVar = ("input",)
    refused: ClassVar = {
        "truncate_prompt_tokens": Refused("Shorten the input: what is too long is refused."),
        **dict.fromkeys(("messages", "chat_template_kwargs"), Refused("Send the text as 'input'.")),
        **dict.fromkeys(("normalize", "use_activation"), Refused("Vectors have the length 1 here.", takes=(True,))),
    }
    own: ClassVar = tuple(refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsWanted:
    """A request for embeddings: each input is embedded by itself."""

    inputs: Sequence[str | Sequence[int]]  # texts, or ids of tokens
    model: str | None
    encoding: EncodingFormat
    dimensions: int | None  # how long vectors are; None: as the model gives them


def parse_embeddings(data: JsonObject) -> EmbeddingsWanted:
    """Read a request. Raises `ApiError`."""
    fields = validate(EmbeddingFields, data)
    inputs = read_inputs(data, "input", max_inputs=MAX_INPUTS)
    encoding = fields.encoding_format or "float"
    if encoding == "bytes" and len(inputs) > MAX_DESCRIBED:
        raise invalid_value(
            "encoding_format",
            f"'bytes' takes {MAX_DESCRIBED} inputs at most, as their places stand "
            "in a header. Use 'bytes_only' or 'base64'.",
        )
    return EmbeddingsWanted(inputs=inputs, model=fields.model, encoding=encoding, dimensions=fields.dimensions)


def read_inputs(data: JsonObject, name: str, *, max_inputs: int) -> Sequence[str | Sequence[int]]:
    """Read a field that is a text, tokens, or an array of either; none of them is empty. Raises `ApiError`."""
    value = data.get(name)
    if value is None:
        raise missing(name)
    if isinstance(value, str):
        return [_text(value, name)]
    if not isinstance(value, list):
        raise wrong_type(name, _WANTED, value)
    if not value:
        raise _empty(name)
    # The first element tells which of the forms an array is; the others must be like it.
    if _is_number(value[0]):
        return [_tokens(value, name)]
    if len(value) > max_inputs:
        raise array_too_long(name, value, max_inputs)
    read = _text if isinstance(value[0], str) else _tokens
    return [read(each, f"{name}[{place}]") for place, each in enumerate(value)]


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(param, "a string, as the first one is", value)
    if not value:
        raise _empty(param)
    return value


def _tokens(value: Any, param: str) -> Sequence[int]:
    if not isinstance(value, list):
        raise wrong_type(param, _WANTED if "[" not in param else "an array of token ids", value)
    if not value:
        raise _empty(param)
    for place, token in enumerate(value):
        if not _is_number(token):
            raise wrong_type(f"{param}[{place}]", "an integer", token)
        if not 0 <= token <= MAX_TOKEN_ID:
            raise invalid_value(f"{param}[{place}]", f"{json_name(token)} that is no token id.")
    return value


def _is_number(value: object) -> bool:
    # A boolean is an integer in Python.
    return isinstance(value, int) and not isinstance(value, bool)


def _empty(param: str) -> ApiError:
    return invalid_value(param, "it must not be empty.")


class EmbeddingsHead(NamedTuple):
    """The fields of an answer beside its vectors and its usage."""

    id: str
    created: int  # Unix seconds
    model: str


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """An answer, written."""

    content: bytes
    media_type: str
    metadata: str | None = None  # for a header: where each vector lies in the bytes; None: not asked for


class Embedding(TypedDict):
    """The vector of one input; `index` says of which. In base64 it is 32-bit floats, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """One vector for each input, in their order. `id` and `created` are vLLM's."""

    id: str
    created: int
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


def encode_answer(
    vectors: Sequence["Vector[float]"], *, head: EmbeddingsHead, tokens: int, encoding: EncodingFormat
) -> EncodedAnswer:
    """Write an answer; blocks for some milliseconds where it is a large one."""
    usage: EmbeddingUsage = {"prompt_tokens": tokens, "total_tokens": tokens}
    rest: JsonObject = {**head._asdict(), "usage": usage}
    if encoding in ("bytes", "bytes_only"):
        described = _described(vectors, rest) if encoding == "bytes" else None
        return EncodedAnswer(b"".join(map(_little_endian, vectors)), "application/octet-stream", described)
    # Each vector by itself: `dumps` keeps the interpreter for itself while it writes, and all at once are megabytes.
    written = (
        vector.tolist() if encoding == "float" else b64encode(_little_endian(vector)).decode() for vector in vectors
    )
    data = b",".join(
        orjson.dumps(Embedding(object="embedding", index=index, embedding=each)) for index, each in enumerate(written)
    )
    # The list is put before the other fields: `rest` without its opening brace follows.
    return EncodedAnswer(b'{"object":"list","data":[%b],%b' % (data, orjson.dumps(rest)[1:]), "application/json")


def _described(vectors: Sequence["Vector[float]"], rest: JsonObject) -> str:
    data, start = [], 0
    for index, vector in enumerate(vectors):
        # Four bytes a number.
        end = start + 4 * len(vector)
        described: JsonObject = {"index": index, "embed_dtype": "float32", "endianness": "little"}
        data.append({**described, "start": start, "end": end, "shape": [len(vector)]})
        start = end
    return orjson.dumps({**rest, "data": data}).decode("ascii", errors="replace")


def _little_endian(vector: "Vector[float]") -> bytes:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return vector.tobytes()
