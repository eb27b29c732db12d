"""`Fleet`: which worker is to be started or stopped now. Pure: time is an argument, and what is to be done comes out.

A worker is STARTING, then SERVING, then LEAVING, then gone. `size` of them, started or serving, are wanted. A worker
can be marked: it is to be replaced, by a newer version or since it has grown too large. Then it goes like this:

    fewer than `size` are here            start one
    `size` are here, one is marked        start one more, unless one is starting already
    more than `size` are here and serve   stop the oldest that is marked

So while workers are replaced there is one more than wanted, never one fewer, and the next one is not begun before the
one before it serves. Those that are leaving count no more: they may take as long as their responses do. A replacement
that ends before it serves takes all marks away, as the next one would do no better: the old ones go on.

What all workers need to start, an engine core that they share, may not be there (`wait`): then no worker is late. Once
it is there (`go_on`) those that are starting have all of `start_seconds`.

A worker that serves is heard of every second (`heard`). One that is silent for `silence_seconds` hangs, whatever the
reason: it is killed, and then it has died. Where the supervisor itself stood still nobody was heard, and nobody is to
blame (`stood_still`).

A worker that dies is replaced at once. Where one dies before it has served for `steady_seconds`, again and again, each
further start waits twice as long as the last. `patience` more starts than workers that fail in a row, before any worker
was ever ready, end it: there is no point in going on. Once one was ready it goes on for ever, however workers die: they
can start, and whatever ends them (a lack of memory, a request that none survives, a database that is away) may pass.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field


class State(enum.Enum):
    """What a worker does."""

    STARTING = enum.auto()
    SERVING = enum.auto()
    LEAVING = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTimes:
    """How long things may take, in seconds."""

    start_seconds: float = 120.0  # a worker that does not serve by then is ended, if others do
    leave_seconds: float = 60.0  # a worker that has not ended by then is killed
    silence_seconds: float = 0.0  # a worker that serves, and is not heard of for this long, is killed; 0 = never
    steady_seconds: float = 10.0  # a worker that has served for this long came to serve, whatever happens to it then
    first_pause: float = 0.5  # before a worker is started after the second failure in a row; each further one doubles
    longest_pause: float = 30.0
    grown_seconds: float = 60.0  # a worker has to serve this long before it can be found too large
    patience: int = 3  # failed starts beyond the number of workers, until there is no point in going on; see above


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker. It accepts connections at once where nobody else does, else when it is ready."""

    number: int
    at_once: bool  # before it is ready


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Tell a worker to stop; it lets what runs end."""

    number: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a worker that does not end by itself, or that hangs while it serves."""

    number: int
    hangs: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No worker can be started, and none ever was."""


Action = StartWorker | StopWorker | KillWorker | GiveUp


@dataclass(slots=True)
class _Worker:
    number: int  # counts up from 1, and is never given twice; some are left out
    since: float  # when its state began
    heard: float = 0.0  # when it was last heard of, while it serves
    state: State = State.STARTING
    marked: bool = False  # it is to be replaced
    killed: bool = False  # a kill was sent, and is not sent again


@dataclass(slots=True)
class Fleet:
    """`size` workers. Say what happened, then ask `decide` what is to be done, at the latest at `due`."""

    size: int
    pace: FleetTimes = field(default_factory=FleetTimes)
    failures: int = 0  # workers in a row that did not come to serve for long
    was_ready: bool = False  # any worker, ever
    stopping: bool = False
    rolled_back: bool = False  # the last replacement did not come to serve
    waits: bool = False  # for what all workers need to start
    # Workers share a table with so many places, and their numbers modulo this are their places there; 0: there is none.
    places: int = 0
    _workers: dict[int, _Worker] = field(default_factory=dict)  # by number, so by age
    _next_number: int = 1
    _not_before: float = 0.0  # of the next start

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def serving(self) -> list[int]:
        """The workers that serve."""
        return [worker.number for worker in self._in(State.SERVING)]

    @property
    def marked(self) -> list[int]:
        """The workers that are to be replaced."""
        return [worker.number for worker in self._here() if worker.marked]

    # What happened.

    def ready(self, number: int, now: float) -> None:
        """A worker serves."""
        worker = self._workers.get(number)
        if worker is not None and worker.state is State.STARTING:
            worker.state, worker.since, worker.heard = State.SERVING, now, now
            self.was_ready = True

    def heard(self, number: int, now: float) -> None:
        """A worker's event loop goes round."""
        if worker := self._workers.get(number):
            worker.heard = now

    def stood_still(self, now: float) -> None:
        """Nobody could be heard for some time."""
        for worker in self._workers.values():
            worker.heard = now

    def pause(self, now: float) -> float:
        """Return how long the next start waits, in seconds."""
        return max(0.0, self._not_before - now)

    def served(self, number: int, now: float) -> float | None:
        """Return for how many seconds a worker has served; None where it does not."""
        worker = self._workers[number]
        return now - worker.since if worker.state is State.SERVING else None

    def ended(self, number: int, now: float) -> bool:
        """A worker's process is gone; return whether that was expected."""
        worker = self._workers.pop(number)
        if worker.state is State.LEAVING:
            return True
        served = now - worker.since if worker.state is State.SERVING else 0.0
        if served >= self.pace.steady_seconds:
            self.failures = 0
            return False
        self.failures += 1
        if self.failures > 1:
            # The exponent is bounded, as a float is; `longest_pause` bounds the pause.
            pause = self.pace.first_pause * 2 ** min(self.failures - 2, 16)
            self._not_before = now + min(self.pace.longest_pause, pause)
        # One that is marked itself is of what is replaced, and says nothing of what comes.
        if worker.state is State.STARTING and self.marked and not worker.marked:
            self.rolled_back = True
            for each in self._here():
                each.marked = False
        return False

    def replace_all(self) -> None:
        """All that are here now are to be replaced, one after the other."""
        self.rolled_back = False
        for worker in self._here():
            worker.marked = True

    def grown(self, number: int, now: float) -> bool:
        """A worker is too large; return whether it is to be replaced for that."""
        worker = self._workers.get(number)
        if worker is None or worker.state is not State.SERVING or worker.marked or self.stopping:
            return False
        if now - worker.since < self.pace.grown_seconds or now < self._not_before:
            return False
        worker.marked = True
        return True

    def wait(self) -> None:
        """What workers need to start is not there."""
        self.waits = True

    def go_on(self, now: float) -> None:
        """What workers need to start is there."""
        self.waits = False
        for worker in self._in(State.STARTING):
            worker.since = now

    def stop(self) -> None:
        """All are to stop, and none is to be started."""
        self.stopping = True

    # What is to be done.

    def decide(self, now: float) -> list[Action]:
        """Return what is to be done now; it counts as begun."""
        if self._is_steady(now):
            self.failures = 0
        return [*self._kill_overdue(now), *(self._stop_all(now) if self.stopping else self._keep_up(now))]

    def due(self) -> float | None:
        """Return when to ask again if nothing happens until then."""
        times = [worker.since + self.pace.leave_seconds for worker in self._in(State.LEAVING) if not worker.killed]
        if self.serving and not self.waits:
            starting = (worker for worker in self._in(State.STARTING) if not worker.killed)
            times += [worker.since + self.pace.start_seconds for worker in starting]
        if self.pace.silence_seconds:
            serving = (worker for worker in self._in(State.SERVING) if not worker.killed)
            times += [worker.heard + self.pace.silence_seconds for worker in serving]
        if not self.stopping and self._lacks_one():
            times.append(self._not_before)
        return min(times, default=None)

    def _keep_up(self, now: float) -> Iterator[Action]:
        if not self.was_ready and self.failures >= self.size + self.pace.patience:
            self.stopping = True
            yield GiveUp()
            yield from self._stop_all(now)
            return
        marked = [worker for worker in self._here() if worker.marked]
        # Only those that serve count: a worker is let go once its replacement does.
        surplus = len(self.serving) - self.size
        for worker in marked[: max(0, surplus)]:
            yield self._let_go(worker, now)
        while self._lacks_one() and now >= self._not_before:
            worker = _Worker(self._free_number(), now)
            # Where nobody serves, whoever connects is better answered with a 503 than left to wait.
            yield StartWorker(worker.number, at_once=not self.serving)
            self._workers[worker.number] = worker
            self._next_number = worker.number + 1

    def _free_number(self) -> int:
        """Return the next number whose place no other worker has, unless all are taken."""
        taken = {number % self.places for number in self._workers} if self.places else set[int]()
        places = range(self._next_number, self._next_number + self.places)
        return next((number for number in places if number % self.places not in taken), self._next_number)

    def _lacks_one(self) -> bool:
        """Whether one more is to be started."""
        here = len(list(self._here()))
        return here < self.size or (here == self.size and bool(self.marked) and not self._in(State.STARTING))

    def _stop_all(self, now: float) -> Iterator[Action]:
        for worker in list(self._here()):
            yield self._let_go(worker, now)

    def _let_go(self, worker: _Worker, now: float) -> StopWorker:
        worker.state, worker.since = State.LEAVING, now
        return StopWorker(worker.number)

    def _kill_overdue(self, now: float) -> Iterator[Action]:
        for worker in self._workers.values():
            leaves_long = worker.state is State.LEAVING and now >= worker.since + self.pace.leave_seconds
            starts_long = worker.state is State.STARTING and now >= worker.since + self.pace.start_seconds
            if not worker.killed and (leaves_long or (starts_long and self.serving and not self.waits)):
                worker.killed = True
                yield KillWorker(worker.number)
            elif self._hangs(worker, now):
                worker.killed = True
                yield KillWorker(worker.number, hangs=True)

    def _hangs(self, worker: _Worker, now: float) -> bool:
        silence = self.pace.silence_seconds
        may_hang = silence > 0 and worker.state is State.SERVING and not worker.killed
        return may_hang and now >= worker.heard + silence

    def _is_steady(self, now: float) -> bool:
        """Whether the newest worker has served for some time."""
        newest = max(self._here(), key=lambda worker: worker.number, default=None)
        return (
            newest is not None
            and newest.state is State.SERVING
            and now - newest.since >= self.pace.steady_seconds
            and len(self.serving) >= self.size
        )

    def _here(self) -> Iterator[_Worker]:
        """Yield those that start or serve, the oldest first."""
        return (worker for worker in self._workers.values() if worker.state is not State.LEAVING)

    def _in(self, state: State) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.state is state]
