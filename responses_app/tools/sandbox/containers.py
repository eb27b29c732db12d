"""`Containers`: the containers of a machine: whose they are, how long they live, and how many there may be.

A container is made at once and started when something is first done in it. It expires when nothing was done in it for
its idle time, and at the end of its life whatever is done; then it is gone with its variables and files, as if it had
never been. Where as many are started as there may be, the one that was idle for longest goes, of the project that has
most of them; one that works never does. How many work at once is shared between projects (`tools.places`).

A chain of responses keeps its container: `of_chain` finds it by the response that is continued.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from responses_app.protocol.files.containers import MemoryLimit
from responses_app.protocol.ids import CONTAINER, CONTAINER_FILE
from responses_app.protocol.setting import MIB
from responses_app.tools.places import NoPlace, SharedPlaces
from responses_app.tools.sandbox.base import BaseSandbox, Interpreter, SandboxError, SandboxSettings
from responses_app.tools.sandbox.choosing import SandboxChoice
from responses_app.tools.sandbox.commands import CommandsEnd, Report
from responses_app.tools.sandbox.disk import Folders
from responses_app.tools.sandbox.records import (
    ContainerFile,
    ContainerNotFound,
    Execution,
    FilePart,
    FileSource,
    StoredFile,
    TooManyContainers,
)
from responses_app.tools.sandbox.session import SandboxGone, SandboxSession
from responses_app.tools.sandbox.skills import MountedSkill, SkillFolder, contents
from responses_app.tools.sandbox.stillness import Cgroups

MAX_WAITING = 64  # calls of one project; each has a request that waits for it


logger = logging.getLogger("respsite.sandbox")

LIFE_SECONDS = 86_400.0  # of a container, whatever is done in it
MAX_CHAIN = 1000  # responses that are remembered of one container
MAX_NAME = 256  # characters
PIECE_BYTES = 256 * 1024  # of a file that are in memory at once, for whoever reads or writes it
MAX_KNOWN = 10_000  # containers, nearly all of which nothing was ever done in
SWEEP_SECONDS = 15.0  # how long after its time a container may still hold its memory
MEMORY = {"1g": 1024 * MIB, "4g": 4096 * MIB, "16g": 16384 * MIB, "64g": 65536 * MIB}  # as OpenAI's API has them


@dataclass(slots=True)
class LivingContainer:
    """One container. Times are Unix seconds."""

    id: str
    project: str
    name: str
    created_at: int
    idle: float  # seconds without use, after which it expires
    memory: MemoryLimit  # how much it may have, as OpenAI's API names it
    last_active: float  # when something was done in it last
    files: dict[str, ContainerFile] = field(default_factory=dict)  # by path
    chain: "OrderedDict[str, None]" = field(default_factory=OrderedDict)  # the responses that used it, oldest first
    working: int = 0  # calls that use its session now
    session: SandboxSession | None = None  # None while nothing runs: before the first use, and once it has ended
    # Held while a session is started, so that calls at once start one.
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    has_place: bool = False  # among those that work at once
    lost: str | None = None  # it had a session, which ended by itself: why, or nothing where that is not known
    skills: SkillFolder = field(default_factory=SkillFolder)


@dataclass(frozen=True, slots=True)
class CellRun:
    """What came of a cell in a container."""

    execution: Execution  # how it ended, and what it printed
    files: Sequence[ContainerFile]  # those that it wrote
    begun_anew: str | None  # nothing of before is there: why, "" where that is not known; None: all is there


@dataclass(frozen=True, slots=True)
class CommandsRun:
    """What came of commands in a container."""

    execution: CommandsEnd  # how they ended
    files: Sequence[ContainerFile]  # those that they wrote
    begun_anew: str | None  # as in `CellRun`


class Containers:
    """All containers of this process. `choose` tries which sandbox they can have: once, when the first one is wanted.

    `choice` is what came of that; None before.
    """

    def __init__(
        self,
        choose: Callable[[], Awaitable[SandboxChoice]],
        settings: SandboxSettings,
        *,
        new_id: Callable[[str], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.choice: SandboxChoice | None = None
        self._choose = choose
        self._choosing = asyncio.Lock()  # one trial for all who ask at once
        self._settings = settings
        self._new_id = new_id
        self._clock = clock
        self._sweeper: asyncio.Task[None] | None = None  # runs while there are containers
        self._containers: dict[str, LivingContainer] = {}  # by their ids, oldest first
        self._of_responses: dict[str, str] = {}  # ids of containers, by the ids of responses that use them
        self._started: set[str] = set()  # ids of containers that have a session, or start one
        self._folders = Folders()  # of their skills, on the host
        most = settings.sandbox_max_containers
        share = settings.sandbox_project_containers or max(1, most * 3 // 4)
        wait = settings.sandbox_wait_seconds
        self._places = SharedPlaces(most=most, share=share, seconds=wait, most_waiting=MAX_WAITING)

    async def sandbox(self) -> tuple[BaseSandbox, Interpreter]:
        """Return what containers are started with. Raises `SandboxError` where this machine has no sandbox."""
        async with self._choosing:
            if self.choice is None:
                self.choice = await self._choose()
        if self.choice.sandbox is None or self.choice.interpreter is None:
            raise SandboxError(self.choice.problem)
        return self.choice.sandbox, self.choice.interpreter

    async def create(
        self,
        project: str,
        *,
        name: str = "auto",
        idle: float | None = None,
        memory: MemoryLimit | None = None,
        tag: str = "",
    ) -> LivingContainer:
        """Make a container. The last digits of its id are `tag`, by which other workers know whose it is."""
        await self.sweep()
        # Those that nothing was done in cost little, but their number must end.
        if len(self._containers) >= MAX_KNOWN:
            await self._end(self._least_missed(list(self._containers.values())))
        now = self._clock()
        id = self._new_id(CONTAINER)
        container = LivingContainer(
            id=id[: len(id) - len(tag)] + tag,
            project=project,
            name=name[:MAX_NAME],
            created_at=int(now),
            # A client may ask for less than the server's own, not for more.
            idle=min(idle or self._settings.sandbox_idle_seconds, self._settings.sandbox_idle_seconds),
            # More than the server allows becomes the least there is, and not an error.
            memory=memory if memory is not None and MEMORY[memory] <= self._settings.sandbox_memory_bytes else "1g",
            last_active=now,
        )
        self._containers[container.id] = container
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._keep_sweeping())
        return container

    async def find(self, project: str, id: str) -> LivingContainer:
        """Return a container. Raises `ContainerNotFound`."""
        container = self._containers.get(id)
        if container is None or container.project != project or self._has_expired(container):
            raise ContainerNotFound(id)
        return container

    def has(self, id: str) -> bool:
        """Whether this is the id of a container of this process, whosever it is."""
        return id in self._containers

    def id_of(self, key: str) -> str:
        """Return the id of the container that a response uses (see `join_chain`); else `key` itself."""
        return self._of_responses.get(key, key)

    async def join_chain(self, id: str, keys: Iterable[str]) -> None:
        """Remember that these responses use a container: the first of each chain stands for all of it."""
        container = self._containers.get(id)
        if container is None:
            return
        for key in keys:
            self._of_responses[key] = id
            container.chain[key] = None
            container.chain.move_to_end(key)
            while len(container.chain) > MAX_CHAIN:
                self._forget_key(container.chain.popitem(last=False)[0], id)

    async def all_of(self, project: str) -> list[LivingContainer]:
        """Return the containers of a project, oldest first."""
        await self.sweep()
        return [each for each in self._containers.values() if each.project == project]

    async def delete(self, project: str, id: str) -> None:
        """End a container. Raises `ContainerNotFound`."""
        await self._end(await self.find(project, id))

    async def run(self, project: str, id: str, code: str, seconds: float | None = None) -> CellRun:
        """Run a cell. A cancellation interrupts it. Raises `ContainerNotFound`, `SandboxError`."""
        container = await self.find(project, id)
        async with self._at_work(container) as session:
            # Told once, with the first cell behind the loss.
            begun_anew, container.lost = container.lost, None
            execution = await session.run(code, seconds)
            files = [self._note_file(container, each, "assistant") for each in execution.files]
            return CellRun(execution, files, begun_anew)

    async def run_commands(
        self, project: str, id: str, commands: Sequence[str], seconds: float, most: int, report: Report
    ) -> CommandsRun:
        """Run commands of a shell, all at once; see `SandboxSession.run_commands`.

        Raises `ContainerNotFound`, `SandboxError`.
        """
        container = await self.find(project, id)
        async with self._at_work(container) as session:
            begun_anew, container.lost = container.lost, None
            execution = await session.run_commands(commands, seconds=seconds, most=most, report=report)
            files = [self._note_file(container, each, "assistant") for each in execution.files]
            return CommandsRun(execution, files, begun_anew)

    async def put_part(self, project: str, id: str, part: str, begin: int, content: bytes) -> None:
        """Write a part of a file that is not whole yet. Raises `ContainerNotFound`, `SandboxError`."""
        async with self._at_work(await self.find(project, id)) as session:
            await session.put_part(part, begin, content)

    async def finish(self, project: str, id: str, part: str, path: str, size: int) -> ContainerFile:
        """Have what was written by parts as a file. Raises `ContainerNotFound`, `SandboxError`."""
        container = await self.find(project, id)
        async with self._at_work(container) as session:
            await session.rename(part, path)
            return self._note_file(container, StoredFile(path, size), "user")

    async def drop(self, project: str, id: str, part: str) -> None:
        """Remove what was written of a file that will not be whole. Raises `ContainerNotFound`, `SandboxError`."""
        session = (await self.find(project, id)).session
        if session is not None and session.is_alive:
            await session.remove(part)

    async def put_image(self, project: str, id: str, media_type: str, content: bytes) -> ContainerFile:
        """Keep an image that code has shown, as a file named after its id. Raises as `put_file` does."""
        container = await self.find(project, id)
        file_id = self._new_id(CONTAINER_FILE)
        # The subtype is the ending: `image/png` → `.png`.
        path = f"{file_id}.{media_type.rpartition('/')[2]}"
        async with self._at_work(container) as session:
            await session.put(path, content)
        file = ContainerFile(file_id, path, len(content), int(self._clock()), "assistant")
        container.files[path] = file
        return file

    async def files_of(self, project: str, id: str) -> list[ContainerFile]:
        """Return the files of a container, oldest first. Raises `ContainerNotFound`, `SandboxError`."""
        container = await self.find(project, id)
        if container.session is None:
            return []
        async with self._at_work(container) as session:
            there = {each.path: each for each in await session.list_files()}
            for path in [path for path in container.files if path not in there]:
                del container.files[path]
            for each in there.values():
                if each.path not in container.files:
                    self._note_file(container, each, "assistant")
            return list(container.files.values())

    async def file(self, project: str, id: str, file_id: str) -> ContainerFile:
        """Return a file. Raises `ContainerNotFound`, `SandboxError`."""
        for each in await self.files_of(project, id):
            if each.id == file_id:
                return each
        raise ContainerNotFound(file_id)

    async def part(self, project: str, id: str, file_id: str, begin: int) -> FilePart:
        """Return at most `PIECE_BYTES` of a file from a place on. Raises `ContainerNotFound`, `SandboxError`."""
        container = await self.find(project, id)
        file = next((each for each in container.files.values() if each.id == file_id), None)
        if file is None:
            raise ContainerNotFound(file_id)
        async with self._at_work(container) as session:
            return await session.get_part(file.path, begin, PIECE_BYTES)

    async def remove_file(self, project: str, id: str, file_id: str) -> None:
        """Remove a file. Raises `ContainerNotFound`, `SandboxError`."""
        file = await self.file(project, id, file_id)
        container = await self.find(project, id)
        async with self._at_work(container) as session:
            await session.remove(file.path)
        container.files.pop(file.path, None)

    async def skills_of(self, project: str, id: str) -> list[MountedSkill]:
        """Return the skills of a container, in the order in which they came. Raises `ContainerNotFound`."""
        return list((await self.find(project, id)).skills.mounted.values())

    async def add_skill(self, project: str, id: str, skill: MountedSkill, bundle: bytes) -> None:
        """Have a container see a skill, unless it does; `bundle` is one that `tools.skills.bundles` has made.

        Raises `ContainerNotFound`, `SandboxError`.
        """
        container = await self.find(project, id)
        most = self._settings.sandbox_disk_bytes
        await container.skills.add(skill, contents(bundle), self._folders, most=most)
        container.last_active = self._clock()
        if container.id not in self._containers:  # it has ended meanwhile
            await container.skills.remove()
            raise ContainerNotFound(id)

    async def sweep(self) -> None:
        """End what has expired."""
        for container in [each for each in self._containers.values() if self._has_expired(each)]:
            await self._end(container)

    async def aclose(self) -> None:
        """End all containers."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for container in list(self._containers.values()):
            await self._end(container)

    @contextlib.asynccontextmanager
    async def _at_work(self, container: LivingContainer) -> AsyncIterator[SandboxSession]:
        """Have a container's session, started if it must be; meanwhile the container does not expire."""
        container.working += 1
        try:
            # One start for all calls that come at once; those that come later find the session.
            async with container.starting:
                # The first call takes the place for all that work in this container.
                if not container.has_place:
                    await self._take_place(container.project)
                    container.has_place = True
                session = await self._session(container)
            yield session
        finally:
            # Before the time is taken: expiry looks at both.
            container.working -= 1
            container.last_active = self._clock()
            if container.has_place and not container.working:
                container.has_place = False
                self._places.give_back(container.project)

    async def _take_place(self, project: str) -> None:
        try:
            await self._places.take(project)
        except NoPlace as full:
            if full.is_own:
                raise TooManyContainers(
                    f"this project has {self._places.share} containers at work, as many as one project may have at "
                    "once (SANDBOX_PROJECT_CONTAINERS); try again once one of them has ended"
                ) from None
            raise TooManyContainers(
                f"all {self._places.most} containers that this server may have at once (SANDBOX_MAX_CONTAINERS) are "
                "at work; try again later"
            ) from None

    async def _session(self, container: LivingContainer) -> SandboxSession:
        if container.session is not None and container.session.is_alive:
            return container.session
        sandbox, interpreter = await self.sandbox()
        self._note_ended()
        memory = min(MEMORY[container.memory], self._settings.sandbox_memory_bytes)
        settings = replace(self._settings, sandbox_memory_bytes=memory)
        # Started ones count, not those at work: each holds memory, also an idle one.
        if len(self._started) >= self._settings.sandbox_max_containers:
            await self._make_room(container)
        # Before the start, which awaits: others that look meanwhile must count it.
        self._started.add(container.id)
        try:
            skills = await container.skills.made(self._folders)
            session = await SandboxSession.start(sandbox, interpreter, settings, self._cgroups(), skills=skills)
        # Being cancelled, too.
        except BaseException:
            self._started.discard(container.id)
            raise
        if container.id not in self._containers:  # it was deleted meanwhile
            await session.close()
            await container.skills.remove()
            self._started.discard(container.id)
            raise SandboxGone("the container has ended")
        container.session = session
        return session

    def _cgroups(self) -> Cgroups | None:
        return self.choice.cgroups if self.choice is not None else None

    def _note_ended(self) -> None:
        """Take note of containers whose sessions have ended by themselves: they are in nobody's way."""
        for each in self._containers.values():
            if each.session is not None and not each.session.is_alive:
                each.lost, each.session = each.session.why_ended, None
                logger.warning("container %s ended by itself: %s", each.id, each.lost or "it broke")
                each.files.clear()
                self._started.discard(each.id)

    def _note_file(self, container: LivingContainer, file: StoredFile, source: FileSource) -> ContainerFile:
        known = container.files.get(file.path)
        id, created_at = (known.id, known.created_at) if known else (self._new_id(CONTAINER_FILE), int(self._clock()))
        noted = ContainerFile(id, file.path, file.size, created_at, known.source if known else source)
        container.files[file.path] = noted
        return noted

    def _has_expired(self, container: LivingContainer) -> bool:
        now = self._clock()
        if now - container.created_at > LIFE_SECONDS:
            return True
        return not container.working and now - container.last_active > container.idle

    async def _keep_sweeping(self) -> None:
        while self._containers:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep()

    async def _make_room(self, container: LivingContainer) -> None:
        """End the container that is missed least, of those that do not work. Raises `TooManyContainers`."""
        started = [each for each in self._containers.values() if each.session is not None and each is not container]
        idle = [each for each in started if not each.has_place]
        if not idle:  # those that end now, or start
            raise TooManyContainers("all containers that this server may have are busy now; try again later")
        await self._end(self._least_missed(idle))

    def _least_missed(self, of: Sequence[LivingContainer]) -> LivingContainer:
        """Return the one that was idle for longest, of the project that has most; one that works is last."""
        of_project = Counter(each.project for each in of)
        # `max`: an idle one before one that works; then of the project with most; then the one used longest ago.
        return max(of, key=lambda each: (not each.working, of_project[each.project], -each.last_active))

    async def _end(self, container: LivingContainer) -> None:
        # Before anything is awaited: nobody finds it from now on.
        self._containers.pop(container.id, None)
        for key in container.chain:
            self._forget_key(key, container.id)
        session, container.session = container.session, None
        if session is not None:
            try:
                await session.close()
            # Counted until its memory is free.
            finally:
                self._started.discard(container.id)
        await container.skills.remove()

    def _forget_key(self, key: str, id: str) -> None:
        # The response may use another container by now.
        if self._of_responses.get(key) == id:
            del self._of_responses[key]
