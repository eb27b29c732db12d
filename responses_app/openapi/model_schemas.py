"""The schemas of embeddings and completions: what may be asked, by the types that validate it, and what is answered."""

from typing import Any, Literal

from pydantic import BaseModel

from responses_app.protocol.completions import MAX_CHOICES, CompletionFields
from responses_app.protocol.decisions import DecisionFields
from responses_app.protocol.embeddings import MAX_INPUTS, MAX_TOKEN_ID, EmbeddingFields
from responses_app.protocol.errors import JsonObject


class Embedding(BaseModel):
    """The vector of one input; `index` says of which. In base64 it is 32-bit floats, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """One vector for each input, in their order."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class CompletionLogprobs(BaseModel):
    """Lists beside each other, with an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion, or more of it. `stop_reason` is the client's stop string, or stop token, that ended it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length", "abort"] | None
    stop_reason: str | int | None


class CompletionUsage(BaseModel):
    """Tokens: each prompt counts once, however often it is completed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: JsonObject


class Completion(BaseModel):
    """Completions of all prompts, or a part of a stream of them."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None


class CompletionServerSentEvent(BaseModel):
    """A part of a stream: `data` is a completion as JSON, and in the last one `[DONE]`."""

    data: str


MODEL_REQUESTS = (EmbeddingFields, CompletionFields, DecisionFields)
MODEL_ANSWERS = (EmbeddingList, Completion, CompletionServerSentEvent)


def model_requests(found: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of requests from the schemas that were found, and return the whole requests."""
    embedding, completion = found.pop("EmbeddingFields"), found.pop("CompletionFields")
    decisions = found.pop("DecisionFields")
    given: list[JsonObject] = [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]
    return {
        "CreateDecision": {
            **decisions,
            "description": "An input, as of a response, and questions about it.",
            "properties": {**decisions["properties"], "input": {"anyOf": given}},
            "required": [*decisions["required"], "input"],
        },
        "CreateEmbedding": {
            **embedding,
            "description": "What is to be embedded: each text, or list of tokens, by itself.",
            "properties": {**embedding["properties"], "input": _inputs(MAX_INPUTS)},
            "required": ["input"],
        },
        "CreateCompletion": {
            **completion,
            "description": "Prompts that are to go on as they are. Fields that are not known are ignored.",
            "properties": {**completion["properties"], "prompt": _inputs(MAX_CHOICES)},
            "required": ["prompt"],
        },
    }


def _inputs(maximum: int) -> JsonObject:
    text: JsonObject = {"type": "string", "minLength": 1}
    token: JsonObject = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
    tokens: JsonObject = {"type": "array", "items": token, "minItems": 1}
    several: list[JsonObject] = [
        {"type": "array", "items": each, "minItems": 1, "maxItems": maximum} for each in (text, tokens)
    ]
    return {"anyOf": [text, tokens, *several]}
