"""What peers send in very small pieces (chunks of a body, frames of a WebSocket): parsed in turn, and not for ever.

A piece of one byte costs its parser as much as one of a kilobyte, 10 to 90 µs, and a read of 64 KiB holds 10,000 of
them: everybody else would wait half a second for it. So whatever holds more than a few pieces waits for its turn. The
process has one of those in each turn of its loop, whoever sent it and however many send such, and reads nothing more
from a peer whose data wait. `Framing` bounds how long that goes on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

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
        self._left = b""
        self._is_parsing = False
        self._has_ended = False

    @property
    def waits(self) -> bool:
        """Whether data wait for their turn."""
        return bool(self._left)

    @property
    def has_ended(self) -> bool:
        """Whether all that comes is thrown away."""
        return self._has_ended

    def take(self, data: bytes) -> None:
        """Take what has been read: parse it, or let it wait for its turn. After `end` it is thrown away."""
        if self._has_ended:
            return
        if self._is_parsing:  # the parser gives back what it has kept: that comes before what waits here
            self._parse(data)
        elif self._left:
            self._left += data
            self._changed()
        elif self._step(data, MANY_PIECES):
            self._changed()
            _turns.append(self)
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
        self._has_ended = True
        self._left = b""

    def _step(self, data: bytes, pieces: int) -> bool:
        """Parse so many pieces, or all if that is cheap; return whether any data are left."""
        self._left = b""
        while data and not self._has_ended:
            end = len(data) if self._is_cheap() else self._cut(data, pieces)
            if self._has_ended:  # too many pieces
                break
            self._is_parsing = True
            try:
                self._parse(data[:end])
            finally:
                self._is_parsing = False
            data = data[end:]
            if not self._is_cheap():
                break
        self._left = b"" if self._has_ended else data
        return bool(self._left)


def lines_end(data: bytes, lines: int, start: int = 0) -> int:
    """Return where so many lines behind `start` end: a chunk has two, but for those in its content."""
    end = start
    for _ in range(lines):
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
