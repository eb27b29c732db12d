"""A call of a shell whose commands this server runs: `shell_call`, and `shell_call_output` behind it.

The first is whole once the model has written its commands, and each command is told as it is written. The second is
open while they run, and what they print is told as it comes. Of what was told the item is made: so there is one home of
what a command has printed, the inputs of the machine, and its stream can be made again without the commands.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, ClassVar

from responses_app.protocol import ids
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import EventType
from responses_app.protocol.items.calls import CLIENT_KINDS
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.items.resources import ItemStatus, ServerCallItem
from responses_app.protocol.output.builders import HostedBuilder, NewId, PendingEvents, SilentInput, with_fields

_STREAMS = ("stdout", "stderr")
_KILLED: JsonObject = {"type": "exit", "exit_code": 137}  # of a command of which no end is known: it was killed
_NOT_RUN: JsonObject = {"type": "exit", "exit_code": 1}
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
        if char == '"':
            self._string = self._kind_of_string()
            if self._string is _Within.KEY:
                self._key = ""
            elif self._string is _Within.COMMAND:
                self.commands.append("")
                events.append((EventType.SHELL_COMMAND_ADDED, {**self._place, "command": ""}))
        elif char in "{[":
            self._open.append(char)
            self._key_is_next = self._open == ["{"]
        elif char in "}]":
            self._is_read = self._is_read or self._is_in_commands
            self._open = self._open[:-1]
        elif char in ",:":
            self._key_is_next = char == "," and len(self._open) == 1

    def _kind_of_string(self) -> _Within:
        if self._key_is_next:
            return _Within.KEY
        return _Within.COMMAND if self._is_in_commands and not self._is_read else _Within.OTHER

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


class ShellCallBuilder(SilentInput, HostedBuilder):
    """Commands that a shell of this server runs. The offer's `fields` name its `environment`."""

    prefix = ids.SHELL_CALL
    events_name_it: ClassVar[bool] = False

    def __init__(self, new_id: NewId, offered: OfferedTool) -> None:
        super().__init__(new_id, offered)
        self.call_id = new_id(ids.CALL)
        self._new_id = new_id
        self._reader = CommandReader()
        self._unsaid: PendingEvents = []

    def told(self, text: str) -> str:
        self._unsaid += self._reader.read(text)
        return super().told(text)

    def heard(self) -> PendingEvents:
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    def input_done(self) -> PendingEvents:
        return [*self.heard(), *self._reader.rest()]

    def output_builder(self) -> HostedBuilder:
        return ShellOutputBuilder(self._new_id, self._offered, self.call_id, self._action()["max_output_length"])

    def item(self, status: ItemStatus) -> ServerCallItem:
        item: ServerCallItem = {"id": self.id, "type": "shell_call", "status": status}
        action = _NO_ACTION if status == "in_progress" else self._action()
        return with_fields(item, {"call_id": self.call_id, "action": action, **self._offered.fields})

    def _action(self) -> dict[str, Any]:
        """Return what is to be done; of arguments that are wrong the commands that could be read."""
        fields: dict[str, Any] | None = CLIENT_KINDS["shell"].read(self.text)
        return {**_NO_ACTION, "commands": self._reader.commands} if fields is None else fields["action"]


_NO_ACTION: JsonObject = {"commands": [], "timeout_ms": None, "max_output_length": None}


class ShellOutputBuilder(HostedBuilder):
    """What the commands of a call print, and how they end.

    The tool reports `command_index` with `stdout`, `stderr` or both, and shows `outcomes`, one for each command; or an
    `error`, where nothing was run.
    """

    prefix = ids.SHELL_CALL_OUTPUT

    def __init__(self, new_id: NewId, offered: OfferedTool, call_id: str, max_output_length: object) -> None:
        super().__init__(new_id, offered)
        self._call_id = call_id
        self._max_output_length = max_output_length  # as the model has written it
        self._printed: list[Mapping[str, list[str]]] = []  # by each command, into each stream

    def progressed(self, fields: dict[str, Any]) -> PendingEvents:
        place: int = fields["command_index"]
        delta = {stream: fields[stream] for stream in _STREAMS if stream in fields}
        self._have(place + 1)
        for stream, text in delta.items():
            self._printed[place][stream].append(text)
        return [(EventType.SHELL_OUTPUT_DELTA, {"command_index": place, "delta": delta})]

    def closed(self) -> PendingEvents:
        # Also of commands that were cut: what was told of each ends.
        return [
            (EventType.SHELL_OUTPUT_DONE, {"command_index": place, "output": [each]})
            for place, each in enumerate(self._output())
        ]

    def item(self, status: ItemStatus) -> ServerCallItem:
        """Return the item; one whose tool has failed is incomplete, since OpenAI's cannot fail."""
        item: ServerCallItem = {
            "id": self.id,
            "type": "shell_call_output",
            "status": "incomplete" if status == "failed" else status,
        }
        output = [] if status == "in_progress" else self._output()
        fields = {"call_id": self._call_id, "output": output, "max_output_length": self._max_output_length}
        return with_fields(item, fields)

    def _have(self, count: int) -> None:
        while len(self._printed) < count:
            self._printed.append({stream: [] for stream in _STREAMS})

    def _output(self) -> list[JsonObject]:
        shown: dict[str, Any] = self.shown
        outcomes, error = shown.get("outcomes", ()), shown.get("error")
        if error is not None and not self._printed:
            return [{"stdout": "", "stderr": error, "outcome": dict(_NOT_RUN)}]
        self._have(len(outcomes))
        ends = [*outcomes, *(_KILLED for _ in self._printed)]
        return [
            {**{stream: "".join(texts) for stream, texts in printed.items()}, "outcome": dict(end)}
            for printed, end in zip(self._printed, ends, strict=False)
        ]
