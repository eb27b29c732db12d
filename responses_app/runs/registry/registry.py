"""`RunRegistry`: owns the tasks of all runs of this process.

A transport attaches to a run's journal and detaches; a foreground run that no transport reads any more is cancelled, at
once or after its reconnect grace. So a cancelled request or a closed socket never cancels a run by itself, and no task
outlives the registry.

`ResumableStreams`: the streams that can be picked up again, bounded in number, bytes and time.

A stream is a stored run with its kept journal, from its start until RESPONSES_SESSION_TTL behind its last event or
reader.
At a bound the longest idle finished stream goes first, then the longest unread foreground one, whose run is cancelled;
never one that is read, and never a durable run.

`Forgetting`: what was deleted is unknown at once, wherever it may still be remembered: among what runs or can be picked
up again, in the connections of this process, and in the other workers. It is for speed and tidiness: whether a stored
response can be continued is the store's word in the end (see `ParentGone`).
"""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from responses_app.kit.duty import end_tasks
from responses_app.kit.retention import Retentions
from responses_app.limits.suspects import share
from responses_app.observing.logs import bind
from responses_app.protocol.errors import overloaded, stopping
from responses_app.protocol.events.dialects import OPENAI, Dialect, Scene, no_limits, wording
from responses_app.protocol.response.steps import Failed
from responses_app.runs.driving.run import Run
from responses_app.runs.log.following import FollowedResponse, OtherWorkers
from responses_app.runs.log.journal import EventSource, ResponseReader
from responses_app.runs.plan.failures import window_over
from responses_app.runs.plan.settings import RunSettings
from responses_app.runs.plan.turns import BackgroundQueue
from responses_app.runs.registry.tracing import execute_in_span

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


POLL_SECONDS = 0.02  # between looks at what nobody signals


class RunRegistry:
    """The running responses, and the streams of those that can be picked up again.

    `now` is the clock by which responses are dated, in Unix seconds.
    """

    def __init__(
        self, settings: RunSettings, *, now: Callable[[], float], retentions: Retentions | None = None
    ) -> None:
        self.now = now
        self._retentions = retentions or Retentions()
        self._settings = settings
        self._runs: dict[str, tuple[Run, asyncio.Task[None]]] = {}  # by response id, until their tasks end
        # By response id: when those whose client is gone are cancelled
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._readers: set[ResponseReader] = set()  # those that have not let go
        self._coming = 0  # runs that are being accepted
        self._guests = 0  # places of what is not a response: choices of completions, decisions, embeddings
        self._coming_again: dict[str, Run] = {}  # those of them that another worker has accepted before
        self.draining = False  # the server stops
        self.hurry = asyncio.Event()  # no grace is given, or no more of it
        self.queue = BackgroundQueue(
            max_running=settings.background_max_running,
            max_queued=settings.background_max_queued,
            rollout_share=settings.rollout_share,
        )
        self.resumable = ResumableStreams(
            settings, cancel=lambda run: self.cancel(run, reason="its stream was given up")
        )

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, response_id: str) -> Run | None:
        """Return a response that still runs."""
        known = self._runs.get(response_id)
        return known[0] if known and not known[0].journal.closed else None

    def find(self, project: str, response_id: str) -> Run | None:
        """Return a response of a project that still runs, or whose stream is kept."""
        run = self.get(response_id) or self.resumable.get(response_id)
        return run if run and run.plan.origin.project == project and not self.is_forgotten(run) else None

    def runs(self, project: str, response_id: str) -> bool:
        """Whether a response of a project runs here, and has not ended."""
        run = self.find(project, response_id)
        return run is not None and not run.journal.closed

    def is_forgotten(self, run: Run) -> bool:
        """Whether clients do not find a response any more, though it may run: deleted, or stored and past its time."""
        plan = run.plan
        ttl = self._settings.responses_store_ttl
        oldest = self._retentions.oldest(plan.origin.project, self.now(), ttl=ttl)
        return run.deleted or (plan.stored and int(plan.created_at) <= oldest)

    def readable(self, response_id: str, number: int) -> Run | None:
        """Return a durable response that runs here, if its journal has all events behind this one.

        No other one: a reader would keep it alive.
        """
        run = self.get(response_id)
        if run is None or run.lost or not run.plan.durable:
            return None
        # `has_after`: nothing is forgotten that is needed. `is_behind`: the client knows more than this worker does.
        return run if run.journal.has_after(number) and not run.is_behind(number) else None

    def named(self, project: str, name: str) -> Run | None:
        """Return a response of a project that still runs, by the public id under which clients know it."""
        open_runs = (run for run in self.running if not run.journal.closed and run.plan.origin.project == project)
        return next((run for run in open_runs if run.plan.public and run.plan.public.name == name), None)

    @property
    def running(self) -> Sequence[Run]:
        """All that have not ended."""
        return [run for run, _ in self._runs.values()]

    @property
    def busy(self) -> bool:
        """Whether anything is generated here, or about to be."""
        return self._places_taken > 0

    @property
    def _places_taken(self) -> int:
        return len(self._runs) + self._coming + self._guests

    def check_capacity(self, *, places: int = 1) -> None:
        """Raise `ApiError` (503) if no run can start now, or not so many."""
        if self.draining:
            raise stopping()
        most = self._settings.responses_max_in_flight
        if len(self._runs) + self._coming + self._guests + places > most:
            message = f"{most} responses are running (RESPONSES_MAX_IN_FLIGHT). Try again shortly."
            raise overloaded(message, retry_after=2)

    def take_places(self, count: int) -> None:
        """Take places of runs for what generates without being a response. Raises `ApiError` (503), or has all.

        Each is given back with `give_place`.
        """
        self.check_capacity(places=count)
        self._guests += count

    def give_place(self) -> None:
        """Give such a place back."""
        self._guests -= 1

    @contextmanager
    def guest(self, count: int = 1) -> Iterator[None]:
        """Have such places for as long as this lasts. Raises `ApiError` (503)."""
        self.take_places(count)
        try:
            yield
        finally:
            self._guests -= count

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Have a place for a run while it is accepted. Raises `ApiError` as `check_capacity` does."""
        self.check_capacity()
        self._coming += 1  # a stop waits for it
        try:
            yield
        finally:
            self._coming -= 1

    @contextmanager
    def admission_again(self, run: Run) -> Iterator[None]:
        """Have a place for a run whose id clients know: it may be deleted while it is accepted. Raises `ApiError`."""
        with self.admission():
            self._coming_again[run.response_id] = run
            try:
                yield
            finally:
                del self._coming_again[run.response_id]

    def remembered(self, response_id: str) -> Run | None:
        """Return a response that runs, is about to run again, or whose stream is kept."""
        return self._coming_again.get(response_id) or self.get(response_id) or self.resumable.get(response_id)

    def enter(self) -> None:
        """Take a place for a run that is being accepted: a stop waits for it."""
        self._coming += 1

    def leave(self) -> None:
        """Give that place back: the run has started, or will not."""
        self._coming -= 1

    def start(self, run: Run) -> None:
        """Start a run, which has been admitted, in a task and a context of its own."""
        # An empty context: the run outlives the request, and its log lines are not the request's.
        context = contextvars.Context()
        context.run(bind, **_about(run))
        task = asyncio.create_task(execute_in_span(run), name=run.response_id, context=context)
        self._runs[run.response_id] = run, task
        held = share()  # what its client has sent counts as running for as long as this does
        task.add_done_callback(lambda _: held.release())
        # Also called where the task is cancelled before its first step.
        task.add_done_callback(lambda _: self._ended(run))
        if run.plan.window is not None:
            seconds = max(0.0, run.plan.created_at + run.plan.window - self.now())
            late = asyncio.get_running_loop().call_later(seconds, _fail_late, run)
            task.add_done_callback(lambda _: late.cancel())
        if run.plan.resumable:
            self.resumable.keep(run)

    def attach(
        self,
        source: EventSource,
        *,
        starting_after: int | None = None,
        dialect: Dialect = OPENAI,
        images: Sequence[str] = (),
    ) -> ResponseReader:
        """Add a reader to a response, at the first event kept or behind the event `starting_after`.

        `images` are the URLs of those of its input, where it asks for them.
        Raises `EventsForgotten` where the events behind `starting_after` are not kept.
        """
        limits = source.ticket.lines if isinstance(source, Run) else no_limits
        reader = ResponseReader(
            source,
            cancel=partial(self.cancel, source) if isinstance(source, Run) else _not_cancelled,
            left=self._left,
            starting_after=starting_after,
            wording=wording(dialect, Scene(source.known_as, source.journal.calls, limits, images)),
        )
        self._readers.add(reader)
        self._end_grace(source)
        return reader

    def _left(self, reader: ResponseReader, reason: str) -> None:
        """Let a reader go: the last one ends a foreground run, at once or after its grace. Twice is not an error."""
        source = reader.source
        # Before the check: a reader that was dropped is detached already, and still among `_readers`.
        source.journal.detach(reader)
        if reader not in self._readers:
            return
        self._readers.discard(reader)
        if source.journal.readers:
            return
        if isinstance(source, FollowedResponse):
            source.leave()
        if not isinstance(source, Run):
            return
        self.resumable.left(source)
        if source.journal.closed or source.plan.durable:
            return
        if self._settings.reconnect_grace_seconds and source.plan.resumable:
            self._begin_grace(source, reason)
        else:
            self.cancel(source, reason=reason)

    def _begin_grace(self, run: Run, reason: str) -> None:
        """Cancel a run in a while, unless its client comes back, here or at another worker."""

        def over() -> None:
            # Its client may have come back at another worker, which follows the log.
            if run.log is not None and run.log.is_followed:
                self._begin_grace(run, reason)
            else:
                self.cancel(run, reason=f"{reason} and did not come back")

        self._end_grace(run)
        loop = asyncio.get_running_loop()
        self._graces[run.response_id] = loop.call_later(self._settings.reconnect_grace_seconds, over)

    def _end_grace(self, source: EventSource) -> None:
        grace = self._graces.pop(source.response_id, None)
        # Not there where no reader has left, or its time was over.
        if grace:
            grace.cancel()

    def _ended(self, run: Run) -> None:
        run.end_anyway()  # its task may have broken beside `execute`
        known = self._runs.get(run.response_id)
        if known is not None and known[0] is run:  # not a later one that goes on with the response here
            del self._runs[run.response_id]
        if run.lost and self.resumable.get(run.response_id) is run:
            self.resumable.drop(run.response_id)  # what became of it stands in the store
        if run.plan.background:
            self.queue.leave()
        self._end_grace(run)
        run.settle()

    def cancel(self, run: Run, reason: str) -> None:
        """Cancel a run unless it is ending already.

        Soon, not now: a task that is cancelled before its first step never takes it, and its readers would wait for
        ever.
        """
        known = self._runs.get(run.response_id)
        if known and not run.finishing:
            run.abandoned_reason = reason
            asyncio.get_running_loop().call_soon(_cancel, *known)

    def forget(self, run: Run, *, reason: str) -> None:
        """Drop a response that was deleted: its stream is not kept, and what runs is cancelled."""
        run.deleted = True
        self.resumable.drop(run.response_id)
        self.cancel(run, reason=reason)

    def lose(self, response_id: str) -> None:
        """Stop a run whose response another worker has taken over."""
        known = self._runs.get(response_id)
        if known is not None:
            known[0].lost = True  # where its end is decided already, the store refuses to keep it, with the same effect
            self.cancel(known[0], reason="another worker took it over")

    def follow(self, response_ids: Collection[str]) -> None:
        """Keep the logs of those of these responses that run here while they run: somebody follows them."""
        for response_id in response_ids:
            run = self.get(response_id)
            if run is not None:
                run.follow()

    async def wait_for_end(self, run: Run, seconds: float | None = None) -> None:
        """Return when a run has ended, or after so many seconds."""
        known = self._runs.get(run.response_id)
        if known:
            await asyncio.wait([known[1]], timeout=seconds)

    async def aclose(self, *, grace: float = 0.0, last_words: float = 0.0) -> None:
        """Refuse new runs, give the present ones `grace` seconds, then stop them and wait until they ended.

        Their readers have `last_words` seconds to hear the end: the server is about to cut their connections.
        """
        await self.drain(grace)
        # A loop: what is being accepted may still start a run.
        while self._runs or self._coming:
            if not self._runs:
                await asyncio.sleep(POLL_SECONDS)
                continue
            for run, _ in self._runs.values():
                run.stopping = True
                self.cancel(run, reason="the server stopped")
            # Callbacks of the tasks take them out of `_runs` in the next turn of the loop.
            await asyncio.wait([task for _, task in self._runs.values()])
        if self._readers:
            await self._hear(last_words)
        self.resumable.close()

    async def drain(self, grace: float, *others: Callable[[], Awaitable[None]]) -> None:
        """Refuse new runs, and give the present ones `grace` seconds, and what ends with each of `others`."""
        self.draining = True
        for run, _ in self._runs.values():
            if run.plan.durable and run.waits:  # for its client, not for this server: it waits on another worker
                run.stopping = True
                self.cancel(run, reason="the server stopped")
        if grace <= 0 or self.hurry.is_set():
            return
        if self._places_taken:
            logger.info("%d responses are running; they have %g s to end", self._places_taken, grace)

        async def over() -> None:
            await asyncio.gather(self._all_ended(), *(each() for each in others))

        waits = [asyncio.create_task(each) for each in (over(), self.hurry.wait())]
        await asyncio.wait(waits, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        await end_tasks(waits)

    async def _all_ended(self) -> None:
        # What is being accepted counts: its client was let in, and it starts in a moment.
        while self._places_taken:
            if self._runs:
                await asyncio.wait([task for _, task in self._runs.values()])
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def _hear(self, seconds: float) -> None:
        for _ in range(round(seconds / POLL_SECONDS)):
            done = not self._readers
            await asyncio.sleep(POLL_SECONDS)  # once more at the end: a JSON body is sent when its reader has left
            if done:
                break


def _not_cancelled(reason: str) -> None:
    """Do nothing: a stream that was only looked up goes on."""


def _about(run: Run) -> dict[str, str]:
    """Return what log lines of a run are about."""
    origin = run.plan.origin
    request_field = "connection_id" if origin.transport == "websocket" else "request_id"
    about = {"response_id": run.response_id, request_field: origin.request_id}
    return about | {"project": origin.project, "key_id": origin.key_id}


def _cancel(run: Run, task: "asyncio.Task[None]") -> None:
    if not run.finishing:
        task.cancel()


def _fail_late(run: Run) -> None:
    """End a run whose time is over: it was wanted until now."""
    if not (run.finishing or run.lost or run.stopping):
        run.give(Failed(window_over()))


DELETED = "it was deleted"


class Forgetting:
    """What makes responses unknown, here and at the `others`."""

    def __init__(self, registry: RunRegistry, *, others: OtherWorkers) -> None:
        self._registry = registry
        self._others = others
        self.memories: set[Callable[[Collection[str]], None]] = set()  # called with the ids of what is deleted

    async def everywhere(self, response_ids: Collection[str], *, reason: str = DELETED) -> None:
        """Forget responses here, and tell the other workers."""
        if not response_ids:
            return
        self.here(response_ids, reason=reason)
        if self._others.reaches_others:
            await self._others.ask_to_forget(response_ids)

    def here(self, response_ids: Collection[str], *, reason: str = DELETED) -> None:
        """Forget responses in this process; those that run are cancelled, and nothing is kept of them."""
        # A set, made once: memories look into it for each of their entries.
        gone = frozenset(response_ids)
        for response_id in gone:
            run = self._registry.remembered(response_id)
            if run is not None and run.plan.stored:
                self._registry.forget(run, reason=reason)
        for forget in self.memories:
            forget(gone)
