"""`CommandReader`: the commands of a shell's call, each told as the model writes it."""

from enum import Enum, auto

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import EventType, PendingEvents

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}  # all others stand for themselves
_UNKNOWN = "\ufffd"  # in place of half a character


class _Within(Enum):
    """What a string of the arguments is."""

    KEY = auto()  # of the outermost object
    COMMAND = auto()
    OTHER = auto()


class CommandReader:
    """Reads the commands in the arguments of a call as they are written, which are JSON: `{"commands": ["ls"]}`."""

    def __init__(self) -> None:
        self.commands: list[str] = []  # the last one may not be whole yet
        self._open: list[str] = []  # the brackets that are
        self._key = ""  # the last one of the outermost object
        self._key_is_next = False  # a string would be one
        self._is_read = False  # the list of commands has ended
        self._string: _Within | None = None  # None: outside of one
        self._escape = ""  # of a character, as far as it has come
        self._half = ""  # the first of two escapes that are one character
        self._fresh = ""  # text of the last command that was not told yet

    def read(self, text: str) -> PendingEvents:
        """Take more of the arguments, and return what is said of commands."""
        events: PendingEvents = []
        for char in text:
            if self._string is None:
                self._outside(char, events)
            elif self._escape:
                self._escaped(char)
            elif char == "\\":
                self._escape = char
            elif char == '"':
                self._end_string(events)
            else:
                self._add(char)
        self._tell(events)
        return events

    def rest(self) -> PendingEvents:
        """Return what is said of a command that is cut: nothing more comes."""
        events: PendingEvents = []
        if self._string is _Within.COMMAND:
            self._end_string(events)
        return events

    def _outside(self, char: str, events: PendingEvents) -> None:
        if char == '"' and self._key_is_next:
            self._string, self._key = _Within.KEY, ""
        elif char == '"' and self._is_in_commands and not self._is_read:
            self._string = _Within.COMMAND
            self.commands.append("")
            events.append((EventType.SHELL_COMMAND_ADDED, {**self._place, "command": ""}))
        elif char == '"':
            self._string = _Within.OTHER
        elif char in "{[":
            self._open.append(char)
            self._key_is_next = self._open == ["{"]
        elif char in "}]":
            self._is_read = self._is_read or self._is_in_commands
            self._open = self._open[:-1]
        elif char in ",:":
            self._key_is_next = char == "," and len(self._open) == 1

    @property
    def _is_in_commands(self) -> bool:
        return self._open == ["{", "["] and self._key == "commands"

    @property
    def _place(self) -> JsonObject:
        return {"command_index": len(self.commands) - 1}

    def _escaped(self, char: str) -> None:
        self._escape += char
        if self._escape[1] != "u":
            self._escape = ""
            self._add(_ESCAPES.get(char, char))
        elif len(self._escape) == 6:  # \uXXXX
            code, self._escape = self._escape[2:], ""
            try:
                self._add_code(int(code, 16))
            except ValueError:
                self._add(_UNKNOWN)

    def _add_code(self, code: int) -> None:
        half, self._half = self._half, ""
        if half and 0xDC00 <= code < 0xE000:
            self._put(chr(0x10000 + ((ord(half) - 0xD800) << 10) + code - 0xDC00))
            return
        self._put(_UNKNOWN if half else "")
        if 0xD800 <= code < 0xDC00:
            self._half = chr(code)
        else:
            self._put(_UNKNOWN if 0xDC00 <= code < 0xE000 else chr(code))

    def _add(self, char: str) -> None:
        half, self._half = self._half, ""
        self._put(f"{_UNKNOWN if half else ''}{char}")

    def _put(self, text: str) -> None:
        if self._string is _Within.KEY:
            self._key += text
        elif self._string is _Within.COMMAND:
            self._fresh += text

    def _end_string(self, events: PendingEvents) -> None:
        self._add("")
        self._tell(events)
        if self._string is _Within.COMMAND:
            events.append((EventType.SHELL_COMMAND_DONE, {**self._place, "command": self.commands[-1]}))
        self._string = None

    def _tell(self, events: PendingEvents) -> None:
        fresh, self._fresh = self._fresh, ""
        if fresh:
            self.commands[-1] += fresh
            events.append((EventType.SHELL_COMMAND_DELTA, {**self._place, "delta": fresh}))
