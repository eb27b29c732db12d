"""What a trainer has done to an engine, as all workers know it; and what may be done next.

    running ── pause ──> paused ── begin ──> paused, changing ── finish, cancel ──> paused ── resume ──> running
                            └── the lease ends (with what has begun) ────────────────────────────────────┘

One worker at a time does something to an engine: it is `busy` then. All of this is data; workers agree on it in the
database, where each change has a number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from responses_app.protocol.errors import ApiError, JsonObject, conflict

MAX_VERSIONS = 500  # that are remembered, the newest; each has 128 characters at most
FAILED = "failed:"  # as `engine.weights` begins the version of weights that may be new and old


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenUpdate:
    """A change of the weights that has begun."""

    version: str  # what they will be called
    transfer: bool  # whether the engine's own transfer brings them
    changed: bool = False  # some of them may be new


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """The state of one engine."""

    paused: str = ""  # the mode of the pause; empty while the engine runs
    until: float = 0.0  # Unix seconds: when the pause ends by itself
    update: OpenUpdate | None = None
    version: str = ""  # of the weights; empty where nobody has changed them
    versions: Sequence[str] = ()  # those that there were, in their order, and the present one last
    # What each worker does that has an engine of its own, once, when it learns of this.
    actions: Sequence[JsonObject] = field(default_factory=tuple)
    busy: str = ""  # the worker that does something to the engine now
    busy_until: float = 0.0  # Unix seconds: it has died, or hangs, if it is so late

    def as_json(self) -> JsonObject:
        """Return it as it is kept."""
        return asdict(self)

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> "EngineState":
        """Read what was kept; what a newer version of this server has added is left out."""
        known = {name: value for name, value in kept.items() if name in cls.__slots__}
        known |= {name: tuple(known.get(name, ())) for name in ("versions", "actions")}  # JSON has lists alone
        update = known.pop("update", None)
        return cls(**known, update=None if update is None else OpenUpdate(**update))

    def is_expired(self, now: float) -> bool:
        """Whether the time of the pause is over: it ends once nobody does anything to the engine."""
        return bool(self.paused) and now >= self.until

    def is_busy(self, now: float) -> bool:
        """Whether some worker does something to the engine."""
        return bool(self.busy) and now < self.busy_until

    def done(self) -> "EngineState":
        """Return it once the worker that was busy is not."""
        return replace(self, busy="", busy_until=0.0, actions=())

    def named(self, version: str) -> "EngineState":
        """Return it with weights of a version, which may have been used before."""
        versions = (*(each for each in self.versions if each != version), version)
        return replace(self, version=version, versions=versions[-MAX_VERSIONS:])


def busy() -> ApiError:
    """Another worker, or another request, does something to the engine (409)."""
    return conflict(
        "Another request pauses, resumes or changes this engine now. Try again when it has been answered.",
        code="engine_busy",
    )


def not_paused(what: str) -> ApiError:
    """The engine runs (409)."""
    return conflict(f"The engine is not paused. {what}", code="engine_not_paused")


def update_open(version: str) -> ApiError:
    """A change of weights has begun (409)."""
    return conflict(
        f"An update to the version '{version}' has begun. Finish or cancel it first.", code="weights_update_open"
    )


def no_update() -> ApiError:
    """No change of weights has begun (409)."""
    return conflict("No update has begun. Begin one first: 'begin', then 'update', then 'finish'.", code="no_update")
