"""The schemas of what embeddings, completions and decisions are asked for, by the types that validate it."""

from typing import Any

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.stateless.completions import MAX_CHOICES, CompletionFields
from responses_app.protocol.stateless.decisions import DecisionFields
from responses_app.protocol.stateless.embeddings import MAX_INPUTS, MAX_TOKEN_ID, EmbeddingFields

MODEL_REQUESTS = (EmbeddingFields, CompletionFields, DecisionFields)


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
