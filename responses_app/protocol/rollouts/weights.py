"""What a roll-out says of the weights that answer it, and how that is held.

    weights_wanted   each token is of this version
    max_staleness    the oldest tokens are at most so many versions behind the model's

It is held twice: when a request comes (`check`), by what is known of the engine then, and with each version of which
tokens come (`WeightsRule`), since weights may change in the middle of a turn. What breaks a rule is not told, and the
turn ends as failed.

`order` is `EngineState.versions`, as far as this worker knows it. A version that samples now and is not in it is newer
than all of them: the update has just ended. One that has sampled and is not in it is older: what the engine was started
with.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.errors import EngineError, WeightsNotServed
from engine.types import UNKNOWN, TokenChunk
from responses_app.protocol.errors import ApiError, conflict, invalid_request
from responses_app.protocol.rollouts.generations import EngineCall

# How a generation ends that breaks a rule, by the code of its error.
FINISHED = {"rollout_stale": "stale", "weights_not_served": "other_weights"}
MAX_KEPT = 500  # versions that are kept of a roll-out, the first and the newest
SHOWN = 10  # versions in a message


class Oldest(NamedTuple):
    """The oldest weights that have sampled tokens of a roll-out."""

    version: str
    behind: int  # versions, of the present one


class RolloutStale(EngineError):
    """The tokens of a roll-out are older than it wants; `reason` is for its client."""

    def __init__(self, rollout: str, oldest: Oldest, current: str, most: int) -> None:
        versions = f"{oldest.behind} version{'' if oldest.behind == 1 else 's'}"
        self.reason = (
            f"The rollout '{rollout}' has tokens of the weights '{oldest.version}', which are {versions} behind "
            f"'{current}', and its max_staleness is {most}. Begin another rollout."
        )
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsWanted:
    """What a roll-out says of weights, and which have sampled its tokens so far."""

    rollout: str  # as its client calls it
    version: str | None  # that each token is to be of; None for any
    max_staleness: int | None  # None for any
    sampled: Sequence[str]  # versions

    def check(self, served: Sequence[str], current: str, order: Sequence[str], *, updates: str | None) -> None:
        """Raise `ApiError` (409) for a request that comes now; `updates`: to which version the weights change now.

        `updates` is empty where they change to one that is not known here, and None where they do not. An engine that
        does not tell which weights it has: 400.
        """
        if not served:
            raise invalid_request(
                f"The rollout '{self.rollout}' wants weights of a version (weights_wanted, max_staleness), and this "
                "model's engine does not tell which it has. Begin another rollout without these fields.",
                param="weights_wanted",
                code="unsupported_engine",
            )
        if self.version is not None and self.version not in served:
            raise weights_not_served(self.version, served, updates=updates)
        if self.max_staleness is not None:
            oldest = oldest_of(self.sampled, current, order)
            if oldest.behind > self.max_staleness:
                stale = RolloutStale(self.rollout, oldest, current, self.max_staleness)
                raise rollout_stale(stale)


class WeightsRule:
    """Holds what a roll-out wants against what comes: a comparison a chunk, while its version stays the same."""

    def __init__(self, wanted: WeightsWanted, order: Callable[[], Sequence[str]]) -> None:
        self._wanted = wanted
        self._order = order
        self._sampled = set(wanted.sampled)
        self._last: str | None = None

    @property
    def version(self) -> str:
        """The version that is wanted; empty for any."""
        return self._wanted.version or ""

    def note(self, version: str | None) -> None:
        """Note the weights that have sampled on another worker."""
        if version is not None and version != UNKNOWN:
            self._sampled.add(version)

    def take(self, chunk: TokenChunk) -> None:
        """Take a chunk, before it is told. Raises `WeightsNotServed`, `RolloutStale`."""
        told = chunk.newest if chunk.weights_version == UNKNOWN else chunk.weights_version
        for version in [span.version for span in chunk.weights] if chunk.weights else (told,):
            # None: the engine tells it once more where it changes.
            if version is not None and version != self._last:
                self._check(version)
                self._last = version
                self._sampled.add(version)

    def _check(self, version: str) -> None:
        wanted = self._wanted
        if wanted.version is not None and version != wanted.version:
            raise WeightsNotServed(wanted.version, [version])
        if wanted.max_staleness is not None:
            oldest = oldest_of(self._sampled, version, self._order())
            if oldest.behind > wanted.max_staleness:
                raise RolloutStale(wanted.rollout, oldest, version, wanted.max_staleness)


def oldest_of(sampled: Iterable[str], current: str, order: Sequence[str]) -> Oldest:
    """Return the oldest weights of these, and how many versions they are behind the present ones."""
    places = {version: place for place, version in enumerate(order)}
    now = places.get(current, len(order))
    found = [Oldest(version, now - places.get(version, -1)) for version in sampled if version != current]
    return max([Oldest(current, 0), *found], key=lambda each: each.behind)


def versions_after(kept: Sequence[str], calls: Iterable[EngineCall]) -> Sequence[str]:
    """Return the versions that have sampled a roll-out, in the order in which they came, with those of more calls."""
    told = (span.version for call in calls for span in call.weights)
    versions = tuple(dict.fromkeys([*kept, *(version for version in told if version is not None)]))
    return versions if len(versions) <= MAX_KEPT else (versions[0], *versions[1 - MAX_KEPT :])


def untold(chunk: TokenChunk) -> TokenChunk:
    """Return a chunk that breaks a rule as it is told: without its tokens, and with the weights of the others."""
    assert chunk.weights is not None, "only an engine that tells it at the end corrects it"
    spans, dropped = list(chunk.weights), len(chunk.token_ids)
    while spans and dropped >= spans[-1].tokens:
        dropped -= spans.pop().tokens
    if spans:
        spans[-1] = spans[-1]._replace(tokens=spans[-1].tokens - dropped)
    return TokenChunk(token_ids=(), weights=spans)


def broken_rule(error: EngineError | None) -> ApiError | None:
    """Return the client's error for a rule that is broken (409); None for all else."""
    if isinstance(error, WeightsNotServed):
        return weights_not_served(error.wanted, error.served)
    if isinstance(error, RolloutStale):
        return rollout_stale(error)
    return None


def rollout_stale(error: RolloutStale) -> ApiError:
    """Its tokens are older than it wants (409)."""
    return conflict(error.reason, param="max_staleness", code="rollout_stale")


def weights_not_served(wanted: str, served: Sequence[str], *, updates: str | None = None) -> ApiError:
    """No weights of the version that a roll-out wants are there (409)."""
    if updates is None:
        advice = "Update the weights to that version, or begin another rollout."
    elif updates in ("", wanted):
        advice = "An update is under way: wait for its end, and send the request again if it brings them."
    else:
        advice = f"They are being changed to '{updates}'. Begin another rollout behind that."
    versions = ", ".join(f"'{version}'" for version in served[:SHOWN]) or "others"
    others = " and others" if len(served) > SHOWN else ""
    return conflict(
        f"The rollout wants the weights '{wanted}' (weights_wanted), and the engine has {versions}{others}. {advice}",
        param="weights_wanted",
        code="weights_not_served",
    )
