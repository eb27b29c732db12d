"""`JsonWeight`: how much work the JSON that a server sends would be, counted before it is read.

Bytes alone say little: a library that checks each value takes seconds for megabytes of small ones, in which nothing
else of the process goes on, and milliseconds for one long text.
"""

import re

# A string from its beginning, or from within, up to its end. JSON has no line break in one: there it ends in any case.
_STRING = re.compile(rb'"[^"\\\r\n]*(?:\\.[^"\\\r\n]*)*(?P<end>["\r\n])?', re.DOTALL)
_WITHIN = re.compile(rb'[^"\\\r\n]*(?:\\.[^"\\\r\n]*)*(?P<end>["\r\n])?', re.DOTALL)
_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_BETWEEN = (b'"', b",", b"[", b"{")  # what stands for a value: a quote is a whole string


class TooManyValues(ValueError):
    """There are more than there may be."""


class JsonWeight:
    """Takes one document as it comes, or with `events` the events of a stream, each of which is one."""

    def __init__(self, most: int, *, events: bool) -> None:
        self._most = most
        self._events = events
        self._values = 0
        self._within = False  # a string goes on
        self._escaped = False  # and what comes next does not end it
        self._last = b""

    def add(self, part: bytes) -> None:
        """Take more. Raises `TooManyValues`."""
        start = 0
        if self._within:
            start = min(int(self._escaped), len(part))
            found = _WITHIN.match(part, start)
            assert found is not None, "it matches nothing at all, too"
            self._note_end(found)
            start = found.end() if not self._within else len(part)
        between = _STRING.sub(self._shortened, part[start:] if start else part)
        self._values += sum(map(between.count, _BETWEEN))
        if self._values > self._most:
            raise TooManyValues
        if self._events:
            self._forget_past(between)

    def _shortened(self, found: re.Match[bytes]) -> bytes:
        self._note_end(found)
        return b'"\n' if found["end"] in (b"\r", b"\n") else b'"'

    def _note_end(self, found: re.Match[bytes]) -> None:
        self._within = found["end"] is None
        self._escaped = self._within and found.string[found.end() : found.end() + 1] == b"\\"

    def _forget_past(self, between: bytes) -> None:
        """Begin anew behind the last event that has ended."""
        seen = self._last + between
        ends = [found.end() for found in _END_OF_EVENT.finditer(seen)]
        if ends:
            self._values = sum(map(seen[ends[-1] :].count, _BETWEEN))
        self._last = seen[-3:]
