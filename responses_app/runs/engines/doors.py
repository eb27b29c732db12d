"""`EngineDoors`: trainers pause engines, change their weights, and have them go on.

What is done to an engine is an operation, and there is one at a time: its beginning is kept with the worker that is
busy with it, then it is done, then its end is kept. An engine that all workers share is changed by the worker that was
asked, and the others are told: before a pause, so that they know what ends what they run, and behind all else. Where
each worker has an engine of its own, each does it, and the one that was asked waits for all.

A pause has a lease. A trainer that dies leaves a pause that ends by itself, and an update that is cancelled then. A
worker that dies is busy no more: others may go on with the engine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from engine.errors import EngineError, EngineUnavailable, WeightsRefused
from engine.weights import FAILED, BaseWeights, RemoteCall, ReplicaState, WeightsCall, WeightsStep
from responses_app.protocol.engine_state import (
    EngineState,
    OpenUpdate,
    busy,
    no_update,
    not_paused,
    update_open,
)
from responses_app.protocol.errors import ApiError, conflict, invalid_request, invalid_value, overloaded
from responses_app.protocol.requests.engine import PauseRequest, WeightsRequest, check_lease, check_method
from responses_app.runs.engines.actions import Action, applying, calling, pausing, perform, resuming
from responses_app.runs.engines.following import LOADING, LOOK_SECONDS, EngineFollower, problems_of
from responses_app.runs.log.run_log import end_tasks
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.plan.settings import RunSettings
from responses_app.stores.base import StoreError
from responses_app.stores.engines import BaseEngineStore, NumberedState, WorkerReport

logger = logging.getLogger("respsite.runs")

POLL_SECONDS = 0.05  # between two looks at what the workers have said
HEAR_SECONDS = 5.0  # that workers have to say it, beside the time after which a silent one counts as dead
ATTEMPTS = 20  # at a change, while other workers change the same state
MARGIN_SECONDS = 60.0  # that an operation may take longer than its engine
Change = Callable[[EngineState], EngineState]


def _as_it_is(state: EngineState) -> EngineState:
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that is done to an engine. The changes are made of the state that there is then."""

    actions: Sequence[Action]
    seconds: float  # that it may take
    begin: Change = _as_it_is  # raises `ApiError` where it may not be done now
    told: Change = _as_it_is  # what all who share the engine are to know before it samples again
    succeed: Change = _as_it_is
    fail: Change = _as_it_is  # where nothing was changed
    is_told_first: bool = False  # whether workers that share the engine are to know before it is done
    version: str = ""  # that the weights would have, where it may fail in the middle


@dataclass(frozen=True, slots=True)
class _Running:
    """An operation that is carried out."""

    operation: Operation
    until: float  # when this worker counts as dead, or hanging, if it is not done; tells it from others of this worker
    living: Collection[str]  # the workers that lived when it began


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
        store: BaseEngineStore,
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
        self._tell = tell  # has the other workers look at the state of a model
        self._operations: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Follow what others do, where trainers may do anything."""
        if self._settings.engine_weights:
            self._follower.start(self._expire)

    async def aclose(self) -> None:
        """Stop. What is being done breaks off; its end is kept if the database answers, else its lease ends it."""
        await end_tasks(self._operations)
        await self._follower.aclose()
        await self._store.aclose()

    def hear(self, models: Collection[str]) -> None:
        """Look at what another worker has done to their engines."""
        self._follower.wake()

    async def view(self, model: ServedModel) -> EngineView:
        """Return how an engine is. Raises `ApiError`, `StoreError`."""
        weights = _weights(model)
        kept = await self._store.read(model.name)
        reports = await self._reports(model)
        try:
            own = await weights.replicas()
        except EngineUnavailable as error:
            own = [ReplicaState(name=weights.place, version=None, problem=str(error))]
        replicas = own if weights.is_shared else [*own, *self._of_others(reports)]
        return EngineView(kept.state, weights.version, replicas, len(reports))

    async def pause(self, model: ServedModel, request: PauseRequest) -> None:
        """Pause an engine, or give a pause more time. Raises `ApiError`, `StoreError`."""
        check_lease(request.lease_seconds, self._settings.engine_pause_seconds)
        weights, mode, until = _weights(model), request.mode, self._now() + request.lease_seconds
        state = (await self._store.read(model.name)).state
        if state.update is not None and state.paused == mode:
            await self._change(model, lambda state: self._longer(state, until, weights))
            return

        def begin(state: EngineState) -> EngineState:
            if state.update is not None:
                raise update_open(state.update.version)
            return replace(state, paused=mode, until=until)

        await self._run(
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

        await self._run(
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
                operation = self._of_update(request, await self._open_update(model))
        await self._run(model, operation)

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

    async def _open_update(self, model: ServedModel) -> OpenUpdate:
        update = (await self._store.read(model.name)).state.update
        if update is None:
            raise no_update()
        return update

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
            await self._run(model, operation)
        except ApiError as problem:
            if problem.code != "engine_busy":
                logger.warning("the pause of %r could not be ended: %s", model.name, problem.message)
        else:
            logger.warning("the pause of %r was ended: its trainer has not been heard of in time", model.name)

    # How they are done.

    async def _run(self, model: ServedModel, operation: Operation) -> None:
        """Do something to an engine; it is done to its end, whoever leaves meanwhile."""
        await asyncio.shield(self._task(model, self._do(model, operation)))

    def _task(self, model: ServedModel, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"change the engine of {model.name}")
        self._operations.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._operations.discard(task)
        problem = None if task.cancelled() else task.exception()
        # Whoever asked is told, and may have left.
        if not (problem is None or isinstance(problem, ApiError | StoreError)):
            logger.error("%s failed", task.get_name(), exc_info=problem)

    async def _do(self, model: ServedModel, operation: Operation) -> None:
        weights = _weights(model)
        living = {self._worker, *(each.worker for each in await self._reports(model))}
        running = _Running(operation, self._now() + operation.seconds + MARGIN_SECONDS, living)
        before = EngineState()

        def begin(state: EngineState) -> EngineState:
            nonlocal before
            before = state
            return self._begun(state, running, weights)

        try:
            begun = await self._change(model, begin)
        except StoreError:
            # It may have been kept all the same, or be kept yet: nobody is to find this worker busy with it.
            self._task(model, self._take_back(model, running, before))
            raise
        try:
            if operation.is_told_first or not weights.is_shared:
                seconds = operation.seconds if not weights.is_shared else 0.0
                reports = await self._heard(model, begun, seconds=seconds)
                _check_places(weights, reports)
                _check_all_failed(reports)
            if weights.is_shared:
                async with asyncio.timeout(operation.seconds):
                    await perform(weights, operation.actions, told=lambda: self._tell_all(model, running))
        except BaseException as error:
            # Of what broke off nobody knows how far it came, nor of workers that have engines of their own, and are
            # silent. A server that stops has no time to try again.
            is_stopped = isinstance(error, asyncio.CancelledError)
            broke_off = is_stopped or isinstance(error, TimeoutError)
            is_silent = isinstance(error, ApiError | StoreError) and not weights.is_shared
            may_be_changed = broke_off or is_silent or getattr(error, "changed", False)
            end = partial(_as_failed, running.operation, may_be_changed=may_be_changed)
            await self._failed(model, running, begun.state, end, is_stopped=is_stopped)
            raise _as_api_error(error, operation) from error
        ended = await self._change(
            model, lambda state: operation.succeed(self._own(state, running).done()), patient_until=running.until
        )
        if weights.is_shared:
            await self._heard(model, ended)

    async def _tell_all(self, model: ServedModel, running: _Running) -> None:
        """Return once all workers know of new weights: what these sample is not to be taken for the old ones' work.

        The engine goes on all the same where one is silent; whoever asked is told of that at the end.
        """
        told = running.operation.told
        known = await self._change(model, lambda state: told(self._own(state, running)), patient_until=running.until)
        try:
            await self._heard(model, known)
        except (ApiError, StoreError) as problem:
            logger.warning("the engine of %r goes on with other weights: %s", model.name, problem)

    def _begun(self, state: EngineState, running: _Running, weights: BaseWeights) -> EngineState:
        if self._is_others(state, running):
            raise busy()
        begun = running.operation.begin(state)
        actions = () if weights.is_shared else running.operation.actions
        return replace(begun, actions=actions, busy=self._worker, busy_until=running.until)

    def _is_others(self, state: EngineState, running: _Running) -> bool:
        """Whether a worker that lives is busy with something else."""
        return state.is_busy(self._now()) and state.busy in running.living and not self._is_own(state, running)

    def _is_own(self, state: EngineState, running: _Running) -> bool:
        return (state.busy, state.busy_until) == (self._worker, running.until)

    def _own(self, state: EngineState, running: _Running) -> EngineState:
        """Return a state in which that operation runs. Raises `ApiError` where others took it for dead, and went on."""
        if not self._is_own(state, running):
            raise busy()
        return state

    async def _failed(
        self, model: ServedModel, running: _Running, begun: EngineState, end: Change, *, is_stopped: bool
    ) -> None:
        """Have an engine go on that was paused for this alone, and keep what the failure means (`end`)."""
        weights = _weights(model)
        try:
            # Before others may do anything: they might pause it. Those that took this worker for dead may have done so.
            if weights.is_shared and not end(begun).paused and await self._is_running(model, running):
                await weights.resume()
        except EngineError as problem:
            logger.warning("the engine of %r could not be resumed: %s", model.name, problem)
        await self._undo(
            model,
            lambda state: end(self._own(state, running).done()),
            patient_until=0.0 if is_stopped else running.until,
        )

    async def _is_running(self, model: ServedModel, running: _Running) -> bool:
        """Whether this worker is still the one that does something to an engine, as far as that can be asked."""
        try:
            return self._is_own((await self._store.read(model.name)).state, running)
        except StoreError:
            return True

    async def _take_back(self, model: ServedModel, running: _Running, before: EngineState) -> None:
        """Undo a beginning of which nobody knows whether it was kept, or will be."""
        is_shared = _weights(model).is_shared

        def undo(state: EngineState) -> EngineState:
            if state == before:
                # As it is, with a new number: a beginning that is still being written comes too late then.
                return replace(state, actions=())
            ended = self._own(state, running).done()
            if not is_shared:  # workers that learnt of it have begun
                return _as_failed(running.operation, ended, may_be_changed=True)
            return replace(ended, paused=before.paused, until=before.until, update=before.update)

        await self._undo(model, undo, patient_until=running.until)

    async def _undo(self, model: ServedModel, change: Change, *, patient_until: float) -> None:
        try:
            await self._change(model, change, patient_until=patient_until)
        except ApiError:  # others do something to it meanwhile, and end that
            pass
        except StoreError as problem:
            logger.warning("what failed at the engine of %r could not be undone: %s", model.name, problem)

    async def _change(self, model: ServedModel, change: Change, *, patient_until: float = 0.0) -> NumberedState:
        """Keep another state, made of the present one, and have all workers look at it. Raises what `change` does.

        Until `patient_until` it is tried again where the store fails: the end of an operation has to be kept. The same
        state is tried then, as it may have been kept, and the answer lost.
        """
        after: NumberedState | None = None
        attempts = 0
        while attempts < ATTEMPTS:
            try:
                if after is None:
                    before = await self._store.read(model.name)
                    after = NumberedState(before.number + 1, change(before.state))
                if await self._store.change(model.name, after.number, after.state):
                    self._follower.wake()
                    await self._tell(model.name)
                    return after
                after, attempts = None, attempts + 1
            except StoreError as problem:
                if self._now() >= patient_until:
                    raise
                logger.warning("what was done to the engine of %r cannot be kept now: %s", model.name, problem)
                await asyncio.sleep(LOOK_SECONDS)
        raise busy()

    async def _heard(
        self, model: ServedModel, change: NumberedState, *, seconds: float = 0.0
    ) -> Sequence[WorkerReport]:
        """Return what the workers say of a change, once all that live have. Raises `ApiError` (503), `StoreError`."""
        reports: Sequence[WorkerReport] = ()
        silent: list[str] = []
        failure: StoreError | None = None
        try:
            async with asyncio.timeout(seconds + self._settings.worker_lease_seconds + HEAR_SECONDS):
                while True:
                    try:
                        reports = await self._reports(model)
                    except StoreError as problem:  # what has been done is not undone by a look that fails
                        failure = problem
                        logger.warning("what workers say of the engine of %r cannot be read: %s", model.name, problem)
                        await asyncio.sleep(LOOK_SECONDS)
                        continue
                    failure = None
                    silent = [each.worker for each in reports if each.number < change.number]
                    if reports and not silent:
                        return reports
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise failure or _not_heard(len(silent), len(reports)) from None

    async def _reports(self, model: ServedModel) -> Sequence[WorkerReport]:
        return await self._store.reports(model.name, seen_since=self._now() - self._settings.worker_lease_seconds)

    def _of_others(self, reports: Sequence[WorkerReport]) -> list[ReplicaState]:
        """Return the engines of the other workers, as these have told them."""
        states = []
        for report in (each.report for each in reports if each.worker != self._worker):
            told: Sequence[dict[str, Any]] = report.get("replicas", ())
            states += [ReplicaState(**each | {"problem": report["problem"] or each["problem"]}) for each in told]
        return states


def _weights(model: ServedModel) -> BaseWeights:
    """Return the doors of a model's engine. Raises `ApiError` (400)."""
    if model.engine.weights is None:
        raise invalid_request(
            f"The engine of the model '{model.name}' cannot be paused, and its weights cannot be changed.",
            param="model",
            code="unsupported_engine",
        )
    return model.engine.weights


def _paused(state: EngineState) -> EngineState:
    """Return a state of an engine that is paused. Raises `ApiError` (409) for one that runs."""
    if not state.paused:
        raise not_paused("Pause it first with POST /v1/engine/pause; a pause also ends by itself when its lease does.")
    return state


def _as_failed(operation: Operation, state: EngineState, *, may_be_changed: bool) -> EngineState:
    """Return what is left of an operation that failed: weights that may be mixed have a name that says so."""
    failed = operation.fail(state)
    if may_be_changed and operation.version:
        return replace(failed, update=None).named(FAILED + operation.version)
    return failed


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


def _check_places(weights: BaseWeights, reports: Sequence[WorkerReport]) -> None:
    """Raise `ApiError` where the workers of each host share an engine: none of them reaches that of the others."""
    places = {str(each.report.get("place")) for each in reports} - {LOADING}
    if weights.is_shared and len(places) > 1:
        raise conflict(
            f"The workers of this server share {len(places)} engines, those of {', '.join(sorted(places))}, and none "
            "reaches all of them. Use ENGINE=vllm-server: then all workers have the same ones.",
            code="engines_differ",
        )


def _check_all_failed(reports: Sequence[WorkerReport]) -> None:
    """Raise `WeightsRefused` where no worker could do it; where some could, the view says which could not."""
    problems = problems_of(reports)
    if problems and len(problems) == len(reports):
        changed = any(each["changed"] for each in problems.values())
        raise WeightsRefused(str(next(iter(problems.values()))["problem"]), changed=changed)


def _not_heard(silent: int, workers: int) -> ApiError:
    return overloaded(
        f"{silent} of {workers} workers have not said in time that they know of this. Workers hear of it in the "
        "database, and at once through Redis (REDIS_URL). Look at GET /v1/engine, and send the request again.",
        retry_after=5,
    )


def _as_api_error(error: BaseException, operation: Operation) -> BaseException:
    """Return what a trainer is told."""
    if isinstance(error, WeightsRefused):
        mixed = f" The weights may be new and old now; they are called '{FAILED}{operation.version}'."
        return invalid_request(f"{error.reason}{mixed if error.changed else ''}", code="weights_refused")
    if isinstance(error, TimeoutError):
        return overloaded(f"The engine was not done within {operation.seconds:g} s.", retry_after=5)
    if isinstance(error, EngineError):
        return overloaded("The engine is away, or loading. Try again.", retry_after=5)
    return error
