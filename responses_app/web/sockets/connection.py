"""`SocketConnection`: drives one WebSocket's session: starts its runs, and writes what they say.

One task writes, and only while there is something to write; it drains what all lanes have ready, then waits for news.
So events of one loop turn leave together, and a lane that is silent costs nothing. An idle connection owns no task,
just the timer of its next deadline.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from engine import orjson
from responses_app.limits.suspects import holding
from responses_app.observing.logs import OF_STRANGERS, bind
from responses_app.observing.traces import NO_SPAN, Span
from responses_app.protocol import ids
from responses_app.protocol.api_keys import NOBODY_ASKED, Caller, key_revoked, session_over
from responses_app.protocol.errors import ApiError, JsonObject, server_error
from responses_app.protocol.events.dialects import OPENAI, Dialect
from responses_app.protocol.events.events import (
    ERROR_HEAD,
    error_frame,
    event_bytes,
    inject_created,
    inject_failed,
    lane_suffix,
    ping,
    reply_frame,
)
from responses_app.protocol.fields import IgnoredFields
from responses_app.protocol.items.offers import beta_missing, has_beta
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.requests import CreateRequest, check_beta, only_known
from responses_app.protocol.rollouts.requests import RolloutRef
from responses_app.protocol.session.session import CancelRuns, Close, Command, Start, WebSocketSession
from responses_app.protocol.session.steering import Create, Inject, Reply, Send, Stop
from responses_app.protocol.session.tool_outputs import not_waiting, parse_injected
from responses_app.protocol.transport import message_too_large, not_json
from responses_app.runs.log.journal import Gathering, ReaderTooSlow, ResponseReader
from responses_app.runs.plan.plan import Origin
from responses_app.web.servers.backpressure import SocketExtras
from responses_app.web.sockets.lanes import Lane, Lanes
from responses_app.wiring.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What was agreed at the handshake, for the connection's whole life."""

    caller: Caller = NOBODY_ASKED  # whose it is
    dialect: Dialect = OPENAI  # how its events are worded
    awaits_tools: bool = False  # its responses wait for outputs of the client's tools
    betas: str | None = None  # the `OpenAI-Beta` of the handshake
    foreign_seals: str | None = None  # its `Respsite-Foreign-Seals`
    span: Span = NO_SPAN  # of who opened it
    rollout: RolloutRef | None = None  # that its responses are part of


logger = logging.getLogger("respsite.transport")

WAKES_PER_LAG_CHECK = 256  # events between two looks at how far all lanes together are behind
# Close codes of RFC 6455 and its registry. 1000 stands behind an error frame that says why the connection ends.
POLICY = 1008
TOO_LARGE = 1009
TRY_AGAIN_LATER = 1013
_CODES = {413: TOO_LARGE, 503: TRY_AGAIN_LATER}  # by the status of what is refused
LAST_FRAME_SECONDS = 1.0  # how long a client may take to read why its connection ends
TIME_IS_OVER = "its connection's time is over"
IGNORED = ("stream", "background")  # fields of a create that mean nothing on a WebSocket


NO_EXTRAS, USUAL_TERMS = SocketExtras(), Terms()


class SocketConnection:
    """One open WebSocket.

    `send` writes a text frame and may wait; `close` closes with a code and a reason; `ping` sends a protocol ping.
    """

    def __init__(
        self,
        site: Site,
        *,
        send: Callable[[str], Awaitable[None]],
        close: Callable[[int, str], Awaitable[None]],
        extras: SocketExtras = NO_EXTRAS,
        terms: Terms = USUAL_TERMS,
    ) -> None:
        self.id = site.new_id(ids.CONNECTION)
        self._site = site
        self._send = send
        self._close = close
        self._ping, self._frames = extras.ping, extras.write_frames
        self._terms = terms
        self._dialect = terms.dialect
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._session = WebSocketSession(
            site.settings,
            now,
            partial(site.new_id, ids.STEER),
            unix_offset=time.time() - now,
            names_turns=self._dialect.one_id_a_turn,
        )
        self._outbox: deque[str] = deque()  # frames that are not events
        self._outbox_bytes = 0  # characters, of mostly ASCII
        self._lanes = Lanes()  # of the responses that are being written
        self._gathering = Gathering(self._lanes.have_little)
        self._tasks: set[asyncio.Task[None]] = set()  # starts of runs, and hanging up
        self._writer: asyncio.Task[None] | None = None  # there only while there is something to write
        self._news: asyncio.Future[None] | None = None  # that the writer waits for
        self._wakes = 0  # events since the last look at the lag
        self._dropped = False  # it is too slow, and is being ended
        self._cut = False  # what runs was cancelled, and nothing starts any more
        self._closing: Close | None = None  # how it is to be closed, once all before that is written
        self._ended = False  # everything was let go of
        self._ignored_logged = False
        self._timer: asyncio.TimerHandle | None = None  # of whatever is due first
        site.forgetting.memories.add(self._session.forget)
        site.watch.opened(self)
        bind(connection_id=self.id, project=terms.caller.project, key_id=terms.caller.key_id)
        self._unwatch = site.door.watch(terms.caller, self._lose_key)
        self._left = site.draining.watch(lambda: self._execute(self._session.leave()), is_busy=self._is_busy)
        self._schedule()

    async def receive_text(self, text: str) -> None:
        """Take a frame; never waits for a run. The caller hands over one frame after the other."""
        if self._closing is not None or self._ended:
            return
        project = self._terms.caller.project
        try:
            with holding():
                frame, size = await self._site.reader.read(
                    project, len(text), partial(self._content, text), self._decoded
                )
        except ApiError as error:
            self._refuse_frame(error)
            return
        except orjson.JSONDecodeError:
            self._post(error_frame(not_json("this cannot be parsed")))
            return
        if self._ended:
            return
        self._log_ignored(frame)
        self._execute(self._session.receive(frame, size))

    def _content(self, text: str) -> bytes:
        content, limit = text.encode(), self._site.settings.websocket_max_message_bytes
        if len(content) > limit:
            raise message_too_large(len(content), limit)
        return content

    def _decoded(self, content: bytes) -> tuple[object, int]:
        """Return a frame and its size in bytes. Runs on a thread if it is long."""
        return only_known(self._site.reader.loads(content)), len(content)

    def receive_bytes(self) -> None:
        """Refuse a binary frame."""
        self._post(error_frame(not_json("this is a binary frame")))

    def refuse(self, error: ApiError) -> None:
        """Say why nothing more is taken, and close."""
        if self._closing is not None or self._ended:
            return
        logger.warning("connection %s ends: %s", self.id, error.message, extra=OF_STRANGERS)
        self._post(error_frame(error))
        self._closing = Close(_CODES.get(error.status, POLICY), str(error.code))
        self._wake_writer()

    async def aclose(self, reason: str) -> None:
        """End: cancel what the connection owns, and detach from its runs, which cancels them."""
        # It may have ended while the frame was read on a thread.
        if self._ended:
            return
        self._ended = True
        self._site.forgetting.memories.discard(self._session.forget)
        self._site.watch.closed(self)
        self._unwatch()
        self._left()
        if self._timer:
            self._timer.cancel()
        # It may be one of the connection's own (`_hang_up`), which is not to wait for itself.
        current = asyncio.current_task()
        tasks = [task for task in (*self._tasks, self._writer) if task is not None and task is not current]
        for task in tasks:
            task.cancel()
        # Behind the cancellation of the writer: nothing is written of what is let go of.
        self._lanes.clear(reason)
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def load(self) -> tuple[int, int]:
        """How many of its lanes have a response that runs, and how many creates wait."""
        return len(self._lanes), self._session.waiting

    def _is_busy(self) -> bool:
        """Whether it is being read, written, or something is started for it: a stop gives it time."""
        return not self._ended and bool(self._tasks or self._writer)

    # What the session wants done.

    def _execute(self, commands: list[Command], *, ended: Lane | None = None) -> None:
        """Do what the session wants; `ended` is a lane that has just ended."""
        frames: list[str] = []
        for command in commands:
            match command:
                case Send(text):
                    frames.append(text)
                case Reply(frame, lane):
                    frames.append(self._reply(frame, lane, ended))
                case Stop():
                    frames += self._stop(command)
                case Inject():
                    self._spawn(self._inject(command))
                case Start(create):
                    self._spawn(self._start(create))
                case CancelRuns():
                    self._cancel_runs()
                case Close():
                    self._closing = command
                    self._wake_writer()
        if frames:
            self._post(*frames)

    def _cancel_runs(self) -> None:
        self._cut = True
        for running in self._lanes:
            running.reader.cancel(TIME_IS_OVER)

    def _reply(self, frame: JsonObject, name: str | None, ended: Lane | None = None) -> str:
        lane = self._lanes.get(name) or ended
        return reply_frame(frame, lane.reader.last_number if lane else 0, name)

    def _stop(self, stop: Stop) -> list[str]:
        """Stop what runs on a lane; return what its client is told of whether that was in time."""
        lane = self._lanes.get(stop.lane)
        in_time = lane is not None and lane.reader.source.stop(stop.reason)
        answer = stop.accepted if in_time else stop.failed
        return [] if answer is None else [self._reply(answer, stop.lane)]

    async def _inject(self, inject: Inject) -> None:
        """Give outputs to a response, and say what came of that."""
        lane, site = self._lanes.get(inject.lane), self._site
        most = site.settings.responses_max_tool_output_bytes
        try:
            if not has_beta(self._terms.betas):
                raise beta_missing("response.inject")
            outputs = [parse_injected(item, index, max_bytes=most) for index, item in enumerate(inject.input)]
            if lane is None or lane.reader.source.known_as != inject.response_id:
                raise not_waiting(inject.response_id)
            await site.outputs.inject(lane.reader.source, outputs)
        except ApiError as error:
            if error.status == 409 and error.param == "response_id":
                code, message = "response_already_completed", "The response has ended, or waits for no outputs."
                failed = inject_failed(code, message, inject.response_id, inject.input)
                self._execute([Reply(failed, inject.lane)])
            else:
                self._execute([Send(error_frame(error, inject.lane))])
        else:
            self._execute([Reply(inject_created(inject.response_id), inject.lane)])

    async def _start(self, create: Create) -> None:
        # Limits and scopes of a key may have changed since the handshake.
        caller = self._site.door.latest(self._terms.caller)
        try:
            fields = {name: value for name, value in create.fields.items() if name not in IGNORED}
            with holding():
                reader, ignored = await self._created(create, caller, fields)
        except ApiError as error:
            self._execute(self._session.refused(create, error))
        except Exception:
            logger.exception("connection %s: a request could not be started", self.id)
            self._execute(self._session.refused(create, server_error(self.id, code="processing_error")))
        else:
            is_writer = self._writer is None
            if is_writer:  # its first events are there: it writes them before the next create has its turn
                self._writer = asyncio.current_task()
            self._attach(create, reader, str(ignored))
            if is_writer:
                await self._write()

    async def _created(
        self, create: Create, caller: Caller, fields: JsonObject
    ) -> tuple[ResponseReader, IgnoredFields]:
        """Return the reader of a create's response, and what of it has no effect. Raises `ApiError`."""
        request, ignored = await self._site.reader.read(
            caller.project, create.size, lambda: repr(fields).encode(), lambda _: self._parsed(fields)
        )
        if request.with_agents:
            check_beta(self._terms.betas)
        origin = Origin.of(
            caller,
            "websocket",
            request_id=self.id,
            # Its agents go on with outputs that come by `response.inject`.
            awaits_tools=self._terms.awaits_tools or request.with_agents,
            span=self._terms.span,
            rollout=self._terms.rollout,
        )
        reader = await self._site.service.create(
            request, origin, recall=lambda id: self._recall(create, id), dialect=self._dialect
        )
        return reader, ignored

    def _recall(self, create: Create, response_id: str) -> ChainLink | None:
        if create.parent is not None and create.parent.known_as == response_id:
            return create.parent
        return self._session.recall(response_id)

    def _parsed(self, fields: JsonObject) -> tuple[CreateRequest, IgnoredFields]:
        """Read a create, and what of it has no effect. Raises `ApiError`. Runs on a thread if it is long."""
        with self._site.reader.noting(self._terms.foreign_seals) as ignored:
            return self._site.parse_create(fields), ignored

    def _attach(self, create: Create, reader: ResponseReader, ignored: str) -> None:
        if ignored:
            logger.info("connection %s: these fields have no effect: %s", self.id, ignored)
        name = create.lane

        def wake() -> None:
            self._lanes.note(name)
            self._wake_writer()
            self._wakes += 1
            if self._wakes >= WAKES_PER_LAG_CHECK:
                self._check_lag()

        reader.listen(wake)
        self._session.started(create, reader.source.known_as)
        self._lanes.add(Lane(create, reader, lane_suffix(name), self._loop.time(), ignored))
        wake()
        self._schedule()
        # The connection's time was over while this one was being started.
        if self._cut:
            reader.cancel(TIME_IS_OVER)

    # Writing.

    def _post(self, *frames: str) -> None:
        """Queue frames that are not events; a client that provokes more without reading those before is dropped.

        What comes at once may be larger than that: input of up to WEBSOCKET_MAX_STATE_BYTES is given back.
        """
        if self._outbox_bytes > self._site.settings.stream_max_lag_bytes:
            self._drop("it does not read the errors it causes")
            return
        self._outbox.extend(frames)
        for frame in frames:
            if frame.startswith(ERROR_HEAD):
                self._site.watch.refused(frame)
        self._outbox_bytes += sum(map(len, frames))
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._ended:
            return
        if self._writer is None:
            self._writer = self._loop.create_task(self._write(), name=f"writer of {self.id}")
        elif self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _write(self) -> None:
        """Write until nothing is left that could have news."""
        try:
            while self._outbox or self._lanes or self._closing is not None:
                while self._outbox:
                    frame = self._outbox.popleft()
                    self._outbox_bytes -= len(frame)
                    await self._send(frame)
                if self._closing is not None:
                    await self._close(self._closing.code, self._closing.reason)
                    return
                await self._write_lanes()
                await self._gather_news()
        except ReaderTooSlow:
            self._drop("it reads too slowly (STREAM_MAX_LAG_BYTES)")
        except OSError:  # the client is gone; the server tells the consumer so, too
            self._closing = Close(1000)
            self._spawn(self._hang_up("its client disconnected", Close(1000)))
        finally:
            # Whoever posts something from here on begins a new writer.
            self._writer = None

    async def _write_lanes(self) -> None:
        """Write what the lanes with news have, all at once where the server can."""
        lanes = self._lanes.take_ready()
        frames: list[bytes] = []
        for lane in lanes:
            frames += lane.take()
        # `write_frames` sends all or nothing, so nothing is sent twice.
        if frames and (self._frames is None or not await self._frames(frames)):
            for frame in frames:
                await self._send(frame.decode())
        now = self._loop.time()
        for lane in lanes:
            lane.last_sent = now
            self._look_after(lane)

    def _look_after(self, lane: Lane) -> None:
        """Come back to a lane that has more to write; let go of one that has ended."""
        reader = lane.reader
        if reader.behind:
            self._lanes.note(lane.create.lane)
        elif reader.ended and self._lanes.remove(lane):
            self._execute(lane.end(self._session, self.id), ended=lane)

    async def _gather_news(self) -> None:
        """Wait until there is something to write."""
        # Other tasks may have posted meanwhile: all reasons to write are looked at again below.
        await self._gathering.pause(is_behind=self._lanes.have_news)
        if not self._lanes.have_news and not self._outbox and self._closing is None and self._lanes:
            self._news = self._loop.create_future()
            await self._news
            self._news = None

    # Time.

    def _schedule(self) -> None:
        """Set the one timer to whatever is due first: the session's deadline, or a heartbeat while runs are silent."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        # None where nothing of the session is bound to a time.
        due = self._session.deadline()
        interval = self._site.settings.responses_ping_interval_seconds
        if interval and self._lanes:
            beat = min(lane.last_sent for lane in self._lanes) + interval
            due = beat if due is None else min(due, beat)
        if due is not None and not self._ended:
            self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        deadline = self._session.deadline()
        if deadline is not None and now >= deadline:
            self._execute(self._session.tick(now))
        self._beat(now)
        self._schedule()

    def _beat(self, now: float) -> None:
        """Give the runs that are silent a sign of life: each an event, or all together a protocol ping."""
        interval = self._site.settings.responses_ping_interval_seconds
        silent = [lane for lane in self._lanes if interval and now - lane.last_sent >= interval]
        if silent and not self._dialect.pings_are_events:
            self._ping()
        for lane in silent:
            lane.last_sent = now
            if self._dialect.pings_are_events and lane.reader.last_number >= 0:  # never before `response.created`
                self._post(event_bytes(ping(lane.reader.last_number, time.time()), lane.suffix).decode())

    # Endings.

    def _refuse_frame(self, error: ApiError) -> None:
        """Say why a frame is not read; after one that is too large the connection closes."""
        logger.warning("connection %s: a message was refused: %s", self.id, error.message, extra=OF_STRANGERS)
        self._post(error_frame(error))
        if error.status == 413:
            self._closing = Close(TOO_LARGE, str(error.code))
            self._wake_writer()

    def _lose_key(self) -> None:
        """End, and what runs with it: the key, or session, that the connection was opened with opens no more."""
        if self._ended or self._closing is not None:
            return
        by_key = self._terms.caller.key is not None
        over = "API key was revoked or has expired" if by_key else "session is over"
        logger.info("connection %s ends: its %s", self.id, over)
        error = key_revoked() if by_key else session_over()
        self._cut = True
        self._post(error_frame(error))
        self._closing = Close(1000, str(error.code))
        self._wake_writer()
        # A client that reads nothing would keep the connection open otherwise.
        self._loop.call_later(LAST_FRAME_SECONDS, self._cut_off)

    def _cut_off(self) -> None:
        if not self._ended:
            self._spawn(self._hang_up("its API key was revoked", Close(1000)))

    def _check_lag(self) -> None:
        """Drop a client whose lanes together are too far behind; each journal looks after its own lane."""
        self._wakes = 0
        if self._lanes.lag_bytes > self._site.settings.stream_max_lag_bytes:
            self._drop("it reads too slowly (STREAM_MAX_LAG_BYTES)")

    def _drop(self, why: str) -> None:
        if self._dropped:
            return
        self._dropped = True
        logger.warning("connection %s was dropped: %s", self.id, why)
        self._outbox.clear()
        self._closing = Close(POLICY, why)
        self._spawn(self._hang_up(f"its connection was dropped: {why}", self._closing))

    async def _hang_up(self, reason: str, close: Close) -> None:
        await self.aclose(reason)
        with suppress(OSError):  # where the client is gone, there is nothing to close
            await self._close(close.code, close.reason)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _log_ignored(self, frame: object) -> None:
        if self._ignored_logged or not isinstance(frame, dict):
            return
        ignored = [name for name in IGNORED if frame.get(name) is not None]
        if ignored:
            self._ignored_logged = True
            logger.debug("connection %s: %s means nothing on a WebSocket", self.id, " and ".join(ignored))
