"""`respsite serve --workers N`: one process that serves nothing, and N that do.

The supervisor binds the address once and hands the socket to each worker. So the port is there from the first moment to
the last, whoever dies in between, and what nobody has accepted yet waits for whoever lives. Workers are forked, but not
from this process, whose event loop, connections and threads would not survive that: a process of its own has loaded the
application for all of them (`forking`). Where each imports vLLM, each is started anew.

`fleet` decides which worker is to be started and stopped, and knows neither processes nor time; `processes` starts,
asks and ends them; `forking` has them forked; `Supervisor`, here, brings all together, with the signals;
`respsite manage serve_worker` is what runs in a worker.

Three pipes lead from one to the other. Of each worker: its output, which the supervisor hands on line by line with the
worker's number before it, and one byte that says that it is ready (asking over HTTP would reach any worker). Of all
workers: one in which nothing is ever written. The supervisor holds its other end, which the kernel closes when the
supervisor dies, whatever kills it: the workers read the end of it, stop accepting, and stop.

Where a worker dies, the requests that it ran are suspects (`limits.suspects`). A supervisor has the table of them in
memory that its workers inherit. With WORKERS=1 nobody outlives the one process, so its table is a file in DATA_DIR
(`kept_table`): the next process finds there which requests ran when the last one died.

SIGTERM           all workers stop; what runs may take SHUTDOWN_GRACE_SECONDS; a second one ends that
SIGINT (Ctrl-C)   all workers stop at once
SIGHUP            the database is migrated, then one worker after the other is replaced by one of what is on the disk,
                  which another process loads to fork them
"""

import asyncio
import fcntl
import logging
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from engine.errors import reason_of
from responses_app.limits.suspects import Stage, SuspectTable
from responses_app.management import processes
from responses_app.management.fleet import Action, Fleet, FleetTimes, GiveUp, KillWorker, StartWorker, StopWorker
from responses_app.management.forking import Descriptors, ForkClient, Order
from responses_app.web.servers.listening import Shares, shared_file

logger = logging.getLogger("respsite.supervisor")

FILE = "running-1"  # in DATA_DIR; another layout of the table has another number


def look_for_suspects(table: SuspectTable, number: int, *, whose: str) -> None:
    """Suspect the requests that a dead worker was running, and log them."""
    suspects = table.died(number, time.monotonic())
    if suspects:
        count, s = len(suspects), "s" * (len(suspects) != 1)
        logger.warning("%s was running %d request%s: each has a trial when it comes again", whose, count, s)
    for each in suspects:
        if each.stage is Stage.CONDEMNED:
            which = (each.name.hex(), each.project or "default")
            logger.error("request %s of project %s was running at two deaths of workers: it is refused now", *which)


@contextmanager
def kept_table(folder: Path) -> Iterator[SuspectTable | None]:
    """Yield the table of a folder for its only worker, with number 0, whose last process may have died.

    It is None where the folder cannot be written, or another server uses it. A process that leaves without an exception
    was stopped, and no request is suspected for that.
    """
    with ExitStack() as opened:
        try:
            table = _table(folder / FILE, opened)
        except OSError as error:
            logger.info("which requests run here is not kept for the next process of this server: %s", reason_of(error))
            table = None
        if table is not None:
            look_for_suspects(table, 0, whose="the last process of this server")
        yield table
        if table is not None:
            table.forget(0)


def _table(file: Path, opened: ExitStack) -> SuspectTable:
    """Return the table in a file, empty where the file has another layout. Raises `OSError`, also if it is in use."""
    size = SuspectTable.size(1)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    opened.callback(os.close, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    opened.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # the memory below has a descriptor of its own
    if os.fstat(descriptor).st_size != size:
        os.ftruncate(descriptor, 0)
    os.posix_fallocate(descriptor, 0, size)  # a page that a full disk has no room for would end the process
    table = SuspectTable(mmap.mmap(descriptor, size), 1)
    table.begin_anew(time.monotonic())
    return table


LOOK_SECONDS = 1.0  # between two looks at how much memory the workers hold, and at the clock
LATE_SECONDS = 5.0  # a look that comes later than this: this process, and perhaps the machine, stood still
CLOSE_SECONDS = 15.0  # that a worker may take behind its grace: for last words, the database, an engine of its own
MIB = 1024 * 1024


class Supervisor:
    """Serves with `fleet` on `listener`. `announce` is called once, when the first worker accepts connections.

    A worker that holds more than `max_bytes` is replaced; 0 is any number. With `shares_core` the workers share an
    engine core, which is started before them and stopped behind them. With `forks` they are forked from one process
    that has loaded the application; else each loads it.
    """

    def __init__(
        self,
        listener: socket.socket,
        fleet: Fleet,
        *,
        max_bytes: int = 0,
        shares_core: bool = False,
        forks: bool = False,
        announce: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._fleet = fleet
        self._max_bytes = max_bytes
        self._announce: Callable[[], None] | None = announce
        self._processes: dict[int, processes.WorkerProcess] = {}
        self._news = asyncio.Event()  # something happened: the fleet is to be asked again
        self._oom_kills = processes.oom_kills()  # as counted when a worker ended last
        self._looked = 0.0  # when the clock was looked at last, on the loop's
        self._gave_up = False  # no worker can be started
        self._hurried = False  # Ctrl-C: workers stop at once
        self._rolls: list[asyncio.Task[None]] = []  # one for each SIGHUP, one after the other
        self._rolling = False  # workers are being replaced
        fleet.places = 4 * fleet.size + 16  # several generations may be leaving at a time
        self._shares = Shares.make(fleet.places)
        self._suspects, self._shared = _suspects(fleet.places)
        self._lifeline, self._own_end = os.pipe()  # nothing is ever written: it ends with this process
        self._engine = processes.EngineKeeper(
            self._lifeline, loads=self._fleet.wait, up=self._up, refused=self._refused
        )
        self._shares_core = shares_core
        self._forks = ForkClient(inherits=(self._shared,)) if forks else None

    async def serve(self) -> bool:
        """Serve until a signal ends it; return False where no worker could be started."""
        loop = asyncio.get_running_loop()
        for number, handler in (
            (signal.SIGTERM, self._stop),
            (signal.SIGINT, self._interrupt),
            (signal.SIGHUP, self._hup),
        ):
            loop.add_signal_handler(number, handler)
        if self._shares_core:
            self._engine.start()
        try:
            self._looked = loop.time()
            while True:
                for action in self._fleet.decide(loop.time()):
                    self._act(action)
                if self._fleet.stopping:
                    self._listener.close()  # nobody accepts any more: who comes is refused, and asks elsewhere
                self._tell_of_roll()
                if self._fleet.stopping and not self._processes:
                    return not self._gave_up
                await self._wait(loop.time())
        finally:
            if self._forks is not None:
                await self._forks.close()
            await self._engine.stop()
            os.close(self._own_end)
            os.close(self._lifeline)

    async def _wait(self, now: float) -> None:
        """Wait for news, until the fleet is to be asked again, or for the next look."""
        due = self._fleet.due()
        pause = LOOK_SECONDS if due is None else min(LOOK_SECONDS, max(0.0, due - now))
        try:
            await asyncio.wait_for(self._news.wait(), pause)
        except TimeoutError:
            self._look_at_memory(now)
        # What comes from here on is news for the next round, whose `decide` comes after it.
        self._news.clear()
        now = asyncio.get_running_loop().time()
        # Workers may have said that they live, and nobody has listened.
        if now - self._looked > LOOK_SECONDS + LATE_SECONDS:
            self._fleet.stood_still(now)
        self._looked = now

    def _act(self, action: Action) -> None:
        match action:
            case StartWorker(number, at_once):
                process = processes.WorkerProcess(number, hears=self._hear, ended=self._ended)
                self._processes[number] = process
                process.start(*self._ways_to_start(Order(number, at_once)))
            case StopWorker(number):
                self._processes[number].send(signal.SIGINT if self._hurried else signal.SIGTERM)
            case KillWorker(number, hangs):
                why = "is silent, although it serves" if hangs else "does not start or end in its time"
                logger.error("worker %d %s, and is killed", number, why)
                self._processes[number].send(signal.SIGKILL)
            case GiveUp():
                self._gave_up = True

    def _ways_to_start(self, order: Order) -> list[processes.Start]:
        """Return how a worker is started: it is forked, or loads the application itself where that is refused."""
        inherited = {"listener": self._listener.fileno(), "lifeline": self._lifeline, "shares": self._shares.descriptor}

        async def fork(ends: processes.Ends) -> processes.Process:
            assert self._forks is not None
            return self._forks.fork(order, Descriptors(**inherited, **ends._asdict()))

        command = ["serve_worker", "--number", str(order.number), *(["--at-once"] if order.at_once else [])]
        for name, descriptor in inherited.items():
            command += [f"--{name}", str(descriptor)]
        alone = partial(processes.run_program, command, [*inherited.values(), self._shared])
        return [alone] if self._forks is None or self._forks.refuses else [fork, alone]

    # What the engine says.

    def _up(self) -> None:
        self._fleet.go_on(asyncio.get_running_loop().time())
        self._news.set()

    def _refused(self) -> None:
        self._gave_up = True
        self._fleet.stop()
        self._news.set()

    # What workers say.

    def _hear(self, number: int, word: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if word == processes.LIVES:
            self._fleet.heard(number, now)
        elif word == processes.READY:
            logger.info("worker %d serves", number)
            self._fleet.ready(number, now)
            self._news.set()
        elif word == processes.ACCEPTS and self._announce is not None:
            self._announce()
            self._announce = None
        # A worker of a newer version may have more to say.

    def _ended(self, number: int, status: int | None) -> None:
        del self._processes[number]
        self._shares.forget(number)
        now = asyncio.get_running_loop().time()
        served = self._fleet.served(number, now)
        oom_before, self._oom_kills = self._oom_kills, processes.oom_kills()
        if self._fleet.ended(number, now):
            logger.info("worker %d has stopped", number)
            self._suspects.forget(number)
        else:
            cause = processes.how_ended(status, lacked_memory=self._oom_kills > oom_before)
            after = "" if served is None else f", {served:.0f} s after it was ready"
            pause = self._fleet.pause(now)
            then = f"; the next one starts in {pause:.1f} s" if pause else ""
            # First of all: a client may send a request again that it was running.
            look_for_suspects(self._suspects, number, whose=f"worker {number}")
            logger.error("worker %d %s%s%s", number, cause, after, then)
        self._news.set()

    # What the operator says.

    def _stop(self) -> None:
        if self._fleet.stopping:
            self._hurry(signal.SIGTERM)  # the second one is taken as haste
            return
        logger.info("the workers stop: %d are running", len(self._processes))
        self._begin_to_stop()

    def _interrupt(self) -> None:
        self._hurried = True
        if self._fleet.stopping:
            self._hurry(signal.SIGINT)
        self._begin_to_stop()

    def _begin_to_stop(self) -> None:
        for roll in self._rolls:
            roll.cancel()
        if self._forks is not None:
            self._forks.stop()  # who stops the workers may stop the processes that they come from, too
        self._fleet.stop()
        self._news.set()

    def _hurry(self, number: int) -> None:
        for process in self._processes.values():
            process.send(number)

    def _hup(self) -> None:
        if not self._fleet.stopping:
            self._rolls = [roll for roll in self._rolls if not roll.done()]
            self._rolls.append(asyncio.get_running_loop().create_task(self._roll([*self._rolls])))

    # Replacing workers.

    async def _roll(self, before: "list[asyncio.Task[None]]") -> None:
        """Replace all workers by those of the version that is on the disk now."""
        if before:
            await asyncio.wait(before)
        status = await _migrate()
        if status:
            logger.error("nothing is replaced: the database could not be migrated to the new version (see above)")
            return
        logger.info("%d workers are replaced, one after the other", self._fleet.size)
        self._fleet.replace_all()
        if self._forks is not None:
            self._forks.renew()
        self._rolling = True
        self._news.set()

    def _tell_of_roll(self) -> None:
        if not self._rolling or self._fleet.marked or self._fleet.stopping:
            return
        self._rolling = False
        if self._fleet.rolled_back:
            logger.error("no more is replaced: the new worker did not come to serve (see above); the others go on")
        else:
            logger.info("all workers are replaced")

    def _look_at_memory(self, now: float) -> None:
        if not self._max_bytes:
            return
        for number in self._fleet.serving:
            size = processes.resident_bytes(self._processes[number].pid)
            if size > self._max_bytes and self._fleet.grown(number, now):
                logger.warning(
                    "worker %d holds %d MiB, more than WORKER_MAX_MEMORY_BYTES: it is replaced", number, size // MIB
                )


def _suspects(places: int) -> tuple[SuspectTable, int]:
    """Return a table that the workers share, and the descriptor by which they find it: `SHARED_SUSPECTS` names it."""
    descriptor = shared_file(SuspectTable.size(places))
    os.environ[processes.SHARED_SUSPECTS] = str(descriptor)
    return SuspectTable(mmap.mmap(descriptor, 0), places), descriptor


async def _migrate() -> int:
    """Migrate with the code that is on the disk, which need not be that of this process; return the exit status."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, sys.argv[0], "migrate", "--no-input", "--verbosity", "0"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        await processes.hand_on(process.stdout, sys.stderr.buffer, b"[migrate] ")
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        raise


def pace(*, grace_seconds: float, start_seconds: float, silence_seconds: float) -> FleetTimes:
    """Return the pace of a fleet whose workers give what runs so long to end."""
    leave_seconds = grace_seconds + CLOSE_SECONDS
    return FleetTimes(start_seconds=start_seconds, leave_seconds=leave_seconds, silence_seconds=silence_seconds)
