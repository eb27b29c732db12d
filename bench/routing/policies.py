"""Who says which replica a request goes to."""

import random
from collections.abc import Mapping
from typing import Protocol
from zlib import crc32

from bench.routing.replica import Request
from engine.backends.vllm.pool import ReplicaChoice

ELSEWHERE = 0.1  # of all turns


class Policy(Protocol):
    """Routes, and is told what came of it, as the pool is (`VllmServerEngine._sample`)."""

    def choose(self, request: Request, loads: Mapping[str, int]) -> str:
        """Return where a request goes; a load is how many requests a replica has."""

    def begun(self, request: Request, replica: str) -> None:
        """It has read its prompt."""

    def done(self, request: Request, replica: str) -> None:
        """It has ended."""


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._asked = 0

    def choose(self, request: Request, loads: Mapping[str, int]) -> str:
        self._asked += 1
        return list(loads)[self._asked % len(loads)]

    def begun(self, request: Request, replica: str) -> None:
        """Not needed."""

    def done(self, request: Request, replica: str) -> None:
        """Not needed."""


class LeastLoaded(RoundRobin):
    """Where least is going on; of several the next one."""

    def choose(self, request: Request, loads: Mapping[str, int]) -> str:
        """Return one that has least to do."""
        self._asked += 1
        names = list(loads)
        turned = names[self._asked % len(names) :] + names[: self._asked % len(names)]
        return min(turned, key=loads.__getitem__)


class Ours:
    """The pool's own choice. Of several workers each has its own, and knows only what it asks for itself.

    A session stays with one worker, as its connection does; one in ten of its turns comes to another one.
    """

    def __init__(self, workers: int = 1) -> None:
        self.choices = [ReplicaChoice() for _ in range(workers)]
        self._chance = random.Random(workers)
        self._loads: list[dict[str, int]] = [{} for _ in range(workers)]
        self._workers: dict[int, int] = {}  # by `id` of a request

    def choose(self, request: Request, loads: Mapping[str, int]) -> str:
        worker = crc32(request.session.encode()) % len(self.choices)
        if self._chance.random() < ELSEWHERE:
            worker = self._chance.randrange(len(self.choices))
        own = self._loads[worker]
        for replica in loads:
            own.setdefault(replica, 0)
        chosen = self.choices[worker].order(request.session, own, parent=request.parent)[0]
        own[chosen] += 1
        self._workers[id(request)] = worker
        return chosen

    def begun(self, request: Request, replica: str) -> None:
        """Tell it what is in a cache now."""
        self.choices[self._workers[id(request)]].place(request.session, replica)

    def done(self, request: Request, replica: str) -> None:
        """Tell it what was found."""
        worker = self._workers.pop(id(request))
        self._loads[worker][replica] -= 1
        self.choices[worker].measure(request.session, replica, request.prompt, request.cached)
