"""`SharedContainers`: the containers of all hosts, for whoever needs one in this process.

A container stays where it was made: the end of its id tells which host has it, and the host remembers which chain uses
it. So a chain keeps its container, and the API finds it, whichever worker a request comes to. A new one is made where
there is most room. The memory of a host that is gone is lost, and whoever asks is told.
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
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import replace
from typing import Any

from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.sandbox.cells import Answer, Report, while_called
from responses_app.extensions.containers.sandbox.channel import Callback
from responses_app.extensions.containers.sandbox.checkpoints import TAG_DIGITS
from responses_app.extensions.containers.sandbox.containers import PIECE_BYTES, has_memory, memory_refused
from responses_app.extensions.containers.sandbox.hosts import BaseHost
from responses_app.extensions.containers.sandbox.records import (
    UNKEPT,
    CellRun,
    ChainFound,
    CommandsRun,
    ContainerFilePart,
    ContainerFileRecord,
    ContainerNotFound,
    ContainerRecord,
    HostGone,
    HostRoom,
    MemoryRefused,
    SandboxError,
    TooManyTransfers,
    checked_path,
    unfinished,
)
from responses_app.extensions.containers.sandbox.skills import MountedSkill
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.containers import MemoryLimit
from responses_app.protocol.ids import milliseconds_of

logger = logging.getLogger("respsite.sandbox")

LATE_SECONDS = 1.0  # a host that has not said hello by then is not waited for where another one has
MAX_TRANSFERS = 32  # files of one project that one worker reads or writes at once, each by parts of `PIECE_BYTES`


class SharedContainers:
    """The containers of these hosts.

    `is_past` says whether a container of a project, made at a time in Unix seconds, is past its retention: it is found
    no more.
    """

    def __init__(
        self, hosts: Sequence[BaseHost], *, is_past: Callable[[str, float], bool] = lambda project, made_at: False
    ) -> None:
        self.hosts = hosts
        self._is_past = is_past
        self.problem: str | None = None  # why there is no sandbox, as it was found out last
        self._transfers: Counter[str] = Counter()  # of each project, files that are being read or written
        # Kept here, as asyncio keeps no task alive: what is removed, and hosts that are late.
        self._behind: set[asyncio.Task[None]] = set()

    async def check(self) -> None:
        """Return once one host has a sandbox that holds. Raises `SandboxError` where none has."""
        if any(host.is_checked and host.room is not None for host in self.hosts):
            return
        problems: list[SandboxError] = []
        await self._open_all()
        for host in sorted(self.hosts, key=lambda host: host.room is None):  # a late one is asked last
            try:
                await host.ask("check")
            except SandboxError as problem:
                problems.append(problem)
                continue
            host.is_checked, self.problem = True, None
            return
        # One that has no sandbox says more than one that is not there.
        why = next((each for each in problems if not isinstance(each, HostGone)), problems[0])
        # A host that is away may come back: the next request asks again, and is not refused for what it declares.
        self.problem = None if any(isinstance(each, HostGone) for each in problems) else str(why)
        raise why

    async def create(
        self,
        project: str,
        *,
        name: str = "auto",
        idle: float | None = None,
        memory: MemoryLimit | None = None,
        network: EgressPolicy | None = None,
    ) -> ContainerRecord:
        """Make a container, where there is most room.

        Raises `MemoryRefused`, `NetworkRefused`, and `HostGone` where no host is there.
        """
        policy = network.whole() if network is not None else None
        gone = HostGone("no host of containers can be reached")
        for host in await self._roomiest(memory):
            try:
                made: ContainerRecord = await host.ask("make", project, name, idle, memory, policy)
            except HostGone as problem:
                gone = problem
                continue
            if host.room is not None:  # it says so itself only when it is heard again
                host.room = replace(host.room, known=host.room.known + 1)
            return made
        raise gone

    async def _roomiest(self, memory: MemoryLimit | None) -> list[BaseHost]:
        """Return the hosts that may make a container, that with most room first. Raises `MemoryRefused`."""
        await self._open_all()
        there = [(host, host.room) for host in self.hosts if host.room is not None and not host.room.is_leaving]
        enough = [each for each in there if memory is None or has_memory(memory, each[1].memory)]
        if there and memory is not None and not enough:
            raise MemoryRefused(memory_refused(memory, max(room.memory for _, room in there)))

        def fullness(each: tuple[BaseHost, HostRoom]) -> float:
            """Of two that are equally full, that with fewer containers has more room."""
            return each[1].started / each[1].most + each[1].known / 1e6

        return [host for host, _ in sorted(enough, key=fullness)]

    async def _open_all(self) -> None:
        """Connect to hosts that are not; one that cannot be reached has no room. Late ones are tried further behind."""
        opening = {self._begin(_opened(host)) for host in self.hosts}
        loop, until = asyncio.get_running_loop(), None
        while opening:
            if until is None and any(host.room is not None for host in self.hosts):
                until = loop.time() + LATE_SECONDS
            seconds = None if until is None else until - loop.time()
            done, opening = await asyncio.wait(opening, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    async def find(self, project: str, id: str) -> ContainerRecord:
        """Return a container. Raises `ContainerNotFound`, and `HostGone`."""
        record: ContainerRecord = await self._where_it_is("record", project, id)
        return record

    async def of_chain(self, project: str, keys: Iterable[str], network: str = "") -> ContainerRecord | None:
        """Return the first container that one of these names; None where none does, or its host is gone.

        They are ids of containers, and of responses that `join_chain` has been told of. A container that may reach
        something else than `network` says (`NetworkRecord.key`; "" for nothing) is passed over.
        """
        # Any host may know the chain; each looks for all of the keys at once.
        answers = await self._of_all("of_chain", project, list(keys), network)
        containers: list[ChainFound] = [
            each for each in answers if each is not None and not self._is_past(project, each.container.created_at)
        ]
        return min(containers, key=lambda each: each.place).container if containers else None

    async def join_chain(self, id: str, keys: Iterable[str]) -> None:
        """Remember that these responses use a container."""
        with contextlib.suppress(ContainerNotFound):
            await (await self._host_of(id)).ask("join_chain", id, list(keys))

    async def give_secrets(self, project: str, id: str, values: Sequence[JsonObject]) -> None:
        """Have these values of a container's secrets from now on. Raises `ContainerNotFound`, and `HostGone`."""
        await self._where_it_is("give_secrets", project, id, list(values))

    async def all_of(self, project: str) -> list[ContainerRecord]:
        """Return the containers of a project, oldest first; without those of a host that does not answer."""
        every: list[ContainerRecord] = [each for part in await self._of_all("records", project) for each in part]
        current = [each for each in every if not self._is_past(project, each.created_at)]
        return sorted(current, key=lambda each: each.id)  # which begins with its time

    async def end_older(self, project: str, oldest: float) -> None:
        """End the containers of a project that were made at or before this time, but those that go with a response."""
        for part in await self._of_all("records", project):
            for each in part:
                if each.created_at <= oldest and each.name != UNKEPT:
                    with contextlib.suppress(ContainerNotFound, HostGone):
                        await (await self._host_of(each.id)).ask("delete", project, each.id)

    async def delete(self, project: str, id: str) -> None:
        """End a container. Raises `ContainerNotFound`."""
        await self._where_it_is("delete", project, id)

    async def run(self, project: str, id: str, code: str, seconds: float | None = None, *, call: str = "") -> CellRun:
        """Run a cell; where one of this `call` was run already, return its result. A cancellation interrupts it.

        Raises `ContainerNotFound`, `SandboxError`.
        """
        run: CellRun = await self._where_it_is("run", project, id, code, seconds, call)
        return run

    async def run_commands(
        self, project: str, id: str, commands: Sequence[str], *, seconds: float, most: int, report: Report
    ) -> CommandsRun:
        """Run commands of a shell, all at once and for at most `seconds`; a cancellation kills them.

        `report` is told what they print, as they do: `most` characters of each, as `{"command_index", "stdout",
        "stderr"}`. Raises `ContainerNotFound`, `SandboxError`.
        """
        more = (list(commands), seconds, most)
        run: CommandsRun = await self._where_it_is("run_commands", project, id, *more, report=report)
        return run

    async def run_program(self, project: str, code: str, answer: Answer, seconds: float | None = None) -> CellRun:
        """Run a program that calls tools, in a container of its own, which ends with it. A cancellation interrupts it.

        `answer` is given each call, and returns its result; an error of it ends the program, and is raised. Raises
        `SandboxError` besides.
        """
        id = (await self.create(project, name="program")).id

        async def run(call: Answer) -> CellRun:
            run: CellRun = await self._where_it_is("run_program", project, id, code, seconds, callback=call)
            return run

        try:
            return await while_called(answer, run)
        except ContainerNotFound:
            raise SandboxError("the container of the program is gone") from None

    async def put_file(self, project: str, id: str, path: str, pieces: AsyncIterable[bytes]) -> ContainerFileRecord:
        """Write a file, part by part. Raises `ContainerNotFound`, `SandboxError`, and `TooManyTransfers`."""
        # A name of its own, so that two that write the same file do not meet.
        part, size = unfinished(checked_path(path), secrets.token_hex(8)), 0
        with self._transfer(project):
            try:
                async for piece in parted(pieces, PIECE_BYTES):
                    await self._where_it_is("put_part", project, id, part, size, piece)
                    size += len(piece)
                file: ContainerFileRecord = await self._where_it_is("finish", project, id, part, path, size)
                return file
            # Being cancelled, too. Removed by a task of its own, as this one may be over at once.
            except BaseException:
                self._begin(self._drop(project, id, part))
                raise

    async def _drop(self, project: str, id: str, part: str) -> None:
        try:
            await self._where_it_is("drop", project, id, part)
        except (ContainerNotFound, SandboxError) as problem:  # it was not begun, or its container is gone
            logger.info("container %s: nothing of an unfinished file was removed: %s", id, problem)

    async def put_image(self, project: str, id: str, media_type: str, content: bytes) -> ContainerFileRecord:
        """Keep an image that code has shown, as a file named after its id. Raises as `put_file` does."""
        file: ContainerFileRecord = await self._where_it_is("put_image", project, id, media_type, content)
        return file

    async def files_of(self, project: str, id: str) -> list[ContainerFileRecord]:
        """Return the files of a container, oldest first. Raises `ContainerNotFound`, `SandboxError`."""
        files: list[ContainerFileRecord] = await self._where_it_is("files_of", project, id)
        return files

    async def file(self, project: str, id: str, file_id: str) -> ContainerFileRecord:
        """Return a file. Raises `ContainerNotFound`, `SandboxError`."""
        file: ContainerFileRecord = await self._where_it_is("file", project, id, file_id)
        return file

    async def content(self, project: str, id: str, file_id: str) -> AsyncGenerator[ContainerFilePart, None]:
        """Yield the content of a file, part by part, and the first part at once. Raises as `put_file` does.

        A file that is written meanwhile has no end that belongs to its beginning: that is a `SandboxError`.
        """
        begin, written = 0, None
        with self._transfer(project):
            while True:
                part: ContainerFilePart = await self._where_it_is("part", project, id, file_id, begin)
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
        await self._where_it_is("remove_file", project, id, file_id)

    async def skills_of(self, project: str, id: str) -> list[MountedSkill]:
        """Return the skills of a container, in the order in which they came. Raises `ContainerNotFound`."""
        skills: list[MountedSkill] = await self._where_it_is("skills_of", project, id)
        return skills

    async def add_skill(self, project: str, id: str, skill: MountedSkill, bundle: bytes) -> None:
        """Have a container see a skill, unless it does. Raises `ContainerNotFound`, `SandboxError`."""
        about = (skill.folder, skill.name, skill.description)
        await self._where_it_is("add_skill", project, id, *about, bundle)

    async def aclose(self) -> None:
        """Let go of all hosts; containers of this process end."""
        for task in self._behind:
            task.cancel()
        await asyncio.gather(*self._behind, return_exceptions=True)
        for host in self.hosts:
            await host.aclose()

    # Where a container is.

    async def _where_it_is(
        self,
        what: str,
        project: str,
        id: str,
        *more: Any,
        callback: Callback | None = None,
        report: Report | None = None,
    ) -> Any:
        """Have the host of a container do something with it: one of `hosts.ACTIONS`.

        `callback` does what the action needs while it works, and `report` is told how far it is.
        """
        made_ms = milliseconds_of(id)
        if made_ms is not None and self._is_past(project, made_ms / 1000):
            raise ContainerNotFound(id)
        host = await self._host_of(id)
        return await host.ask(what, project, id, *more, callback=callback, report=report)

    async def _host_of(self, id: str) -> BaseHost:
        """Return who has a container. Raises `ContainerNotFound`, and `HostGone` where that cannot be known."""
        if len(self.hosts) == 1:
            return self.hosts[0]
        tag = id[-TAG_DIGITS:]
        for attempt in range(2):
            for host in self.hosts:
                if host.room is not None and host.room.tag == tag:
                    return host
            if not attempt:
                await self._open_all()
        if all(host.room is not None for host in self.hosts):
            raise ContainerNotFound(id)
        raise HostGone("the host of the container cannot be reached")

    async def _of_all(self, what: str, *arguments: Any) -> list[Any]:
        """Return the answers of all hosts, without those that do not answer."""
        await self._open_all()
        there = [host for host in self.hosts if host.room is not None]
        answers = await asyncio.gather(*(host.ask(what, *arguments) for host in there), return_exceptions=True)
        for each in answers:
            if isinstance(each, BaseException) and not isinstance(each, SandboxError):
                raise each
        return [each for each in answers if not isinstance(each, BaseException)]


async def _opened(host: BaseHost) -> None:
    with contextlib.suppress(SandboxError):  # it has said why in the log
        await host.open()


async def parted(pieces: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """Yield a content in parts of at most so many bytes; an empty one where nothing comes."""
    is_empty = True
    async for piece in pieces:
        for begin in range(0, len(piece), size):
            is_empty = False
            yield piece[begin : begin + size]
    if is_empty:
        yield b""
