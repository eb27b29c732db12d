"""The formats of an export, and which roll-outs one has."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from responses_app.protocol.rollouts.exports import harbor, nemo_gym, tinker, trl, verifiers
from responses_app.protocol.rollouts.exports.rows import Row, total_of, whole_reward
from responses_app.protocol.rollouts.objects import RolloutObject
from responses_app.protocol.rollouts.tree import RolloutTree


def _trees(tree: RolloutTree) -> Iterator[Row]:
    yield {**tree.in_files()}


# Each returns the rows of a roll-out. The first key of a row is the id of its roll-out.
FORMATS: dict[str, Callable[[RolloutTree], Iterator[Row]]] = {
    "tree": _trees,
    "nemo-gym": nemo_gym.rows,
    "trl": trl.rows,
    "harbor": harbor.rows,
    "verifiers": verifiers.rows,
    "tinker": tinker.rows,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which roll-outs an export has. What is None does not matter."""

    group: str | None = None
    status: str | None = None  # "open" or "ended"
    version: str | None = None  # of the weights that at least one token was sampled by
    min_reward: float | None = None  # of the whole roll-out; parts are summed. Without a reward it is not taken
    max_reward: float | None = None
    created_after: int | None = None  # Unix seconds; at this time, or later
    created_before: int | None = None  # earlier than this

    def takes(self, head: RolloutObject) -> bool:
        """Whether a roll-out is taken, as far as that shows without its tokens."""
        created = head["created_at"]
        return (
            self.group in (None, head["group"])
            and self.status in (None, head["status"])
            and (self.created_after is None or created >= self.created_after)
            and (self.created_before is None or created < self.created_before)
            and self._has_reward(head)
        )

    def takes_tree(self, tree: RolloutTree) -> bool:
        """Whether it is taken, now that its tokens are known."""
        if self.version is None:
            return True
        spans = (span for path in tree.paths for span in path.generation.call.weights)
        return any(span.version == self.version for span in spans)

    def _has_reward(self, head: RolloutObject) -> bool:
        if self.min_reward is None and self.max_reward is None:
            return True
        total = total_of(whole_reward(head))
        low = -math.inf if self.min_reward is None else self.min_reward
        high = math.inf if self.max_reward is None else self.max_reward
        return total is not None and low <= total <= high
