"""`ReplicaPool`: the vLLM servers behind one engine: which there are, which are used, and which is asked first.

Servers come and go where ENGINE_URL says so (`server_lists`): a new one is inspected before it is used; one that is
not named any more gets no new generations, and is forgotten once those it has are done.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from engine.backends.vllm.replica import Replica, Service
from engine.backends.vllm.replica_choice import ReplicaChoice
from engine.backends.vllm.server_lists import ServerList
from engine.backends.vllm.watch import Watcher
from engine.errors import EngineError, EngineUnavailable

logger = logging.getLogger("respsite.engine")

OTHERS_SECONDS = 1.0  # that a start waits for the other servers, once one of them can be used


class ReplicaPool:
    """The servers of `servers`, each made by `make` from its URL; read again every `refresh_seconds`."""

    def __init__(self, servers: ServerList, make: Callable[[str], Replica], *, refresh_seconds: float) -> None:
        self._servers = servers
        self._make = make
        self._refresh_seconds = refresh_seconds
        self._replicas: dict[str, Replica] = {}
        self._leaving: dict[str, Replica] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}  # that watch servers, by their URLs
        self._refreshing: asyncio.Task[None] | None = None
        self.choice = ReplicaChoice()

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

    def candidates(self, affinity: str, *, avoid: str = "") -> list[Replica]:
        """Return those that are used, the best one for a chain first.

        Those that broke something just now come behind the others, and last the one whose URL is to be avoided.
        """
        serving = {url: replica for url, replica in self._replicas.items() if replica.service}
        order = self.choice.order(affinity, {url: replica.running for url, replica in serving.items()})
        return [serving[url] for url in sorted(order, key=lambda url: (url == avoid, serving[url].is_suspect))]

    def others_serve(self, replica: Replica) -> bool:
        """Whether there is another one that is used."""
        return any(each.service for each in self._replicas.values() if each is not replica)

    async def inspect(self) -> None:
        """Find out which servers there are, and what they can do, until the first one can be used.

        The others have `OTHERS_SECONDS` more. One that needs longer is used as soon as it answers, like one that comes
        back. Raises `EngineConfigurationError` where one that is named in ENGINE_URL itself, or each of the others, can
        never be used; `EngineUnavailable` where none can be now.
        """
        for url in await self._servers.read():
            if url not in self._replicas:
                self._replicas[url] = self._make(url)
        asked = {asyncio.create_task(each.inspect(), name=f"inspect {each}"): each for each in self.replicas}
        try:
            late = await _late_ones(asked)
            self._take_answers({replica: task for task, replica in asked.items() if task not in late})
        finally:
            for task in asked:
                task.cancel()
            await asyncio.wait(asked)
        for task in late:
            asked[task].lose(f"{asked[task]} takes longer than others to say what it can do")

    def _take_answers(self, answers: Mapping[Replica, asyncio.Task[Service]]) -> None:
        """Use those that can be used, if there is one, and lose the others. Raises as `inspect` does."""
        problems = {replica: problem for replica, task in answers.items() if (problem := task.exception())}
        for problem in problems.values():
            if not isinstance(problem, EngineUnavailable if not self._servers.changes else EngineError):
                raise problem
        if len(problems) == len(answers):
            found = list(problems.values())
            raise next((each for each in found if isinstance(each, EngineUnavailable)), found[0])
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
        wanted = set(urls)
        for url in wanted - self._replicas.keys():
            replica = self._leaving.pop(url, None)
            logger.info("a vLLM server belongs to the pool %s: %s", "again" if replica else "from now on", url)
            self._replicas[url] = replica or self._make(url)
            if replica is None:
                self._watch(url, self._replicas[url])
        for url in self._replicas.keys() - wanted:
            self._leaving[url] = self._replicas.pop(url)
            logger.info("a vLLM server gets no new generations, %d run there: %s", self._leaving[url].running, url)
        for url in [url for url, replica in self._leaving.items() if not replica.running]:
            del self._leaving[url]
            task = self._tasks.pop(url)
            task.cancel()
            await asyncio.wait([task])


async def _late_ones(asked: Iterable[asyncio.Task[Service]]) -> Collection[asyncio.Task[Service]]:
    """Wait for the first answer that is a good one, and then a little for the others; return those that are missing."""
    waiting, good = set(asked), False
    while waiting and not good:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        good = any(task.exception() is None for task in done)
    if waiting:
        _, waiting = await asyncio.wait(waiting, timeout=OTHERS_SECONDS)
    return waiting
