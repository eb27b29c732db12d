"""`ResumableStreams`: the streams that can be picked up again, bounded in number, bytes and time.

A stream is a stored run with its kept journal, from its start until RESPONSES_SESSION_TTL behind its last event or
reader.
At a bound the longest idle finished stream goes first, then the longest unread foreground one, whose run is cancelled;
never one that is read, and never a durable run.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from responses_app.runs.driving.run import Run
from responses_app.runs.plan.settings import RunSettings

logger = logging.getLogger("respsite.runs")

RUN_BYTES = 20 * 1024  # of a run that is let go, beside its events and its log
SWEEP_SECONDS = 1.0  # the times of streams are kept to about a second


@dataclass(slots=True)
class _Stream:
    run: Run  # whose journal is kept
    idle_since: float  # when it last had an event or a reader
    last_number: int = -1  # of its journal, at the last sweep


class ResumableStreams:
    """The streams of this process. `cancel` ends a run that is given up."""

    def __init__(self, settings: RunSettings, *, cancel: Callable[[Run], None]) -> None:
        self._settings = settings
        self._cancel = cancel
        self._streams: dict[str, _Stream] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def kept_bytes(self) -> int:
        """The memory that all of them take."""
        return sum(size_of(stream.run) for stream in self._streams.values())

    def keep(self, run: Run) -> None:
        """Keep the stream of a run that begins; without room for it, it cannot be picked up again."""
        self._streams[run.response_id] = _Stream(run, asyncio.get_running_loop().time())
        excess = len(self._streams) - self._settings.responses_max_active_sessions
        if excess > 0 and not self._make_room(excess, beside=run):
            self.drop(run.response_id)
        self._schedule()

    def get(self, response_id: str) -> Run | None:
        """Return a run whose stream is kept."""
        stream = self._streams.get(response_id)
        return stream.run if stream else None

    def left(self, run: Run) -> None:
        """A reader has left: the time to live begins anew."""
        if run.response_id in self._streams:
            self._streams[run.response_id].idle_since = asyncio.get_running_loop().time()

    def close(self) -> None:
        """Forget all."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._streams.clear()

    def sweep(self) -> None:
        """Forget what is past its time, and what is over the bound of bytes."""
        now = asyncio.get_running_loop().time()
        # A copy: `drop` takes streams out.
        for response_id, stream in list(self._streams.items()):
            journal = stream.run.journal
            if journal.readers or journal.last_number != stream.last_number:
                stream.idle_since, stream.last_number = now, journal.last_number
            elif journal.closed:
                # What its events were made of is not kept: it may be a hundred times as much.
                stream.run.let_go()
                journal.pack()
                if now - stream.idle_since >= self._settings.responses_session_ttl:
                    self.drop(response_id)
        # Only what nobody reads can go, so more than the bound may stay.
        excess = self.kept_bytes - self._settings.responses_max_session_bytes
        if excess > 0:
            finished, running = self._unread()
            for stream in [*finished, *running]:
                if excess <= 0:
                    break
                excess -= size_of(stream.run)
                self._give_up(stream.run)

    def _make_room(self, excess: int, *, beside: Run) -> bool:
        """Forget `excess` streams; return whether that could be done without the one of `beside`.

        Some more finished ones go at once, so that not every new stream has to look through all.
        """
        finished, running = self._unread()
        running = [stream for stream in running if stream.run is not beside]
        for stream in finished[: excess + self._settings.responses_max_active_sessions // 20]:
            self._give_up(stream.run)
        # Running ones only as far as the finished ones do not suffice, and never more than needed: each is cancelled.
        for stream in running[: max(0, excess - len(finished))]:
            self._give_up(stream.run)
        return len(finished) + len(running) >= excess

    def _unread(self) -> tuple[list[_Stream], list[_Stream]]:
        """Return the finished and the running foreground streams that nobody reads, the longest idle ones first."""
        unread = [stream for stream in self._streams.values() if not stream.run.journal.readers]
        unread.sort(key=lambda stream: stream.idle_since)
        finished = [stream for stream in unread if stream.run.journal.closed]
        running = [s for s in unread if not s.run.journal.closed and not s.run.plan.durable]
        return finished, running

    def _give_up(self, run: Run) -> None:
        if not run.journal.closed:
            logger.warning("response %s: its unread stream was given up, to make room for others", run.response_id)
            self._cancel(run)
        self.drop(run.response_id)

    def drop(self, response_id: str) -> None:
        """Forget a stream: it cannot be picked up any more."""
        stream = self._streams.pop(response_id, None)
        if stream:
            stream.run.journal.keep_no_longer()

    def _schedule(self) -> None:
        if self._timer is None and self._streams:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.sweep()
        self._schedule()


def size_of(run: Run) -> int:
    """Return about how much memory a run takes once it is let go, in bytes."""
    log = 0 if run.log is None else run.log.size
    return RUN_BYTES + 2 * log + run.journal.kept_bytes  # its machine has the tokens of the log again
