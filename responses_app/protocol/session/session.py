"""`WebSocketSession`: what a connection does, without the connection. Frames in, commands out; time is an argument.

    text frame ──> receive() ──┐                       ┌── Send(text)
    run refused ──> refused() ─┼──> list of commands ──┼── Start(create)
    run ended ──> ended() ─────┤                       ├── CancelRuns()
    a deadline ──> tick() ─────┘                       ├── Stop(lane), Reply(frame)
                                                       └── Close(code)

A *lane* is a `stream_id` (None is the default lane): first in, first out, one at a time. Lanes run side by side, at
most `max_in_flight` at once; the rest waits. Each lane remembers its latest response, chain and tokens, which
is what `previous_response_id` finds first; so `store: false` chains live exactly as long as their connection.

What a client says to a response that runs (`response.steer`, `response.interrupt`, `response.cancel`) is `Steering`'s;
a successor that it makes begins on its lane before all that waits there.

The caller executes commands in order, calls `tick(now)` at `deadline()`, and tells how each started run went. Times
are seconds of any one clock.
"""

import operator
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace

from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.events.events import connection_expiring, error_frame
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import CONTINUABLE, Status
from responses_app.protocol.session.steering import Create, Inject, Reply, Send, Steering, Stop
from responses_app.protocol.setting import KIB, MIB, RoomSettings, choice, seconds, setting, whole
from responses_app.protocol.transport import (
    concurrent_request,
    invalid_lane,
    lifetime_over,
    not_json,
    queue_full,
    too_many_lanes,
    unknown_event_type,
)

SERVICE_RESTART = 1012  # the close code for clients that should come back
_PENDING = "response.steer.pending"
_STREAM_ID = re.compile(r"[A-Za-z0-9_.\-]{1,256}")


@dataclass(frozen=True, kw_only=True)
class SessionSettings(RoomSettings):
    """The settings of WebSockets, as far as they are about one."""

    websocket_lifetime_seconds: float = setting(
        3600.0, seconds(1), "how long a WebSocket may stay open; after that no new response starts on it"
    )
    websocket_warning_seconds: float = setting(
        3300.0, seconds(), "seconds after connecting when a WebSocket gets the frame `connection_expiring`"
    )
    websocket_grace_seconds: float = setting(
        300.0, seconds(),
        "how long running responses may continue after WEBSOCKET_LIFETIME_SECONDS; then they are cancelled",
    )  # fmt: skip
    websocket_busy: str = setting(
        "queue", choice("queue", "reject"),
        "a `response.create` on a WebSocket that already runs a response: `queue` lets it wait for its lane, `reject` "
        "answers 409",
    )  # fmt: skip
    websocket_max_queued: int = setting(64, whole(), "`response.create` frames that may wait on one WebSocket")
    websocket_max_state_bytes: int = setting(
        64 * MIB, whole(KIB),
        "memory of one WebSocket for the responses that it can continue, waiting requests and steering input",
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return what is wrong where the warning comes behind the end."""
        warning = self.websocket_warning_seconds if "websocket_warning_seconds" in given else 0.0
        if warning > self.websocket_lifetime_seconds:
            return "WEBSOCKET_WARNING_SECONDS must not be greater than WEBSOCKET_LIFETIME_SECONDS."
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The bounds of one connection that an operator does not set."""

    max_in_flight: int = 16  # creates that run at once; others wait
    max_lanes: int = 32  # named ones, ever used
    max_steers: int = 16  # inputs that wait for one response to end
    last_words: float = 5.0  # seconds: how long responses that the end of the grace cuts may take to say so


@dataclass(frozen=True, slots=True)
class Start:
    """Start this create; then call `refused`, or `started` and, when its terminal event is out, `ended`."""

    create: Create


@dataclass(frozen=True, slots=True)
class CancelRuns:
    """Cancel every run of the connection, also one that is about to start: its time is over.

    Their terminal events are still sent, and `ended` is called for each.
    """


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection; nothing may be sent after it."""

    code: int
    reason: str = ""


Command = Send | Reply | Start | Stop | Inject | CancelRuns | Close


@dataclass(slots=True)
class _Clock:
    """Where a connection is in its life."""

    opened: float  # by the caller's clock, as all times here
    warned: bool = False  # `connection_expiring` was sent, or it is too late for it
    over: bool = False  # no further creates are started
    cut: float | None = None  # when what still ran was cancelled
    leaving: bool = False  # the server stops: nothing is waited for but what runs
    closed: bool = False  # `Close` was given: nothing is said any more


@dataclass(slots=True)
class WebSocketSession:
    """One connection."""

    settings: SessionSettings
    opened: float  # now, by the caller's clock
    new_id: Callable[[], str]  # makes the ids of steering
    unix_offset: float = 0.0  # what makes Unix seconds of the caller's clock
    limits: SessionLimits = SessionLimits()
    names_turns: bool = False  # ids are those of turns: each means what can be continued of its turn, whatever failed
    _clock: _Clock = field(init=False)
    _steering: Steering = field(init=False)
    _running: dict[str | None, Create] = field(default_factory=dict)  # by lanes; one each
    _waiting: deque[Create] = field(default_factory=deque)  # of all lanes, the oldest first
    _lanes: set[str] = field(default_factory=set)  # named lanes ever used; never released
    _latest: "OrderedDict[str | None, ChainLink]" = field(default_factory=OrderedDict)  # by lanes, by age of use

    def __post_init__(self) -> None:
        self._clock = _Clock(self.opened)
        most = self.settings.websocket_max_state_bytes
        self._steering = Steering(self.new_id, max_steers=self.limits.max_steers, max_bytes=most)

    @property
    def in_flight(self) -> int:
        """How many creates run."""
        return len(self._running)

    def recall(self, response_id: str) -> ChainLink | None:
        """Return the chain of a lane's latest response; of a turn that several lanes went on with, its newest leg's."""
        # Several lanes may go on with one turn, whose responses have one public id: the highest leg is the newest.
        known = [link for link in self._latest.values() if link.known_as == response_id]
        return max(known, key=lambda link: link.public.leg if link.public else 0, default=None)

    @property
    def waiting(self) -> int:
        """How many creates wait."""
        return len(self._waiting)

    def forget(self, response_ids: Container[str]) -> None:
        """Forget responses that were deleted, also as what waiting creates continue."""
        for lane, link in list(self._latest.items()):
            if link.response_id in response_ids:
                del self._latest[lane]
        self._waiting = deque(
            replace(create, parent=None) if create.parent and create.parent.response_id in response_ids else create
            for create in self._waiting
        )

    def receive(self, frame: object, size: int) -> list[Command]:
        """Take a decoded JSON frame of `size` bytes."""
        if self._clock.closed:
            return []
        if not isinstance(frame, dict):
            return [Send(error_frame(not_json("this is not an object")))]
        kind = frame.get("type")
        handler = _HANDLERS.get(kind) if isinstance(kind, str) else None
        if handler is None:
            return [Send(error_frame(unknown_event_type(kind, _HANDLERS)))]
        return handler(self, frame, size)

    def refused(self, create: Create, error: ApiError) -> list[Command]:
        """A create could not start: its error frame, and the next in line."""
        self._running.pop(create.lane, None)
        steered = self._steering.refused(create, error)
        if steered is not None:  # its parent stays: the client may continue that by itself
            return [*steered, *self._start_next()]
        if not error.helps_to_wait:  # else the client may send the very same create again, and needs the parent for it
            self._evict_parent(create)
        return [Send(error_frame(error, create.lane)), *self._start_next()]

    def started(self, create: Create, response_id: str) -> None:
        """A create has its response, which clients can name from now on."""
        self._steering.started(create, response_id)

    def ended(
        self,
        create: Create,
        status: Status,
        link: ChainLink | None,
        problem: ApiError | None = None,
        output: Sequence[JsonObject] = (),
    ) -> list[Command]:
        """A run's terminal event is out, with this `output`; `problem` is why it failed.

        Completed and incomplete responses become their lane's latest.
        """
        self._running.pop(create.lane, None)
        if status in CONTINUABLE and link is not None:
            self._remember(create.lane, link)
        elif status is Status.FAILED and not (problem and problem.helps_to_wait):
            self._evict_parent(create)
        return [*self._go_on_steered(create, status, link, output), *self._start_next()]

    def _go_on_steered(
        self, create: Create, status: Status, link: ChainLink | None, output: Sequence[JsonObject]
    ) -> list[Command]:
        """Do what follows from what the client said to a response while that ran."""
        answers, successor = self._steering.ended(create, status, link, output)
        if successor is not None:
            if self._clock.over:
                return [*self._steering.give_up(successor)]
            self._waiting.appendleft(successor)  # it has the place of what it continues, before all that waits
            return []
        # A create that was sent before the response ended may be the very one that its steering waits for.
        waiting = [self._steering.joined(each) for each in self._waiting]
        if any(map(operator.is_not, waiting, self._waiting)):  # the client has said what was required: nothing waits
            answers = [each for each in answers if not (isinstance(each, Reply) and each.frame["type"] == _PENDING)]
            self._waiting = deque(waiting)
        return [*answers]

    def leave(self) -> list[Command]:
        """The server stops: close once nothing runs. What still comes is started, and refused by who starts it."""
        self._clock.leaving = True
        return self._start_next()

    def deadline(self) -> float | None:
        """Return when `tick` is due next."""
        clock, settings = self._clock, self.settings
        if clock.closed:
            return None
        if clock.cut is not None:
            return clock.cut + self.limits.last_words
        if clock.over:
            return clock.opened + settings.websocket_lifetime_seconds + settings.websocket_grace_seconds
        if clock.warned:
            return clock.opened + settings.websocket_lifetime_seconds
        # A warning behind the end of life would never come: the end is due first.
        return clock.opened + min(settings.websocket_warning_seconds, settings.websocket_lifetime_seconds)

    def tick(self, now: float) -> list[Command]:
        """Do what is due: the warning, the end of life, the end of the grace, the end of the last words."""
        clock, settings, age = self._clock, self.settings, now - self._clock.opened
        if clock.closed:
            return []
        commands: list[Command] = []
        # A tick that comes late, past the end of life, has nothing to warn of any more.
        if not clock.warned and settings.websocket_warning_seconds <= age < settings.websocket_lifetime_seconds:
            clock.warned = True
            closes_at = clock.opened + settings.websocket_lifetime_seconds
            commands.append(Send(connection_expiring(round(closes_at - now), round(closes_at + self.unix_offset))))
        # `_end_if_idle` closes at once where nothing runs; else `ended` of the last run does.
        if age >= settings.websocket_lifetime_seconds:
            clock.over = clock.warned = True
            if self._running and age >= settings.websocket_lifetime_seconds + settings.websocket_grace_seconds:
                commands += self._cut(now)
            commands += self._end_if_idle()
        return commands

    def _cut(self, now: float) -> list[Command]:
        """End what still runs: first let it say so, then do without."""
        if self._clock.cut is None:
            self._clock.cut = now
            return [CancelRuns()]
        # A run that does not even end its stream is not waited for.
        if now >= self._clock.cut + self.limits.last_words:
            self._running.clear()  # they are nobody's now: `ended` may still come for them, and finds nothing
        return []

    def _enqueue(self, frame: JsonObject, size: int) -> list[Command]:
        lane = frame.get("stream_id")
        # Also an explicit null is refused: the default lane is the one that is not named.
        if "stream_id" in frame and not (isinstance(lane, str) and _STREAM_ID.fullmatch(lane)):
            return [Send(error_frame(invalid_lane()))]
        lane = lane if isinstance(lane, str) else None
        refusal = self._refusal(lane)
        if refusal is not None:
            return [Send(error_frame(refusal, lane))]
        create = Create(lane, frame, size, None)
        # The parent is bound now, not when the create starts: the creates before it in the queue may make the lane
        # forget it. One that is not made yet is found later, by whoever starts the create.
        if create.previous_response_id is not None:
            create = Create(lane, frame, size, self.recall(create.previous_response_id))
        create = self._steering.joined(create)
        self._waiting.append(create)
        commands = self._start_next()
        # Only now is it known whether it has to wait. The last in the queue is this one, unless it was started.
        settings, waiting_bytes = self.settings, sum(each.size for each in self._waiting)
        is_full = (
            len(self._waiting) > settings.websocket_max_queued or waiting_bytes > settings.websocket_max_state_bytes
        )
        if self._waiting and self._waiting[-1] is create and is_full:
            self._waiting.pop()
            error = queue_full(settings.websocket_max_queued)
            # It may have taken steering with it, which has to wait for another create then.
            self._steering.refused(create, error)
            return [Send(error_frame(error, lane))]
        return commands

    def _refusal(self, lane: str | None) -> ApiError | None:
        """Return why nothing can be started on this lane; else make the lane known.

        The end of life is not a reason yet: clients drop the connection at its frame, so it waits for what still runs.
        """
        if self.settings.websocket_busy == "reject" and (self._running or self._waiting):
            return concurrent_request()
        if lane is not None and lane not in self._lanes:
            # Lanes are never released, so this bounds what their names take over a connection's life.
            if len(self._lanes) >= self.limits.max_lanes:
                return too_many_lanes(self.limits.max_lanes)
            self._lanes.add(lane)
        return None

    def _start_next(self) -> list[Command]:
        """Start what may run: the oldest first, one a lane."""
        if self._clock.over:
            return self._end_if_idle()
        commands: list[Command] = []
        # By age over all lanes, so no lane starves: a busy lane is passed over, and those behind it are looked at.
        for create in list(self._waiting):
            if len(self._running) >= self.limits.max_in_flight:
                break
            if create.lane not in self._running:
                self._waiting.remove(create)
                self._running[create.lane] = create
                commands.append(Start(create))
        if self._clock.leaving and not self._running and not self._clock.closed:
            self._clock.closed = True
            commands.append(Close(SERVICE_RESTART, "the server stops: connect again"))
        return commands

    def _end_if_idle(self) -> list[Command]:
        """At the end of life with nothing in flight: say so to all that wait, and close."""
        if self._running or self._clock.closed:
            return []
        self._clock.closed = True
        error = lifetime_over(self.settings.websocket_lifetime_seconds)
        lanes = [create.lane for create in self._waiting] or [None]  # a frame a create; one where nothing waits
        self._waiting.clear()
        return [*(Send(error_frame(error, lane)) for lane in lanes), Close(1000, str(error.code))]

    def _remember(self, lane: str | None, link: ChainLink) -> None:
        """Make this the lane's latest response; over the bound the lane that was idle longest forgets."""
        self._latest[lane] = link
        self._latest.move_to_end(lane)
        # Links that lanes share are counted once a lane: too much, never too little. A chain that is larger than the
        # bound by itself is forgotten at once, and its continuation has to come from the store.
        most = self.settings.websocket_max_state_bytes
        while self._latest and sum(link.total_bytes for link in self._latest.values()) > most:
            self._latest.popitem(last=False)

    def _evict_parent(self, create: Create) -> None:
        """Forget the parent of a continuation that failed for good on its parent's own lane; a fork keeps it."""
        if self.names_turns:
            return
        latest = self._latest.get(create.lane)
        if latest is not None and latest.known_as == create.previous_response_id:
            del self._latest[create.lane]


_HANDLERS: dict[str, Callable[[WebSocketSession, JsonObject, int], list[Command]]] = {
    "response.create": WebSocketSession._enqueue,
    "response.steer": lambda session, frame, size: [*session._steering.steer(frame, size, over=session._clock.over)],
    "response.inject": lambda session, frame, _: [*session._steering.inject(frame)],
    "response.interrupt": lambda session, frame, _: [*session._steering.interrupt(frame)],
    "response.cancel": lambda session, frame, _: [*session._steering.cancel(frame)],
}
