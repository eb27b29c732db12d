"""What is done to an engine, as JSON: workers that have engines of their own read it, and do it to them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from engine.weights import Announce, BaseWeights, PauseMode, RemoteCall, WeightsCall, WeightsStep, nobody

Action = dict[str, Any]
PAUSE, RESUME, CALL, APPLY = "pause", "resume", "call", "apply"


def pausing(mode: str) -> Action:
    """Return what pauses an engine."""
    return {"do": PAUSE, "mode": mode}


def resuming() -> Action:
    """Return what has an engine go on."""
    return {"do": RESUME}


def calling(call: WeightsCall) -> Action:
    """Return one step of a change of weights."""
    return {"do": CALL, "call": asdict(call)}


def applying(calls: Iterable[WeightsCall], mode: str, *, rolling: bool) -> Action:
    """Return a whole change of weights."""
    return {"do": APPLY, "mode": mode, "rolling": rolling, "calls": [asdict(call) for call in calls]}


async def perform(weights: BaseWeights, actions: Sequence[Action], *, told: Announce = nobody) -> None:
    """Do it; `told` is awaited where weights have changed, before these sample anything. Raises `EngineError`."""
    for action in actions:
        match action["do"]:
            case "pause":
                await weights.pause(PauseMode(action["mode"]))
            case "resume":
                await told()
                await weights.resume()
            case "call":
                await weights.call(_call(action["call"]))
            case "apply":
                change = weights.roll if action["rolling"] else weights.apply
                await change([_call(each) for each in action["calls"]], PauseMode(action["mode"]), told=told)


def _call(kept: Mapping[str, Any]) -> WeightsCall:
    remote = kept["remote"]
    return WeightsCall(
        step=WeightsStep(kept["step"]),
        version=kept["version"],
        info=kept["info"],
        transfer=kept["transfer"],
        remote=None if remote is None else RemoteCall(**remote),
    )
