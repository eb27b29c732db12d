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
        while len(self._sessions) > self._limits.max_sessions and self._evict(but=run):  # its reader is yet to come
            pass
        if len(self._sessions) > self._limits.max_sessions:
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
        while excess > 0 and (freed := self._evict()):
            excess -= freed

    def _evict(self, *, but: ResponseRun | None = None) -> int:
        """Forget the session that is missed least, not that of `but`; return the bytes that frees, 0 if none may go."""
        unread = [s for s in self._sessions.values() if not s.run.journal.readers and s.run is not but]
        finished = [session for session in unread if session.run.journal.closed]
        foreground = [s for s in unread if not s.run.journal.closed and not s.run.plan.background]
        candidates = finished or foreground
        if not candidates:
            return 0
        run = min(candidates, key=lambda session: session.idle_since).run
        freed = run.journal.kept_bytes
        if not run.journal.closed:
            logger.warning("response %s: its unread stream was given up, to make room for others", run.response_id)
            self._cancel(run)
        self._forget(run.response_id)
        return max(1, freed)

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
