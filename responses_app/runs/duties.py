"""What a worker does all the time: it says that it lives, and takes over from those that do not.

    worker A  accepts resp_1 (epoch 1) ── appends to its log ── is killed
    worker B  looks every second; A's last beat is older than a lease ── claims resp_1 (epoch 2)
              makes its machine, feeds it the log ── asks the engine to go on behind the tokens that were sampled
    worker A  was only slow? Whatever it writes names epoch 1, and changes nothing: it stops without a word.

`Upkeep` has the heartbeat and the reclaimer; `Draining` tells connections that the server stops.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from responses_app.kit.clock import own_clock
from responses_app.kit.duty import attempted, end_tasks, until_look
from responses_app.kit.errors import StoreError
from responses_app.limits.suspects import Holds, Name, Stage, holding, name_in
from responses_app.protocol.errors import ENDS_WORKERS, SERVER_STOPPED, ApiError, EndsWorkers, ResponseError
from responses_app.protocol.rate_limits import Amount, Slot
from responses_app.protocol.requests.resources import ResponseObject, as_failed
from responses_app.protocol.rollouts.generations import RecordedResponse
from responses_app.runs.plan.settings import RunSettings
from responses_app.runs.plan.stores import Stores
from responses_app.runs.registry.registry import POLL_SECONDS, Forgetting, RunRegistry
from responses_app.runs.service import ResponseService
from responses_app.stores.base import (
    AcceptedResponse,
    BaseResponseStore,
    ClaimLost,
    StoredLog,
    StoredResponse,
    WorkerState,
)

logger = logging.getLogger("respsite.runs")

GAP_PER_LEASE = 0.5  # leases; in a longer gap between two beats the database may have answered nobody
NOBODY = -math.inf  # a time since which everybody was seen, so nobody is dead


class Pulse:
    """When the store heard from this worker, and what follows from that about the others.

    Times are the store's, in Unix seconds; only how long this worker itself was silent goes by its own clock.

    A worker is dead if it was silent for a lease before *our own* last beat. What passes after that, while a claim
    waits for a database that hangs, is not a silence of others: they would wait too. Nor is a time in which we could
    not beat: after a start, or a gap, all have a lease to say that they live.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        # `_last` is the time of the last beat, `_since` that of the first one after the last gap; by the store's
        # clock.
        self._last = self._since = math.inf
        self._heard_at = math.inf  # by our own clock

    @property
    def age(self) -> float:
        """Seconds since the last beat, by our own clock; infinite before the first."""
        return math.inf if math.isinf(self._heard_at) else own_clock() - self._heard_at

    @property
    def dead_before(self) -> float:
        """Who was not seen since then is dead."""
        # Only after a whole lease without a gap have all had the time to say that they live.
        continuous = self._last - self._since if math.isfinite(self._last) else 0.0
        return self._last - self._lease if continuous >= self._lease else NOBODY

    @property
    def suspect_before(self) -> float:
        """Who was not seen since then may be dead, by our own clock: worth a beat, after which `dead_before` tells."""
        return self._last + self.age - self._lease if math.isfinite(self._last) else NOBODY

    def beat(self, heard: float, *, asked: float) -> bool:
        """Note a beat that the store heard at a time of its clock, `asked` for at a time of our own.

        Return whether others may have taken this worker for dead before it.
        """
        # Minus infinity at the first beat, so that it begins a new period, too.
        gap = heard - self._last
        if not 0 <= gap <= self._lease * GAP_PER_LEASE:  # a clock that goes back is not a measure either
            self._since = heard
        silent = max(gap, asked - self._heard_at)  # minus infinity at the first
        self._last, self._heard_at = heard, asked
        return silent >= self._lease


BEATS_PER_LEASE = 3  # two beats may get lost before a worker looks dead
TRIES_PER_BEAT = 4  # where one fails: who is late by one failure must not look dead
CHECK_SECONDS = 2.0  # how long `check` waits for an answer
FRESH_SECONDS = 1.0  # a beat that is not older shows that the store can be written to


class WorkerHeartbeat:
    """The heartbeat of a worker. `state` is what the worker says of itself."""

    def __init__(
        self,
        store: BaseResponseStore,
        registry: RunRegistry,
        *,
        state: Callable[[], WorkerState],
        lease_seconds: float,
    ) -> None:
        self._store = store
        self._registry = registry
        self.state = state
        self._lease = lease_seconds
        self.pulse = Pulse(lease_seconds)
        self._looked_dead = False  # and it is not known yet what that has cost
        self._checking: asyncio.Task[str | None] | None = None

    @property
    def pause(self) -> float:
        """Seconds until the next beat is due."""
        pause = self._lease / BEATS_PER_LEASE
        return pause if self.pulse.age < pause else pause / TRIES_PER_BEAT

    @property
    def is_heard(self) -> bool:
        """Whether the last beats got through: at most one is missing."""
        return self.pulse.age < 2 * self._lease / BEATS_PER_LEASE

    async def beat(self) -> None:
        """Say that the worker lives, and stop what others took over while it was silent. Raises `StoreError`."""
        asked = own_clock()
        heard = await self._store.beat(self.state())
        # It stays set where the next line fails: the next beat asks again what was lost.
        self._looked_dead |= self.pulse.beat(heard, asked=asked)
        if self._looked_dead:
            # What others took over has a higher epoch in the store by now.
            claims = {run.response_id: run.claim for run in self._registry.running if run.claim is not None}
            for response_id in await self._store.lost(claims):
                self._registry.lose(response_id)
            self._looked_dead = False

    async def check(self) -> str | None:
        """Return None if the store can be read and written to now, else one sentence that says what to do."""
        # Health checks may come faster than a database answers that hangs: they share one question.
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await asyncio.shield(self._checking)
        except TimeoutError:
            return f"The database has not answered for {CHECK_SECONDS:g} s: it hangs, or cannot be reached."

    async def _check(self) -> str | None:
        problem = await self._store.check()
        if problem is None and self.pulse.age > FRESH_SECONDS:
            try:
                await self.beat()
            except StoreError as error:
                return error.cause or "The database cannot be written to: look for a full disk; the log has the reason."
        return problem


CLAIM_SECONDS = 60.0  # between claims where nothing seems to be left: they also forget the workers of long ago


class OrphanReclaimer:
    """The takeover of what dead workers left: it is run here."""

    def __init__(self, service: ResponseService, store: BaseResponseStore, heartbeat: WorkerHeartbeat) -> None:
        self._running = service.running
        self._noting: set[asyncio.Task[None]] = set()  # that some have passed their trials
        self._service = service
        self._store = store
        self._heartbeat = heartbeat
        self._takeovers = service.metrics.takeovers
        self._claimed: deque[AcceptedResponse] = deque()  # taken over, and to be run here
        self._look_at = -math.inf

    async def reclaim(self) -> None:
        """Claim the responses of dead workers and run them; a worker that stops does neither. Raises `StoreError`."""
        worker, suspect_before = self._heartbeat.state().id, self._heartbeat.pulse.suspect_before
        if time.monotonic() >= self._look_at or await self._store.has_orphans(worker, dead_before=suspect_before):
            self._look_at = -math.inf  # if this fails: it may have been committed, and the answer lost
            await self._heartbeat.beat()  # who is dead is told by a beat of our own: see `Pulse`
            if self._stops:  # what it leaves to others now, it must not claim again
                return
            await self._claim(worker)
            self._look_at = time.monotonic() + CLAIM_SECONDS
        if self._stops:
            return
        away: set[str] = set()  # models that cannot be had now; one response of each finds that out
        # Each once: one that has to wait goes to the back.
        for _ in range(len(self._claimed)):
            model = self._claimed[0].response["model"]
            if self._claimed[0].suspicion is Stage.SUSPECT and not self._running.trials.has_room:
                self._claimed.rotate(-1)  # it runs when it can be told from the others
            elif model not in away and await self._run(self._claimed[0]):
                self._claimed.popleft()
            else:
                away.add(model)
                self._claimed.rotate(-1)

    @property
    def _stops(self) -> bool:
        return self._service.registry.draining

    async def give_back(self) -> None:
        """Leave what was taken over and does not run yet to others. Raises `StoreError`."""
        # One leaves the queue only once the store has it: after an error the rest can be tried again.
        while self._claimed:
            try:
                await self._store.give_back(self._claimed[0])
            except ClaimLost:
                logger.info("response %s is another worker's already", self._claimed[0].response["id"])
            self._claimed.popleft()

    async def _claim(self, worker: str) -> None:
        # What is this worker's and not known here was claimed by a call whose answer got lost: it is given again.
        # What is known and is left to others while this waits for the store is for those others.
        known = {run.response_id for run in self._service.registry.running}
        known |= {accepted.response["id"] for accepted in self._claimed}
        known |= {stored.response["id"] for stored in self._service.unsaved}
        dead_before = self._heartbeat.pulse.dead_before
        orphans = await self._store.reclaim(worker, dead_before=dead_before, known=known)
        if orphans.failed:
            self._takeovers.count("failed", by=orphans.failed)
            logger.warning("%d responses of workers that died have failed", orphans.failed)
        if orphans.claimed:
            logger.info("%d responses of workers that died are taken over here", len(orphans.claimed))
        for each in orphans.claimed:
            stage = self._running.known_stage(_name_of(each), each.suspicion)
            self._claimed.append(replace(each, suspicion=stage))

    async def _run(self, accepted: AcceptedResponse) -> bool:
        """Run a response, or let it fail; return False if it can do neither now, and has to wait."""
        response_id = accepted.response["id"]
        if accepted.suspicion is Stage.CONDEMNED:
            await self._refuse(accepted)
            return True
        try:
            if accepted.request is not None:
                with holding() as holds:
                    if not await self._hold(holds, accepted):
                        return False
                    await self._service.run_again(accepted)
                self._takeovers.count("continued")
                logger.info("response %s, which another worker left, runs now", response_id)
                return True
        except ClaimLost:
            return True
        except EndsWorkers:
            await self._refuse(accepted)
            return True
        except ApiError as error:
            logger.warning("response %s, which another worker left, cannot run: %s", response_id, error.message)
            # Such an error passes: the engine is away or full. Any other would come again at each try.
            if error.retry_after is not None:
                return False
        except Exception:
            logger.exception("response %s, which another worker left, cannot run", response_id)
        await self._fail(accepted)
        return True

    async def _hold(self, holds: Holds, accepted: AcceptedResponse) -> bool:
        """Hold what made a response, see `limits.suspects`; return False where it has to wait for its trial.

        Raises `ApiError` (503) where that is condemned, and `ClaimLost`.
        """
        name = _name_of(accepted)
        if accepted.suspicion is Stage.INNOCENT and self._running.begin(holds, accepted.project, name):
            return True
        if not self._running.hold_again(holds, accepted.project, name, lambda: self._passed(accepted)):
            return False
        # Before anything of it is read: whatever it does, it did it on trial.
        await self._note(accepted, Stage.ON_TRIAL)
        return True

    def _passed(self, accepted: AcceptedResponse) -> None:
        task = asyncio.create_task(self._note(accepted, Stage.PASSED), name="trial passed")
        self._noting.add(task)
        task.add_done_callback(self._noted)

    def _noted(self, task: "asyncio.Task[None]") -> None:
        self._noting.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            logger.warning("cannot note that a response has passed its trial: %s", problem)

    async def _note(self, accepted: AcceptedResponse, stage: Stage) -> None:
        await self._store.suspect(accepted.project, accepted.response["id"], accepted.claim, stage)

    async def _refuse(self, accepted: AcceptedResponse) -> None:
        logger.error("response %s was running at two deaths of workers: it has failed", accepted.response["id"])
        if accepted.request_name:
            self._running.condemn(accepted.project, bytes.fromhex(accepted.request_name))
        await self._fail(accepted, ENDS_WORKERS)

    async def _fail(self, accepted: AcceptedResponse, error: ResponseError = SERVER_STOPPED) -> None:
        """Let a response fail that was taken over; where it is another worker's by now, that one decides.

        What it used of its key's limits is counted here: the worker that let it in did not live to do so.
        """
        limited = await self._service.limited(accepted)
        try:
            failed = self._service.machines.failed(accepted, {**error})
        except Exception:  # damaged, or of a tool or a model that is gone: whatever it is, others wait behind it
            logger.exception("the log of response %s cannot be read", accepted.response["id"])
            failed = StoredLog(as_failed(accepted.response, {**error}), b"")
        stored = StoredResponse(
            project=accepted.project,
            response=failed.response,
            link=None,
            input_items=accepted.input_items,
            transport=accepted.transport,
            key_id=accepted.key_id,
            accepted=True,
            claim=accepted.claim,
            log=failed.data,
            recorded=await self._recorded(accepted),
        )
        # Counted and charged only where this worker's end is the one that the store took.
        with suppress(ClaimLost):
            await self._store.save(stored)
            self._takeovers.count("failed")
            reserved, used = _amounts(failed.response)
            self._service.rates.adopt(limited, reserved, Slot.RESPONSE).settle(used)

    async def _recorded(self, accepted: AcceptedResponse) -> RecordedResponse | None:
        """Return what the log of a response has for its roll-out; None also where its prompt cannot be had again."""
        try:
            return await self._service.recorded_so_far(accepted)
        except ApiError as error:
            logger.error("response %s: its roll-out has nothing of it: %s", accepted.response["id"], error.message)
        except Exception:  # as where its log cannot be read: it fails all the same
            logger.exception("response %s: its roll-out has nothing of it", accepted.response["id"])
        return None


def _name_of(accepted: AcceptedResponse) -> Name:
    return name_in(accepted.request_name, accepted.response["id"])


def _amounts(failed: ResponseObject) -> tuple[Amount, Amount]:
    """Return what a response took of its limits when it was let in, as far as that is known, and what it used.

    Its first prompt was reserved. Where the model said nothing, nobody knows how long it was, and it counts as it was.
    """
    usage, most = failed["usage"], failed["max_output_tokens"] or 1
    if usage is None:
        return Amount(1, 0, most), Amount(1, 0, 0)
    first = usage["input_tokens_details"]["input_tokens_per_turn"][0]
    return Amount(1, first, most), Amount(1, usage["input_tokens"], usage["output_tokens"])


LOOK_SECONDS = 1.0  # between looks at what dead workers left
PURGE_SECONDS = 60.0


class Upkeep:
    """The duties of a worker beside its runs: its heartbeat, and to look after the store.

    `state` is what it says of itself; nothing is taken over before `ready()`.
    """

    def __init__(
        self,
        service: ResponseService,
        stores: Stores,
        *,
        forgetting: Forgetting,
        state: Callable[[], WorkerState],
        ready: Callable[[], bool],
        settings: RunSettings,
    ) -> None:
        lease_seconds = settings.worker_lease_seconds
        self._service = service
        self._stores = stores
        self._forgetting = forgetting
        self._ready = ready
        # Called now and then: they remove what is past its time elsewhere.
        self.purges: list[Callable[[], Awaitable[object]]] = []
        # Short leases are looked at more often
        self._look_seconds = min(LOOK_SECONDS, lease_seconds / BEATS_PER_LEASE)
        self.heartbeat = WorkerHeartbeat(stores.responses, service.registry, state=state, lease_seconds=lease_seconds)
        self._reclaimer = OrphanReclaimer(service, stores.responses, self.heartbeat)
        self._tasks: list[asyncio.Task[None]] = []
        self._purged_at = time.monotonic()
        self._purge_goes_on = False  # the last one has left something

    async def start(self) -> None:
        """Say that the worker lives, before it accepts anything; then go on saying so."""
        await self._look_after(self.heartbeat.beat)
        self._tasks = [  # two, since many orphans must not make this worker look dead
            asyncio.create_task(self._keep_beating(), name="heartbeat"),
            asyncio.create_task(self._keep_looking(), name="upkeep"),
        ]

    async def aclose(self) -> None:
        """Stop; what was taken over and does not run yet is for others, and ends that wait are tried once more."""
        await end_tasks(self._tasks)
        # The beats end first, then what is left is handed on: others take it over at the latest after a lease.
        await self._look_after(self._service.unsaved.save)
        self._service.unsaved.leave()
        await self._look_after(self._reclaimer.give_back)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self.heartbeat.pause)
            await self._look_after(self.heartbeat.beat)

    async def _keep_looking(self) -> None:
        while True:
            await self._look_after(self._service.unsaved.save)
            if self._ready() and not self._service.registry.draining:
                await self._look_after(self._reclaimer.reclaim)
                await self._look_after(self._purge)
            await asyncio.sleep(until_look(self._look_seconds))

    async def _look_after(self, duty: Callable[[], Awaitable[None]]) -> None:
        await attempted(duty, what="looking after the store", logger=logger)

    async def _purge(self) -> None:
        if not self._purge_goes_on and time.monotonic() - self._purged_at < PURGE_SECONDS:
            return
        self._purged_at = time.monotonic()
        self._purge_goes_on = False  # where this fails, later
        if files := await self._stores.files.purge():
            logger.info("%d files whose time was over were removed", files)
        await self._stores.pictures.purge()
        for purge in self.purges:
            await purge()
        rollouts = await self._stores.rollouts.purge()
        if rollouts.rollouts:
            logger.info("%d roll-outs whose time was over were removed", rollouts.rollouts)
        purged = await self._stores.responses.purge()
        self._purge_goes_on = rollouts.more or (purged.more and bool(purged.responses))
        await self._forgetting.everywhere(purged.ids)
        if purged.responses:
            logger.info("%d stored responses past their bounds were removed", purged.responses)


@dataclass(frozen=True, slots=True)
class _Watcher:
    """A connection."""

    leave: Callable[[], None]  # tells it that the server stops
    is_busy: Callable[[], bool]  # whether it has something to do or to say


class Draining:
    """Who is told that the server stops, who is being served, and when all of that is over."""

    def __init__(self) -> None:
        self._watching: dict[object, _Watcher] = {}
        self._served = 0  # requests over HTTP
        self.is_sending: Callable[[], bool] = lambda: False  # whether answers that are over have not gone out
        self.begun = False

    def watch(self, leave: Callable[[], None], *, is_busy: Callable[[], bool]) -> Callable[[], None]:
        """Call `leave` when the server stops, at once if it does; return what has to be called when that is done."""
        key = object()
        self._watching[key] = _Watcher(leave, is_busy)
        if self.begun:
            # Not at once: the caller has not got `unwatch` yet.
            asyncio.get_running_loop().call_soon(self._tell, key)

        def unwatch() -> None:
            self._watching.pop(key, None)

        return unwatch

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Be served for as long as this lasts."""
        self._served += 1
        try:
            yield
        finally:
            self._served -= 1

    def begin(self) -> None:
        """Tell all who watch that the server stops."""
        self.begun = True
        # A copy: whoever is told may unwatch at once.
        for key in list(self._watching):
            self._tell(key)

    async def served(self) -> None:
        """Return once nobody is being served. Connections may be there that have nothing to do."""
        while self._is_serving():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(POLL_SECONDS)

    def _is_serving(self) -> bool:
        return bool(self._served) or self.is_sending() or any(each.is_busy() for each in self._watching.values())

    async def over(self, seconds: float) -> None:
        """Wait until nobody is being served, and nobody watches any more, `seconds` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._served or self._watching:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(POLL_SECONDS)

    def _tell(self, key: object) -> None:
        watcher = self._watching.get(key)
        if watcher is not None:
            watcher.leave()
