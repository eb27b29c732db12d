"""`Replica`: an engine as a fluid: prompts are computed one behind the other, outputs all at once.

A step of the engine decodes one token of each request that runs, and computes up to `CHUNK` tokens of a prompt. It
takes `BASE` seconds, `EACH` more for each request and 1/`PREFILL` more for each token of the prompt. Between two events
the steps are alike, so none of them is made: they are counted. Not modelled: that attention over a long context costs
more, and preemption (a request holds the blocks of its output from the beginning).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from bench.routing.cache import Part, PrefixCache

BLOCK = 16  # tokens
PREFILL = 20_000  # tokens a second
CHUNK = 2_048  # tokens of a prompt that a step computes
BASE, EACH = 0.006, 0.000_1  # seconds of a step, and of each request in it
LOAD = 400_000  # tokens a second that come from the host's memory: 50 KB each at 20 GB/s
MAX_RUNNING = 64  # requests
SLIVER = 1e-6


@dataclass(slots=True)
class Request:
    """One generation on a replica."""

    session: str  # whose turn it is
    parent: str  # whose sub-agent that is; "": nobody's
    parts: Sequence[Part]  # what it holds: a shared beginning, and its own blocks, with those of its output
    prompt: int  # tokens
    output: int  # tokens
    known: int  # of the prompt's tokens: what an endless cache would have
    asked: float = 0.0  # when
    cached: int = 0  # of the prompt's tokens: what was found here

    def found(self, blocks: Sequence[int]) -> int:
        """Return how many tokens are found where so many blocks of each part are there."""
        total = 0
        for (_, whole), here in zip(self.parts, blocks, strict=True):
            total += min(whole, here)
            if here < whole:
                break
        # At least one token is computed, and only whole blocks are kept.
        return min(total, (self.prompt - 1) // BLOCK) * BLOCK


@dataclass(slots=True)
class _Reading:
    """A prompt that is being computed, or waits for that."""

    left: float  # tokens
    request: Request


class Replica:
    """One engine; `time` is when it was looked at last."""

    def __init__(self, blocks: int, host_blocks: int = 0, *, keeps: bool = False) -> None:
        self.cache = PrefixCache(blocks, keeps=keeps)
        self.host = PrefixCache(host_blocks) if host_blocks else None
        self.waiting: deque[Request] = deque()
        self.time = 0.0
        self._steps = 0.0
        self._reading: deque[_Reading] = deque()
        self._writing: list[tuple[float, int, Request]] = []  # by the step at which they end
        self._count = 0

    @property
    def running(self) -> int:
        """How many requests hold blocks."""
        return len(self._reading) + len(self._writing)

    def ask(self, request: Request, now: float) -> None:
        """Have a request wait for its turn."""
        request.asked = now
        self.waiting.append(request)
        self._admit(now)

    def next_event(self) -> float:
        """Return when something happens next."""
        step, until = self._step(), float("inf")
        if self._writing:
            until = max(0.0, self._writing[0][0] - self._steps) * step
        if self._reading:
            until = min(until, self._reading[0].left / CHUNK * step)
        return self.time + until

    def advance(self, now: float) -> tuple[list[Request], list[Request]]:
        """Let time pass, at most until the next event; return who has read its prompt, and who is done."""
        steps = (now - self.time) / self._step()
        self.time, begun, done = now, list[Request](), list[Request]()
        self._steps += steps
        if self._reading:
            self._reading[0].left -= steps * CHUNK
            if self._reading[0].left <= SLIVER:
                request = self._reading.popleft().request
                self._count += 1
                heappush(self._writing, (self._steps + request.output, self._count, request))
                begun.append(request)
        while self._writing and self._writing[0][0] <= self._steps + SLIVER:
            done.append(heappop(self._writing)[2])
        return begun, done

    def end(self, request: Request, *, away: float, over: bool) -> None:
        """Let go of what a request holds; the hints are for the cache."""
        self.cache.give_back(request.parts, self.time, away=away, over=over)
        if self.host is not None:
            for part in request.parts:
                self.host.keep(part, self.time)
        self._admit(self.time)

    def _step(self) -> float:
        reads = CHUNK / PREFILL if self._reading else 0.0
        return BASE + EACH * self.running + reads

    def _admit(self, now: float) -> None:
        while self.waiting and self.running < MAX_RUNNING:
            request = self.waiting[0]
            here = [self.cache.has(name) for name, _ in request.parts]
            if not self.cache.take(request.parts, now):
                return
            self.waiting.popleft()
            request.cached = at_once = request.found(here)
            if self.host is not None:
                there = [self.host.has(name) for name, _ in request.parts]
                request.cached = request.found(list(map(max, here, there)))
            loaded = (request.cached - at_once) * PREFILL / LOAD  # in tokens that could be computed meanwhile
            self._reading.append(_Reading(request.prompt - request.cached + loaded, request))
