"""What commands of a shell print in a container, as it is told while they run, and how they ended.

    frames of the warden ──> CommandOutputs ──> reports: {"command_index": 0, "stdout": "…", "stderr": "…"}

A first line is told at once, and what follows in batches. Of each command so many characters are told: half of them
from the beginning as they come, and half from the end, once it is known; what is left out between is counted there. All
that was told, put together, is all that the command is known to have printed.
"""

import asyncio
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from responses_app.tools.sandbox.inside.respsite_kernel import frames
from responses_app.tools.sandbox.records import CellEnd, ContainerFile, StoredFile, clean

MAX_COMMANDS = 16  # of one call, which run at once
MAX_TOLD = 64 * 1024  # characters of one command that are told
BATCH_SECONDS = 0.05  # between two reports of one call
KILLED = 137  # the exit code of what was killed, as shells have it: 128 and the signal's number
_FRAME = 64  # bytes that each frame counts as beside its content: empty ones must have an end, too
_STREAMS = ("stdout", "stderr")
_decoder = getincrementaldecoder("utf-8")

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended."""

    exit_code: int
    killed: bool = False  # it did not end by itself: it was told to


@dataclass(frozen=True, slots=True)
class CommandsEnd:
    """What came of the commands of one call."""

    ended: CellEnd  # why those that were killed were
    commands: Sequence[CommandEnd]
    files: Sequence[StoredFile] = ()  # those that they wrote
    variables_lost: bool = False  # the kernel was ended, too


@dataclass(frozen=True, slots=True)
class CommandsRun:
    """What came of commands in a container."""

    execution: CommandsEnd  # how they ended
    files: Sequence[ContainerFile]  # those that they wrote
    begun_anew: str | None  # as in `CellRun`


class _Told:
    """What one command prints, of which `most` characters are told."""

    def __init__(self, most: int) -> None:
        self._decoders = {stream: _decoder(errors="replace") for stream in _STREAMS}
        self._room = most - most // 2  # characters that are still told as they come
        self._most_of_end = most // 2
        self._ends = dict.fromkeys(_STREAMS, "")  # of what came behind those, the last characters
        self._behind = 0  # characters that came behind them
        self._pending = dict.fromkeys(_STREAMS, "")  # not told yet

    def add(self, stream: str, content: bytes, *, final: bool = False) -> None:
        text = clean(self._decoders[stream].decode(content, final))
        now, later = text[: self._room], text[self._room :]
        self._room -= len(now)
        self._pending[stream] += now
        if later:
            self._behind += len(later)
            self._ends[stream] = (self._ends[stream] + later)[-self._most_of_end :] if self._most_of_end else ""

    def take(self) -> dict[str, str]:
        """Return what is to be told now, by its stream."""
        pending, self._pending = self._pending, dict.fromkeys(_STREAMS, "")
        return {stream: text for stream, text in pending.items() if text}

    def end(self) -> None:
        """Have its end told, too: nothing more comes."""
        for stream in _STREAMS:
            self.add(stream, b"", final=True)
        out, err = self._ends["stdout"], self._ends["stderr"]
        # Each stream has half of the room, or what the other one leaves of it.
        of_err = min(len(err), max(self._most_of_end // 2, self._most_of_end - len(out)))
        of_out = min(len(out), self._most_of_end - of_err)
        if left_out := self._behind - of_out - of_err:
            self._pending["stdout" if out or not err else "stderr"] += f"\n[… {left_out} characters left out …]\n"
        self._pending["stdout"] += out[len(out) - of_out :]
        self._pending["stderr"] += err[len(err) - of_err :]


class CommandOutputs:
    """What the commands of one call print; `most` characters of each are told to `report`."""

    def __init__(self, count: int, most: int, report: Report) -> None:
        self.size = 0  # bytes that came
        self._told = [_Told(max(0, min(most, MAX_TOLD))) for _ in range(count)]
        self._report = report
        self._batch: asyncio.TimerHandle | None = None  # nothing is told before it has run

    def take(self, frame: frames.Frame) -> None:
        """Take what a warden says that a command has printed; what cannot be is left out."""
        self.size += _FRAME + len(frame.payload)
        match frame.header:
            case {"command": int(place), "stream": "stdout" | "stderr" as stream} if 0 <= place < len(self._told):
                self._told[place].add(stream, frame.payload)
        if self._batch is None:
            self._tell()

    def end(self) -> None:
        """Tell what is left; nothing more comes."""
        if self._batch is not None:
            self._batch.cancel()
        for each in self._told:
            each.end()
        self._tell_now()

    def _tell(self) -> None:
        self._batch = None
        if self._tell_now():
            self._batch = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._tell)

    def _tell_now(self) -> bool:
        """Tell what is there, and return whether there was anything."""
        told = [(place, text) for place, each in enumerate(self._told) if (text := each.take())]
        for place, text in told:
            self._report({"command_index": place, **text})
        return bool(told)


def commands_end(header: Mapping[str, Any] | None, count: int, ended: CellEnd, files: list[StoredFile]) -> CommandsEnd:
    """Return what a warden says of how commands ended; None: all were killed, and the kernel with them."""
    told = header.get("ended") if header is not None else None
    ends = [_end_of(each) for each in told] if isinstance(told, list) else []
    # What the warden does not tell of was killed: code may have made it say anything.
    ends = [*ends, *(CommandEnd(KILLED, killed=True) for _ in range(count))][:count]
    return CommandsEnd(ended, ends, files, variables_lost=header is None or header.get("lost") is True)


def _end_of(told: object) -> CommandEnd:
    match told:
        case [int(code), bool(killed)] if 0 <= code <= 255:
            return CommandEnd(int(code), killed)
    return CommandEnd(KILLED, killed=True)
