"""`/v1/engine`: trainers pause engines, change their weights, and have them go on (ENGINE_WEIGHTS)."""

from functools import partial
from typing import Literal

from typing_extensions import TypedDict

from responses_app.protocol.api_keys import Area
from responses_app.protocol.engine_state import (
    EngineState,
    PauseRequest,
    ResumeRequest,
    WeightsRequest,
    parse_pause,
    parse_resume,
    parse_weights,
)
from responses_app.runs.engines.doors import EngineView
from responses_app.runs.plan.served import ServedModel
from responses_app.web.endpoint import Endpoint, Parameter, text
from responses_app.web.http import ApiRequest, NotServed, read_json
from responses_app.wiring.site import Site, get_site


class EnginePause(TypedDict):
    """A pause. It ends by itself at `until`, in Unix seconds."""

    mode: Literal["keep", "wait", "abort"]
    until: int


class EngineUpdate(TypedDict):
    """An update of weights that has begun and is not finished."""

    version: str
    transfer: bool  # whether the engine's own transfer brings the weights
    changed: bool  # whether some of the weights may be new


class EngineReplica(TypedDict):
    """One engine of a model. `problem` says why it is not used; null where it is."""

    name: str
    version: str | None
    problem: str | None


class Engine(TypedDict):
    """The engine of a model. `versions` are those that its weights had, in their order."""

    object: Literal["engine"]
    model: str
    status: Literal["running", "paused"]
    pause: EnginePause | None
    busy: bool  # whether a request pauses, resumes or changes it now
    version: str | None  # null where replicas have several, or nothing is known
    versions: list[str]
    update: EngineUpdate | None
    replicas: list[EngineReplica]
    workers: int  # of this server, that live


def engine_object(model: str, view: EngineView, now: float) -> Engine:
    """Return an engine."""
    state, update = view.state, None
    if state.update is not None:
        step = state.update
        update = EngineUpdate(version=step.version, transfer=step.transfer, changed=step.changed)
    return {
        "object": "engine",
        "model": model,
        "status": "paused" if state.paused else "running",
        "pause": _pause(state),
        "busy": state.is_busy(now),
        "version": view.version,
        "versions": list(state.versions),
        "update": update,
        "replicas": [
            {"name": each.name, "version": each.version, "problem": each.problem or None} for each in view.replicas
        ],
        "workers": view.workers,
    }


def _pause(state: EngineState) -> EnginePause | None:
    mode: Literal["keep", "wait", "abort"]
    match state.paused:
        case "keep" | "wait" | "abort" as mode:
            return {"mode": mode, "until": int(state.until)}
    return None


async def _get(request: ApiRequest) -> Engine:
    site = _served()
    return await _told(site, _model(site, request, request.GET.get("model")))


async def _do_pause(request: ApiRequest) -> Engine:
    site = _served()
    wanted = await read_json(request, parse_pause, site.reader)
    model = _model(site, request, wanted.model)
    await site.engine_doors.pause(model, wanted)
    return await _told(site, model)


async def _do_resume(request: ApiRequest) -> Engine:
    site = _served()
    model = _model(site, request, (await read_json(request, parse_resume, site.reader)).model)
    await site.engine_doors.resume(model)
    return await _told(site, model)


async def _do_weights(request: ApiRequest) -> Engine:
    site = _served()
    wanted = await read_json(request, parse_weights, site.reader)
    model = _model(site, request, wanted.model)
    await site.engine_doors.weights(model, wanted)
    return await _told(site, model)


def _served() -> Site:
    """Return the site. Raises `NotServed` where trainers may do nothing."""
    site = get_site()
    if not site.settings.engine_weights:
        raise NotServed
    return site


def _model(site: Site, request: ApiRequest, name: str | None) -> ServedModel:
    """Return the model that is asked for. Raises `ApiError`."""
    return site.service.models.chosen(name, request.caller.models)


async def _told(site: Site, model: ServedModel) -> Engine:
    return engine_object(model.name, await site.engine_doors.view(model), site.service.now())


_MODEL = Parameter("model", "The model whose engine is meant; the first one where it is missing.", text())
_endpoint = partial(Endpoint, tag="Engine", scope=Area.ENGINE)

ENDPOINTS = (
    _endpoint("GET", "/v1/engine", _get, "getEngine", "Return the state of an engine", takes=(_MODEL,), errors=(404,)),
    _endpoint(
        "POST",
        "/v1/engine/pause",
        _do_pause,
        "pauseEngine",
        "Pause an engine, for a time",
        body=PauseRequest,
        errors=(404, 409),
    ),
    _endpoint(
        "POST",
        "/v1/engine/resume",
        _do_resume,
        "resumeEngine",
        "Have a paused engine go on",
        body=ResumeRequest,
        errors=(404, 409),
    ),
    _endpoint(
        "POST",
        "/v1/engine/weights",
        _do_weights,
        "updateWeights",
        "Take a step of an update of weights, or all",
        body=WeightsRequest,
        errors=(404, 409),
    ),
)
