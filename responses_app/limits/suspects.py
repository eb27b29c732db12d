"""Requests that end workers: how the one is found that does, what becomes of it, and how the others are freed.

A request that was running when a worker died may have killed it (it takes all memory, or finds a fault of a native
library), or it was only there. One death does not tell which. The rule, which is `after_death`:

    stage       which request it is                          where its worker dies
    INNOCENT    it was never running at a death              a SUSPECT
    SUSPECT     it was at one. It waits for its trial        as before: it was not running
    ON_TRIAL    it runs again, one at a time on a worker     CONDEMNED if it is to blame, else a SUSPECT
    PASSED      it has run for TRIAL_SECONDS like that       CONDEMNED if it is to blame, else a SUSPECT
    CONDEMNED   it was running at two deaths: it is not run a third time. A client gets a 503 that says so, and a
                response that would be taken over ends as failed

One is to blame if no other that runs again is there. Else it is told by its age: a request that ends workers does so
each time about as long after it began, or at once where it is taken over and goes on; those that only ran beside it are
killed at any age. So the one to blame is ON_TRIAL, or PASSED where none on trial may be, and not more than
ALIKE_SECONDS older or younger than at its last death. Of several it is none, and from the third death on the one whose
ages are nearest by far.

So a request that kills each worker that takes it kills two, at once or late, and the requests that only ran beside it
are told apart from it. Only one is ever condemned for a death: two kernels that run out of memory must not end all that
ran at both. For the time of ALONE trials one request is on trial at a time, then two, then four, as long as no worker
dies: the hundred innocents of a machine that lost its power all run again within 20 s.

A suspect is freed when it ends, in whatever way, while its worker lives, and after SUSPECT_SECONDS without another
death. After CONDEMNED_SECONDS a condemned request is a suspect again, and has one more trial.

A request is known again by its name: a digest of its project and its content, whatever the header and the connection
(an SDK that tries again sends the same bytes). A response that is taken over has the name of the request
that made it. Forms with files have none.

`SuspectTable` is in memory that the supervisor and its workers share: before a worker reads a request it writes its
name there, which costs no message and no database, and the supervisor reads it when the worker is dead. With one worker
it is in a file, which the next process reads. A response that is taken over has its stage in its row, too
(`stores.database.responses.orphans`), so it is found also where each worker is alone on its machine. All of it is
bounded: MAX_RUNNING names of a worker, MAX_SUSPECTS of all.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from responses_app.protocol.errors import ApiError, ends_workers

if TYPE_CHECKING:
    from mmap import mmap

TRIAL_SECONDS = 2.0
ALONE = 4  # times TRIAL_SECONDS, in which trials in a row have one request each
MOST_GROUPED = 10  # the largest group has 2 to the power of this
ALIKE_SECONDS = 3.0  # between the ages of a request at two deaths
BY_FAR = 4  # times as near
SUSPECT_SECONDS = 3600.0
CONDEMNED_SECONDS = 3600.0
MAX_RUNNING = 256  # names of one worker; what runs beside more than that is not suspected
MAX_SUSPECTS = 1024  # the oldest makes room
_NAME_BYTES = 16
_PROJECT_BYTES = 47
# Name, stage and project of what runs, since when, and whether it goes on where it was.
_SLOT = Struct(f"<{_NAME_BYTES}sB{_PROJECT_BYTES}sd?")
# The same of a suspect: at how many deaths it was running, its age at the last, and until when it is one.
_ENTRY = Struct(f"<{_NAME_BYTES}sB{_PROJECT_BYTES}sBdd")
_MAX_DEATHS = 255
_FLAG_BYTES = 8  # at the beginning; the first is 1 once there was a suspect

Name = bytes  # of a request
Key = TypeVar("Key", bound=Hashable)


class Stage(IntEnum):
    """How far a request is suspected; see the module."""

    INNOCENT = 0
    SUSPECT = 1
    ON_TRIAL = 2
    PASSED = 3
    CONDEMNED = 4


def after_death(there: Mapping[Key, Stage], apart: Mapping[Key, float] = MappingProxyType({})) -> dict[Key, Stage]:
    """Return the new stages of requests whose worker has died, by the same keys; `there`: their stages before.

    `apart` has the seconds between the ages at this and at the last death of those of which that is known.
    """
    again = [key for key, stage in there.items() if stage in (Stage.ON_TRIAL, Stage.PASSED)]
    if len(again) > 1:
        again = [key for key in again if apart.get(key, 0.0) <= ALIKE_SECONDS]
    blamed = [key for key in again if there[key] is Stage.ON_TRIAL] or again
    blamed.sort(key=lambda key: apart.get(key, 0.0))
    if len(blamed) > 1 and apart.get(blamed[0], 0.0) * BY_FAR >= apart.get(blamed[1], 0.0):
        blamed = []
    condemned = {key for key, stage in there.items() if stage is Stage.CONDEMNED} | set(blamed[:1])
    return {key: Stage.CONDEMNED if key in condemned else Stage.SUSPECT for key in there}


def after_stop(there: Mapping[Key, Stage]) -> dict[Key, Stage]:
    """Return the new stages of requests that a stopping worker has given back, by the same keys."""
    return {key: Stage.SUSPECT if stage in (Stage.ON_TRIAL, Stage.PASSED) else stage for key, stage in there.items()}


def name_of(project: str, content: bytes) -> Name:
    """Return the name of a request, which is a digest."""
    return blake2b(content, key=project.encode()[:64], digest_size=_NAME_BYTES).digest()


def name_in(kept: str, response_id: str) -> Name:
    """Return the name of a request as its response's row has it; one that has none goes by the response's id."""
    return bytes.fromhex(kept) if kept else name_of("", response_id.encode())


@dataclass(frozen=True, slots=True)
class Suspect:
    """A request that was running when a worker died."""

    name: Name
    stage: Stage  # SUSPECT or CONDEMNED
    project: str  # of whoever sent it, cut
    deaths: int
    age: float  # in seconds, at the last death
    until: float  # on the monotonic clock of the machine

    def apart(self, age: float, *, goes_on: bool) -> float:
        """Return how many seconds it is older or younger than at its last death.

        After only one death it is at least ALIKE_SECONDS: ages that are nearer may be so by chance.
        """
        seconds = min(abs(age - self.age), age) if goes_on else abs(age - self.age)
        return seconds if self.deaths > 1 else max(ALIKE_SECONDS, seconds)


@dataclass(slots=True)
class _Held:
    """A name in the table, with the number of its holders."""

    project: str
    since: float  # on the monotonic clock of the machine
    stage: Stage = Stage.INNOCENT
    trial: "Trial | None" = None
    goes_on: bool = False  # it is taken over, and does not begin anew
    index: int | None = None  # None: there was no place for it
    holders: int = 1


class SuspectTable:
    """The requests that run in each of so many places, and the suspects.

    `memory` has `size(places)` bytes, zeros at first. Each worker writes in a place of its own, and the supervisor
    where a worker has died. So no two write at once, except that a worker frees a suspect by overwriting it with zeros.
    """

    def __init__(self, memory: "mmap | bytearray", places: int) -> None:
        self._memory = memory
        self._places = places
        self._suspects = _FLAG_BYTES + places * MAX_RUNNING * _SLOT.size

    @staticmethod
    def size(places: int) -> int:
        """Return the bytes of a table with so many places."""
        return _FLAG_BYTES + places * MAX_RUNNING * _SLOT.size + MAX_SUSPECTS * _ENTRY.size

    @staticmethod
    def places_of(size: int) -> int:
        """Return how many places a table of so many bytes has."""
        return (size - _FLAG_BYTES - MAX_SUSPECTS * _ENTRY.size) // (MAX_RUNNING * _SLOT.size)

    def put(self, place: int, index: int, name: Name, held: _Held) -> None:
        """Write down that a request runs."""
        project = held.project.encode()[:_PROJECT_BYTES]
        _SLOT.pack_into(self._memory, self._slot(place, index), name, held.stage, project, held.since, held.goes_on)

    def clear(self, place: int, index: int) -> None:
        """Remove a request that does not run any more."""
        at = self._slot(place, index)
        self._memory[at : at + _SLOT.size] = bytes(_SLOT.size)

    def forget(self, place: int) -> None:
        """Remove all requests of a place: its worker has ended as it was told to."""
        at = self._slot(place, 0)
        self._memory[at : at + MAX_RUNNING * _SLOT.size] = bytes(MAX_RUNNING * _SLOT.size)

    def begin_anew(self, now: float) -> None:
        """Remove the suspects of the machine's last start: their times are of a clock that has begun anew.

        Where a stage has no meaning, all is removed: the disk has lost the table, and a worker that read it would end.
        """
        stages = [each[1] for each in _SLOT.iter_unpack(self._memory[_FLAG_BYTES : self._suspects])]
        stages += [each[1] for each in _ENTRY.iter_unpack(self._memory[self._suspects :])]
        if max(stages) > max(Stage):
            self._memory[:] = bytes(len(self._memory))
        for each in self.suspects(now):
            if each.until > now + max(SUSPECT_SECONDS, CONDEMNED_SECONDS):
                self.free(each.name)

    def died(self, place: int, now: float) -> list[Suspect]:
        """Suspect the requests of a place whose worker has died; return them with their new stages."""
        there: dict[Name, Stage] = {}
        projects: dict[Name, str] = {}
        ages: dict[Name, float] = {}
        apart: dict[Name, float] = {}
        for index in range(MAX_RUNNING):
            name, stage, project, since, goes_on = _SLOT.unpack_from(self._memory, self._slot(place, index))
            if any(name):
                there[name], projects[name] = Stage(stage), project.rstrip(b"\0").decode(errors="replace")
                ages[name] = max(0.0, now - since)
                if (at := self._find(name)) is not None:
                    apart[name] = self._suspect(at).apart(ages[name], goes_on=goes_on)
        self.forget(place)
        stages = after_death(there, apart)
        return [self.suspect(name, stage, projects[name], now, ages[name]) for name, stage in stages.items()]

    def suspect(self, name: Name, stage: Stage, project: str, now: float, age: float = 0.0) -> Suspect:
        """Add a suspect, or change it; return it. One that is condemned stays so."""
        at, deaths = self._find(name), 1
        if at is None:
            # A free place, whose time is 0, else the one whose time is over first.
            kept = _ENTRY.iter_unpack(self._memory[self._suspects :])
            at = min(zip(self._entries(), kept, strict=True), key=lambda each: float(each[1][-1]))[0]
        else:
            deaths = min(self._suspect(at).deaths + 1, _MAX_DEATHS)
            if self.stage(name, now)[0] is Stage.CONDEMNED:
                stage = Stage.CONDEMNED
        until = now + (CONDEMNED_SECONDS if stage is Stage.CONDEMNED else SUSPECT_SECONDS)
        _ENTRY.pack_into(self._memory, at, name, stage, project.encode()[:_PROJECT_BYTES], deaths, age, until)
        self._memory[0] = 1
        return self._suspect(at)

    def stage(self, name: Name, now: float) -> tuple[Stage, float]:
        """Return the stage of a request that does not run, and for how many seconds more it holds."""
        at = self._find(name) if self._memory[0] else None
        if at is None:
            return Stage.INNOCENT, 0.0
        found = self._suspect(at)
        left = found.until - now
        if found.stage is Stage.CONDEMNED and left <= 0:
            found, left = replace(found, stage=Stage.SUSPECT), left + SUSPECT_SECONDS
        return (found.stage, left) if left > 0 else (Stage.INNOCENT, 0.0)

    def free(self, name: Name) -> None:
        """Remove a suspect that has ended while its worker lives."""
        at = self._find(name) if self._memory[0] else None
        if at is not None:
            self._memory[at : at + _ENTRY.size] = bytes(_ENTRY.size)

    def suspects(self, now: float) -> list[Suspect]:
        """Return all suspects."""
        found = (self._suspect(at) for at in self._entries()) if self._memory[0] else iter(())
        return [each for each in found if any(each.name) and each.until > now]

    def _slot(self, place: int, index: int) -> int:
        return _FLAG_BYTES + (place % self._places * MAX_RUNNING + index) * _SLOT.size

    def _entries(self) -> range:
        return range(self._suspects, self._suspects + MAX_SUSPECTS * _ENTRY.size, _ENTRY.size)

    def _find(self, name: Name) -> int | None:
        at = self._memory.find(name, self._suspects)
        return at if at in self._entries() else None

    def _suspect(self, at: int) -> Suspect:
        name, stage, project, *rest = _ENTRY.unpack_from(self._memory, at)
        return Suspect(name, Stage(stage), project.rstrip(b"\0").decode(errors="replace"), *rest)


@dataclass(slots=True, eq=False)
class Trial:
    """A suspect that runs. `end` must be called; `passed` is called once it has run for TRIAL_SECONDS."""

    trials: "Trials"
    passed: Callable[[], None]
    timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start the time of the trial."""
        self.timer = asyncio.get_running_loop().call_later(TRIAL_SECONDS, self._pass)

    def end(self) -> None:
        """End the trial: its suspect has ended, or passed. A second call does nothing."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.trials.ended(self)

    def _pass(self) -> None:
        self.passed()
        self.end()


class Trials:
    """The trials of a worker: first one at a time, then two, then four."""

    def __init__(self) -> None:
        self._seconds = 0.0  # that trials took in a row, behind each of which others waited
        self._is_wanted = False  # somebody asked for a trial in vain
        self._running: set[Trial] = set()
        self._group = 1  # as many at a time
        self._begun = 0  # of this group
        self._begun_at = 0.0  # the first of them
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether a trial may begin. A caller that gets False is expected to ask again."""
        self._is_wanted = self._is_wanted or self._begun >= self._group
        return self._begun < self._group

    def begin(self, passed: Callable[[], None]) -> Trial | None:
        """Begin a trial; return None if another one has to end first."""
        if not self.has_room:
            return None
        if not self._begun:
            self._begun_at = time.monotonic()
        self._begun += 1
        trial = Trial(self, passed)
        self._running.add(trial)
        trial.begin()
        return trial

    async def wait(self, passed: Callable[[], None]) -> Trial:
        """Wait until a trial may begin, and begin it."""
        while (trial := self.begin(passed)) is None:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake(1)  # it may have been its turn
                raise
        return trial

    def ended(self, trial: Trial) -> None:
        """Let the next trials begin if this was the last of its group."""
        self._running.discard(trial)
        if self._running:
            return
        # Where nobody has waited, the next suspect is of another death. Those that end at once leave others alone.
        took = time.monotonic() - self._begun_at
        self._seconds = self._seconds + took if self._is_wanted or self._waiting else 0.0
        self._group = 2 ** max(0, min(int(self._seconds / TRIAL_SECONDS) - ALONE + 1, MOST_GROUPED))
        self._begun, self._is_wanted = 0, False
        self._wake(self._group)

    def _wake(self, count: int) -> None:
        while count and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its client may have left
                turn.set_result(None)
                count -= 1


@dataclass(slots=True)
class Holds:
    """The names that one task holds in the table, until it has ended."""

    names: list[tuple["Running", Name]] = field(default_factory=list)

    def release(self) -> None:
        """Give up all names."""
        while self.names:
            running, name = self.names.pop()
            running.release(name)


_HOLDS: ContextVar[Holds | None] = ContextVar("holds", default=None)


@contextmanager
def holding() -> Iterator[Holds]:
    """Hold the requests that begin in this context until it ends; `share` lets another task hold them longer."""
    holds = Holds()
    before = _HOLDS.get()
    _HOLDS.set(holds)
    try:
        yield holds
    finally:
        _HOLDS.set(before)
        holds.release()


class Running:
    """The requests that run in this process. Without a supervisor its table is its own, and nobody reads it later."""

    def __init__(self) -> None:
        self.table = SuspectTable(bytearray(SuspectTable.size(1)), 1)
        self.trials = Trials()
        self._place = 0
        self._held: dict[Name, _Held] = {}
        self._free = list(range(MAX_RUNNING))
        self._lock = threading.Lock()  # bodies are read on threads

    def attach(self, table: SuspectTable, place: int) -> None:
        """Use the table of a supervisor, before anything is read."""
        self.table, self._place = table, place

    def begin(self, holds: Holds, project: str, name: Name) -> bool:
        """Hold a request; return whether it may go on, else it has to wait for its trial. Any thread calls it.

        Raises `ApiError` (503) for one that is condemned.
        """
        now = time.monotonic()
        if self._check(name, now) is Stage.SUSPECT and not self._is_tried(name):
            return False
        self._hold(holds, name, _Held(project, now))
        return True

    async def stand_trial(self, holds: Holds, project: str, name: Name) -> None:
        """Hold a suspect once it may run. Raises `ApiError` (503) for one that has been condemned meanwhile."""
        trial = await self.trials.wait(lambda: self._pass(name))
        if self._is_tried(name):  # the same request, sent twice
            trial.end()
        try:
            now = time.monotonic()
            self._check(name, now)
        except ApiError:
            trial.end()
            raise
        self._hold(holds, name, _Held(project, now, Stage.ON_TRIAL, trial))

    def hold_again(self, holds: Holds, project: str, name: Name, passed: Callable[[], None]) -> bool:
        """Hold a suspect that is taken over; return False where its trial has to wait.

        `passed` is called where it has run for TRIAL_SECONDS. Raises `ApiError` (503) where it is condemned.
        """
        now = time.monotonic()
        self._check(name, now)

        def both() -> None:
            self._pass(name)
            passed()

        trial = self.trials.begin(both)
        if trial is not None:
            self._hold(holds, name, _Held(project, now, Stage.ON_TRIAL, trial, goes_on=True))
        return trial is not None

    def known_stage(self, name: Name, kept: Stage) -> Stage:
        """Return the stage of a request that is taken over, of which a row has kept `kept`.

        The supervisor decides where it knows it: it knows all that ran at the death, a row those of its table.
        """
        known, _ = self.table.stage(name, time.monotonic())
        return known or kept

    def hold_more(self, holds: Holds, name: Name) -> None:
        """Hold a name once more that is held already."""
        with self._lock:
            self._held[name].holders += 1
        holds.names.append((self, name))

    def condemn(self, project: str, name: Name) -> None:
        """Condemn a request whose two deaths are known from its row in the database."""
        self.table.suspect(name, Stage.CONDEMNED, project, time.monotonic())

    def release(self, name: Name) -> None:
        """Release a name for one holder. After the last one the request has ended, and a suspect is free."""
        with self._lock:
            held = self._held[name]
            held.holders -= 1
            if held.holders:
                return
            del self._held[name]
            if held.index is not None:
                self.table.clear(self._place, held.index)
                self._free.append(held.index)
        if held.trial is not None:
            held.trial.end()
        if self.table.stage(name, time.monotonic())[0] is Stage.SUSPECT:
            self.table.free(name)

    def _hold(self, holds: Holds, name: Name, fresh: _Held) -> None:
        with self._lock:
            held = self._held.get(name)
            if held is None:
                fresh.index = self._free.pop() if self._free else None
                held = self._held[name] = fresh
            else:
                held.holders += 1
                if held.trial is None:
                    held.stage, held.trial = max(fresh.stage, held.stage), fresh.trial
            if held.index is not None:
                self.table.put(self._place, held.index, name, held)
        holds.names.append((self, name))

    def _check(self, name: Name, now: float) -> Stage:
        stage, seconds = self.table.stage(name, now)
        if stage is Stage.CONDEMNED:
            raise ends_workers(seconds)
        return stage

    def _is_tried(self, name: Name) -> bool:
        held = self._held.get(name)
        return held is not None and held.stage >= Stage.ON_TRIAL

    def _pass(self, name: Name) -> None:
        with self._lock:
            held = self._held.get(name)
            if held is not None:
                held.stage = Stage.PASSED
                if held.index is not None:
                    self.table.put(self._place, held.index, name, held)


def current_holds() -> Holds | None:
    """Return the names that the calling context holds; None outside of `holding`."""
    return _HOLDS.get()


def current_name() -> str:
    """Return the name of the request that is carried out here, in hexadecimal; "" where none is held."""
    holds = _HOLDS.get()
    return holds.names[0][1].hex() if holds and holds.names else ""


def share() -> Holds:
    """Hold the names of this context for another task, which calls `release` of the result when it has ended."""
    shared, holds = Holds(), _HOLDS.get()
    for running, name in holds.names if holds else ():
        running.hold_more(shared, name)
    return shared
