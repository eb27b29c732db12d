"""`HostChannel`: two processes ask each other, many things at once, over one connection.

    {"ask": 7, "what": "run", "arguments": […]}      ──>
                     <──  {"call": 7, "turn": 1, "value": "{…}"}  the asked one needs something while it works
    {"reply": 7, "turn": 1, "value": …}              ──>
                     <──  {"told": 7, "value": …}                 how far it is: nothing is said to that
                     <──  {"answer": 7, "value": …}, or {"failed": 7, "error": [name, text, detail]}
    {"cancel": 7}                                    ──>          nobody waits for it any more
    {"ping": true}                                   ──>   {"pong": …}

A question ends with its answer, with the end of the connection, or in its time. Whoever is not heard for too long is
gone: a process that stands still keeps its connections open.

What is needed is JSON within JSON: a program has made it, so it may be of any shape, and must not break the message.

What goes over it is a JSON header, and the bytes that lie behind it:

    length of the JSON, how many bytes behind it │ JSON │ bytes

Values are what JSON knows, bytes, dataclasses and enumerations; `read_as` makes them again by their type.
"""

import asyncio
import contextlib
import json
import logging
import struct
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from responses_app.protocol.setting import MIB

logger = logging.getLogger("respsite.sandbox")

# Of this protocol: a host refuses a worker that has another one. A host outlives a rolling restart, so workers of a
# newer release talk to an older host; where they are two machines, it may be the other way round. A new action needs no
# new version: an older host answers that it does not know it. A new field needs one: `read_as` refuses unknown fields.
VERSION = 2
MAX_JSON = 8 * MIB  # bytes of a header: the files of a container, listed, take 1.5 MB
MAX_BYTES = 64 * MIB  # behind it: the images of a cell take 20, and SKILL_MAX_BYTES is at most so much
MAX_HELLO = 4096  # bytes of the first header, before anybody is known; nothing lies behind it
FRAME_SECONDS = 60.0  # in which a message comes whole, once it has begun
_HEAD = struct.Struct(">II")  # of the JSON and of the bytes; big-endian, 32 bits each
_PLACE = "\0bytes"  # where bytes stand, the JSON has their first and their last place


class MessageError(Exception):
    """Something is no message, or is too long, or is not of the type that it should have."""


def packed(value: Mapping[str, object]) -> bytes:
    """Return a message as it is sent. Raises `MessageError` for one that is too long."""
    parts: list[bytes] = []
    size = 0

    def plain(each: object) -> object:
        nonlocal size
        if isinstance(each, bytes):
            parts.append(each)
            size += len(each)
            # The place among the bytes stands in for them.
            return {_PLACE: [size - len(each), size]}
        if is_dataclass(each):
            return {field.name: getattr(each, field.name) for field in fields(each)}
        if isinstance(each, Enum):
            return each.value
        raise TypeError(f"{type(each).__name__} cannot be sent")

    text = json.dumps(value, default=plain).encode()
    if len(text) > MAX_JSON or size > MAX_BYTES:
        raise MessageError("it is too long to be sent")
    return b"".join((_HEAD.pack(len(text), size), text, *parts))


async def received(
    reader: asyncio.StreamReader, *, max_json: int = MAX_JSON, max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """Return the next message; one that has begun comes within `FRAME_SECONDS`.

    Raises `MessageError`, `TimeoutError`, `OSError`, and `asyncio.IncompleteReadError` where the other side is gone.
    """
    begin = await reader.readexactly(1)
    async with asyncio.timeout(FRAME_SECONDS):
        text, size = _HEAD.unpack(begin + await reader.readexactly(_HEAD.size - 1))
        # Before anything of it is read: whoever sends it may say anything.
        if text > max_json or size > max_bytes:
            raise MessageError("it is too long")
        content = await reader.readexactly(text)
        behind = await reader.readexactly(size)

    def whole(each: dict[str, Any]) -> Any:
        if each.keys() != {_PLACE}:
            return each
        match each[_PLACE]:
            case [int(start), int(end)] if 0 <= start <= end <= len(behind):
                return behind[start:end]
        raise ValueError("bytes that are not there")

    try:
        message = json.loads(content, object_hook=whole)
    except (ValueError, RecursionError):
        raise MessageError("it is not JSON") from None
    if not isinstance(message, dict):
        raise MessageError("it is not an object")
    return message


def read_as(kind: Any, value: Any) -> Any:
    """Return a value that came as JSON in its own type: a dataclass, an enumeration, a sequence of them, or itself.

    Raises `MessageError`.
    """
    try:
        return _read(kind, value)
    except (TypeError, ValueError, KeyError, AttributeError) as problem:
        raise MessageError(f"it is no {getattr(kind, '__name__', kind)}: {problem}") from None


def _read(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        inner = [each for each in get_args(kind) if each is not type(None)]
        return None if value is None else _read(inner[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _fields_of(kind)
        return kind(**{name: _read(hints[name], each) for name, each in value.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if origin is tuple:
        return tuple(_read(each, one) for each, one in zip(get_args(kind), value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [_read(get_args(kind)[0], each) for each in value]
    plain = {Literal: str, Any: object}.get(origin or kind, origin or kind)
    expected = (int, float) if plain is float else plain
    if plain is None or plain is type(None):
        expected = type(None)
    if not isinstance(value, expected):
        raise TypeError(f"{type(value).__name__} instead of {kind}")
    return value


@cache
def _fields_of(kind: type) -> dict[str, Any]:
    from responses_app.protocol.files.containers import MemoryLimit  # which records name, and do not import

    return get_type_hints(kind, localns={"MemoryLimit": MemoryLimit})


Callback = Callable[[dict[str, Any]], Awaitable["dict[str, Any] | None"]]  # what is needed while an action runs
Report = Callable[[dict[str, Any]], None]  # how far an action is
MAX_ASKED = 1024  # questions of the other side that are worked on at once; each further one fails
SEND_SECONDS = 30.0  # for the other side to take what is sent to it
_NOT_DONE = {"error": "it could not be done"}  # the reply where what was needed broke


class ChannelClosed(Exception):
    """The other side is gone, or does not answer any more."""


class ActionFailed(Exception):
    """The other side could not do it: `name` of the error, its text, and a detail for the log."""

    def __init__(self, name: str, text: str, detail: str) -> None:
        super().__init__(text)
        self.name = name
        self.detail = detail


class HostQuestion:
    """A question of the other side that is worked on."""

    def __init__(self, channel: "HostChannel", number: int) -> None:
        self._channel = channel
        self._number = number
        self._turns = 0  # how often something was needed
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self.is_dropped = False  # its connection has ended: nobody has said that it is not wanted any more

    async def call(self, value: dict[str, Any]) -> dict[str, Any]:
        """Have the asking side do something while this works; return its answer. Raises `ChannelClosed`."""
        self._turns += 1
        turn, reply = self._turns, asyncio.get_running_loop().create_future()
        self._replies[turn] = reply
        try:
            await self._channel.send({"call": self._number, "turn": turn, "value": json.dumps(value)})
            answer = await reply
        finally:
            del self._replies[turn]
        return answer if isinstance(answer, dict) else {}

    def tell(self, value: dict[str, Any]) -> None:
        """Say how far it is: before the answer, and in this order. Whoever tells bounds how much."""
        if self._channel.is_open:
            self._channel.put({"told": self._number, "value": value})

    def replied(self, turn: object, value: object) -> None:
        """Take the answer of the asking side."""
        reply = self._replies.get(turn) if isinstance(turn, int) else None
        if reply is not None and not reply.done():
            reply.set_result(value)


@dataclass(frozen=True, slots=True)
class _Asker:
    """Who waits for an answer, and their functions for what comes before it.

    That is done in their context: what is logged there is about them, and not about who opened the connection.
    """

    callback: Callback | None
    report: Report | None
    context: Context = field(default_factory=copy_context)


Work = Callable[[str, Sequence[Any], HostQuestion], Awaitable[Any]]  # raises `ActionFailed`


async def no_work(what: str, arguments: Sequence[Any], question: HostQuestion) -> Any:
    """Do nothing: only the other side is asked here."""
    raise ActionFailed("SandboxError", "nothing is done here", "")


class HostChannel:
    """One end of a connection. `work` does what the other side asks for; `news` is what a ping is answered with.

    `heard` is called with what a pong says. With `silence` seconds of silence the other side is gone; with `pings` it
    is asked before that.
    """

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        work: Work = no_work,
        news: Callable[[], object] = dict,
        heard: Callable[[Any], object] = bool,
        silence: float,
        pings: float = 0.0,
    ) -> None:
        self._reader, self._writer = streams
        self._work = work
        self._news = news
        self._heard = heard
        self._silence = silence
        self._pings = pings
        self._number = 0
        self._asking: dict[int, asyncio.Future[Any]] = {}  # our questions, by their numbers
        self._askers: dict[int, _Asker] = {}  # of those, by the same numbers
        self._called: dict[asyncio.Task[None], int] = {}  # callbacks that work now, with what they are needed for
        self._questions: dict[int, tuple[asyncio.Task[None], HostQuestion]] = {}  # questions of the other side
        self._last = 0.0  # when the other side was heard last, on the loop's clock
        self._watch: asyncio.Task[None] | None = None
        self.is_open = True

    async def ask(
        self,
        what: str,
        arguments: Sequence[Any],
        *,
        callback: Callback | None = None,
        report: Report | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Return the answer of the other side; where this is cancelled or late, it is told to stop.

        Raises `ChannelClosed`, `ActionFailed`, `MessageError` for a question that is too long, and `TimeoutError`.
        """
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._asking[number], self._askers[number] = answer, _Asker(callback, report)
        try:
            async with asyncio.timeout(seconds):
                await self.send({"ask": number, "what": what, "arguments": arguments})
                return await answer
        finally:
            del self._asking[number], self._askers[number]
            for task, needed_for in self._called.items():
                if needed_for == number:
                    task.cancel()
            if answer.cancelled() or not answer.done():
                answer.cancel()
                # Not awaited: whoever is cancelled must not wait for a connection that stands still.
                if self.is_open:
                    self._writer.write(packed({"cancel": number}))
            else:
                answer.exception()  # where nobody waits any more, nobody is told

    def put(self, message: dict[str, object]) -> None:
        """Send a message soon, without waiting until it is taken. Raises `MessageError` for one that is too long."""
        self._writer.write(packed(message))

    async def send(self, message: dict[str, object]) -> None:
        """Send a message. Raises `ChannelClosed`, and `MessageError` for one that is too long."""
        if not self.is_open:
            raise ChannelClosed
        self._writer.write(packed(message))
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._writer.drain()
        except (OSError, TimeoutError):
            self.close()
            raise ChannelClosed from None

    async def live(self) -> None:
        """Read until the connection ends; then nothing of it is left."""
        self._last = asyncio.get_running_loop().time()
        self._watch = asyncio.create_task(self._keep_watch())
        try:
            while self.is_open:
                message = await received(self._reader)
                self._last = asyncio.get_running_loop().time()
                self._take(message)
        except MessageError as problem:
            logger.warning("a connection between a worker and a host of containers is ended: %s", problem)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the other side is gone
        finally:
            self.close()
            self._watch.cancel()
            tasks = [task for task, _ in self._questions.values()]
            await asyncio.gather(*tasks, *self._called, self._watch, return_exceptions=True)

    def close(self) -> None:
        """End the connection: our questions fail, and those of the other side are worked on no more."""
        if not self.is_open:
            return
        self.is_open = False
        self._writer.close()
        for answer in self._asking.values():
            if not answer.done():
                answer.set_exception(ChannelClosed())
        for task, question in self._questions.values():
            question.is_dropped = True
            task.cancel()
        for task in self._called:
            task.cancel()

    def _take(self, message: dict[str, Any]) -> None:
        match message:
            case {"ask": int(number), "what": str(what), "arguments": list(arguments)}:
                self._begin(number, what, arguments)
            case {"answer": int(number), "value": value}:
                self._resolve(number, value, None)
            case {"failed": int(number), "error": [str(name), str(text), str(detail)]}:
                self._resolve(number, None, ActionFailed(name, text, detail))
            case {"call": int(number), "turn": int(turn), "value": str(value)}:
                asker = self._askers.get(number)  # None: nobody waits for it any more
                callback, context = (None, None) if asker is None else (asker.callback, asker.context.copy())
                task = asyncio.create_task(self._call_back(callback, number, turn, value), context=context)
                self._called[task] = number
                task.add_done_callback(self._called.pop)
            case {"told": int(number), "value": dict(value)}:
                self._hear(number, value)
            case {"cancel": int(number)} | {"reply": int(number)}:
                self._take_of_question(number, message)
            case {"ping": True}:
                self._writer.write(packed({"pong": self._news()}))
            case {"pong": news}:
                self._heard(news)
            case _:
                raise MessageError("it says nothing that is known here")

    def _take_of_question(self, number: int, message: dict[str, Any]) -> None:
        """Take a message on a question of the other side, if that is still worked on."""
        task, question = self._questions.get(number, (None, None))
        if task is None or question is None:
            return
        if "cancel" in message:
            task.cancel()
        else:
            question.replied(message.get("turn"), message.get("value"))

    def _hear(self, number: int, value: dict[str, Any]) -> None:
        asker = self._askers.get(number)
        if asker is not None and asker.report is not None:
            asker.context.run(_report, asker.report, value)

    def _resolve(self, number: int, value: Any, problem: Exception | None) -> None:
        answer = self._asking.get(number)
        if answer is None or answer.done():  # nobody waits for it any more
            return
        answer.set_exception(problem) if problem is not None else answer.set_result(value)

    def _begin(self, number: int, what: str, arguments: list[Any]) -> None:
        if number in self._questions:
            raise MessageError("two questions have one number")
        if len(self._questions) >= MAX_ASKED:
            self._writer.write(packed({"failed": number, "error": ["SandboxError", "too much is asked at once", ""]}))
            return
        question = HostQuestion(self, number)
        task = asyncio.create_task(self._answer(number, what, arguments, question))
        self._questions[number] = (task, question)

    async def _answer(self, number: int, what: str, arguments: list[Any], question: HostQuestion) -> None:
        try:
            try:
                message: dict[str, object] = {"answer": number, "value": await self._work(what, arguments, question)}
                content = packed(message)
            except ActionFailed as problem:
                content = packed({"failed": number, "error": [problem.name, str(problem), problem.detail]})
            except MessageError as problem:
                content = packed({"failed": number, "error": ["SandboxError", f"the answer: {problem}", ""]})
            self._writer.write(content)
            with contextlib.suppress(OSError):  # who reads hears of it, too
                await self._writer.drain()
        except asyncio.CancelledError:
            pass  # nobody waits for it
        finally:
            del self._questions[number]

    async def _call_back(self, callback: Callback | None, number: int, turn: int, value: str) -> None:
        answer = None
        if callback is not None:
            try:
                answer = await callback(json.loads(value))
            except Exception:
                logger.exception("what a host of containers needed while it worked could not be done")
        reply = {"reply": number, "turn": turn}
        with contextlib.suppress(ChannelClosed):  # whoever asks hears of that, too
            try:
                await self.send({**reply, "value": answer or _NOT_DONE})
            except MessageError as problem:
                await self.send({**reply, "value": {"error": f"what came of it cannot be sent: {problem}"}})

    async def _keep_watch(self) -> None:
        """End the connection once nothing was heard for too long."""
        now = asyncio.get_running_loop().time
        while self.is_open:
            await asyncio.sleep(self._pings or self._silence / 4)
            if now() - self._last > self._silence:
                logger.warning("the other side of a connection has said nothing for %g s", self._silence)
                self.close()
                return
            if self._pings:
                self._writer.write(packed({"ping": True}))


def _report(report: Report, value: dict[str, Any]) -> None:
    try:
        report(value)
    except Exception:
        logger.exception("how far a host of containers is could not be told")
