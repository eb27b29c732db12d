"""What peers send in very small pieces (chunks of a body, frames of a WebSocket): parsed in turn, within bounds.

A piece of one byte costs its parser as much as one of a kilobyte, 10 to 90 µs, and a read of 64 KiB holds 10,000 of
them: everybody else would wait half a second for it. So whatever holds more than a few pieces waits for its turn. The
process has one of those in each turn of its loop, whoever sent it and however many send such, and reads nothing more
from a peer whose data wait. `Framing` bounds how long that goes on.

`Frames` sees the frames that the peer of a WebSocket sends before the server's parser gets them. Servers bound a
message's bytes only. Here its frames have a size on average; it has a time to come to its end; and the messages of
all connections that have not come to theirs share a budget of memory. What is over a bound is refused: nothing more
of that peer is parsed, and the application, which gets a message of our own, says why and closes.

Only the heads of frames are read (RFC 6455 section 5.2). What is wrong with them is the server's parser to find.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from responses_app.protocol.errors import ApiError
from responses_app.protocol.transport import frames_too_small, message_too_large, message_too_slow, too_much_unfinished
from responses_app.web.bodies import MIN_BYTES_PER_SECOND

logger = logging.getLogger("respsite.transport")

MANY_PIECES = 64  # lines or frames in one read; more are parsed in turns. A request's head has fewer lines
PIECES_A_TURN = 16  # lines or frames that are parsed in one turn of the loop: at most 1.5 ms
FRAMING_BYTES = 4 * 1024  # heads and ends of pieces that anybody may send: 800 chunks, or 680 frames
CONTENT_PER_FRAMING = 10  # bytes of content that allow one byte more
FRAMING_PER_SECOND = 256  # bytes more by time: pings, which have no content
AVERAGE_BYTES = 64  # of a piece, which keeps within that in any case; what clients are told


class Framing:
    """The bytes that a peer spends on the heads and ends of pieces, against those of its content."""

    def __init__(self) -> None:
        self._began = _now()
        self._framing = 0
        self._content = 0

    def take(self, framing: int, content: int) -> bool:
        """Count bytes of both; return whether the pieces are large enough."""
        self._framing += framing
        self._content += content
        if self._framing <= FRAMING_BYTES:
            return True
        # What is large, or comes slowly, may have as many pieces as it likes.
        allowed = self._content / CONTENT_PER_FRAMING + FRAMING_PER_SECOND * (_now() - self._began)
        return self._framing <= FRAMING_BYTES + allowed


class Inflow:
    """One connection's data on their way to its parser.

    `cut(data, pieces)` returns how many bytes hold so many pieces at most; of what it returns all is parsed, in order,
    before it is asked again. `parse` takes them. `is_cheap()` says that what comes next is not looked into, whatever it
    holds. `changed` is told when data begin to wait, and when none do any more: no more is to be read meanwhile.
    `abort` ends the connection whose parser broke.
    """

    def __init__(
        self,
        cut: Callable[[bytes, int], int],
        parse: Callable[[bytes], None],
        changed: Callable[[], None],
        abort: Callable[[], None],
        is_cheap: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cut = cut
        self._parse = parse
        self._changed = changed
        self._abort = abort
        self._is_cheap = is_cheap
        self._left = b""  # what waits for its turn
        self._is_parsing = False  # the parser runs, and may give data back
        self.has_ended = False  # all that comes is thrown away

    @property
    def waits(self) -> bool:
        """Whether data wait for their turn."""
        return bool(self._left)

    def take(self, data: bytes) -> None:
        """Take what has been read: parse it, or let it wait for its turn. After `end` it is thrown away."""
        if self.has_ended:
            return
        if self._is_parsing:  # the parser gives back what it has kept: that comes before what waits here
            self._parse(data)
        elif self._left:
            # A copy each time, but nothing more is read from this peer until it is parsed.
            self._left += data
            self._changed()
        elif self._step(data, MANY_PIECES):
            self._changed()
            _turns.append(self)
            # Else `_next_turn` is on its way already.
            if len(_turns) == 1:
                asyncio.get_running_loop().call_soon(_next_turn)

    def go_on(self) -> bool:
        """Parse a little of what waits; return whether more does."""
        if not self._left:
            return False
        try:
            if self._step(self._left, PIECES_A_TURN):
                return True
        except Exception:  # the server does so where the parser breaks as it reads
            logger.exception("a connection's data could not be parsed")
            self.end()
            self._abort()
            return False
        self._changed()
        return False

    def end(self) -> None:
        """Parse nothing any more, and throw away what comes."""
        self.has_ended = True
        self._left = b""

    def _step(self, data: bytes, pieces: int) -> bool:
        """Parse so many pieces, or all if that is cheap; return whether any data are left."""
        self._left = b""
        while data and not self.has_ended:
            end = len(data) if self._is_cheap() else self._cut(data, pieces)
            if self.has_ended:  # too many pieces
                break
            self._is_parsing = True
            try:
                self._parse(data[:end])
            finally:
                self._is_parsing = False
            data = data[end:]
            if not self._is_cheap():
                break
        self._left = b"" if self.has_ended else data
        return bool(self._left)


def lines_end(data: bytes, lines: int, start: int = 0) -> int:
    """Return where so many lines behind `start` end: a chunk has two, but for those in its content."""
    end = start
    for _ in range(lines):
        # `find` gives -1 for none, so `end` is 1 then.
        end = data.find(b"\r\n", end) + 2
        if end < 2:
            return len(data)
    return end


_turns: deque[Inflow] = deque()  # whose data wait


def _next_turn() -> None:
    inflow = _turns.popleft()
    if inflow.go_on():
        _turns.append(inflow)
    if _turns:
        asyncio.get_running_loop().call_soon(_next_turn)


def _now() -> float:
    return asyncio.get_running_loop().time()


REFUSED = "respsite.refused"  # type of the message that tells the application; it has the `error`
LINGER_SECONDS = 2.0  # a refused peer has so long to read why
REASON_BYTES = 123  # of a close: what fits into its frame
# The opcode is the low half of a frame's first byte.
_CONTROL = 8  # opcodes from here on are pings and their like, which may come inside a message
_LONGEST_HEAD = 14  # 2 bytes, 8 of length, and 4 of the mask


@dataclass(slots=True, kw_only=True)
class FrameRules:
    """The bounds of what comes on all WebSockets of this process, and what is under way there."""

    arrival_seconds: float  # for a message; a long one may take as long as MIN_BYTES_PER_SECOND need
    max_message_bytes: int
    max_unfinished_bytes: int  # of all messages that have not come to their end
    _sizes: "dict[Frames, int]" = field(default_factory=dict)

    def note(self, frames: "Frames", size: int) -> None:
        """Take note of a connection's unfinished message; over the budget the largest of the greediest is refused."""
        if size:
            self._sizes[frames] = size
        else:
            self._sizes.pop(frames, None)
        # `refuse` calls `note` with 0, so each round takes one message out.
        while sum(self._sizes.values()) > self.max_unfinished_bytes:
            shares: Counter[object] = Counter()
            for each, its_size in self._sizes.items():
                shares[each.owner] += its_size
            greediest = max(shares, key=shares.__getitem__)
            largest = max((each for each in self._sizes if each.owner == greediest), key=self._sizes.__getitem__)
            largest.refuse(too_much_unfinished())


class Frames:
    """What one peer sends. `cut` is for an `Inflow`; `refused` is called once, with the reason."""

    def __init__(
        self,
        rules: FrameRules,
        put: Callable[[dict[str, Any]], None],
        end: Callable[[], None],
        abort: Callable[[], None],
    ) -> None:
        """Take what hands the application a message, what ends the parsing, and what cuts the connection."""
        self._rules = rules
        self._put = put
        self._end = end
        self._abort = abort
        self._framing = Framing()
        self._head = b""  # of a frame, as far as it is here
        self._payload = 0  # bytes of the present frame that are still to come
        self._is_last = True  # the present frame ends its message
        self._is_control = False
        self._message: float | None = None  # when the unfinished one began, on the loop's clock
        self._size = 0  # of that
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self.owner: object = self  # whose share of the budget this is: a project, once it is known

    def cut(self, data: bytes, frames: int) -> int:
        """Return how many bytes hold so many frames, the rest of the present one before them, and count them."""
        at = 0  # position in `data`
        heads = content = 0
        while at < len(data) and not self._is_over:
            if self._payload:
                step = min(self._payload, len(data) - at)
                self._payload -= step
                at += step
                content += step
                self._take(step)
                continue
            if not frames:
                break
            known = len(self._head)
            head = self._head + data[at : at + _LONGEST_HEAD - known]
            length = _length(head)
            # The head goes on in the next read.
            if length is None:
                self._head = head
                heads += len(data) - at
                at = len(data)
                break
            too_large = self._excess(head)
            if too_large is not None and at > known:
                break  # what came before it is parsed first
            frames -= 1
            self._head = b""
            at += length - known
            heads += length - known
            self._begin(head)
            if too_large is not None:
                # Clients that write a message to its end before they read get to read, too.
                self.refuse(too_large, linger=max(LINGER_SECONDS, self._rules.arrival_seconds))
        if not self._framing.take(heads, content):
            self.refuse(frames_too_small(AVERAGE_BYTES))
        if not self._is_over:
            self._rules.note(self, 0 if self._message is None else self._size)
            self._watch()
        return at

    def refuse(self, error: ApiError, *, linger: float = LINGER_SECONDS) -> None:
        """Parse nothing more, and have the application say why; after `linger` seconds the connection is cut."""
        if self._is_over:
            return
        self.close()
        self._end()
        self._put({"type": REFUSED, "error": error})
        self._timer = asyncio.get_running_loop().call_later(linger, self._abort)

    def close(self) -> None:
        """The connection ends."""
        self._is_over = True
        self._message = None
        self._rules.note(self, 0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _excess(self, head: bytes) -> ApiError | None:
        """Return the error for a frame with which its message is too large."""
        size = (0 if self._message is None else self._size) + _payload(head)
        if head[0] & 0x0F >= _CONTROL or size <= self._rules.max_message_bytes:
            return None
        return message_too_large(size, self._rules.max_message_bytes)

    def _begin(self, head: bytes) -> None:
        self._is_control = head[0] & 0x0F >= _CONTROL
        self._payload = _payload(head)
        if not self._is_control:
            # The first bit is FIN: the frame is the last one of its message.
            self._is_last = bool(head[0] & 0x80)
            if self._message is None:
                self._message = asyncio.get_running_loop().time()
                self._size = 0
        self._take(0)

    def _take(self, size: int) -> None:
        if self._is_control:
            return
        self._size += size
        if self._is_last and not self._payload:
            self._message = None

    def _watch(self) -> None:
        """Look again when the unfinished message's time is over; one timer serves many messages."""
        if self._message is not None and self._timer is None and not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(self._seconds_left(), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._message is not None and self._seconds_left() <= 0:
            self.refuse(message_too_slow(self._rules.arrival_seconds))
        else:
            self._watch()

    def _seconds_left(self) -> float:
        assert self._message is not None
        allowed = self._rules.arrival_seconds + self._size / MIN_BYTES_PER_SECOND
        return self._message + allowed - asyncio.get_running_loop().time()


def _length(head: bytes) -> int | None:
    """Return how long the head is that this begins with, None while that cannot be told or it is not all here."""
    if len(head) < 2:
        return None
    size = head[1] & 0x7F
    # Two bytes, more for a longer length, and the mask's 4, which the first bit of the second byte announces.
    length = 2 + {126: 2, 127: 8}.get(size, 0) + (4 if head[1] & 0x80 else 0)
    return length if len(head) >= length else None


def _payload(head: bytes) -> int:
    size = head[1] & 0x7F
    if size < 126:
        return size
    return int.from_bytes(head[2:4] if size == 126 else head[2:10])
