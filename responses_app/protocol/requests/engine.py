"""The bodies of `/v1/engine/…`: what trainers ask of an engine."""

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from responses_app.protocol.engine_state import FAILED
from responses_app.protocol.errors import ApiError, JsonObject, invalid_value
from responses_app.protocol.fields import ClientModel, missing, validate

MAX_VERSION = 128  # characters
MAX_METHOD = 200
MAX_ARGUMENTS = 100
METHOD = re.compile("[A-Za-z][A-Za-z0-9_]*")  # the name of one that vLLM's own code does not keep to itself
DEFAULT_LEASE = 300.0  # seconds

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
    """Return a step. Raises `ApiError`, also for what another step needs."""
    request = validate(WeightsRequest, data)
    for name, actions in TAKEN.items():
        if name in request.model_fields_set and request.action not in actions:
            raise invalid_value(name, f"it is for {_listed(actions)}, and this is '{request.action}'.")
    for name in NEEDED.get(request.action, ()):
        if getattr(request, name) is None:
            raise missing(name)
    if request.action in ("update", "apply"):
        _check_source(request)
    if request.version is not None and request.version.startswith(FAILED):
        raise invalid_value("version", f"'{FAILED}' begins the names of weights whose update has failed.")
    return request


def _check_source(request: WeightsRequest) -> None:
    """Raise `ApiError` where an update brings nothing, or the same in two ways."""
    if request.info is None and request.rpc is None:
        raise missing("info")
    if request.info is not None and request.rpc is not None:
        raise invalid_value("rpc", "an update has 'info' or 'rpc', and not both.")


def _listed(actions: tuple[str, ...]) -> str:
    return " and ".join(f"'{action}'" for action in actions)


def check_lease(seconds: float, most: float) -> None:
    """Raise `ApiError` for a lease that is longer than this server gives."""
    if seconds > most:
        raise lease_too_long(seconds, most)


def check_method(call: RpcCall | None, allowed: Collection[str]) -> None:
    """Raise `ApiError` for a method that the operator has not named: vLLM's own ones write files, for example."""
    if call is not None and call.method not in allowed:
        raise invalid_value(
            "rpc.method", f"{call.method!r} is none of those that trainers may call here (ENGINE_RPC_METHODS)."
        )


def lease_too_long(seconds: float, most: float) -> ApiError:
    """A lease is longer than this server gives (400)."""
    return invalid_value(
        "lease_seconds", f"{seconds:g} is more than the {most:g} seconds that a pause may have (ENGINE_PAUSE_SECONDS)."
    )
