"""An engine as trainers change it: its state, as all workers know it, and the bodies of `/v1/engine/…`.

    running ── pause ──> paused ── begin ──> paused, changing ── finish, cancel ──> paused ── resume ──> running
                            └── the lease ends (with what has begun) ────────────────────────────────────┘

One worker at a time does something to an engine: it is `busy` then. All of this is data; workers agree on it in the
database, where each change has a number.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from responses_app.protocol.errors import ApiError, JsonObject, conflict, invalid_value
from responses_app.protocol.fields import ClientModel, missing, validate

MAX_VERSIONS = 500  # that are remembered, the newest; each has 128 characters at most
FAILED = "failed:"  # as `engine.weights` begins the version of weights that may be new and old
MAX_VERSION = 128  # characters
MAX_METHOD = 200
MAX_ARGUMENTS = 100
METHOD = re.compile("[A-Za-z][A-Za-z0-9_]*")  # the name of one that vLLM's own code does not keep to itself
DEFAULT_LEASE = 300.0  # seconds


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
        """Read a stored state, without the fields that a newer version of this server has added."""
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


@dataclass(frozen=True, slots=True)
class NumberedState:
    """The state of an engine, and the number of the change that made it; 0 before the first."""

    number: int
    state: EngineState


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker that lives has said of an engine last; number 0 for one that has said nothing."""

    worker: str
    number: int
    report: Mapping[str, Any]


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


ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Mode = Literal["keep", "wait", "abort"]


class PauseRequest(ClientModel):
    """The body of a pause."""

    model: ModelName | None = None  # None: the first one
    mode: Mode = "keep"
    lease_seconds: float = Field(DEFAULT_LEASE, ge=1)


class ResumeRequest(ClientModel):
    """The body of a resume."""

    model: ModelName | None = None


class RpcCall(ClientModel):
    """A method that the operator has added to the engine's workers."""

    method: str = Field(pattern=f"^{METHOD.pattern}$", max_length=MAX_METHOD)
    args: list[Any] = Field(default_factory=list, max_length=MAX_ARGUMENTS)
    kwargs: dict[str, Any] = Field(default_factory=dict, max_length=MAX_ARGUMENTS)


class WeightsRequest(ClientModel):
    """The body of a step of an update of weights, or of all steps (`apply`)."""

    model: ModelName | None = None
    action: Literal["init", "begin", "update", "finish", "cancel", "apply"]
    # Printable ASCII without spaces: it stands in lists and in names of files.
    version: Annotated[str, StringConstraints(pattern=r"^[!-~]+$", max_length=MAX_VERSION)] | None = None
    info: dict[str, Any] | list[Any] | None = None  # in the engine's own words
    rpc: RpcCall | None = None
    transfer: bool = True  # of `begin`: the engine's own transfer brings the weights
    mode: Mode = "keep"  # of `apply`: how it pauses
    rolling: bool = False  # of `apply`: one replica after the other


NEEDED = {  # beside the action
    "begin": ("version",),
    "apply": ("version",),
    "init": ("info",),
}
TAKEN = {  # by the field: the actions that it is for
    "version": ("begin", "apply"),
    "info": ("init", "update", "apply"),
    "rpc": ("update", "apply"),
    "transfer": ("begin",),
    "mode": ("apply",),
    "rolling": ("apply",),
}


def parse_pause(data: JsonObject) -> PauseRequest:
    """Return a pause. Raises `ApiError`."""
    return validate(PauseRequest, data)


def parse_resume(data: JsonObject) -> ResumeRequest:
    """Return a resume. Raises `ApiError`."""
    return validate(ResumeRequest, data)


def parse_weights(data: JsonObject) -> WeightsRequest:
    """Return a step. Raises `ApiError`, also for the fields of another step."""
    request = validate(WeightsRequest, data)
    for name, actions in TAKEN.items():
        if name in request.model_fields_set and request.action not in actions:
            known = " and ".join(f"'{action}'" for action in actions)
            raise invalid_value(name, f"it is for {known}, and this is '{request.action}'.")
    for name in NEEDED.get(request.action, ()):
        if getattr(request, name) is None:
            raise missing(name)
    if request.action in ("update", "apply"):
        # It brings something, and not the same in two ways.
        if request.info is None and request.rpc is None:
            raise missing("info")
        if request.info is not None and request.rpc is not None:
            raise invalid_value("rpc", "an update has 'info' or 'rpc', and not both.")
    if request.version is not None and request.version.startswith(FAILED):
        raise invalid_value("version", f"'{FAILED}' begins the names of weights whose update has failed.")
    return request


def check_lease(seconds: float, most: float) -> None:
    """Raise `ApiError` for a lease that is longer than this server gives."""
    if seconds > most:
        raise invalid_value(
            "lease_seconds",
            f"{seconds:g} is more than the {most:g} seconds that a pause may have (ENGINE_PAUSE_SECONDS).",
        )


def check_method(call: RpcCall | None, allowed: Collection[str]) -> None:
    """Raise `ApiError` for a method that the operator has not named: vLLM's own ones write files, for example."""
    if call is not None and call.method not in allowed:
        raise invalid_value(
            "rpc.method", f"{call.method!r} is none of those that trainers may call here (ENGINE_RPC_METHODS)."
        )
