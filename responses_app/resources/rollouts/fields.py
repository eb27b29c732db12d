"""What is known of a roll-out, as it is read and kept, and as clients see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.rollouts.requests import RewardObject, RolloutObject, RolloutSettings

UNLIMITED = RolloutSettings()


class RolloutExists(Exception):
    """A roll-out of the project has this name already."""


class RolloutsFull(Exception):
    """The project has as many roll-outs as it may have."""


class TooManyRewards(Exception):
    """A roll-out has as many rewards as are kept."""


class PurgedRollouts(NamedTuple):
    """What a purge has done."""

    rollouts: int  # that are gone
    more: bool  # it stopped at its bound, and there is more to remove


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """A roll-out without its generations. Times are Unix seconds."""

    id: str
    project: str
    name: str  # as its client calls it
    created_at: int
    last_at: int  # when something last came to it
    ended_at: int | None = None
    group: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    sampling: JsonObject = field(default_factory=dict)  # for requests that say nothing of it
    weights_wanted: str | None = None
    max_staleness: int | None = None
    versions: Sequence[str] = ()  # of the weights that have sampled its tokens, in the order in which they came
    rewards: Sequence[RewardObject] = ()
    model: str = ""  # that was asked last
    generations: int = 0
    prompt_tokens: int = 0  # each once, however often it was sent
    sampled_tokens: int = 0
    bytes: int = 0  # that its generations take

    def as_json(self, *, staleness: int | None = None) -> RolloutObject:
        """Return it as clients see it; `staleness` is how many versions its tokens are behind, where that is known."""
        most = self.max_staleness
        return {
            "id": self.name,
            "object": "rollout",
            "created_at": self.created_at,
            "ended_at": self.ended_at,
            "status": "open" if self.ended_at is None else "ended",
            "group": self.group,
            "metadata": dict(self.metadata),
            "model": self.model or None,
            "sampling": dict(self.sampling),
            "weights_wanted": self.weights_wanted,
            "max_staleness": most,
            "versions": list(self.versions),
            "staleness": staleness,
            "stale": None if most is None or staleness is None else staleness > most,
            "rewards": list(self.rewards),
            "usage": {
                "generations": self.generations,
                "prompt_tokens": self.prompt_tokens,
                "sampled_tokens": self.sampled_tokens,
                "bytes": self.bytes,
            },
        }
