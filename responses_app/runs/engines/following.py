"""`EngineFollower`: what trainers have done to the engines, as far as this worker has learnt of it.

Workers agree on the state of each engine in the database. Each worker looks there, does to its own engine what is to be
done (or notes what somebody did to an engine that all share), and says so:

    the worker that was asked      changes the state ── "look" ──> relay ──> the others look at once
    each worker                    reads it ──> its engine ──> reports
    the worker that was asked      waits for the reports of all workers that live

Without Redis nobody hears "look", and the others do it within `LOOK_SECONDS`. What is done to an engine is an `Action`:
JSON, since workers that have engines of their own read it, and do it to them.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError, WeightsRefused
from engine.weights import Announce, BaseWeights, PauseMode, RemoteCall, WeightsCall, WeightsStep, nobody
from responses_app.kit.duty import end_tasks, keep_looking, until_kept
from responses_app.kit.errors import StoreError
from responses_app.protocol.engine_state import EngineState, NumberedState, WorkerReport
from responses_app.protocol.errors import JsonObject
from responses_app.runs.plan.served import ServedModel

if TYPE_CHECKING:
    from responses_app.stores.engines import EngineStore

logger = logging.getLogger("respsite.runs")

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


LOOK_SECONDS = 1.0  # between two looks at the states
LOADING = ""  # where the engine of a worker is that loads its model
Expire = Callable[[ServedModel], Coroutine[object, object, None]]


class EngineFollower:
    """Follows the states of the engines of `models`, whose engines have doors."""

    def __init__(
        self, models: Iterable[ServedModel], store: "EngineStore", *, worker: str, now: Callable[[], float]
    ) -> None:
        self._models = {model.name: model for model in models if model.engine.weights is not None}
        self._store = store
        self._worker = worker
        self._now = now
        self._known: dict[str, NumberedState] = {}
        self._paused: set[str] = set()  # models whose own engines were paused here
        self._at_work: dict[str, asyncio.Task[None]] = {}  # what their last change asks for
        self._expiring: dict[str, asyncio.Task[None]] = {}
        self._loading: dict[str, int] = {}  # the change of which it was said that the model loads
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, expire: Expire) -> None:
        """Follow from now on; `expire` ends a pause whose time is over."""
        self._task = keep_looking(
            lambda: self._look(expire),
            self._news,
            seconds=LOOK_SECONDS,
            what="following the states of the engines",
            logger=logger,
        )

    async def aclose(self) -> None:
        """Stop."""
        await end_tasks([self._task, *self._at_work.values(), *self._expiring.values()])

    def wake(self) -> None:
        """Look at once."""
        self._news.set()

    def state(self, model: str) -> EngineState:
        """Return what is known of an engine."""
        known = self._known.get(model)
        return EngineState() if known is None else known.state

    async def _look(self, expire: Expire) -> None:
        numbers = await self._store.numbers()
        for name, model in self._models.items():
            known = self._known.get(name)
            if name in numbers and (known is None or numbers[name] > known.number):
                if model.info() is None:
                    await self._say_it_loads(name, numbers[name])
                    continue
                known = self._known[name] = await self._store.read(name)
                await self._begin(model, known)
            if known is not None and known.state.is_expired(self._now()) and name not in self._expiring:
                # A task of its own: it waits until this worker has said that it knows.
                self._expiring[name] = asyncio.create_task(self._expire(name, expire(model)), name=f"resume {name}")

    async def _expire(self, name: str, ending: Coroutine[object, object, None]) -> None:
        try:
            await ending
        except StoreError as problem:  # it is tried again at the next look
            logger.warning("the pause of %r cannot be ended now: %s", name, problem)
        finally:
            del self._expiring[name]

    async def _say_it_loads(self, name: str, number: int) -> None:
        """Have nobody wait for an engine that starts: it is looked at again, and joins a pause then."""
        if self._loading.get(name) != number:
            report: JsonObject = {"place": LOADING, "problem": "", "changed": False, "replicas": []}
            await self._store.report(name, WorkerReport(self._worker, number, report))
            self._loading[name] = number

    async def _begin(self, model: ServedModel, numbered: NumberedState) -> None:
        """Do what a new state asks for, beside all else; what an older one asked for ends."""
        before = self._at_work.pop(model.name, None)
        if before is not None:
            await end_tasks([before])
        task = asyncio.create_task(self._carry_out(model, numbered), name=f"change the engine of {model.name}")
        self._at_work[model.name] = task

    async def _carry_out(self, model: ServedModel, numbered: NumberedState) -> None:
        weights, state = model.engine.weights, numbered.state
        assert weights is not None, "only such models are followed"
        report: JsonObject = {"place": weights.place, "problem": "", "changed": False, "replicas": []}
        try:
            if weights.is_shared:
                paused = PauseMode(state.paused) if state.paused else None
                update = state.update
                version = state.version if update is None else update.version
                # While a worker changes the engine, replicas may differ.
                is_settled = update is None and not state.busy
                await weights.learn(paused=paused, version=version, is_settled=is_settled)
            else:
                await self._do(model.name, weights, state)
        except EngineError as error:
            report["problem"] = error.reason if isinstance(error, WeightsRefused) else str(error)
            report["changed"] = isinstance(error, WeightsRefused) and error.changed
            logger.warning("the engine of %r: %s", model.name, error)
        except Exception:  # whatever it is: who waits for this worker is to be told
            report["problem"] = "This worker failed, and its log says how."
            logger.exception("the engine of %r could not be changed", model.name)
        if not weights.is_shared:
            report["replicas"] = [asdict(replica) for replica in await weights.replicas()]
        said = WorkerReport(self._worker, numbered.number, report)
        # However often that fails: somebody waits for it. The next change ends it.
        await until_kept(
            lambda: self._store.report(model.name, said),
            seconds=LOOK_SECONDS,
            what="what this worker did to its engine",
            logger=logger,
        )

    async def _do(self, name: str, weights: BaseWeights, state: EngineState) -> None:
        """Do to an engine of this worker what all do to theirs, and pause it where it missed that, or go on."""
        was_paused = name in self._paused
        # Before it is done: what comes next may end it in its middle.
        (self._paused.add if state.paused else self._paused.discard)(name)
        if state.actions:
            await perform(weights, state.actions)
        elif state.paused and not was_paused:
            await weights.pause(PauseMode.KEEP)  # who joins a pause has nothing to end
        elif not state.paused and was_paused:
            await weights.resume()


def problems_of(reports: Iterable[WorkerReport]) -> Mapping[str, JsonObject]:
    """Return the reports of workers that could not do it."""
    return {each.worker: dict(each.report) for each in reports if each.report.get("problem")}
