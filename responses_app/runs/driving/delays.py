"""`DelayedTexts`: text that is held back for a while, so that fewer and longer deltas are made of it (STREAM_DELTA_MS).

It stands before the machine, which knows no clock: what is held back has not happened yet, for readers and for the log.
Only text of an item whose text has begun is held back; whatever begins or ends something takes along what waits, in
its place. So between two deltas of a response are at least `seconds`, but for those next to an item's edges. Example
with 0.1 s, and a token every 0.04 s:

    token at        0.00   0.04   0.08        0.12   0.16   0.20 (the last)
    told at         0.00                0.10                0.20
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from responses_app.protocol.response.commands import Command
from responses_app.protocol.response.inputs import Sampled

Tell = Callable[[Sampled], Command | None]  # what was sampled → what is to be done next


@contextmanager
def delayed(tell: Tell, only_adds: Callable[[Sequence[int]], bool], *, seconds: float) -> Iterator[Tell]:
    """Give what is to be told of a turn's chunks in the place of `tell`; what waits at the end is told then.

    `only_adds` says whether tokens are nothing but more text of an item that grows.
    """
    if not seconds:
        yield tell
        return
    texts = DelayedTexts(seconds, tell, only_adds)
    try:
        yield texts.take
    finally:
        texts.flush()


class DelayedTexts:
    """The text of one turn that waits."""

    def __init__(self, seconds: float, tell: Tell, only_adds: Callable[[Sequence[int]], bool]) -> None:
        self._seconds = seconds
        self._tell = tell
        self._only_adds = only_adds
        self._loop = asyncio.get_running_loop()
        self._waiting: Sampled | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._told_at = -seconds
        self._problem: Exception | None = None  # of the timer, for whoever comes next

    def take(self, sampled: Sampled) -> Command | None:
        """Take what was sampled, tell it now or later, and return what is to be done next."""
        if self._problem is not None or not _can_be_one(self._waiting, sampled):
            self.flush()
        whole = sampled if self._waiting is None else _joined(self._waiting, sampled)
        due = self._told_at + self._seconds
        if sampled.finish is None and self._loop.time() < due and self._only_adds(sampled.token_ids):
            self._waiting = whole
            if self._timer is None:
                self._timer = self._loop.call_at(due, self._ring)
            return None
        self._waiting = None
        return self._tell_now(whole)

    def _ring(self) -> None:
        self._timer = None
        try:
            self.flush()
        except Exception as problem:  # noqa: BLE001 - it is the run's, which gets it with what comes next
            self._problem = problem

    def flush(self) -> None:
        """Tell what waits."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            command = self._tell_now(waiting)
            assert command is None, "more text of an item asks for nothing"

    def _tell_now(self, sampled: Sampled) -> Command | None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._told_at = self._loop.time()
        return self._tell(sampled)


def _can_be_one(first: Sampled | None, then: Sampled) -> bool:
    return first is None or (first.logprobs is None) == (then.logprobs is None)


def _joined(first: Sampled, then: Sampled) -> Sampled:
    """Return what was sampled in two chunks as one; both have log probabilities, or neither."""
    logprobs = None if first.logprobs is None else [*first.logprobs, *(then.logprobs or ())]
    cached = then.cached_tokens if first.cached_tokens is None else first.cached_tokens
    tokens = [*first.token_ids, *then.token_ids]
    return replace(then, token_ids=tokens, cached_tokens=cached, logprobs=logprobs)
