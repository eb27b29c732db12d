"""Weights of vLLM servers, by vLLM's own endpoints (`entrypoints/rl/online`, `VLLM_SERVER_DEV_MODE=1`).

A server where a step fails is used no more, as long as another one took it: the pool goes on with those that agree.
A server that is away comes back only with the version that the pool wants (`Replica.wanted`), while others have it. One
whose update broke is renamed (`FAILED`), and one that was started anew has the weights of its start.

A step that nobody takes is the caller's mistake, or the trainer's: then all of them stay in use.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from engine import orjson
from engine.backends.client import Refusal
from engine.backends.vllm.pool import ReplicaPool
from engine.backends.vllm.replica import RESUME, Replica
from engine.errors import EngineError, EngineUnavailable, WeightsRefused
from engine.weights import (
    CHANGES,
    FAILED,
    Announce,
    BaseWeights,
    PauseMode,
    ReplicaState,
    WeightsCall,
    WeightsStep,
    nobody,
)

STEP_SECONDS = 3600.0  # that a step may take, and a pause that waits: whoever asks for it has bounds of its own
FINISH = "/finish_weight_update"
RENAME = "/update_weight_version"
REPEATABLE = ("/pause", RENAME)  # doing them twice is doing them once
NO_DOORS = "has no endpoints for trainers: start it with VLLM_SERVER_DEV_MODE=1, where trainers alone reach it"

logger = logging.getLogger("respsite.engine")


class PoolWeights(BaseWeights):
    """The doors of the servers of a pool, which other processes use, too."""

    is_shared = True

    def __init__(self, pool: Callable[[], ReplicaPool]) -> None:
        self._pool = pool  # raises `EngineUnavailable` while there is none

    @property
    def place(self) -> str:
        """All processes with the same settings have the same servers."""
        return "servers"

    @property
    def version(self) -> str | None:
        """The version of those that are used; None where they have several."""
        try:
            versions = {replica.version for replica in self._serving()}
        except EngineUnavailable:
            return None
        return versions.pop() if len(versions) == 1 else None

    @property
    def versions(self) -> Sequence[str]:
        try:
            return versions_of(self._serving())
        except EngineUnavailable:
            return ()

    async def pause(self, mode: PauseMode) -> None:
        for replica in self._serving():
            _hold(replica, mode)  # before anything comes of it
        try:
            await self._everywhere(lambda replica: _pause(replica, mode))
        except EngineError:
            for replica in self._pool().replicas:
                _hold(replica, None)
            raise

    async def resume(self) -> None:
        """Have all of them go on, those that are not used too: they may be used again."""
        replicas = self._pool().replicas
        problems = await asyncio.gather(*(_attempt(_resume(replica)) for replica in replicas))
        failed = [replica for replica, problem in zip(replicas, problems, strict=True) if problem and replica.service]
        for replica in failed:
            self._leave_out(replica, f"{replica} could not be resumed.")
        if failed and not self._serving():
            raise EngineUnavailable("No vLLM server could be resumed.")

    async def call(self, call: WeightsCall) -> None:
        """Take a step at all of them at once. A list that they connect by has what each one is told, in their order."""
        own = dict.fromkeys(self._pool().replicas, call)
        if call.step is WeightsStep.INIT and isinstance(call.info, list):
            if len(call.info) != len(own):
                raise WeightsRefused(f"'info' is for {len(call.info)} vLLM servers, and there are {len(own)}.")
            own = {replica: replace(call, info=info) for replica, info in zip(own, call.info, strict=True)}
        await self._everywhere(lambda replica: _step(replica, own[replica]))

    async def apply(self, calls: Sequence[WeightsCall], mode: PauseMode, *, told: Announce = nobody) -> None:
        before = self._want(calls)
        try:
            await super().apply(calls, mode, told=told)
        except EngineError:
            self._pool().want(before)
            raise

    async def roll(self, calls: Sequence[WeightsCall], mode: PauseMode, *, told: Announce = nobody) -> None:
        """Change one after the other; those that are away are tried, too."""
        pool, before = self._pool(), self._want(calls)
        problems: dict[Replica, EngineError] = {}
        for replica in pool.replicas:
            problem = await self._change(replica, calls, mode, told)
            if problem is not None:
                problems[replica] = problem
        changed = [replica for replica in pool.replicas if replica not in problems]
        if not changed:
            pool.want(before)
            raise next(iter(problems.values()))
        for replica, problem in problems.items():
            self._leave_out(replica, str(problem))

    async def replicas(self) -> Sequence[ReplicaState]:
        return [
            ReplicaState(
                name=replica.client.url,
                version=replica.version,
                problem="" if replica.service else replica.problem or "It is not used.",
            )
            for replica in self._pool().replicas
        ]

    async def learn(self, *, paused: PauseMode | None, version: str, is_settled: bool) -> None:
        pool = self._pool()
        for replica in pool.replicas:
            _hold(replica, paused)
        # One that goes away while weights change is not to come back with what it had.
        pool.want(version)
        serving = self._serving()
        # All are asked before any is judged: each is compared with the others. Where the change is not settled, some
        # may have new weights and go on at once: those are to be known.
        problems = await asyncio.gather(*(_attempt(replica.ask_version()) for replica in serving))
        for replica, problem in zip(serving, problems, strict=True):
            if version and is_settled and (said := str(problem or replica.disagreement())):
                replica.lose(said)

    def _want(self, calls: Sequence[WeightsCall]) -> str:
        """Use only what will have the weights of a change, and return what was wanted before."""
        pool = self._pool()
        before = pool.wanted
        pool.want(next((call.version for call in calls if call.version), before))
        return before

    def _serving(self) -> list[Replica]:
        return [replica for replica in self._pool().replicas if replica.service]

    async def _everywhere(self, ask: Callable[[Replica], Awaitable[None]]) -> None:
        """Ask all that are used; those that fail are left out, unless all do: then this raises the first problem."""
        serving = self._serving()
        if not serving:
            raise EngineUnavailable("No vLLM server is in reach.")
        answers = await asyncio.gather(*(_attempt(ask(replica)) for replica in serving))
        problems = {replica: answer for replica, answer in zip(serving, answers, strict=True) if answer is not None}
        if len(problems) == len(serving):
            raise problems[serving[0]]
        for replica, problem in problems.items():
            self._leave_out(replica, str(problem))

    def _leave_out(self, replica: Replica, problem: str) -> None:
        """Use a server no more; what runs there goes on elsewhere."""
        logger.error("the pool goes on without a server: %s", problem)
        replica.lose(problem)
        replica.client.end_streams(EngineUnavailable(problem))

    async def _change(
        self, replica: Replica, calls: Sequence[WeightsCall], mode: PauseMode, told: Announce = nobody
    ) -> EngineError | None:
        """Change one server, and return what was the matter."""
        replica.is_leaving_out = True
        try:
            _hold(replica, mode)
            await _pause(replica, mode)
            try:
                for call in calls:
                    await _step(replica, call)
                await told()
            finally:
                await _resume(replica)
        except EngineError as error:
            return error
        finally:
            _hold(replica, None)
            replica.is_leaving_out = False
        return None


def versions_of(replicas: Iterable[Replica]) -> list[str]:
    """Return the versions that these servers have, as far as they tell."""
    return sorted({replica.version for replica in replicas if replica.version})


def _hold(replica: Replica, mode: PauseMode | None) -> None:
    """Note that a server is paused, or is not."""
    replica.client.is_held = mode is not None
    replica.ends = mode is PauseMode.ABORT


async def _attempt(asked: Awaitable[None]) -> EngineError | None:
    """Return what an attempt raises."""
    try:
        await asked
    except EngineError as error:
        return error
    return None


async def _pause(replica: Replica, mode: PauseMode) -> None:
    await _post(replica, f"/pause?mode={mode}&clear_cache=true")


async def _resume(replica: Replica) -> None:
    try:
        await replica.resume()
    except Refusal as refusal:
        raise _refused(replica, RESUME, refusal) from refusal
    finally:
        _hold(replica, None)  # also one that is away: it is looked at again


async def _step(replica: Replica, call: WeightsCall) -> None:
    """Take a step at one server. Raises `WeightsRefused`, `EngineUnavailable`."""
    try:
        for path, body in _asked(call):
            try:
                await _post(replica, path, body)
            except WeightsRefused:
                # Nothing is open there that could be cancelled: an update failed in its middle, or had not come so far.
                if not (call.step is WeightsStep.CANCEL and path == FINISH):
                    raise
    except EngineError as error:
        if call.step not in CHANGES:
            raise
        with suppress(EngineError):  # it may be gone; then it comes back with another version than is wanted
            await _post(replica, RENAME, {"new_version": FAILED + call.version})
            replica.version = FAILED + call.version
        reason = error.reason if isinstance(error, WeightsRefused) else str(error)
        raise WeightsRefused(reason, changed=True) from error
    if call.step in (WeightsStep.FINISH, WeightsStep.CANCEL) and call.version:
        replica.version = call.version


def _asked(call: WeightsCall) -> list[tuple[str, Mapping[str, object]]]:
    """Return what a server is asked for in a step, in this order."""
    match call.step:
        case WeightsStep.INIT:
            return [("/init_weight_transfer_engine", {"init_info": call.info})]
        case WeightsStep.BEGIN:
            return [("/start_weight_update", {})] if call.transfer else []
        case WeightsStep.UPDATE if call.remote is not None:
            remote = call.remote
            body = {"method": remote.method, "args": list(remote.args), "kwargs": dict(remote.kwargs)}
            return [("/collective_rpc", body)]
        case WeightsStep.UPDATE:
            return [("/update_weights", {"update_info": call.info})]
    finish: list[tuple[str, Mapping[str, object]]] = [(FINISH, {})] if call.transfer else []
    return [*finish, (RENAME, {"new_version": call.version})] if call.version else finish


async def _post(replica: Replica, path: str, body: Mapping[str, object] | None = None) -> None:
    try:
        is_repeatable = path.partition("?")[0] in REPEATABLE
        await replica.client.post(path, orjson.dumps(body or {}), seconds=STEP_SECONDS, is_repeatable=is_repeatable)
    except Refusal as refusal:
        raise _refused(replica, path, refusal) from refusal


def _refused(replica: Replica, path: str, refusal: Refusal) -> WeightsRefused:
    if refusal.status in (404, 405):
        return WeightsRefused(f"{replica} {NO_DOORS}.")
    return WeightsRefused(f"{replica} refuses {path.partition('?')[0]}: {refusal}.")
