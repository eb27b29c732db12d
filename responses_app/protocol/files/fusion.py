"""How the chunks that words found and those that vectors found become one order: reciprocal rank fusion.

A chunk gets 1 / (60 + its rank) from each of the two lists that has it, times the list's weight. Divided by what the
first of both lists gets, that is a score from 0 to 1. Example with equal weights:

    first in both lists              1.0
    first in one, not in the other   0.5
    tenth in both lists              0.87
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONSTANT = 60  # of the method, as Cormack et al. (2009) chose it: what is first counts little more than what is third


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each list counts; not both are 0."""

    embedding: float = 1.0  # of meanings
    text: float = 1.0  # of words


def fused(words: Sequence[int], meanings: Sequence[int], weights: Weights) -> Mapping[int, float]:
    """Return the scores of all that one of the lists has; each list begins with what fits best."""
    most = (weights.text + weights.embedding) / (CONSTANT + 1)
    scores: dict[int, float] = {}
    for ranked, weight in ((words, weights.text), (meanings, weights.embedding)):
        for rank, key in enumerate(ranked if weight else (), 1):
            scores[key] = scores.get(key, 0.0) + weight / (CONSTANT + rank) / most
    # Rounding may add up to a little more than 1.
    return {key: min(1.0, score) for key, score in scores.items()}
