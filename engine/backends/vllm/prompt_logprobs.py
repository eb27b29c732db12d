"""Log probabilities of a prompt's tokens, as vLLM gives them: by token id at each place, in process and as JSON."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from engine.types import PromptLogprobs, RankedToken

IMPOSSIBLE = -9999.0  # vLLM's floor of log probabilities, and what its servers give for a token it has none of

Place = Iterable[tuple[int, float | None, int | None]]  # token ids with their log probabilities and ranks


@dataclass(frozen=True, slots=True)
class RankedPrompt(Sequence[Sequence[RankedToken] | None]):
    """What is known of each token of a prompt: itself first, then the others by their rank.

    Each place is ranked when it is asked for, from what the engine gave (`places`), which `entries` reads: a long
    prompt has half a million tokens in it, which take seconds, and are asked for on a thread.
    """

    prompt: Sequence[int]
    places: Sequence[Any]
    entries: Callable[[Any], Place]

    def __len__(self) -> int:
        return min(len(self.prompt), len(self.places))

    @overload
    def __getitem__(self, index: int) -> Sequence[RankedToken] | None: ...
    @overload
    def __getitem__(self, index: slice) -> PromptLogprobs: ...
    def __getitem__(self, index: int | slice) -> Sequence[RankedToken] | PromptLogprobs | None:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = self.places[index]
        return None if place is None else _ranked(self.prompt[index], self.entries(place))


def _ranked(prompted: int, place: Place) -> Sequence[RankedToken]:
    tokens = [RankedToken(token, _finite(logprob), rank or 0) for token, logprob, rank in place]
    return sorted(tokens, key=lambda each: (each.token_id != prompted, each.rank))


def _finite(logprob: float | None) -> float:
    return IMPOSSIBLE if logprob is None or not math.isfinite(logprob) else max(logprob, IMPOSSIBLE)
