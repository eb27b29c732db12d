"""Weights that change while an engine serves: what a trainer may do to an engine, in no engine's own words.

    pause ──> begin ──> update, as often as it takes ──> finish ──> resume

A pause ends nothing by itself (`PauseMode`). What comes meanwhile waits in the engine. While an engine is paused it
samples no token, so each token is of one version: that of the last `finish` before it was sampled.

`Gate` is the pause of an engine that samples in this process.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.errors import TurnEnded

FAILED = "failed:"  # begins the version of weights whose update broke in its middle, before the version it was to be
ENDED = "The engine was paused, and what was running was ended."
Announce = Callable[[], Awaitable[None]]  # returns once all who share an engine know how it is now


class PauseMode(StrEnum):
    """The ways in which a pause treats the generations that run."""

    KEEP = "keep"  # they are frozen, and go on behind the pause
    WAIT = "wait"  # they run to their end; the engine is paused when the last one has ended
    ABORT = "abort"  # they end with `TurnEnded`


class WeightsStep(StrEnum):
    """One step of a change of weights."""

    INIT = "init"  # the engine connects to the trainer; needed once, by engines that do
    BEGIN = "begin"
    UPDATE = "update"
    FINISH = "finish"
    CANCEL = "cancel"  # no more updates come, and the change is not finished


CHANGES = (WeightsStep.UPDATE, WeightsStep.FINISH)  # where one of these fails, weights may be new and old


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A method of the engine's own workers, which an operator has added to them."""

    method: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsCall:
    """A step, with all that the engine's own interface needs for it."""

    step: WeightsStep
    # What the weights are called once the change is finished. Of `cancel`: from then on, empty for the name they have.
    version: str = ""
    info: Mapping[str, Any] | Sequence[Any] | None = None  # of `init` and `update`, in the engine's own words
    # Whether the engine's own transfer brings the weights; else methods of its workers do, which `remote` names.
    transfer: bool = True
    remote: RemoteCall | None = None  # of `update`


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One engine, or one of several replicas."""

    name: str  # where it is
    version: str | None  # of its weights, where it tells
    problem: str = ""  # why it is not used; empty where it is


async def nobody() -> None:
    """Tell nobody: nobody shares the engine."""


class BaseWeights(ABC):
    """The doors of one engine, in one process.

    Where `is_shared`, the engine is the same one for several processes: what one of them does holds for all. The
    others are told by `learn`.
    """

    is_shared: bool = False

    @property
    @abstractmethod
    def place(self) -> str:
        """Tell this engine from those of other processes: two with the same place are one."""

    @property
    @abstractmethod
    def version(self) -> str | None:
        """The version that new tokens come from, as far as it is known."""

    @property
    def versions(self) -> Sequence[str]:
        """The versions that new tokens may come from: several where replicas differ; none where that is not known."""
        return () if self.version is None else (self.version,)

    @abstractmethod
    async def pause(self, mode: PauseMode) -> None:
        """Return once no token is sampled any more. Pausing again is no error. Raises `EngineError`."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on. Resuming what runs is no error. Raises `EngineError`."""

    @abstractmethod
    async def call(self, call: WeightsCall) -> None:
        """Take one step, while the engine is paused. Behind `finish` no prefix cache of the old weights is used.

        Raises `WeightsRefused` and `EngineUnavailable`. Where an `update` or a `finish` fails, weights may be mixed:
        then what they are called from then on begins with `FAILED`.
        """

    async def apply(self, calls: Sequence[WeightsCall], mode: PauseMode, *, told: Announce = nobody) -> None:
        """Pause, take all steps, and resume, whatever comes of them. Raises as above.

        `told` is awaited before anything is sampled by the new weights: then all who share the engine know of them.
        """
        await self.pause(mode)
        try:
            for call in calls:
                await self.call(call)
            await told()
        finally:
            await self.resume()

    async def roll(self, calls: Sequence[WeightsCall], mode: PauseMode, *, told: Announce = nobody) -> None:
        """Do the same with one replica after the other, while the others serve; `told` is awaited for each."""
        await self.apply(calls, mode, told=told)

    @abstractmethod
    async def replicas(self) -> Sequence[ReplicaState]:
        """Return each replica, as far as it can be asked now."""

    async def learn(  # noqa: B027 - most need not know
        self, *, paused: PauseMode | None, version: str, is_settled: bool
    ) -> None:
        """Note what another process does to an engine that is shared: before a pause, and behind all else.

        `version` is what all replicas have, or, where it `is_settled` not yet, are about to have; empty where nobody
        has changed it.
        """


class Gate:
    """Lets generations through, or holds them. All on one event loop."""

    def __init__(self) -> None:
        self._mode: PauseMode | None = None  # None while it is open
        self._news = asyncio.Event()  # set, and replaced, with each change of the mode
        self._running: set[object] = set()  # generations that have begun
        self._ended: set[object] = set()  # those of them that are to end
        self._idle = asyncio.Event()  # while nothing runs
        self._idle.set()

    @asynccontextmanager
    async def generation(self) -> "AsyncIterator[object]":
        """Wait until a generation may begin; it runs until the block ends. The name it gets is for `passed`."""
        while self._mode is not None:
            await self._news.wait()
        name = object()
        self._running.add(name)
        self._idle.clear()
        try:
            yield name
        finally:
            self._running.discard(name)
            self._ended.discard(name)
            if not self._running:
                self._idle.set()

    async def passed(self, name: object) -> None:
        """Return when the next token may be sampled. Raises `TurnEnded`."""
        while name not in self._ended:
            if self._mode in (None, PauseMode.WAIT):
                return
            await self._news.wait()
        raise TurnEnded(ENDED)

    async def close(self, mode: PauseMode) -> None:
        """Hold what comes, and what runs as `mode` says; return once nothing is sampled."""
        if mode is PauseMode.ABORT:
            self._ended |= self._running
        self._change(mode)
        if mode is PauseMode.WAIT:
            await self._idle.wait()

    def open(self) -> None:
        """Go on."""
        self._change(None)

    def _change(self, mode: PauseMode | None) -> None:
        self._mode = mode
        news, self._news = self._news, asyncio.Event()
        news.set()
