"""What is served: a model, its engine and its format."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.backends.base import BaseEngine
from engine.formats.base import ModelFormat
from engine.types import EngineInfo
from responses_app.observing.metrics import ModelMeter
from responses_app.runs.fair_turns import FairTurns


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An engine under the name that clients know, and how its model is written to.

    `info` is None until it started; `meter` counts its responses. `turns` are those that the engine does at once.
    """

    name: str
    engine: BaseEngine
    info: Callable[[], EngineInfo | None]
    created: int
    format: ModelFormat
    meter: ModelMeter
    turns: FairTurns = field(default_factory=FairTurns)
