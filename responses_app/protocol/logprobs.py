"""Log probabilities of tokens as clients see them: in the events of a text, and with their bytes in the item."""

from collections.abc import Iterable

from engine.formats.base import TextLogprob
from responses_app.protocol.errors import JsonObject

LOWEST = -9999.0  # stands for minus infinity, as in OpenAI's answers: JSON has no number for it


def event_logprobs(entries: Iterable[TextLogprob]) -> list[JsonObject]:
    """Return the `logprobs` of `output_text.delta` and `output_text.done`."""
    return [
        {
            **_token(entry.token, entry.logprob),
            "top_logprobs": [_token(token, logprob) for token, logprob in entry.top],
        }
        for entry in entries
    ]


def item_logprobs(entries: Iterable[TextLogprob]) -> list[JsonObject]:
    """Return the `logprobs` of an item's `output_text` part."""
    return [
        {
            **_token_with_bytes(entry.token, entry.logprob),
            "top_logprobs": [_token_with_bytes(token, logprob) for token, logprob in entry.top],
        }
        for entry in entries
    ]


def _token(token: bytes, logprob: float) -> JsonObject:
    return {"token": token.decode(errors="replace"), "logprob": max(logprob, LOWEST)}


def _token_with_bytes(token: bytes, logprob: float) -> JsonObject:
    return {**_token(token, logprob), "bytes": list(token)}
