"""`Lanes`: the responses that are being written to one WebSocket, at most one a lane, and which of them have news."""

from collections.abc import Iterator
from dataclasses import dataclass

from responses_app.protocol.errors import server_error
from responses_app.protocol.events.dialects import FAILED
from responses_app.protocol.events.events import event_bytes, with_headers
from responses_app.protocol.fields import IGNORED_HEADER
from responses_app.protocol.session.session import Command, WebSocketSession
from responses_app.protocol.session.steering import Create
from responses_app.runs.log.journal import ResponseReader


@dataclass(slots=True)
class Lane:
    """A response that is being written to a connection."""

    create: Create  # what was asked for, and on which lane
    reader: ResponseReader  # whose events are written
    suffix: bytes | None  # what replaces the closing brace of each event; None on the default lane
    last_sent: float  # seconds of the loop's clock
    ignored: str = ""  # fields of its create that have no effect, until its client has been told

    def take(self) -> list[bytes]:
        """Return the frames of the events that are to be written next.

        The first names the ignored fields, and one that says that it has failed how long to wait, where that helps.
        """
        entries = self.reader.take()
        frames = [event_bytes(entry.json, self.suffix) for entry in entries]
        if self.ignored and frames:
            frames[0], self.ignored = with_headers(frames[0], {IGNORED_HEADER: self.ignored}), ""
        problem = self.reader.source.problem
        if problem is not None and problem.headers and entries and entries[-1].type == FAILED:
            frames[-1] = with_headers(frames[-1], problem.headers)
        return frames

    def end(self, session: WebSocketSession, connection_id: str) -> list[Command]:
        """Let go of a response that has ended; return what is to be done then. Of a stream that broke its client hears.

        A server that stops, or another worker that takes over, ends no stream on a WebSocket without an end.
        """
        reader, source = self.reader, self.reader.source
        reader.leave()
        if not reader.is_whole:
            return session.refused(self.create, source.problem or server_error(connection_id))
        output = source.response()["output"]
        return session.ended(self.create, source.status, source.link, source.problem, output)


class Lanes:
    """The lanes of one connection, by their names; None is the name of the lane that has none."""

    def __init__(self) -> None:
        self._lanes: dict[str | None, Lane] = {}
        self._ready: dict[str | None, None] = {}  # lanes with news, in the order of the news

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def get(self, name: str | None) -> Lane | None:
        """Return what is being written on a lane."""
        return self._lanes.get(name)

    def add(self, lane: Lane) -> None:
        """Write a response from now on."""
        self._lanes[lane.create.lane] = lane

    def remove(self, lane: Lane) -> bool:
        """Let go of a response; return whether it was still being written."""
        # Not where the next response has the lane already.
        known = self._lanes.get(lane.create.lane) is lane
        if known:
            del self._lanes[lane.create.lane]
        return known

    def clear(self, reason: str) -> None:
        """Let go of all, and tell their readers why."""
        for lane in self:
            lane.reader.leave(reason)
        self._lanes.clear()

    def note(self, name: str | None) -> None:
        """There is news on a lane."""
        self._ready[name] = None

    def take_ready(self) -> list[Lane]:
        """Return the lanes with news, which is taken then."""
        ready, self._ready = self._ready, {}
        return [lane for name in ready if (lane := self.get(name)) is not None]

    @property
    def have_news(self) -> bool:
        """Whether there may be something to write."""
        return bool(self._ready)

    def have_little(self) -> bool:
        """Whether there is news, and so little that more may come with it."""
        return bool(self._ready) and all(
            lane.reader.has_little for name in self._ready if (lane := self.get(name)) is not None
        )

    @property
    def lag_bytes(self) -> int:
        """How far their client is behind, with all of them together."""
        return sum(lane.reader.lag_bytes for lane in self)
