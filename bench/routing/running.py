"""`Simulation`: so many agents at once, for so long, on so many replicas, by one policy."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from statistics import mean, median

from bench.routing.policies import Policy
from bench.routing.replica import BLOCK, Replica, Request
from bench.routing.traces import Session, session
from engine.types import Session as Named
from responses_app.runs.plan.served import ToolWaits


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated."""

    replicas: int = 4
    blocks: int = 65_536  # of each replica
    host_blocks: int = 0  # of each replica, in the host's memory
    agents: int = 64  # sessions at once; another one begins when one ends
    warm_up: float = 900.0  # seconds, not counted
    seconds: float = 2_400.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Hints:
    """What the engines are told, and understand."""

    over: bool = False  # with a session's last turn: its blocks go first
    waits: bool = False  # with each turn: within how many seconds the next one comes, as the server tells it
    keep: bool = False  # and blocks are kept for so long; else those go first that are away for longest


NO_HINTS = Hints()


@dataclass(slots=True)
class Outcome:
    """What came of it, the warm-up left out."""

    turns: int = 0  # that were done
    prompts: int = 0  # tokens of all prompts
    known: int = 0  # tokens that an endless cache would have had
    cached: int = 0  # tokens that were found
    firsts: list[float] = field(default_factory=list)  # seconds until the first token of each turn
    by_replica: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # turns
    living: list[int] = field(default_factory=list)  # at the end of each turn: tokens of all sessions that go on

    def add(self, request: Request, replica: str, living: int) -> None:
        """Count a turn that is done."""
        self.living.append(living)
        self.turns += 1
        self.prompts += request.prompt
        self.known += request.known
        self.cached += request.cached
        self.by_replica[replica] += 1

    @property
    def share(self) -> float:
        """How much was found of what an endless cache would have had."""
        return self.cached / self.known

    @property
    def twice(self) -> int:
        """Tokens that were computed although they had been before."""
        return self.known - self.cached

    @property
    def mean_living(self) -> float:
        """How many tokens had to be kept for every session to find its own again."""
        return mean(self.living)

    @property
    def balance(self) -> float:
        """How many turns the busiest replica had, in means."""
        return max(self.by_replica.values()) / mean(self.by_replica.values())

    @property
    def first(self) -> float:
        """The time to the first token, in the median."""
        return median(self.firsts)

    @property
    def late_first(self) -> float:
        """The same, at the 95th percentile."""
        return sorted(self.firsts)[len(self.firsts) * 95 // 100]


@dataclass(slots=True)
class _Chain:
    """A session that is being run."""

    session: Session
    slot: int  # which agent runs it
    number: int = 0  # of the sessions of that agent
    parent: "_Chain | None" = None
    turn: int = -1
    tokens: int = 0  # of its last prompt, with the output behind it
    life: int = 0  # how often its prompt began anew
    agents: int = 0  # that it waits for
    away: float = 0.0  # the hint of its last request: within so many seconds its next one comes


class Simulation:
    """One run."""

    def __init__(self, setup: Setup, policy: Policy, *, hints: Hints = NO_HINTS, names: Sequence[str] = ()) -> None:
        self._setup, self._policy = setup, policy
        self._hints = hints
        self._waits = ToolWaits() if hints.waits else None
        names = names or [f"http://gpu-{number}:8001" for number in range(setup.replicas)]
        self._replicas = {name: Replica(setup.blocks, setup.host_blocks, keeps=hints.keep) for name in names}
        self._loads = dict.fromkeys(names, 0)
        self._alarms = dict.fromkeys(names, 0)  # which of the events that were planned for a replica is the valid one
        self._running: dict[int, tuple[_Chain, Request]] = {}  # by `id` of the request
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._now = 0.0
        self._living = 0  # tokens of all sessions that go on, without the beginnings that they share
        self._computed: set[str] = set()  # shared beginnings that some replica has computed
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Let the time pass."""
        for slot in range(self._setup.agents):
            self._at(random.Random(slot).random() * 60, partial(self._begin, slot, 0))
        end = self._setup.warm_up + self._setup.seconds
        while self._events[0][0] <= end:
            self._now, _, happen = heappop(self._events)
            happen()
        return self.outcome

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self._count += 1  # of two at the same time the first one that was planned
        heappush(self._events, (time, self._count, happen))

    def _begin(self, slot: int, number: int) -> None:
        self._ask(_Chain(session(f"{self._setup.seed}-{slot}-{number}"), slot, number))

    def _ask(self, chain: _Chain) -> None:
        """Have the next turn of a chain generated."""
        self._forget(chain)
        chain.away = self._come_back(chain)
        chain.turn += 1
        made, turn = chain.session, chain.session.turns[chain.turn]
        if turn.anew or not chain.turn:
            chain.life += 1
            known = made.shared_tokens if made.shared in self._computed else 0
            chain.tokens = made.shared_tokens
        else:
            known = chain.tokens - 1  # the last token was said, and never read
        self._computed.add(made.shared)
        prompt = chain.tokens + turn.added
        chain.tokens = prompt + turn.output
        self._living += chain.tokens - made.shared_tokens
        shared = made.shared_tokens // BLOCK
        parts = ((made.shared, shared), (f"{made.name} {chain.life}", (chain.tokens - 1) // BLOCK - shared))
        parent = chain.parent.session.name if chain.parent else ""
        request = Request(made.name, parent, parts, prompt, turn.output, known // BLOCK * BLOCK)
        name = self._policy.choose(request, self._loads)
        self._loads[name] += 1
        self._running[id(request)] = chain, request
        self._look(name)
        self._replicas[name].ask(request, self._now)
        self._plan(name)

    def _look(self, name: str) -> None:
        """Bring a replica to the present."""
        replica = self._replicas[name]
        begun, done = replica.advance(self._now)
        for request in begun:
            self._policy.begun(request, name)
            if self._now >= self._setup.warm_up:
                self.outcome.firsts.append(self._now - request.asked)
        for request in done:
            self._end(name, *self._running.pop(id(request)))

    def _plan(self, name: str) -> None:
        self._alarms[name] += 1
        self._at(self._replicas[name].next_event(), partial(self._ring, name, self._alarms[name]))

    def _ring(self, name: str, alarm: int) -> None:
        if alarm == self._alarms[name]:
            self._look(name)
            self._plan(name)

    def _end(self, name: str, chain: _Chain, request: Request) -> None:
        """End a turn, and plan what follows it."""
        turn = chain.session.turns[chain.turn]
        self._loads[name] -= 1
        self._policy.done(request, name)
        if self._now >= self._setup.warm_up:
            self.outcome.add(request, name, self._living)
        if turn.tool and self._waits is not None:
            self._waits.leave(Named(id=chain.session.name), "", [turn.tool], self._now)
        self._replicas[name].end(request, away=chain.away, over=self._hints.over and not turn.tool)
        if not turn.tool:
            self._end_chain(chain)
        elif turn.agents:
            chain.agents = len(turn.agents)
            for agent in turn.agents:
                self._at(self._now, partial(self._ask, _Chain(agent, chain.slot, parent=chain)))
        else:
            self._at(self._now + turn.wait, partial(self._ask, chain))

    def _forget(self, chain: _Chain) -> None:
        """Count a chain no longer among those that live."""
        self._living -= chain.tokens - chain.session.shared_tokens if chain.life else 0

    def _end_chain(self, chain: _Chain) -> None:
        self._forget(chain)
        parent = chain.parent
        if parent is None:
            self._at(self._now + 1, partial(self._begin, chain.slot, chain.number + 1))
            return
        parent.agents -= 1
        if not parent.agents:
            self._at(self._now, partial(self._ask, parent))

    def _come_back(self, chain: _Chain) -> float:
        """Return the hint of a request, made as for a real one: of the tools that its session called before."""
        if self._waits is None:
            return 0.0
        return self._waits.come_back(Named(id=chain.session.name), "", self._now) or 0.0
