"""`StreamSessions`: the streams that can be picked up again, bounded in number, bytes and time.

A session is a stored run with its kept journal, from its start until `ttl` seconds after its last event or reader.
At a bound the longest idle finished session goes first, then the longest unread foreground one, whose run is cancelled;
never one that is read, and never a background run.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from responses_app.runs.run import ResponseRun

logger = logging.getLogger("respsite.runs")

SWEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Bounds of one process's sessions; `ttl` in seconds."""

    ttl: float = 600.0
    max_sessions: int = 2000
    max_bytes: int = 256 * 1024 * 1024


@dataclass(slots=True)
class _Session:
    run: ResponseRun
    idle_since: float  # when it last had an event or a reader
    last_number: int = -1


class StreamSessions:
    """The sessions of this process. `cancel` ends a run that is given up."""

    def __init__(self, limits: SessionLimits, *, cancel: Callable[[ResponseRun], None]) -> None:
        self._limits = limits
        self._cancel = cancel
        self._sessions: dict[str, _Session] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def kept_bytes(self) -> int:
        """The memory of all their events."""
        return sum(session.run.journal.kept_bytes for session in self._sessions.values())

    def keep(self, run: ResponseRun) -> None:
        """Begin a session; where there is no room for it, its stream cannot be picked up again."""
        self._sessions[run.response_id] = _Session(run, asyncio.get_running_loop().time())
        excess = len(self._sessions) - self._limits.max_sessions
        if excess > 0 and not self._make_room(excess, beside=run):
            self._forget(run.response_id)
        self._schedule()

    def get(self, response_id: str) -> ResponseRun | None:
        """Return a run whose stream is kept."""
        session = self._sessions.get(response_id)
        return session.run if session else None

    def left(self, run: ResponseRun) -> None:
        """A reader has left: the time to live begins anew."""
        if run.response_id in self._sessions:
            self._sessions[run.response_id].idle_since = asyncio.get_running_loop().time()

    def drop(self, response_id: str) -> None:
        """Forget a session at once: its response was deleted."""
        self._forget(response_id)

    def close(self) -> None:
        """Forget all."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._sessions.clear()

    def sweep(self) -> None:
        """Forget what is past its time, and what is over the bound of bytes."""
        now = asyncio.get_running_loop().time()
        for response_id, session in list(self._sessions.items()):
            journal = session.run.journal
            if journal.readers or journal.last_number != session.last_number:
                session.idle_since, session.last_number = now, journal.last_number
            elif journal.closed and now - session.idle_since >= self._limits.ttl:
                self._forget(response_id)
        excess = self.kept_bytes - self._limits.max_bytes
        if excess > 0:
            finished, running = self._unread()
            for session in [*finished, *running]:
                if excess <= 0:
                    break
                excess -= session.run.journal.kept_bytes
                self._give_up(session.run)

    def _make_room(self, excess: int, *, beside: ResponseRun) -> bool:
        """Forget `excess` sessions; return whether that could be done without the one of `beside`.

        Some more finished ones go at once, so that not every new session has to look through all.
        """
        finished, running = self._unread()
        running = [session for session in running if session.run is not beside]
        for session in finished[: excess + self._limits.max_sessions // 20]:
            self._give_up(session.run)
        for session in running[: max(0, excess - len(finished))]:
            self._give_up(session.run)
        return len(finished) + len(running) >= excess

    def _unread(self) -> tuple[list[_Session], list[_Session]]:
        """Return the finished and the running foreground sessions that nobody reads, the longest idle ones first."""
        unread = [session for session in self._sessions.values() if not session.run.journal.readers]
        unread.sort(key=lambda session: session.idle_since)
        finished = [session for session in unread if session.run.journal.closed]
        running = [s for s in unread if not s.run.journal.closed and not s.run.plan.background]
        return finished, running

    def _give_up(self, run: ResponseRun) -> None:
        if not run.journal.closed:
            logger.warning("response %s: its unread stream was given up, to make room for others", run.response_id)
            self._cancel(run)
        self._forget(run.response_id)

    def _forget(self, response_id: str) -> None:
        session = self._sessions.pop(response_id, None)
        if session:
            session.run.journal.keep_no_longer()

    def _schedule(self) -> None:
        if self._timer is None and self._sessions:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.sweep()
        self._schedule()
