"""The vLLM servers behind one engine: which there are, and which are used. `choice` says which is asked first.

`ReplicaPool`: servers come and go where ENGINE_URL says so (`server_lists`): a new one is inspected before it is used;
one that is not named any more gets no new generations, and is forgotten once those it has are done.

`Watcher` looks at one server for as long as it belongs to the pool: whether it is there, and whether it is back. One
that is used is asked for `/health` every `look` seconds, and at once when a generation on it broke. It is used no
more when it says that it is not well, when it cannot be reached, or when it hangs: when it leaves MISSED_LOOKS looks in
a row without an answer, and sends no byte of any generation meanwhile (a busy one may answer late, but it works). Then
what runs on it is ended, so that it goes on on another server, as soon as another one is used.

Example with a look a second: a server is stopped (SIGSTOP) at 10.4. The looks at 11 and at 12 have no answer after a
second each; at 13 what ran there is ended, and its runs go on on another server.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from engine.backends.client import OutOfReach
from engine.backends.vllm.choice import ReplicaChoice
from engine.backends.vllm.replica import Replica, Service
from engine.backends.vllm.server_lists import ServerList
from engine.errors import EngineError, EngineUnavailable
from engine.sessions import Session

logger = logging.getLogger("respsite.engine")

MISSED_LOOKS = 2  # looks in a row
MAX_LATE = 0.5  # of a look's time: where this process is later than that to the end of it, nothing is missed
OTHERS_SECONDS = 1.0  # that a start waits for the other servers, once one of them can be used


class Watcher:
    """Looks at one server, and has it used or not."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._seconds = replica.client.timeouts.look
        self._loop = asyncio.get_running_loop()
        self._look_began = 0.0  # when the last look began, by the loop's clock
        self._missed = 0  # looks in a row that had no answer in time
        self._since = 0.0  # when the first of the missed looks began

    async def run(self) -> None:
        """Look at it, until cancelled."""
        while True:
            await self._wait()
            # Cleared before the look: a doubt that comes during it leads to another look.
            self._replica.doubted.clear()
            try:
                await self._look()
            except EngineError as error:
                self._replica.lose(str(error))
            # Whatever it is: a watcher that ends would never have its server used again.
            except Exception:
                logger.exception("%s could not be looked at", self._replica)

    async def _wait(self) -> None:
        """Wait until it is time to look."""
        circuit = self._replica.circuit
        # After a missed look the next one keeps to the beat: `doubted` would have it asked twice in a moment.
        if circuit.is_closed and self._missed:
            await asyncio.sleep(max(0.0, self._look_began + self._seconds - self._loop.time()))
        elif circuit.is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._replica.doubted.wait()
        # Asked again, not `else`: it may have been opened during the wait above.
        if not circuit.is_closed:
            await asyncio.sleep(circuit.next_wait())

    async def _look(self) -> None:
        """Ask how it is, and draw the consequences. Raises `EngineError` where it cannot be used."""
        replica, self._look_began = self._replica, self._loop.time()
        try:
            status, _ = await replica.client.get("/health", seconds=self._seconds)
        except OutOfReach:
            raise
        # A connection that breaks or an answer that is late. Only the latter says that it may hang, but both are
        # counted.
        except EngineUnavailable:
            self._miss()
            return
        self._missed = 0
        if status >= 500:
            raise EngineUnavailable(f"{replica} says it is not well: {status}.")
        # `/health` alone does not say that it still serves our model: that is found out again before it is used.
        if not replica.circuit.is_closed:
            service = await replica.inspect()
            replica.use(service)
            logger.info("%s is there, over %s", replica, service.wire.path)

    def _miss(self) -> None:
        """It did not answer in time."""
        replica, now = self._replica, self._loop.time()
        # We were late ourselves: the loop was held, and the answer may lie there unread.
        if now - self._look_began > (1 + MAX_LATE) * self._seconds:
            return
        # It has sent something since the first missed look: it is slow, and does not hang. Counting begins again.
        if not self._missed or replica.client.heard_at > self._since:
            self._missed, self._since = 0, self._look_began
        self._missed += 1
        if self._missed < MISSED_LOOKS:
            return
        problem = f"{replica} hangs: it leaves {MISSED_LOOKS} looks without an answer, and sends nothing."
        replica.lose(problem)
        # With no other server what runs there is left alone: it may come back, and nothing could go on elsewhere.
        if replica.others_serve:
            replica.client.end_streams(EngineUnavailable(problem))


class ReplicaPool:
    """The servers of `servers`; the list is read again every `refresh_seconds`.

    `make` gives one of them, of its URL and all of the pool.
    """

    def __init__(
        self,
        servers: ServerList,
        make: Callable[[str, Collection[Replica]], Replica],
        *,
        refresh_seconds: float,
    ) -> None:
        self._servers = servers
        self._make = make
        self._refresh_seconds = refresh_seconds
        self._replicas: dict[str, Replica] = {}  # by their URLs; those that belong to the pool now
        self._leaving: dict[str, Replica] = {}  # those that are named no more and still have generations
        self._tasks: dict[str, asyncio.Task[None]] = {}  # that watch servers, by their URLs
        self._refreshing: asyncio.Task[None] | None = None  # only where the list may change
        self.choice = ReplicaChoice()
        self.wanted = ""  # the version of weights that each of them must have; empty for any

    @property
    def replicas(self) -> Sequence[Replica]:
        """Those that belong to it now."""
        return tuple(self._replicas.values())

    @property
    def running(self) -> int:
        """How many generations run on all of them, and on those that are to leave."""
        return sum(replica.running for replica in self._all())

    @property
    def services(self) -> list[Service]:
        """What those that are used can do."""
        return [replica.service for replica in self._replicas.values() if replica.service]

    def states(self) -> dict[str, int]:
        """Return how many there are of each kind."""
        serving = len(self.services)
        return {"serving": serving, "away": len(self._replicas) - serving, "leaving": len(self._leaving)}

    def candidates(self, session: Session, *, kin: str = "", avoid: str = "") -> list[Replica]:
        """Return those that are used, the best one for a session first.

        Those that broke something just now come behind the others, and last the one whose URL is to be avoided.
        """
        serving = {url: replica for url, replica in self._replicas.items() if replica.service}
        loads = {url: replica.running for url, replica in serving.items()}
        order = self.choice.order(session.id, loads, kin, parent=session.parent)

        def reasons_against(url: str) -> tuple[bool, ...]:
            replica = serving[url]
            return replica.is_leaving_out, url == avoid, replica.is_suspect

        # `sorted` is stable: within each group the order of `choice` stays. `avoid` weighs more than being suspect.
        return [serving[url] for url in sorted(order, key=reasons_against)]

    async def inspect(self) -> None:
        """Find out which servers there are, and what they can do, until the first one can be used.

        The others have `OTHERS_SECONDS` more. One that needs longer is used as soon as it answers, like one that comes
        back. Raises `EngineConfigurationError` where one that is named in ENGINE_URL itself, or each of the others, can
        never be used; `EngineUnavailable` where none can be now.
        """
        for url in await self._servers.read():
            if url not in self._replicas:
                self._replicas[url] = self._new(url)
        tasks = {asyncio.create_task(each.inspect(), name=f"inspect {each}"): each for each in self.replicas}
        try:
            late = await _late_ones(tasks)
            # Only of those that are done: `exception()` of the others would raise.
            self._take_answers({replica: task for task, replica in tasks.items() if task not in late})
        # Those that are late are cancelled as well; their watchers inspect them again.
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in late:
            tasks[task].lose(f"{tasks[task]} takes longer than others to say what it can do")

    def _take_answers(self, answers: Mapping[Replica, asyncio.Task[Service]]) -> None:
        """Use those that can be used, if there is one, and lose the others. Raises as `inspect` does."""
        problems = {replica: problem for replica, task in answers.items() if (problem := task.exception())}
        for problem in problems.values():
            # A list of URLs that an operator wrote has to be right as a whole; one that changes may have strangers in
            # it.
            if not isinstance(problem, EngineUnavailable if not self._servers.changes else EngineError):
                raise problem
        if len(problems) == len(answers):
            every = list(problems.values())
            # One that may come back counts more than one that never can: then it is worth trying again.
            raise next((each for each in every if isinstance(each, EngineUnavailable)), every[0])
        for replica, task in answers.items():
            if replica in problems:
                replica.lose(str(problems[replica]))
            else:
                replica.use(task.result())

    def watch(self) -> None:
        """Look after them from now on."""
        for url, replica in self._replicas.items():
            self._watch(url, replica)
        if self._servers.changes:
            self._refreshing = asyncio.create_task(self._keep_refreshing(), name="look for vLLM servers")

    async def aclose(self, error: EngineError) -> None:
        """End what runs with `error`, and look after nothing any more."""
        tasks = [*self._tasks.values(), *([self._refreshing] if self._refreshing else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for replica in self._all():
            replica.client.end_streams(error)

    def _all(self) -> Iterable[Replica]:
        return (*self._replicas.values(), *self._leaving.values())

    def _new(self, url: str) -> Replica:
        others = self._replicas.values()  # a view: whoever belongs to the pool when it is looked at
        replica = self._make(url, others)
        replica.wanted = self.wanted
        return replica

    def want(self, version: str) -> None:
        """Use only those whose weights have this version, from their next look on; empty: whichever they have."""
        self.wanted = version
        for replica in self._replicas.values():
            replica.wanted = version

    def _watch(self, url: str, replica: Replica) -> None:
        self._tasks[url] = asyncio.create_task(Watcher(replica).run(), name=f"watch {url}")

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            try:
                await self._apply(await self._servers.read())
            except Exception:
                logger.exception("the list of vLLM servers could not be read again")

    async def _apply(self, urls: Iterable[str]) -> None:
        """Let servers come and go."""
        listed = set(urls)
        for url in listed - self._replicas.keys():
            # One that comes back before its generations are done is the same one, with its load and its watcher.
            replica = self._leaving.pop(url, None)
            logger.info("a vLLM server belongs to the pool %s: %s", "again" if replica else "from now on", url)
            self._replicas[url] = replica or self._new(url)
            if replica is None:
                self._watch(url, self._replicas[url])
        for url in self._replicas.keys() - listed:
            self._leaving[url] = self._replicas.pop(url)
            logger.info("a vLLM server gets no new generations, %d run there: %s", self._leaving[url].running, url)
        # A list of its own: the dictionary changes in the loop.
        for url in [url for url, replica in self._leaving.items() if not replica.running]:
            del self._leaving[url]
            task = self._tasks.pop(url)
            task.cancel()
            # Waited for: a watcher that still looks would use a server that is gone.
            await asyncio.wait([task])


async def _late_ones(tasks: Iterable[asyncio.Task[Service]]) -> Collection[asyncio.Task[Service]]:
    """Wait for the first answer that is a good one, and then a little for the others; return those that are missing."""
    # A server that fails at once ends no waiting: the next one may do.
    waiting, good = set(tasks), False
    while waiting and not good:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        good = any(task.exception() is None for task in done)
    if waiting:
        _, waiting = await asyncio.wait(waiting, timeout=OTHERS_SECONDS)
    return waiting
