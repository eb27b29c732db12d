"""The contract of what keeps the state of engines that trainers change; `contracts/adapters/test_engines` tests it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from responses_app.protocol.engine_state import EngineState


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


class BaseEngineStore(ABC):
    """Keeps the state of engines, by their models. Every method raises `StoreError`."""

    @abstractmethod
    async def numbers(self) -> Mapping[str, int]:
        """Return the number of the last change of each engine that was ever changed."""

    @abstractmethod
    async def read(self, model: str) -> NumberedState:
        """Return the state of an engine."""

    @abstractmethod
    async def change(self, model: str, number: int, state: EngineState) -> bool:
        """Keep the state that comes with this number, or was kept so; return False where another one has the number."""

    @abstractmethod
    async def report(self, model: str, report: WorkerReport) -> None:
        """Keep what a worker says; it replaces what it has said of this change, and of those before it."""

    @abstractmethod
    async def reports(self, model: str, *, seen_since: float) -> Sequence[WorkerReport]:
        """Return what each worker has said that was seen since then, in Unix seconds."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
