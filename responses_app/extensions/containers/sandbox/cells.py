"""Output, calls and results of cells and commands, as a container tells them: bounded and checked.

Code in a sandbox may have made a warden say anything, so what is not as it should be is left out. Of a cell, `Output`
keeps as much of what is printed as is worth reading, and each call of a tool is answered before the cell goes on. What
commands of a shell print is told while they run:

    frames of the warden ──> CommandOutputs ──> reports: {"command_index": 0, "stdout": "…", "stderr": "…"}

A first line is told at once, and what follows in batches. Of each command so many characters are told: half of them
from the beginning as they come, and half from the end, once it is known; what is left out between is counted there. All
that was told, put together, is all that the command is known to have printed.
"""

import asyncio
import contextlib
import json
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from responses_app.extensions.containers.sandbox.inside.respsite_kernel import frames
from responses_app.extensions.containers.sandbox.records import (
    CellEnd,
    CommandEnd,
    CommandsEnd,
    ContainerFilePart,
    Image,
    ListedFile,
    SandboxError,
    checked_path,
    clean,
)
from responses_app.protocol.setting import MIB

MAX_FILES = 1000  # of a container that are told of; the warden itself tells of no more
MAX_FILE_SIZE = 2**53 - 1  # of those that JSON can say everywhere
MAX_IMAGES = 16  # of one cell
MAX_IMAGE_BYTES = 20 * MIB  # of all of them


def part_in(answer: frames.Frame, begin: int, most: int) -> ContainerFilePart:
    """Return the part of a file that a warden gives. Raises `SandboxError` for a file of more than `most` bytes."""
    match answer.header:
        case {"size": int(size), "written": int(written)} if begin + len(answer.payload) <= size:
            if size > most:
                raise SandboxError("it is too large")
            return ContainerFilePart(answer.payload, size, written)
    raise SandboxError("it cannot be read")


def files_in(header: Mapping[str, Any]) -> list[ListedFile]:
    """Return the files that a warden tells of, of which the first `MAX_FILES` count."""
    files: list[ListedFile] = []
    listed = header.get("files")
    for each in listed if isinstance(listed, list) else ():
        match each:
            case [str(path), int(size)] if 0 <= size <= MAX_FILE_SIZE and len(files) < MAX_FILES:
                with contextlib.suppress(SandboxError):
                    files.append(ListedFile(checked_path(path), int(size)))
    return files


def images_in(answer: frames.Frame) -> list[Image]:
    """Return the images that a cell has shown, of which the first `MAX_IMAGES` count."""
    images: list[Image] = []
    begin, payload, shown = 0, answer.payload, answer.header.get("images")
    for each in shown if isinstance(shown, list) else ():
        match each:
            case ["image/png" | "image/jpeg" as media_type, int(size)] if (
                0 < size <= len(payload) - begin and len(images) < MAX_IMAGES
            ):
                images.append(Image(media_type, payload[begin : begin + size]))
                begin += size
    return images


class Output:
    """Keeps the beginning and the end of a stream of bytes, `most` bytes in all; `size` counts all that came."""

    def __init__(self, most: int) -> None:
        self.size = 0  # of all that came
        self._head = bytearray()
        self._most = most // 2  # of each of the two
        self._tail: deque[bytes] = deque()
        self._in_tail = 0  # bytes in `_tail`, which may be a little more than `_most`

    def add(self, content: bytes) -> None:
        """Take more."""
        self.size += len(content)
        room = self._most - len(self._head)
        if room > 0:
            self._head += content[:room]
            content = content[room:]
        if not content:
            return
        self._tail.append(content)
        self._in_tail += len(content)
        # Whole pieces go while what is left still fills the end.
        while self._in_tail - len(self._tail[0]) >= self._most:
            self._in_tail -= len(self._tail.popleft())

    def text(self) -> str:
        """Return it; what was left out of the middle is counted there."""
        tail = b"".join(self._tail)
        left_out = self.size - len(self._head) - min(len(tail), self._most)
        if left_out <= 0:
            return (bytes(self._head) + tail).decode(errors="replace")
        end = tail[-self._most :].decode(errors="replace")
        return f"{self._head.decode(errors='replace')}\n[… {left_out} bytes left out …]\n{end}"


MAX_COMMANDS = 16  # of one call, which run at once
MAX_TOLD = 64 * 1024  # characters of one command that are told
BATCH_SECONDS = 0.05  # between two reports of one call
KILLED = 137  # the exit code of what was killed, as shells have it: 128 and the signal's number
_FRAME = 64  # bytes that each frame counts as beside its content: empty ones must have an end, too
_STREAMS = ("stdout", "stderr")
_decoder = getincrementaldecoder("utf-8")

Report = Callable[[dict[str, Any]], None]


class _CommandOutput:
    """The output of one command, of which `most` characters are told."""

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
        """Return the text that is to be told now, by its stream."""
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
    """The output of one call's commands; `most` characters of each are told to `report`."""

    def __init__(self, count: int, most: int, report: Report) -> None:
        self.size = 0  # bytes that came
        self._outputs = [_CommandOutput(max(0, min(most, MAX_TOLD))) for _ in range(count)]
        self._report = report
        self._batch: asyncio.TimerHandle | None = None  # nothing is told before it has run

    def take(self, frame: frames.Frame) -> None:
        """Take output of a command, as a warden tells it; what cannot be is left out."""
        self.size += _FRAME + len(frame.payload)
        match frame.header:
            case {"command": int(place), "stream": "stdout" | "stderr" as stream} if 0 <= place < len(self._outputs):
                self._outputs[place].add(stream, frame.payload)
        if self._batch is None:
            self._tell()

    def end(self) -> None:
        """Tell the rest; nothing more comes."""
        if self._batch is not None:
            self._batch.cancel()
        for each in self._outputs:
            each.end()
        self._tell_now()

    def _tell(self) -> None:
        self._batch = None
        if self._tell_now():
            self._batch = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._tell)

    def _tell_now(self) -> bool:
        """Tell all that is there, and return whether there was anything."""
        texts = [(place, text) for place, each in enumerate(self._outputs) if (text := each.take())]
        for place, text in texts:
            self._report({"command_index": place, **text})
        return bool(texts)


def commands_end(header: Mapping[str, Any] | None, count: int, ended: CellEnd, files: list[ListedFile]) -> CommandsEnd:
    """Return how commands ended, by the answer of a warden; None: all were killed, and the kernel with them."""
    listed = header.get("ended") if header is not None else None
    ends = []
    for each in listed if isinstance(listed, list) else ():
        match each:
            case [int(code), bool(killed)] if 0 <= code <= 255:
                ends.append(CommandEnd(int(code), killed))
            case _:
                ends.append(CommandEnd(KILLED, killed=True))
    # What the warden does not tell of was killed: code may have made it say anything.
    ends = [*ends, *(CommandEnd(KILLED, killed=True) for _ in range(count))][:count]
    return CommandsEnd(ended, ends, files, variables_lost=header is None or header.get("lost") is True)


T = TypeVar("T")
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]  # what a cell calls → what came of it, as JSON
MAX_ANSWER = MIB  # bytes of what a tool gives; as JSON, which escapes most letters, it is at most six times as long


async def answered(content: bytes, tools: Answer, halt: "asyncio.Future[CellEnd]") -> bytes | None:
    """Return the answer to a call, as JSON; None where the cell is to end meanwhile. Raises as `tools` does."""
    try:
        call = frames.header_of(content) if len(content) <= frames.MAX_CALL else None
    except frames.FrameError:
        call = None
    if call is None:
        return json.dumps({"error": f"a call has at most {frames.MAX_CALL} bytes of JSON"}).encode()
    working = asyncio.ensure_future(tools(call))
    either: set[asyncio.Future[Any]] = {working, halt}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return json.dumps(await working).encode() if working.done() else None
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def while_called(answer: Answer, run: Callable[[Answer], Awaitable[T]]) -> T:
    """Have a program run, perhaps in another process, and answer what it calls.

    What `answer` raises stops the program, and is raised. No call outlives it: one that is made when it ends, or when
    this is cancelled, is cancelled and waited for.
    """
    problems: list[Exception] = []
    calls: set[asyncio.Task[dict[str, Any]]] = set()

    async def answered_here(call: dict[str, Any]) -> dict[str, Any]:
        task = asyncio.ensure_future(answer(call))
        calls.add(task)
        try:
            result = await task
        except Exception as problem:  # noqa: BLE001 - it is raised once the program has stopped
            problems.append(problem)
            running.cancel()
            return {"error": "the call broke, and the program ends"}
        finally:
            task.cancel()
            calls.discard(task)
        size = sum(len(str(each).encode(errors="replace")) for each in result.values())
        return result if size <= MAX_ANSWER else {"error": f"the tool gave more than {MAX_ANSWER} bytes"}

    running = asyncio.ensure_future(run(answered_here))
    try:
        await asyncio.wait({running})
        if problems:
            raise problems[0]
        return running.result()
    finally:
        made = (running, *calls)
        for task in made:
            task.cancel()
        await asyncio.gather(*made, return_exceptions=True)
