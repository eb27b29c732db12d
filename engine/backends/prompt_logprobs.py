"""Log probabilities of a prompt's tokens, as vLLM gives them: by token id at each place, in process and as JSON."""

import math
from collections.abc import Iterable, Sequence

from engine.types import PromptLogprobs, RankedToken

IMPOSSIBLE = -9999.0  # vLLM's floor of log probabilities, and what its servers give for a token it has none of

Place = Iterable[tuple[int, float | None, int | None]]  # token ids with their log probabilities and ranks


def ranked_prompt(prompt: Sequence[int], places: Sequence[Place | None]) -> PromptLogprobs:
    """Return what is known of each token of a prompt: itself first, then the others by their rank."""
    return [None if place is None else _ranked(token, place) for token, place in zip(prompt, places, strict=False)]


def _ranked(prompted: int, place: Place) -> Sequence[RankedToken]:
    tokens = [RankedToken(token, _finite(logprob), rank or 0) for token, logprob, rank in place]
    return sorted(tokens, key=lambda each: (each.token_id != prompted, each.rank))


def _finite(logprob: float | None) -> float:
    return IMPOSSIBLE if logprob is None or not math.isfinite(logprob) else max(logprob, IMPOSSIBLE)
