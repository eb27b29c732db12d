"""`EngineDoors`: trainers pause engines, change their weights, and have them go on.

What is done to an engine is an operation (`EngineOperations` carries it out). An engine that all workers share is
changed by the worker that was asked, and the others are told: before a pause, so that they know what ends what they
run, and after all else. Where each worker has an engine of its own, each does it, and the one that was asked waits for
all.

A pause has a lease. A trainer that dies leaves a pause that ends by itself, and an update that is cancelled then. A
worker that dies is busy no more: others may go on with the engine.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.errors import EngineUnavailable
from engine.weights import FAILED, BaseWeights, RemoteCall, ReplicaState, WeightsCall, WeightsStep
from responses_app.protocol.engine_state import (
    EngineState,
    OpenUpdate,
    PauseRequest,
    WeightsRequest,
    WorkerReport,
    busy,
    check_lease,
    check_method,
    no_update,
    not_paused,
    update_open,
)
from responses_app.protocol.errors import ApiError, conflict, invalid_value
from responses_app.runs.engines.following import EngineFollower, applying, calling, pausing, resuming
from responses_app.runs.engines.operations import EngineOperations, Operation, weights_of
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.plan.settings import RunSettings

if TYPE_CHECKING:
    from responses_app.stores.engines import EngineStore

logger = logging.getLogger("respsite.runs")


@dataclass(frozen=True, slots=True)
class EngineView:
    """An engine, as trainers are told of it."""

    state: EngineState
    version: str | None
    replicas: Sequence[ReplicaState]
    workers: int  # that live


class EngineDoors:
    """The doors of the engines, in one worker."""

    def __init__(
        self,
        store: "EngineStore",
        follower: EngineFollower,
        *,
        worker: str,
        now: Callable[[], float],
        settings: RunSettings,
        tell: Callable[[str], Awaitable[object]],
    ) -> None:
        self._store = store
        self._follower = follower
        self._worker = worker
        self._now = now
        self._settings = settings
        # `tell` has the other workers look at the state of a model.
        self._operations = EngineOperations(store, follower, worker=worker, now=now, settings=settings, tell=tell)

    def start(self) -> None:
        """Follow what others do, where trainers may do anything."""
        if self._settings.engine_weights:
            self._follower.start(self._expire)

    async def aclose(self) -> None:
        """Stop, and break off what is being done."""
        await self._operations.aclose()
        await self._follower.aclose()

    def hear(self, models: Collection[str]) -> None:
        """Look at what another worker has done to their engines."""
        self._follower.wake()

    async def view(self, model: ServedModel) -> EngineView:
        """Return how an engine is. Raises `ApiError`, `StoreError`."""
        weights = weights_of(model)
        kept = await self._store.read(model.name)
        reports = await self._operations.reports(model)
        try:
            own = await weights.replicas()
        except EngineUnavailable as error:
            own = [ReplicaState(name=weights.place, version=None, problem=str(error))]
        replicas = own if weights.is_shared else [*own, *self._of_others(reports)]
        return EngineView(kept.state, weights.version, replicas, len(reports))

    async def pause(self, model: ServedModel, request: PauseRequest) -> None:
        """Pause an engine, or give a pause more time. Raises `ApiError`, `StoreError`."""
        check_lease(request.lease_seconds, self._settings.engine_pause_seconds)
        weights, mode, until = weights_of(model), request.mode, self._now() + request.lease_seconds
        state = (await self._store.read(model.name)).state
        if state.update is not None and state.paused == mode:
            await self._operations.change(model, lambda state: self._longer(state, until, weights))
            return

        def begin(state: EngineState) -> EngineState:
            if state.update is not None:
                raise update_open(state.update.version)
            return replace(state, paused=mode, until=until)

        await self._operations.run(
            model,
            Operation(
                actions=[pausing(mode)],
                seconds=request.lease_seconds,
                begin=begin,
                fail=_goes_on,
                is_told_first=True,
            ),
        )

    def _longer(self, state: EngineState, until: float, weights: BaseWeights) -> EngineState:
        """Return a pause that has more time. Raises `ApiError` for one that ends, and while each worker does something.

        Whoever learns of another state gives up what it does, and begins anew.
        """
        now = self._now()
        if state.is_expired(now) or (state.is_busy(now) and not weights.is_shared):
            raise busy()
        return replace(_paused(state), until=until)

    async def resume(self, model: ServedModel) -> None:
        """Have an engine go on. Raises `ApiError`, `StoreError`."""

        def begin(state: EngineState) -> EngineState:
            if state.update is not None:
                raise update_open(state.update.version)
            return _paused(state)

        await self._operations.run(
            model,
            Operation(actions=[resuming()], seconds=self._step_seconds, begin=begin, succeed=_goes_on, fail=_goes_on),
        )

    async def weights(self, model: ServedModel, request: WeightsRequest) -> None:
        """Take a step of an update, or all of them. Raises `ApiError`, `StoreError`."""
        check_method(request.rpc, self._settings.engine_rpc_methods)
        match request.action:
            case "init":
                operation = self._step(WeightsCall(step=WeightsStep.INIT, info=request.info))
            case "begin":
                operation = self._begin_update(str(request.version), transfer=request.transfer)
            case "apply":
                operation = self._apply(request)
            case _:
                update = (await self._store.read(model.name)).state.update
                if update is None:
                    raise no_update()
                operation = self._of_update(request, update)
        await self._operations.run(model, operation)

    # Operations.

    @property
    def _step_seconds(self) -> float:
        return self._settings.engine_weights_seconds

    def _step(self, call: WeightsCall, **more: Any) -> Operation:
        return Operation(actions=[calling(call)], seconds=self._step_seconds, **more)

    def _begin_update(self, version: str, *, transfer: bool) -> Operation:
        def begin(state: EngineState) -> EngineState:
            if state.update is not None:
                raise update_open(state.update.version)
            return replace(_paused(state), update=OpenUpdate(version=version, transfer=transfer))

        call = WeightsCall(step=WeightsStep.BEGIN, version=version, transfer=transfer)
        return self._step(call, begin=begin, fail=lambda state: replace(state, update=None))

    def _of_update(self, request: WeightsRequest, update: OpenUpdate) -> Operation:
        """Return a step of an update that has begun."""

        def begin(state: EngineState) -> EngineState:
            # Another request has finished or cancelled it, or the pause ends, and the update with it.
            if state.update != update or state.is_expired(self._now()):
                raise busy()
            return _paused(state)

        version = update.version
        if request.action == "update":
            _check_way(request, update)
            call = _update_call(request, version)
            changed = replace(update, changed=True)
            return self._step(
                call,
                begin=lambda state: replace(begin(state), update=changed),  # from now on, should this worker die
                version=version,
                fail=lambda state: replace(state, update=update),
            )
        if request.action == "finish":
            call = WeightsCall(step=WeightsStep.FINISH, version=version, transfer=update.transfer)
            return self._step(
                call, begin=begin, version=version, succeed=lambda state: replace(state, update=None).named(version)
            )
        return self._step(_cancel(update), begin=begin, succeed=_cancelled, fail=_cancelled)

    def _apply(self, request: WeightsRequest) -> Operation:
        version, transfer, mode = str(request.version), request.rpc is None, request.mode
        calls = [
            WeightsCall(step=WeightsStep.BEGIN, version=version, transfer=transfer),
            _update_call(request, version),
            WeightsCall(step=WeightsStep.FINISH, version=version, transfer=transfer),
        ]

        def begin(state: EngineState) -> EngineState:
            if state.paused:
                raise conflict(
                    "The engine is paused already. Resume it first, or take the steps one by one.",
                    code="engine_paused",
                )
            # It has no lease beside this operation: where its worker dies, nobody would end it. What has changed till
            # then may be half a version.
            update = OpenUpdate(version=version, transfer=transfer, changed=True)
            return replace(state, paused=mode, until=self._now(), update=update)

        def ended(state: EngineState) -> EngineState:
            return replace(_goes_on(state), update=None)

        return Operation(
            actions=[applying(calls, mode, rolling=request.rolling)],
            seconds=self._step_seconds,
            begin=begin,
            told=lambda state: state if request.rolling else state.named(version),
            succeed=lambda state: ended(state).named(version),
            fail=ended,
            is_told_first=True,
            version=version,
        )

    async def _expire(self, model: ServedModel) -> None:
        """End a pause whose time is over; the workers find that out at the same time, and one of them does it."""
        kept = (await self._store.read(model.name)).state
        update = kept.update

        def begin(state: EngineState) -> EngineState:
            if not state.is_expired(self._now()) or state.update != update:
                raise busy()
            return state

        cancel = [] if update is None else [calling(_cancel(update))]
        operation = Operation(
            actions=[*cancel, resuming()],
            seconds=self._step_seconds,
            begin=begin,
            told=_cancelled,
            succeed=lambda state: _goes_on(_cancelled(state)),
            fail=lambda state: _goes_on(_cancelled(state)),
        )
        try:
            await self._operations.run(model, operation)
        except ApiError as problem:
            if problem.code != "engine_busy":
                logger.warning("the pause of %r could not be ended: %s", model.name, problem.message)
        else:
            logger.warning("the pause of %r was ended: its trainer has not been heard of in time", model.name)

    def _of_others(self, reports: Sequence[WorkerReport]) -> list[ReplicaState]:
        """Return the engines of the other workers, as these have told them."""
        states = []
        for report in (each.report for each in reports if each.worker != self._worker):
            told: Sequence[dict[str, Any]] = report.get("replicas", ())
            states += [ReplicaState(**each | {"problem": report["problem"] or each["problem"]}) for each in told]
        return states


def _paused(state: EngineState) -> EngineState:
    """Return a state of an engine that is paused. Raises `ApiError` (409) for one that runs."""
    if not state.paused:
        raise not_paused("Pause it first with POST /v1/engine/pause; a pause also ends by itself when its lease does.")
    return state


def _goes_on(state: EngineState) -> EngineState:
    return replace(state, paused="", until=0.0)


def _check_way(request: WeightsRequest, update: OpenUpdate) -> None:
    """Raise `ApiError` where weights come in another way than the update was begun for."""
    if update.transfer and request.rpc is not None:
        raise invalid_value("rpc", "this update was begun for the engine's transfer. Begin with 'transfer': false.")
    if not update.transfer and request.rpc is None:
        raise invalid_value("info", "this update was begun with 'transfer': false, so it needs 'rpc'.")


def _update_call(request: WeightsRequest, version: str) -> WeightsCall:
    rpc = request.rpc
    remote = None if rpc is None else RemoteCall(rpc.method, rpc.args, rpc.kwargs)
    return WeightsCall(step=WeightsStep.UPDATE, version=version, info=request.info, transfer=rpc is None, remote=remote)


def _cancel(update: OpenUpdate) -> WeightsCall:
    version = FAILED + update.version if update.changed else ""
    return WeightsCall(step=WeightsStep.CANCEL, version=version, transfer=update.transfer)


def _cancelled(state: EngineState) -> EngineState:
    update = state.update
    ended = replace(state, update=None)
    return ended.named(FAILED + update.version) if update is not None and update.changed else ended
