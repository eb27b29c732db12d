"""Who is next where only so much is done at once: at the engine, in the background, and on threads for long work.

`FairTurns`: turns at one engine, of which projects have equal shares, and roll-outs a share beside people.

A turn is one generation. While all `max_running` are taken, the others wait, and a turn that ends makes room for one
of the project that has the fewest running; of those that have as few, for the one that was served longest ago. Example
with 4 turns: project A has sent 100 requests, and 4 of them run. B sends 10. The next two turns that end make room for
B: from then on each has two, as long as both have something to do.

Inside a project they come in the order in which their responses arrived, which the priority of the service tier moves:
a `priority` request comes as if it had been there a minute earlier, a `flex` one as if a minute later (see
`tiers.lateness`). Until that minute is over, a `flex` request also lets those of all other projects go first. From then
on it is as good as any other, so it does not wait for ever. What may take hours (`completion_window`) waits so for
most of its time. A response that has begun keeps the time of its arrival for its later turns: what has begun is
finished before what came after it.

What stands behind all (`tiers.BEHIND_ALL`: the lines of batches) is served only while nothing else waits, and never has
the last turns: an eighth of them, and at least one, is left to requests that somebody waits for. So such a request
begins at once beside a batch of any length.

Roll-outs have a share of the turns (`rollout_share`), and all other requests have the rest. While both wait, a turn
that ends goes to the side that has less of its share; of equals, to the one that was served longest ago. While one side
has nothing to do, the other one may have all turns. Example with 8 turns and a share of a half: 200 roll-outs have
come, and 8 of them run. Of the people who come then, the first has the next turn that ends, and so on until 4 of each
run: nobody waits behind the 192, and they go on beside any number of people. Projects have equal shares of either side.

Of each project, tier and side only so many requests may wait to begin. One more is refused before anything of it is
kept, with a time after which it makes sense to try again. That is made of how long turns take here.

`BackgroundQueue`: how many background responses run at once, and how many may wait for that.

`FairThreads`: threads for what takes long to render or to tokenise.

Short and long work have threads of their own, so short work never waits for long work, whoever sends that. Of either
kind the project that has the fewest threads is next, as with the engine's turns. Work that waits for another process (a
vLLM server that renders) costs no time here and has more threads.

Whoever is cancelled leaves: where the work waits, at once; where it runs, its thread is free at its next step
(`engine.threads`). How much work can wait is bounded by the requests that the server takes at once.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import copy_context
from functools import partial
from itertools import count
from math import ceil, inf
from threading import Event
from typing import ParamSpec, TypeVar

from engine.threads import gives_up_at
from responses_app.protocol.errors import ApiError, overloaded, rate_limited
from responses_app.protocol.tiers import QueueBounds, lateness

MAX_RETRY_AFTER = 60  # seconds
LEFT_FREE = 8  # one in so many turns is never had by what stands behind all
WEIGHT = 0.1  # of the last turn in what a turn takes on average, once there were ten
NOBODY = QueueBounds(0)
Party = tuple[bool, str]  # whose turns are counted together: whether they are roll-outs', and the project


def _unheard(tier: str, seconds: float) -> None:
    """Nobody counts how long turns were waited for."""


class FairTurns:
    """The turns of one engine in one worker.

    `max_running` 0: as many as come; then nobody waits. `bounds` say how many requests of a project may wait.
    `rollout_share` is the part of the turns that roll-outs have while others wait, from 0 to below 1. `waited` is
    called for each turn that was waited for, with its tier and the seconds. `now` is a clock, in seconds; without it
    that of the event loop.
    """

    def __init__(
        self,
        *,
        max_running: int = 0,
        bounds: QueueBounds = NOBODY,
        rollout_share: float = 0.5,
        waited: Callable[[str, float], None] = _unheard,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.max_running = max_running
        self._bounds = bounds
        self._shares = {True: rollout_share, False: 1 - rollout_share}  # of roll-outs, and of all others
        self._waited = waited
        self.now = now or (lambda: asyncio.get_running_loop().time())
        self._running: Counter[Party] = Counter()  # turns that are had
        self._admitted: Counter[tuple[Party, str]] = Counter()  # of a party and a tier, that have had no turn yet
        # A heap for each party: when a place is due, a number that keeps places of the same time in order, the place.
        self._waiting: dict[Party, list[tuple[float, int, TurnPlace]]] = {}
        # Numbers, and not times: two places may come at the same time.
        self._served: dict[Party, int] = {}  # when a party was served last, as a number
        # The same of roll-outs and of all others, without what stands behind all.
        self._sides_running: Counter[bool] = Counter()
        self._sides_served = {True: 0, False: 0}
        self._numbers = count(1)
        self._began = 0.0  # the sum of when the turns began that are had now
        self._ended = 0
        self._seconds = 1.0  # that a turn takes on average

    @property
    def running(self) -> int:
        """How many turns are had."""
        return self._running.total()

    @property
    def waiting(self) -> Counter[str]:
        """How many turns are waited for, by tier."""
        return Counter(place.tier for queue in self._waiting.values() for _, _, place in queue)

    @property
    def is_full(self) -> bool:
        """Whether whoever asks has to wait."""
        return bool(self.max_running) and self.running >= self.max_running

    def has_room(self, place: "TurnPlace") -> bool:
        """Whether there is a turn for this place now."""
        most = self.max_running
        if place.is_behind_all and most:
            most -= min(most - 1, ceil(most / LEFT_FREE))
        return not most or self.running < most

    def place(
        self, project: str, tier: str, priority: int, late: float = 0.0, *, of_rollout: bool = False
    ) -> "TurnPlace":
        """Return what a response will have of the engine: nothing yet. `late`: it lets others go first so long."""
        return TurnPlace(self, (of_rollout, project), tier, late or lateness(priority))

    def bound(self, max_running: int) -> None:
        """Bound them from now on, where they are not."""
        self.max_running = self.max_running or max_running

    # What places ask.

    def admit(self, place: "TurnPlace") -> None:
        """Let a request come, which will ask for its first turn. Raises `ApiError` (503) where too many wait."""
        key = place.party, place.tier
        # Who comes while turns are free does not wait, so as many more may come.
        free = max(0, self.max_running - self.running)
        if self.max_running and self._admitted[key] >= self._bounds.of(place.tier) + free:
            raise self._full(place)
        self._admitted[key] += 1

    def unadmit(self, place: "TurnPlace") -> None:
        """Forget that a request comes: it has its first turn, or will not ask for one."""
        key = place.party, place.tier
        self._admitted[key] -= 1
        if not self._admitted[key]:
            del self._admitted[key]

    def take(self, place: "TurnPlace") -> bool:
        """Give a turn, if there is one now; then nobody waits."""
        if not self.has_room(place):
            return False
        self._running[place.party] += 1
        self._served[place.party] = number = next(self._numbers)
        if not place.is_behind_all:
            self._sides_running[place.of_rollout] += 1
            self._sides_served[place.of_rollout] = number
        place.began = self.now()
        self._began += place.began
        return True

    def enqueue(self, place: "TurnPlace", due: float) -> None:
        """Let a place wait, as if it had come at `due`."""
        heapq.heappush(self._waiting.setdefault(place.party, []), (due, next(self._numbers), place))

    def dequeue(self, place: "TurnPlace") -> None:
        """Let a place wait no longer."""
        queue = self._waiting.get(place.party, [])
        # Linear in the party's queue, whose length is bounded.
        queue[:] = [entry for entry in queue if entry[2] is not place]
        heapq.heapify(queue)
        self._forget(place.party)

    def give_back(self, place: "TurnPlace") -> None:
        """Take a turn back, and give it to whoever is next."""
        self._ended += 1
        # The mean of the first ten turns, then a moving average.
        self._seconds += max(WEIGHT, 1 / self._ended) * (self.now() - place.began - self._seconds)
        self._running[place.party] -= 1
        self._sides_running[place.of_rollout] -= not place.is_behind_all
        # Set to 0 where nothing runs, so that rounding errors do not add up.
        self._began = self._began - place.began if self.running else 0.0
        # More than once: a place whose owner has left takes no turn.
        while self._waiting and not self.is_full:
            party = self._next()
            # What stands behind all comes last in each party and among them: then all others that wait are such.
            if not self.has_room(self._waiting[party][0][2]):
                break
            self._serve(party)
        self._forget(place.party)

    def _next(self) -> Party:
        """Return the party that is served next."""
        now = self.now()
        return min(
            self._waiting,
            # First those that are due, then those that will be, then what stands behind all; among these the side with
            # less of its share; there the party with the fewest turns. Of equals the one that was served longest ago.
            key=lambda each: (
                self._waiting[each][0][2].is_behind_all,
                self._waiting[each][0][0] > now,
                self._part(of_rollouts=each[0]),
                self._sides_served[each[0]],
                self._running[each],
                self._served.get(each, 0),
            ),
        )

    def _part(self, *, of_rollouts: bool) -> float:
        """Return how much roll-outs, or all others, have of their share; infinite where that is nothing."""
        share = self._shares[of_rollouts]
        return self._sides_running[of_rollouts] / share if share else inf

    def _serve(self, party: Party) -> None:
        _, _, place = heapq.heappop(self._waiting[party])
        if place.grant():
            self._waited(place.tier, self.now() - place.asked_at)
        self._forget(party)

    def _forget(self, party: Party) -> None:
        """Keep nothing of a party that has nothing here."""
        # An empty queue goes. `True` stands for a party that has none.
        if not self._waiting.get(party, True):
            del self._waiting[party]
        if not self._running[party]:
            del self._running[party]
            if party not in self._waiting:
                self._served.pop(party, None)

    def _full(self, place: "TurnPlace") -> ApiError:
        bound = self._bounds.of(place.tier)
        whose = "roll-outs of this project" if place.of_rollout else "this project"
        return overloaded(
            f"The engine is full, and no more requests of {whose} may wait for it than do already: {bound} of the "
            f"service tier '{place.tier}' (ENGINE_MAX_QUEUED). Try again later.",
            retry_after=self._retry_after(place),
        )

    def _retry_after(self, place: "TurnPlace") -> int:
        """Return in how many seconds the engine will have done what comes before this place, as far as is known."""
        due = self.now() + place.late
        # Those of its own party that come before it; of its side's turns, its party gets an equal share.
        ahead = sum(entry[0] <= due for entry in self._waiting.get(place.party, ()))
        parties = {*self._waiting, *self._running, place.party}
        beside = [each for each in parties if each[0] == place.of_rollout]
        share = 1.0 if len(beside) == len(parties) else self._shares[place.of_rollout]
        share = max(1.0, self.max_running * share / len(beside))
        age = self.now() - self._began / self.running if self.running else 0.0  # of the turns that are had, on average
        return min(MAX_RETRY_AFTER, max(1, ceil(max(self._seconds, age) * (ahead + 1) / share)))


class TurnPlace:
    """What one response has of the engine: nothing, a place in the queue, or a turn; one after the other.

    admit() ──> ask() ──> a turn, at once or later ──> leave() ──> ask() … ──> leave()
    """

    __slots__ = ("_arrived", "_granted", "_has_turn", "_is_admitted", "_turns", "asked_at", "began", "late", "party",
                 "tier")  # fmt: skip

    def __init__(self, turns: FairTurns, party: Party, tier: str, late: float) -> None:
        self.party = party
        self.tier = tier
        self.late = late  # seconds by which its tier moves it back; below 0 ahead
        self.asked_at = 0.0  # when it asked for the present turn
        self.began = 0.0  # its present turn
        self._turns = turns
        self._arrived: float | None = None  # when it asked for the first one; None before
        self._granted: asyncio.Future[None] | None = None  # while it waits
        self._has_turn = False
        self._is_admitted = False

    @property
    def of_rollout(self) -> bool:
        """Whether it is part of a roll-out."""
        return self.party[0]

    @property
    def would_wait(self) -> bool:
        """Whether a turn that is asked for now has to be waited for."""
        return not self._turns.has_room(self)

    @property
    def is_behind_all(self) -> bool:
        """Whether it is served only while nothing else waits."""
        return self.late == inf

    def admit(self) -> None:
        """Note that a request comes, which will ask for a turn. Raises `ApiError` (503) where too many wait."""
        # How many stand behind all is bounded by who sends them; they take no place from those that others wait for.
        if self._turns.max_running and not self.is_behind_all:
            self._turns.admit(self)
            self._is_admitted = True

    def ask(self) -> bool:
        """Ask for a turn, if that was not done; return whether it is there. Where it is not, `wait` for it."""
        turns = self._turns
        if not turns.max_running or self._has_turn:
            return True
        if self._granted is not None:
            return False
        self.asked_at = turns.now()
        if self._arrived is None:
            self._arrived = self.asked_at
        if turns.take(self):
            self._have()
            return True
        self._granted = asyncio.get_running_loop().create_future()
        turns.enqueue(self, self._arrived + self.late)
        return False

    async def wait(self) -> None:
        """Ask for a turn, and return when it is there; then `leave` gives it back. Who is cancelled here has left."""
        if self.ask():
            return
        assert self._granted is not None, "it waits"
        try:
            await self._granted
        # `leave` gives back a turn as well as a place in the queue.
        except asyncio.CancelledError:  # it may have been granted in the very turn of the loop
            self.leave()
            raise

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the block ends."""
        await self.wait()
        try:
            yield
        finally:
            self.leave()

    def grant(self) -> bool:
        """Take a turn that is given; False where whoever waited does not any more."""
        if self._granted is None or self._granted.done() or not self._turns.take(self):
            return False
        self._granted.set_result(None)
        self._have()
        return True

    def leave(self) -> None:
        """Give back what there is: a turn, or the place in the queue. Twice is not an error."""
        self._settle()
        if self._has_turn:
            self._has_turn = False
            self._granted = None
            self._turns.give_back(self)
        elif self._granted is not None:
            self._granted = None
            self._turns.dequeue(self)

    def _have(self) -> None:
        self._settle()
        self._has_turn = True

    def _settle(self) -> None:
        if self._is_admitted:
            self._is_admitted = False
            self._turns.unadmit(self)


class BackgroundQueue:
    """At most `max_running` run, at most `max_queued` wait. `now` is a clock, in seconds.

    Who runs next is decided as for the engine (`FairTurns`): projects have equal shares, roll-outs have one beside
    people, and inside a project the tier moves a response ahead or back by some time, so that none waits for ever.
    """

    def __init__(
        self, *, max_running: int, max_queued: int, rollout_share: float = 0.5, now: Callable[[], float] | None = None
    ) -> None:
        self._turns = FairTurns(max_running=max_running, rollout_share=rollout_share, now=now)
        self._places = max_running + max_queued  # of both together, so nobody has to tell them apart
        self._taken = 0  # by those that wait, run, or are about to

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        return self._turns.waiting.total()

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Take a place for a response while it is accepted; it keeps it until it leaves, or if this raises.

        Raises `ApiError` (429) if it would have to wait and may not.
        """
        if self._taken >= self._places:
            message = f"{self.waiting} background responses wait already (BACKGROUND_MAX_QUEUED). Try again shortly."
            raise rate_limited(message, retry_after=5)
        self._taken += 1
        try:
            yield
        except BaseException:
            self._taken -= 1
            raise

    def enter(self) -> None:
        """Take a place, whether there is one or not."""
        self._taken += 1

    def leave(self) -> None:
        """Give the place back: the response has ended."""
        self._taken -= 1

    def turn(
        self, project: str, tier: str, priority: int, late: float = 0.0, *, of_rollout: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """Wait for a turn, and have it until the block ends."""
        return self._turns.place(project, tier, priority, late, of_rollout=of_rollout).turn()


LONG = 128 * 1024  # bytes; up to that a text takes 0.25 s at most
TIER = "default"  # that all work waits in
SHORT_THREADS = 2  # the work is Python, so more would only share the same time
LONG_THREADS = 2
WAITING_THREADS = 16  # these only wait, so there may be more

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class FairThreads:
    """The shared threads of one process. They are started when they are first needed."""

    def __init__(self) -> None:
        self._short = FairTurns(max_running=SHORT_THREADS)
        self._long = FairTurns(max_running=LONG_THREADS)
        self._waiting = FairTurns(max_running=WAITING_THREADS)
        # As many threads as turns: whoever has a turn has a thread at once.
        self._threads = ThreadPoolExecutor(SHORT_THREADS + LONG_THREADS + WAITING_THREADS, thread_name_prefix="fair")

    async def run(
        self,
        project: str,
        size: int,
        work: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Return what `work` makes of something of `size` bytes, which it does on a thread."""
        return await self._run(self._long if size > LONG else self._short, project, partial(work, *args, **kwargs))

    async def wait(
        self, project: str, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Return what comes of `work`, which waits for another process on a thread."""
        return await self._run(self._waiting, project, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Let the threads end, each behind its work; no more is taken."""
        self._threads.shutdown(wait=False)

    async def _run(self, turns: FairTurns, project: str, work: Callable[[], Result]) -> Result:
        async with turns.place(project, TIER, 0).turn():
            given_up = Event()
            # The context goes along, so that log lines of the thread say whose request it is.
            running = asyncio.get_running_loop().run_in_executor(
                self._threads, copy_context().run, _until, given_up, work
            )
            try:
                # A thread cannot be cancelled: it is asked to stop, and waited for.
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                given_up.set()
                await asyncio.wait({running})  # until then the turn is taken
                if not running.cancelled():
                    running.exception()  # it is nobody's any more
                raise
            finally:
                # An exception that it raised has this frame in its traceback: with the frame it would be a cycle, and
                # keep all that the work had in its hands (a body of 30 MB) until the garbage collector comes by.
                del running


def _until(given_up: Event, work: Callable[[], Result]) -> Result:
    with gives_up_at(given_up):
        return work()
