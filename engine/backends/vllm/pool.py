"""The vLLM servers behind one engine: which there are, which are used, and which of them a generation goes to.

`ReplicaPool`: servers come and go where ENGINE_URL says so (`server_lists`): a new one is inspected before it is used;
one that is not named any more gets no new generations, and is forgotten once those it has are done.

`Watcher` looks at one server for as long as it belongs to the pool: whether it is there, and whether it is back. One
that is used is asked for `/health` every `look` seconds, and at once when a generation on it broke. It is used no
more when it says that it is not well, when it cannot be reached, or when it hangs: when it leaves MISSED_LOOKS looks in
a row without an answer, and sends no byte of any generation meanwhile (a busy one may answer late, but it works). Then
what runs on it is ended, so that it goes on on another server, as soon as another one is used.

Example with a look a second: a server is stopped (SIGSTOP) at 10.4. The looks at 11 and at 12 have no answer after a
second each; at 13 what ran there is ended, and its runs go on on another server.

`ReplicaChoice` says which of several replicas a generation goes to. Pure: it knows loads, and where sessions were. A
load is how many generations run on a replica. A session is best off where its beginning lies in the prefix cache; a new
one where least is going on. Four rules, in this order:

1. A session that is known goes to its home, the replica that had it last: while that has at most `KEPT` times the mean
   load, or at most `SLACK` more than the least loaded one.
2. A session whose home turned out not to have its beginning (of the tokens of its prompt before, less than the share
   `HIT` came from the cache) has little to lose: it stays only while its home has at most `BOUND` times the mean load,
   and goes to the least loaded replica else. It does not go at once: where caches are too small for all sessions, those
   that wander leave copies behind, which push out what others come back for (`bench/routing` shows how much).
3. A new session that has kin, others that begin as it does, goes where one of them was asked last; else one that has a
   parent, with whose prompt it may begin, goes to that one's home: while that has at most `SLACK` more than the least
   loaded one, to which it goes else.
4. Any other new session goes to the first replica in its own order that has at most `BOUND` times the mean load. The
   order is that of rendezvous hashing (Thaler and Ravishankar, 1998), the bound that of "Consistent Hashing with
   Bounded Loads" (Mirrokni, Thorup and Zadimoghaddam, 2016), under which no replica ever gets more.

Example: of 3 replicas, A has 4 generations, B and C have 1 each. With one more the mean is 7/3, so a new session may go
to one with up to 2 (1.25 · 7/3, rounded up to 3, less the new one): never to A. A session whose home is A stays there:
5 is more than 1.5 · 7/3, but not more than 1 + 8.

Kin choose by the order of what they share. 8 attempts at one task that come at once to idle replicas all go to one, so
their prompt is computed there once. Of 200 that one has the first 8, then another one has the next, and so on: the
prompt is computed once on each replica, and none has much more to do than the others.

Workers do not talk about this. Each balances what it asks for itself; a session that comes to another worker finds the
same replica by rule 4 where loads allow it, and by rule 1 from then on.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

from engine.backends.client import OutOfReach
from engine.backends.vllm.replica import Replica, ReplicaService
from engine.backends.vllm.server_lists import ServerList
from engine.errors import EngineError, EngineUnavailable
from engine.types import Session

BOUND = 1.25  # times the mean load: what a new session may find at its replica, and one that lost its beginning at home
KEPT = 1.5  # times the mean load: what a known session may find at its home
SLACK = 8  # generations more than the least loaded has: the same
HIT = 0.25  # of a prompt before: the share that came from the cache where its beginning was still there
MAX_SESSIONS = 20_000  # that are remembered: some 5 MB


@dataclass(slots=True)
class _Home:
    """Where a session was last."""

    replica: str
    prompt_tokens: int = 0  # of its last prompt there
    hit: bool = True  # the beginning of that prompt was in the cache


class ReplicaChoice:
    """Chooses among the replicas of one pool, which it knows by their URLs."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, _Home] = OrderedDict()  # by the sessions' ids, the least recently used first
        self._kin: OrderedDict[str, _Home] = OrderedDict()  # where one of several that begin alike was asked last

    def __len__(self) -> int:
        return len(self._homes)

    def order(self, session: str, loads: Mapping[str, int], kin: str = "", *, parent: str = "") -> list[str]:
        """Return the replicas that have a load, the best one for a session first; "" is none."""
        # `ranked`, then stable sorting by load: among replicas with the same load the session's own order decides, or
        # that of its kin.
        ranked = sorted(loads, key=lambda replica: _score(replica, kin or session), reverse=True)
        by_load = sorted(ranked, key=lambda replica: loads[replica])
        like = self._kin.get(kin) or self._homes.get(parent)
        first = self._first(self._homes.get(session), like, loads, ranked, by_load) if session and loads else None
        return by_load if first is None else [first, *(each for each in by_load if each != first)]

    def _first(
        self, home: _Home | None, like: _Home | None, loads: Mapping[str, int], ranked: list[str], by_load: list[str]
    ) -> str:
        """Return the best one for a session with this home; at the home of `like` lies what may be its beginning."""
        # `+ 1`: with the generation that is about to come.
        mean, least = (sum(loads.values()) + 1) / len(loads), loads[by_load[0]]
        if home is None and like is not None and like.replica in loads:
            # One prompt is soon computed: not worth what a whole session is, of which a replica may have much more.
            return like.replica if loads[like.replica] + 1 <= least + SLACK else by_load[0]
        if home is not None and home.replica in loads:
            kept = max(ceil(KEPT * mean), least + SLACK) if home.hit else ceil(BOUND * mean)
            if loads[home.replica] + 1 <= kept:
                return home.replica
            if not home.hit:
                return by_load[0]
        # By `BOUND`. There always is one: not every replica can be above the mean.
        return next(replica for replica in ranked if loads[replica] + 1 <= ceil(BOUND * mean))

    def place(self, session: str, replica: str) -> None:
        """Note that a replica reads a session's prompt, and so has it in its cache."""
        _remember(self._homes, session, replica)

    def follow(self, kin: str, replica: str) -> None:
        """Note that a replica is asked by one of several that begin alike, so that the next one follows it.

        Before it has read the prompt: those that come meanwhile shall wait there for what it computes, and not have it
        computed elsewhere, too.
        """
        _remember(self._kin, kin, replica)

    def forget(self, session: str) -> bool:
        """Forget a session that is over; return whether it was known."""
        return self._homes.pop(session, None) is not None

    def measure(self, session: str, replica: str, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Note how many of a prompt's tokens came from the cache; None: the replica does not tell."""
        home = self._homes.get(session)
        # It has moved meanwhile: another generation of the session runs elsewhere.
        if home is None or home.replica != replica:
            return
        before = home.prompt_tokens
        # A much shorter prompt says nothing about the long one: coding agents have small things done in a session
        # beside it, such as a title. Where more of these follow, the long one has been cut back.
        if 2 * prompt_tokens < before:
            home.prompt_tokens = before // 2
            return
        home.prompt_tokens = prompt_tokens
        # Of the shorter of the two prompts: a session that was cut back cannot have more in common than it has.
        home.hit = cached_tokens is None or cached_tokens >= HIT * min(before, prompt_tokens)


def _remember(homes: OrderedDict[str, _Home], name: str, replica: str) -> None:
    """Note where something is at home; "" is nothing."""
    if not name:
        return
    home = homes.get(name)
    # A home that stays the same keeps its figures (`prompt_tokens`, `hit`).
    if home is None or home.replica != replica:
        homes[name] = _Home(replica)
    homes.move_to_end(name)
    if len(homes) > MAX_SESSIONS:
        homes.popitem(last=False)


def _score(replica: str, name: str) -> bytes:
    # `surrogatepass`: a group comes from a client, and may have half a character in it.
    return blake2b(f"{replica} {name}".encode(errors="surrogatepass"), digest_size=8).digest()


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
        self, servers: ServerList, make: Callable[[str, Collection[Replica]], Replica], *, refresh_seconds: float
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
    def services(self) -> list[ReplicaService]:
        """The services of those that are used."""
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
            # For the first answer that is a good one, and then a little for the others. A server that fails at once
            # ends no waiting: the next one may do.
            late, good = set(tasks), False
            while late and not good:
                done, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
                good = any(task.exception() is None for task in done)
            if late:
                _, late = await asyncio.wait(late, timeout=OTHERS_SECONDS)
            # Only of those that are done: `exception()` of the others would raise.
            self._take_answers({replica: task for task, replica in tasks.items() if task not in late})
        # Those that are late are cancelled as well; their watchers inspect them again.
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in late:
            tasks[task].lose(f"{tasks[task]} takes longer than others to say what it can do")

    def _take_answers(self, answers: Mapping[Replica, asyncio.Task[ReplicaService]]) -> None:
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
