"""`SharedContainers`: the containers of all workers of one machine. Each lives in the worker that made it.

A worker that is asked for a container of another one lets that one do the work (`Neighbours`), so a chain keeps its
container, and the API finds it, whichever worker a request comes to. A container whose worker has died is not found.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from pathlib import Path
from typing import Any, TypeVar

from responses_app.protocol.files.containers import MemoryLimit
from responses_app.tools.sandbox.base import BaseSandbox, Interpreter, SandboxError
from responses_app.tools.sandbox.choosing import SandboxChoice
from responses_app.tools.sandbox.commands import CommandEnd, CommandsEnd, Report
from responses_app.tools.sandbox.containers import PIECE_BYTES, CellRun, CommandsRun, Containers, LivingContainer
from responses_app.tools.sandbox.neighbours import TAG_DIGITS, NeighbourGone, Neighbours
from responses_app.tools.sandbox.records import (
    CellEnd,
    ContainerFile,
    ContainerNotFound,
    ContainerRecord,
    Execution,
    FilePart,
    Image,
    StoredFile,
    TooManyContainers,
    TooManyTransfers,
    checked_path,
    unfinished,
)
from responses_app.tools.sandbox.session import SandboxGone
from responses_app.tools.sandbox.skills import MountedSkill

logger = logging.getLogger("respsite.sandbox")

Result = TypeVar("Result")
LOOK_SECONDS = 5.0  # a worker that does not say in this time what it has counts as gone
FILE_SECONDS = 60.0  # to start a container, and to write or read a file of it
ID_DIGITS = 32  # of a container's id, behind its prefix; the last ones are the tag
MAX_TRANSFERS = 32  # files of one project that one worker reads or writes at once, each by parts of `PIECE_BYTES`


class SharedContainers:
    """`own` are those of this process. All workers of a machine have the same `folder`; without it there is one."""

    def __init__(self, own: Containers, folder: Path | None = None) -> None:
        self._own = own
        self._others = Neighbours(folder, self._answer) if folder is not None else None
        self._actions: dict[str, Callable[..., Awaitable[Any]]] = {
            "find": self._found_here,
            "all_of": self._all_here,
            "delete": own.delete,
            "run": own.run,
            "run_commands": own.run_commands,
            "put_part": own.put_part,
            "finish": own.finish,
            "drop": own.drop,
            "put_image": own.put_image,
            "files_of": own.files_of,
            "file": own.file,
            "part": own.part,
            "remove_file": own.remove_file,
            "skills_of": own.skills_of,
            "add_skill": self._added_here,
        }
        self._transfers: Counter[str] = Counter()  # of each project, files that are being read or written
        self._dropping: set[asyncio.Task[None]] = set()  # kept here, as asyncio keeps no task alive

    @property
    def choice(self) -> SandboxChoice | None:
        """Which sandbox this machine has; None before it was tried."""
        return self._own.choice

    async def sandbox(self) -> tuple[BaseSandbox, Interpreter]:
        """Return what containers are started with. Raises `SandboxError` where this machine has no sandbox."""
        return await self._own.sandbox()

    async def create(
        self, project: str, *, name: str = "auto", idle: float | None = None, memory: MemoryLimit | None = None
    ) -> ContainerRecord:
        """Make a container, in this process."""
        if self._others is not None:
            await self._others.open()
        tag = self._others.tag if self._others is not None else None
        return _record(await self._own.create(project, name=name, idle=idle, memory=memory, tag=tag or ""))

    async def find(self, project: str, id: str) -> ContainerRecord:
        """Return a container. Raises `ContainerNotFound`."""
        return await self._where_it_is("find", _read_record, project, id, seconds=LOOK_SECONDS)

    async def of_chain(self, project: str, keys: Iterable[str]) -> ContainerRecord | None:
        """Return the first container that one of these names; None where none does.

        They are ids of containers, and of responses that `join_chain` has been told of here.
        """
        for key in keys:
            # The first that is still there: an earlier key may be of a container that has expired.
            try:
                return await self.find(project, self._own.id_of(key))
            except ContainerNotFound:
                continue
        return None

    async def join_chain(self, id: str, keys: Iterable[str]) -> None:
        """Remember that these responses use a container, if it is one of this process."""
        await self._own.join_chain(id, keys)

    async def all_of(self, project: str) -> list[ContainerRecord]:
        """Return the containers of a project, oldest first; without those of a worker that does not answer."""
        others = self._others.others() if self._others is not None else []
        there = await asyncio.gather(*(self._all_there(tag, project) for tag in others))
        every = [*await self._all_here(project), *(each for part in there for each in part)]
        return sorted(every, key=lambda each: (each.created_at, each.id))

    async def delete(self, project: str, id: str) -> None:
        """End a container. Raises `ContainerNotFound`."""
        await self._where_it_is("delete", _as_it_is, project, id, seconds=FILE_SECONDS)

    async def run(self, project: str, id: str, code: str, seconds: float | None = None) -> CellRun:
        """Run a cell. A cancellation interrupts it. Raises `ContainerNotFound`, `SandboxError`."""
        return await self._where_it_is("run", _read_run, project, id, code, seconds)

    async def run_commands(
        self, project: str, id: str, commands: Sequence[str], *, seconds: float, most: int, report: Report
    ) -> CommandsRun:
        """Run commands of a shell, all at once and for at most `seconds`; a cancellation kills them.

        `report` is told what they print, as they do: `most` characters of each, as `{"command_index", "stdout",
        "stderr"}`. Raises `ContainerNotFound`, `SandboxError`.
        """
        more = (list(commands), seconds, most)
        return await self._where_it_is("run_commands", _read_commands, project, id, *more, report=report)

    async def put_file(self, project: str, id: str, path: str, pieces: AsyncIterable[bytes]) -> ContainerFile:
        """Write a file, part by part. Raises `ContainerNotFound`, `SandboxError`, and `TooManyTransfers`."""
        # A name of its own, so that two that write the same file do not meet.
        part, size = unfinished(checked_path(path), secrets.token_hex(8)), 0
        with self._transfer(project):
            try:
                async for piece in parted(pieces, PIECE_BYTES):
                    arguments = (project, id, part, size, piece)
                    await self._where_it_is("put_part", _as_it_is, *arguments, seconds=FILE_SECONDS)
                    size += len(piece)
                whole = (project, id, part, path, size)
                return await self._where_it_is("finish", _read_file, *whole, seconds=FILE_SECONDS)
            # Being cancelled, too. Removed by a task of its own, as this one may be over at once.
            except BaseException:
                dropping = asyncio.create_task(self._drop(project, id, part))
                self._dropping.add(dropping)
                dropping.add_done_callback(self._dropping.discard)
                raise

    async def _drop(self, project: str, id: str, part: str) -> None:
        try:
            await self._where_it_is("drop", _as_it_is, project, id, part, seconds=FILE_SECONDS)
        except (ContainerNotFound, SandboxError) as problem:  # it was not begun, or its container is gone
            logger.info("container %s: nothing of an unfinished file was removed: %s", id, problem)

    async def put_image(self, project: str, id: str, media_type: str, content: bytes) -> ContainerFile:
        """Keep an image that code has shown, as a file named after its id. Raises as `put_file` does."""
        return await self._where_it_is("put_image", _read_file, project, id, media_type, content, seconds=FILE_SECONDS)

    async def files_of(self, project: str, id: str) -> list[ContainerFile]:
        """Return the files of a container, oldest first. Raises `ContainerNotFound`, `SandboxError`."""
        return await self._where_it_is("files_of", _read_files, project, id, seconds=FILE_SECONDS)

    async def file(self, project: str, id: str, file_id: str) -> ContainerFile:
        """Return a file. Raises `ContainerNotFound`, `SandboxError`."""
        return await self._where_it_is("file", _read_file, project, id, file_id, seconds=FILE_SECONDS)

    async def content(self, project: str, id: str, file_id: str) -> AsyncGenerator[FilePart, None]:
        """Yield what is in a file, part by part, and the first part at once. Raises as `put_file` does.

        A file that is written meanwhile has no end that belongs to its beginning: that is a `SandboxError`.
        """
        begin, written = 0, None
        with self._transfer(project):
            while True:
                arguments = (project, id, file_id, begin)
                part = await self._where_it_is("part", _read_part, *arguments, seconds=FILE_SECONDS)
                begin += len(part.content)
                # Another size or time, or an end before the end: somebody writes to it.
                if written not in (None, (part.size, part.written)) or (not part.content and begin < part.size):
                    raise SandboxError("the file was changed while it was read")
                written = (part.size, part.written)
                yield part
                if begin == part.size:
                    return

    @contextlib.contextmanager
    def _transfer(self, project: str) -> Iterator[None]:
        """Have a file on its way. Raises `TooManyTransfers`."""
        if self._transfers[project] >= MAX_TRANSFERS:
            raise TooManyTransfers
        self._transfers[project] += 1
        try:
            yield
        finally:
            self._transfers[project] -= 1
            self._transfers += Counter()  # nothing is kept of who has none

    async def remove_file(self, project: str, id: str, file_id: str) -> None:
        """Remove a file. Raises `ContainerNotFound`, `SandboxError`."""
        await self._where_it_is("remove_file", _as_it_is, project, id, file_id, seconds=FILE_SECONDS)

    async def skills_of(self, project: str, id: str) -> list[MountedSkill]:
        """Return the skills of a container, in the order in which they came. Raises `ContainerNotFound`."""
        return await self._where_it_is("skills_of", _read_skills, project, id, seconds=LOOK_SECONDS)

    async def add_skill(self, project: str, id: str, skill: MountedSkill, bundle: bytes) -> None:
        """Have a container see a skill, unless it does. Raises `ContainerNotFound`, `SandboxError`."""
        about = (skill.folder, skill.name, skill.description)
        await self._where_it_is("add_skill", _as_it_is, project, id, *about, bundle, seconds=FILE_SECONDS)

    async def aclose(self) -> None:
        """End all containers of this process."""
        for task in self._dropping:
            task.cancel()
        await asyncio.gather(*self._dropping, return_exceptions=True)
        if self._others is not None:
            await self._others.aclose()
        await self._own.aclose()

    # Where a container is.

    async def _where_it_is(
        self,
        what: str,
        read: Callable[[Any], Result],
        project: str,
        id: str,
        *more: Any,
        seconds: float | None = None,
        report: Report | None = None,
    ) -> Result:
        tag = self._tag_elsewhere(id)
        # Made here, or by nobody: then it is not found here.
        if tag is None or self._others is None:
            reporting = () if report is None else (report,)
            return await self._actions[what](project, id, *more, *reporting)  # type: ignore[no-any-return]
        try:
            answer = await self._others.ask(tag, what, [project, id, *more], seconds=seconds, report=report)
        except NeighbourGone:
            raise ContainerNotFound(id) from None
        except TimeoutError:
            logger.warning("container %s: its worker did not answer within %s s", id, seconds)
            # Whoever only looks for it may go on without it.
            if what == "find":
                raise ContainerNotFound(id) from None
            raise SandboxError("the container did not answer in time") from None
        if isinstance(answer, dict) and "error" in answer:
            raise _error(answer)
        return read(answer["result"])

    def _tag_elsewhere(self, id: str) -> str | None:
        """Return the tag of the worker that made a container; None for this one."""
        _, _, number = id.rpartition("_")
        # Not an id of ours, or one that was made before this worker had a tag.
        if len(number) != ID_DIGITS or set(number) - _HEX or self._own.has(id):
            return None
        tag = number[-TAG_DIGITS:]
        return None if self._others is None or tag == self._others.tag else tag

    async def _found_here(self, project: str, id: str) -> ContainerRecord:
        return _record(await self._own.find(project, id))

    async def _all_here(self, project: str) -> list[ContainerRecord]:
        return [_record(each) for each in await self._own.all_of(project)]

    async def _added_here(self, project: str, id: str, folder: str, name: str, description: str, bundle: bytes) -> None:
        await self._own.add_skill(project, id, MountedSkill(folder, name, description), bundle)

    async def _all_there(self, tag: str, project: str) -> list[ContainerRecord]:
        assert self._others is not None
        try:
            answer = await self._others.ask(tag, "all_of", [project], seconds=LOOK_SECONDS)
        except (NeighbourGone, TimeoutError):
            return []
        return [_read_record(each) for each in answer["result"]] if "result" in answer else []

    async def _answer(self, what: str, arguments: Sequence[Any], report: Report) -> Any:
        """Do what another worker asks for, and return what came of it."""
        # Errors as data: the other worker raises them again (`_error`).
        try:
            reporting = (report,) if what in _REPORTING else ()
            return {"result": await self._actions[what](*arguments, *reporting)}
        except (ContainerNotFound, SandboxError) as problem:
            detail = problem.detail if isinstance(problem, SandboxError) else ""
            return {"error": type(problem).__name__, "text": str(problem), "detail": detail}
        except Exception:
            logger.exception("what another worker asked for broke")
            return {"error": "SandboxError", "text": "the container cannot be used", "detail": ""}


async def parted(pieces: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """Yield what comes in parts of at most so many bytes; an empty one where nothing comes."""
    is_empty = True
    async for piece in pieces:
        for begin in range(0, len(piece), size):
            is_empty = False
            yield piece[begin : begin + size]
    if is_empty:
        yield b""


_REPORTING = frozenset(("run_commands",))  # what says how far it is
_HEX = set("0123456789abcdef")


def _error(answer: dict[str, Any]) -> Exception:
    match answer["error"]:
        case "ContainerNotFound":
            return ContainerNotFound(answer["text"])
        case "TooManyContainers":
            return TooManyContainers(answer["text"])
        case "SandboxGone":
            return SandboxGone(answer["text"], detail=answer["detail"])
    return SandboxError(answer["text"], detail=answer["detail"])


def _record(container: LivingContainer) -> ContainerRecord:
    return ContainerRecord(
        id=container.id,
        project=container.project,
        name=container.name,
        created_at=container.created_at,
        idle=container.idle,
        memory=container.memory,
        last_active=container.last_active,
    )


# What another worker answers in JSON becomes our records again.


def _as_it_is(value: Any) -> Any:
    return value


def _read_record(value: dict[str, Any]) -> ContainerRecord:
    return ContainerRecord(**value)


def _read_file(value: dict[str, Any]) -> ContainerFile:
    return ContainerFile(**value)


def _read_part(value: dict[str, Any]) -> FilePart:
    return FilePart(**value)


def _read_files(values: list[dict[str, Any]]) -> list[ContainerFile]:
    return [_read_file(each) for each in values]


def _read_skills(values: list[dict[str, Any]]) -> list[MountedSkill]:
    return [MountedSkill(**each) for each in values]


def _read_run(value: dict[str, Any]) -> CellRun:
    cell = value["execution"]
    execution = Execution(
        **{
            **cell,
            "ended": CellEnd(cell["ended"]),
            "images": [Image(**each) for each in cell["images"]],
            "files": [StoredFile(**each) for each in cell["files"]],
        }
    )
    return CellRun(execution, _read_files(value["files"]), value["begun_anew"])


def _read_commands(value: dict[str, Any]) -> CommandsRun:
    said = value["execution"]
    execution = CommandsEnd(
        CellEnd(said["ended"]),
        [CommandEnd(**each) for each in said["commands"]],
        [StoredFile(**each) for each in said["files"]],
        said["variables_lost"],
    )
    return CommandsRun(execution, _read_files(value["files"]), value["begun_anew"])
