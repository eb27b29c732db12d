"""`EngineOperations`: carries out what trainers ask of engines, one operation at a time for each.

    begin      the state is kept with this worker, which is busy from then on; or it is refused
    done       by this worker at an engine that all share, by each at an engine of its own; the others say so
    end        the state is kept as the operation succeeds or fails, however often that takes; nobody is busy then

Each change of the state has a number, and comes only behind the one that it was made of. So what is lost of a change is
known: a beginning of which nobody can say whether it was kept is taken back, or its number is taken, so that it comes
too late.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError, WeightsRefused
from engine.weights import FAILED, BaseWeights
from responses_app.kit.duty import end_tasks
from responses_app.kit.errors import StoreError
from responses_app.protocol.engine_state import EngineState, NumberedState, WorkerReport, busy
from responses_app.protocol.errors import ApiError, conflict, invalid_request, overloaded
from responses_app.runs.engines.following import LOADING, LOOK_SECONDS, Action, EngineFollower, perform, problems_of
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.plan.settings import RunSettings

if TYPE_CHECKING:
    from responses_app.stores.engines import EngineStore

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
class _RunningOperation:
    """An operation that is carried out."""

    operation: Operation
    until: float  # when this worker counts as dead, or hanging, if it is not done; tells it from others of this worker
    living: Collection[str]  # the workers that lived when it began


class EngineOperations:
    """The operations of one worker."""

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
        self._tell = tell  # has the other workers look at the state of a model
        self._operations: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Stop. What is being done breaks off; its end is kept if the database answers, else its lease ends it."""
        await end_tasks(self._operations)

    async def run(self, model: ServedModel, operation: Operation) -> None:
        """Do something to an engine, to its end, whoever leaves meanwhile. Raises `ApiError`, `StoreError`."""
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
        weights = weights_of(model)
        living = {self._worker, *(each.worker for each in await self.reports(model))}
        running = _RunningOperation(operation, self._now() + operation.seconds + MARGIN_SECONDS, living)
        before = EngineState()

        def begin(state: EngineState) -> EngineState:
            nonlocal before
            before = state
            return self._begun(state, running, weights)

        try:
            begun = await self.change(model, begin)
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
        ended = await self.change(
            model, lambda state: operation.succeed(self._own(state, running).done()), patient_until=running.until
        )
        if weights.is_shared:
            await self._heard(model, ended)

    async def _tell_all(self, model: ServedModel, running: _RunningOperation) -> None:
        """Return once all workers know of new weights: what these sample is not to be taken for the old ones' work.

        The engine goes on all the same where one is silent; whoever asked is told of that at the end.
        """
        told = running.operation.told
        known = await self.change(model, lambda state: told(self._own(state, running)), patient_until=running.until)
        try:
            await self._heard(model, known)
        except (ApiError, StoreError) as problem:
            logger.warning("the engine of %r goes on with other weights: %s", model.name, problem)

    def _begun(self, state: EngineState, running: _RunningOperation, weights: BaseWeights) -> EngineState:
        # A worker that lives is busy with something else.
        if state.is_busy(self._now()) and state.busy in running.living and not self._is_own(state, running):
            raise busy()
        begun = running.operation.begin(state)
        actions = () if weights.is_shared else running.operation.actions
        return replace(begun, actions=actions, busy=self._worker, busy_until=running.until)

    def _is_own(self, state: EngineState, running: _RunningOperation) -> bool:
        return (state.busy, state.busy_until) == (self._worker, running.until)

    def _own(self, state: EngineState, running: _RunningOperation) -> EngineState:
        """Return a state in which that operation runs. Raises `ApiError` where others took it for dead, and went on."""
        if not self._is_own(state, running):
            raise busy()
        return state

    async def _failed(
        self, model: ServedModel, running: _RunningOperation, begun: EngineState, end: Change, *, is_stopped: bool
    ) -> None:
        """Have an engine go on that was paused for this alone, and keep what the failure means (`end`)."""
        weights = weights_of(model)
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

    async def _is_running(self, model: ServedModel, running: _RunningOperation) -> bool:
        """Whether this worker is still the one that does something to an engine, as far as that can be asked."""
        try:
            return self._is_own((await self._store.read(model.name)).state, running)
        except StoreError:
            return True

    async def _take_back(self, model: ServedModel, running: _RunningOperation, before: EngineState) -> None:
        """Undo a beginning of which nobody knows whether it was kept, or will be."""
        is_shared = weights_of(model).is_shared

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
            await self.change(model, change, patient_until=patient_until)
        except ApiError:  # others do something to it meanwhile, and end that
            pass
        except StoreError as problem:
            logger.warning("what failed at the engine of %r could not be undone: %s", model.name, problem)

    async def change(self, model: ServedModel, change: Change, *, patient_until: float = 0.0) -> NumberedState:
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
                        reports = await self.reports(model)
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

    async def reports(self, model: ServedModel) -> Sequence[WorkerReport]:
        """Return what the workers that live have said of an engine. Raises `StoreError`."""
        return await self._store.reports(model.name, seen_since=self._now() - self._settings.worker_lease_seconds)


def weights_of(model: ServedModel) -> BaseWeights:
    """Return the doors of a model's engine. Raises `ApiError` (400)."""
    if model.engine.weights is None:
        raise invalid_request(
            f"The engine of the model '{model.name}' cannot be paused, and its weights cannot be changed.",
            param="model",
            code="unsupported_engine",
        )
    return model.engine.weights


def _as_failed(operation: Operation, state: EngineState, *, may_be_changed: bool) -> EngineState:
    """Return what is left of an operation that failed: weights that may be mixed have a name that says so."""
    failed = operation.fail(state)
    if may_be_changed and operation.version:
        return replace(failed, update=None).named(FAILED + operation.version)
    return failed


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
