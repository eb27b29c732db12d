"""What the rows of several formats have in common: rewards, versions of weights, log probabilities."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.types import WeightsSpan
from responses_app.protocol.rollouts.generations import spans_of
from responses_app.protocol.rollouts.objects import Reward, RolloutObject
from responses_app.protocol.rollouts.tree import SequenceOfNodes

Row = dict[str, Any]
REWARD = "reward"  # the name of a reward that has none
IMPOSSIBLE = -9999.0  # minus infinity, as vLLM's servers write it
# "12", "v12", "step-12": a digest is no number, whatever it ends with
_NUMBERED = re.compile(r"(?:[A-Za-z]+[-_. ]?)?(\d{1,18})")


def head_of(head: RolloutObject) -> Row:
    """Return the columns with which every row begins; `rollout_id` is the first, by which an export is resumed."""
    return {"rollout_id": head["id"], "group": head["group"]}


def parts_of(reward: Reward | None) -> dict[str, float]:
    """Return the named parts of a reward."""
    if reward is None:
        return {}
    return dict(reward) if isinstance(reward, Mapping) else {REWARD: reward}


def total_of(reward: Reward | None) -> float | None:
    """Return a reward as one number: the sum of its parts."""
    return None if reward is None else math.fsum(parts_of(reward).values())


def whole_reward(head: RolloutObject) -> Reward | None:
    """Return the last reward of a whole roll-out."""
    return next((each["reward"] for each in reversed(head["rewards"]) if each["turn"] is None), None)


def weights_of(spans: Iterable[WeightsSpan]) -> list[Row]:
    """Return versions of weights as JSON."""
    return [{"version": span.version, "tokens": span.tokens} for span in spans]


def trained_weights(sequence: SequenceOfNodes) -> Sequence[WeightsSpan]:
    """Return the versions by which the tokens were sampled that a sequence is the first to have: its last ones."""
    sampled = sum(span.tokens for span in sequence.weights)
    return spans_of(sequence.weights, sampled - sum(sequence.mask), sampled)


def oldest_version(spans: Sequence[WeightsSpan]) -> int | None:
    """Return the number of the oldest weights, None where a version is unknown or is no number."""
    found = [_NUMBERED.fullmatch(span.version or "") for span in spans]
    numbers = [int(match[1]) for match in found if match is not None]
    return min(numbers) if numbers and len(numbers) == len(found) else None


def known(value: float) -> float:
    """Return a log probability as JSON can have it; it is not NaN."""
    return value if value > IMPOSSIBLE else IMPOSSIBLE


def trained(sequence: SequenceOfNodes) -> tuple[list[int], list[float]]:
    """Return the mask of a sequence and its log probabilities, which are 0 where the mask is.

    A sampled token whose log probability the engine did not tell has the mask 0: nobody can train on it.
    """
    mask = [int(on and value == value) for on, value in zip(sequence.mask, sequence.logprobs, strict=True)]
    values = [known(value) if on else 0.0 for on, value in zip(mask, sequence.logprobs, strict=True)]
    return mask, values
