"""`Containers`: the containers of a host: whose they are, how long they live, and how many there may be.

A container is made at once and started when something is first done in it. It expires when nothing was done in it for
its idle time, and at the end of its life whatever is done; then it is gone with its variables and files, as if it had
never been. Where as many are started as there may be, the one that was idle for longest is put away, of the project
that has most of them; one that works never is. What is put away has its files on disk
(`Checkpoints`), or ends. How many work at once is shared between projects (`tools.places`).

A chain of responses keeps its container: `of_chain` finds it by the response that is continued.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.sandbox.cells import Answer, Report
from responses_app.extensions.containers.sandbox.checkpoints import TAG_DIGITS, Checkpoints, NotSaved, new_tag
from responses_app.extensions.containers.sandbox.choosing import SandboxChoice
from responses_app.extensions.containers.sandbox.disk import Folders
from responses_app.extensions.containers.sandbox.launch import BaseSandbox, ContainerExtras, Interpreter
from responses_app.extensions.containers.sandbox.living import (
    MEMORY,
    KeptBytes,
    KeptCalls,
    KnownContainers,
    LivingContainer,
    WaysOut,
    least_missed,
    still_wanted,
)
from responses_app.extensions.containers.sandbox.records import (
    CellRun,
    ChainFound,
    CommandsRun,
    ContainerFilePart,
    ContainerFileRecord,
    ContainerNotFound,
    ContainerRecord,
    FileSource,
    HostGone,
    HostRoom,
    ListedFile,
    MemoryRefused,
    SandboxError,
    TooManyContainers,
)
from responses_app.extensions.containers.sandbox.session import SandboxGone, SandboxSession
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.extensions.containers.sandbox.skills import MountedSkill, contents
from responses_app.protocol.files.containers import MemoryLimit
from responses_app.protocol.ids import CONTAINER, CONTAINER_FILE
from responses_app.protocol.setting import MIB
from responses_app.tools.places import NoPlace, SharedPlaces

if TYPE_CHECKING:
    from responses_app.extensions.containers.egress.proxies import ContainerProxies

logger = logging.getLogger("respsite.sandbox")

MAX_WAITING = 64  # calls of one project; each has a request that waits for it
MAX_NAME = 256  # characters
PIECE_BYTES = 256 * 1024  # of a file that are in memory at once, for whoever reads or writes it
SWEEP_SECONDS = 15.0  # how long after its time a container may still hold its memory
ID_DIGITS = 32  # of a container's id, behind its prefix; the last ones tell which host has it
SAVE_SECONDS = 20.0  # for the files of all containers, when their host stops
MAX_KEPT = 128 * MIB  # bytes of what came of calls, of all containers; the images of one may have 16


class Containers:
    """All containers of this process. `choose` tries which sandbox they can have: once, when the first one is wanted.

    `choice` is the result; None known. With `checkpoints`, what is idle, or stops, has its files on disk.
    """

    def __init__(
        self,
        choose: Callable[[], Awaitable[SandboxChoice]],
        settings: SandboxSettings,
        *,
        new_id: Callable[[str], str],
        clock: Callable[[], float] = time.time,
        checkpoints: Checkpoints | None = None,
        proxies: "Callable[[], ContainerProxies] | None" = None,
    ) -> None:
        self.is_leaving = False  # this process stops: no container is made any more
        self.choice: SandboxChoice | None = None
        self._choose = choose
        self._choosing = asyncio.Lock()  # one trial for all who ask at once
        self._settings = settings
        self._new_id = new_id
        self._clock = clock
        self._sweeper: asyncio.Task[None] | None = None  # runs while there are containers
        self._known = KnownContainers(clock)
        self._started: set[str] = set()  # ids of containers that have a session, or start one
        self._folders = Folders()  # of their skills, on the host
        self._kept = KeptBytes(MAX_KEPT)  # what came of their calls
        most = settings.sandbox_max_containers
        share = settings.sandbox_project_containers or max(1, most * 3 // 4)
        wait = settings.sandbox_wait_seconds
        self._places = SharedPlaces(most=most, share=share, seconds=wait, most_waiting=MAX_WAITING)
        self._ways_out = WaysOut(proxies)
        self._checkpoints = checkpoints
        self._bounding = asyncio.Lock()  # what ends for the room of one counts until it is gone
        self.tag = checkpoints.tag if checkpoints is not None else new_tag()  # the end of the ids of containers
        for container in checkpoints.load(self._kept) if checkpoints is not None else ():
            self._known.add(container)

    def room(self) -> HostRoom:
        """Return how many containers there are, and how many there may be."""
        every = list(self._known)
        return HostRoom(
            tag=self.tag,
            known=len(every),
            started=len(self._started),
            working=sum(each.working > 0 for each in every),
            saved=sum(each.is_saved for each in every),
            most=self._settings.sandbox_max_containers,
            memory=self._settings.sandbox_memory_bytes,
            is_leaving=self.is_leaving,
        )

    async def check(self) -> str:
        """Return the name of the sandbox. Raises `SandboxError` where this machine has none."""
        sandbox, _ = await self.sandbox()
        return sandbox.name

    async def sandbox(self) -> tuple[BaseSandbox, Interpreter]:
        """Return the sandbox and the Python of containers. Raises `SandboxError` where this machine has no sandbox."""
        async with self._choosing:
            if self.choice is None:
                # For all that come later, too: the log says it as of no request, and so of no project.
                self.choice = await Context().run(asyncio.ensure_future, self._choose())
        if self.choice.sandbox is None or self.choice.interpreter is None:
            raise SandboxError(self.choice.problem)
        return self.choice.sandbox, self.choice.interpreter

    async def make(
        self,
        project: str,
        name: str,
        idle: float | None,
        memory: MemoryLimit | None,
        network: Mapping[str, Any] | None,
    ) -> ContainerRecord:
        """Make a container, as `create`. Raises `HostGone` where this process stops, and as `create` does."""
        if self.is_leaving:
            raise HostGone("the host of the containers stops now")
        policy = EgressPolicy.read(network) if network is not None else None
        return (await self.create(project, name=name, idle=idle, memory=memory, network=policy)).record()

    async def create(
        self,
        project: str,
        *,
        name: str = "auto",
        idle: float | None = None,
        memory: MemoryLimit | None = None,
        network: EgressPolicy | None = None,
    ) -> LivingContainer:
        """Make a container. The last digits of its id tell who has it. Raises `MemoryRefused`, `NetworkRefused`."""
        await self._end_expired()
        if network is not None:
            await self._ways_out.check(network, (await self.sandbox())[0])
        if memory is not None and not has_memory(memory, self._settings.sandbox_memory_bytes):
            raise MemoryRefused(memory_refused(memory, self._settings.sandbox_memory_bytes))
        if self._known.is_full:
            await self._end(least_missed(self._known))
        now = self._clock()
        id = self._new_id(CONTAINER)
        container = LivingContainer(
            id=id[:-TAG_DIGITS] + self.tag if len(id.rpartition("_")[2]) == ID_DIGITS else id,
            project=project,
            name=name[:MAX_NAME],
            created_at=int(now),
            # A client may ask for less than the server's own, not for more.
            idle=min(idle or self._settings.sandbox_idle_seconds, self._settings.sandbox_idle_seconds),
            memory=memory or "1g",
            last_active=now,
            calls=KeptCalls(self._kept),
            network=network,
        )
        self._known.add(container)
        return container

    async def find(self, project: str, id: str) -> LivingContainer:
        """Return a container. Raises `ContainerNotFound`."""
        return self._known.find(project, id)

    async def record(self, project: str, id: str) -> ContainerRecord:
        """Return a container, as others are told of it. Raises `ContainerNotFound`."""
        return (await self.find(project, id)).record()

    async def records(self, project: str) -> list[ContainerRecord]:
        """Return the containers of a project, oldest first."""
        return [each.record() for each in await self.all_of(project)]

    async def of_chain(self, project: str, keys: Sequence[str], network: str = "") -> ChainFound | None:
        """Return the first container that one of these names: ids of containers, or responses of `join_chain`.

        One that may reach something else than `network` says (`LivingContainer.network_key`) is passed over.
        """
        return self._known.of_chain(project, keys, network)

    async def give_secrets(self, project: str, id: str, values: Sequence[Mapping[str, Any]]) -> None:
        """Have these values of a container's secrets, `{"domain", "name", "value"}`. Raises `ContainerNotFound`."""
        (await self.find(project, id)).give_secrets(values)

    async def join_chain(self, id: str, keys: Iterable[str]) -> None:
        """Remember that these responses use a container: the first of each chain stands for all of it."""
        self._known.join_chain(id, keys)

    async def all_of(self, project: str) -> list[LivingContainer]:
        """Return the containers of a project, oldest first."""
        await self._end_expired()
        return self._known.of_project(project)

    async def delete(self, project: str, id: str) -> None:
        """End a container. Raises `ContainerNotFound`."""
        await self._end(await self.find(project, id))

    async def run(
        self,
        project: str,
        id: str,
        code: str,
        seconds: float | None = None,
        call: str = "",
        is_dropped: Callable[[], bool] = still_wanted,
    ) -> CellRun:
        """Run a cell; where one of this `call` was run, return its result. A cancellation interrupts it.

        Raises `ContainerNotFound`, `SandboxError`.
        """
        container = await self.find(project, id)
        return await container.calls.once(call, partial(self._run, container, code, seconds), is_dropped=is_dropped)

    async def _run(self, container: LivingContainer, code: str, seconds: float | None) -> CellRun:
        async with self._at_work(container) as session:
            # Told once, with the first cell behind the loss.
            begun_anew, container.lost = container.lost, None
            was_saved, container.was_saved = container.was_saved, False
            execution = await session.run(code, seconds)
            files = [self._note_file(container, each, "assistant") for each in execution.files]
            return CellRun(execution, files, begun_anew, was_saved)

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

    async def run_program(self, project: str, id: str, code: str, seconds: float | None, answer: Answer) -> CellRun:
        """Run a program in a container that was made for it, and ends with it; it calls tools by `answer`.

        Raises `ContainerNotFound`, `SandboxError`.
        """
        container = await self.find(project, id)
        try:
            async with self._at_work(container) as session:
                return CellRun(await session.run(code, seconds, answer), [], None)
        finally:
            await self._end(container)

    async def put_part(self, project: str, id: str, part: str, begin: int, content: bytes) -> None:
        """Write a part of a file that is not whole yet. Raises `ContainerNotFound`, `SandboxError`."""
        async with self._at_work(await self.find(project, id)) as session:
            await session.put_part(part, begin, content)

    async def finish(self, project: str, id: str, part: str, path: str, size: int) -> ContainerFileRecord:
        """Make a file of the parts that were written. Raises `ContainerNotFound`, `SandboxError`."""
        container = await self.find(project, id)
        async with self._at_work(container) as session:
            await session.rename(part, path)
            return self._note_file(container, ListedFile(path, size), "user")

    async def drop(self, project: str, id: str, part: str) -> None:
        """Remove the parts of a file that will not be whole. Raises `ContainerNotFound`, `SandboxError`."""
        session = (await self.find(project, id)).session
        if session is not None and session.is_alive:
            await session.remove(part)

    async def put_image(self, project: str, id: str, media_type: str, content: bytes) -> ContainerFileRecord:
        """Keep an image that code has shown, as a file named after its id. Raises as `put_file` does."""
        container = await self.find(project, id)
        file_id = self._new_id(CONTAINER_FILE)
        # The subtype is the ending: `image/png` → `.png`.
        path = f"{file_id}.{media_type.rpartition('/')[2]}"
        async with self._at_work(container) as session:
            await session.put(path, content)
        file = ContainerFileRecord(file_id, path, len(content), int(self._clock()), "assistant")
        container.files[path] = file
        return file

    async def files_of(self, project: str, id: str) -> list[ContainerFileRecord]:
        """Return the files of a container, oldest first. Raises `ContainerNotFound`, `SandboxError`."""
        container = await self.find(project, id)
        if container.session is None:
            return list(container.files.values()) if container.is_saved else []
        async with self._at_work(container) as session:
            self._note_all(container, await session.list_files())
            return list(container.files.values())

    def _note_all(self, container: LivingContainer, files: Sequence[ListedFile]) -> None:
        """Know these files, and no other ones."""
        there = {each.path: each for each in files}
        for path in [path for path in container.files if path not in there]:
            del container.files[path]
        for each in there.values():
            if each.path not in container.files:
                self._note_file(container, each, "assistant")

    async def file(self, project: str, id: str, file_id: str) -> ContainerFileRecord:
        """Return a file. Raises `ContainerNotFound`, `SandboxError`."""
        for each in await self.files_of(project, id):
            if each.id == file_id:
                return each
        raise ContainerNotFound(file_id)

    async def part(self, project: str, id: str, file_id: str, begin: int) -> ContainerFilePart:
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

    async def add_skill(self, project: str, id: str, folder: str, name: str, about: str, bundle: bytes) -> None:
        """Have a container see a skill, unless it does; `bundle` is one that `resources.skills.bundles` has made.

        Raises `ContainerNotFound`, `SandboxError`.
        """
        container = await self.find(project, id)
        await self._make_room_for_skills(container)
        most = self._settings.sandbox_disk_bytes
        await container.skills.add(MountedSkill(folder, name, about), contents(bundle), self._folders, most=most)
        container.last_active = self._clock()
        if container not in self._known:  # it has ended meanwhile
            await container.skills.remove()
            raise ContainerNotFound(id)

    async def _make_room_for_skills(self, container: LivingContainer) -> None:
        """Put away those that are missed least, until one more may have skills: those that never start have some."""
        most = self._settings.sandbox_disk_bytes * self._settings.sandbox_max_containers
        while sum(each.skills.on_disk for each in self._known) >= most:
            idle = [each for each in self._known if each.skills.on_disk and not each.working and each is not container]
            if not idle:
                raise TooManyContainers(
                    "the containers of this server have as many skills as they may; try again later"
                )
            least = least_missed(idle)
            await self._put_away(least)
            # What rests already, and was given further skills meanwhile, cannot be saved once more.
            if least in self._known and least.skills.on_disk and not least.working:
                await self._end(least)

    async def sweep(self) -> None:
        """End containers that have expired, and save those that have done nothing for long."""
        await self._end_expired()
        if self._checkpoints is not None:
            await asyncio.to_thread(self._checkpoints.remove_forgotten, self._clock())
            idle = self._clock() - self._settings.sandbox_save_seconds
            for container in self._known:
                if container.session is not None and not container.working and container.last_active < idle:
                    await self._put_away(container)

    async def _end_expired(self) -> None:
        """End those that have expired. None is saved here: that takes long, and whoever makes a container waits."""
        # It goes on by itself from now on: those that were loaded expire, too.
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._keep_sweeping())
        now = self._clock()
        for container in [each for each in self._known if each.has_expired(now)]:
            await self._end(container)

    async def aclose(self) -> None:
        """End all containers; the files of those that were used are saved, where that can be."""
        self.is_leaving = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        # What still runs is stopped, so that the files are at rest.
        await asyncio.gather(*(each.calls.aclose() for each in self._known))
        if self._checkpoints is not None:
            worth = [each for each in self._known if each.is_worth_saving]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAVE_SECONDS):
                    await asyncio.gather(*(self._put_away(each) for each in worth))
        for container in self._known:
            await self._end(container, forget=False)
        if self._checkpoints is not None:
            self._checkpoints.close()
        self._ways_out.close()

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
        cgroups = self.choice.cgroups if self.choice is not None else None
        self._note_ended()
        memory = min(MEMORY[container.memory], self._settings.sandbox_memory_bytes)
        settings = replace(self._settings, sandbox_memory_bytes=memory)
        # Started ones count, not those at work: each holds memory, also an idle one.
        # Again, as others take the room that is made, too.
        while len(self._started) >= self._settings.sandbox_max_containers:
            started = [each for each in self._known if each.session is not None and each is not container]
            idle = [each for each in started if not each.working]
            if not idle:  # those that end now, or start
                raise TooManyContainers("all containers that this server may have are busy now; try again later")
            await self._put_away(least_missed(idle))
        # Before the start, which awaits: others that look meanwhile must count it.
        self._started.add(container.id)
        try:
            way_out = await self._ways_out.of(container, sandbox)
            extras = ContainerExtras(await container.skills.made(self._folders), way_out)
            session = await SandboxSession.start(sandbox, interpreter, settings, cgroups, extras=extras)
        # Being cancelled, too.
        except BaseException:
            self._started.discard(container.id)
            raise
        try:
            # A container that was deleted meanwhile has nothing to be restored.
            if container in self._known:
                await self._restore(container, session)
            if container not in self._known:
                await container.skills.remove()
                raise SandboxGone("the container has ended")
        except BaseException:
            self._started.discard(container.id)
            await session.close()
            raise
        container.session = session
        if container.is_saved and self._checkpoints is not None:
            # Last: whoever is cancelled before has taken nothing away.
            container.is_saved = False
            await self._checkpoints.forget(container.id)
        return session

    async def _restore(self, container: LivingContainer, session: SandboxSession) -> None:
        """Give a new session the files that were saved; they are still on disk behind this."""
        if self._checkpoints is None or not container.is_saved:
            return
        try:
            await self._checkpoints.restore(container, session, self._folders)
        except (OSError, ValueError, SandboxError) as problem:
            logger.warning("container %s: its files cannot be read again: %s", container.id, problem)
            container.lost, container.was_saved = "its files could not be read again", False
            container.files.clear()

    def _note_ended(self) -> None:
        """Take note of containers whose sessions have ended by themselves: they are in nobody's way."""
        for each in self._known:
            if each.session is not None and not each.session.is_alive:
                each.lost, each.session = each.session.why_ended, None
                logger.warning("container %s ended by itself: %s", each.id, each.lost or "it broke")
                each.files.clear()
                self._started.discard(each.id)

    def _note_file(self, container: LivingContainer, file: ListedFile, source: FileSource) -> ContainerFileRecord:
        known = container.files.get(file.path)
        id, created_at = (known.id, known.created_at) if known else (self._new_id(CONTAINER_FILE), int(self._clock()))
        noted = ContainerFileRecord(id, file.path, file.size, created_at, known.source if known else source)
        container.files[file.path] = noted
        return noted

    async def _keep_sweeping(self) -> None:
        while self._known:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep()

    async def _put_away(self, container: LivingContainer) -> None:
        """Have the files of a container on disk, and nothing of it in memory; where that cannot be, it ends."""
        async with container.starting:
            session = container.session
            if container.working or container.is_saved or container not in self._known:
                return
            if self._checkpoints is None or container.is_unkept:
                await self._end(container)
                return
            try:
                # What has more than it may have, as sparse files do, would not fit in when it comes back.
                most = self._settings.sandbox_disk_bytes
                await self._checkpoints.save(container, session, note=partial(self._note_all, container), most=most)
            except NotSaved as problem:
                logger.warning("container %s cannot be saved, and ends: %s", container.id, problem)
                await self._end(container)
                return
            if container not in self._known:  # it was deleted meanwhile
                await self._checkpoints.forget(container.id)
                return
            container.session, container.is_saved = None, True
            container.was_saved = container.was_saved or session is not None
            if session is not None:
                try:
                    await session.close()
                finally:
                    self._started.discard(container.id)
            await container.skills.rest()
        await self._bound_saved(container)

    async def _bound_saved(self, newest: LivingContainer) -> None:
        """Forget those that are missed least, as long as more is saved than may be."""
        assert self._checkpoints is not None
        async with self._bounding:
            while self._checkpoints.used > self._checkpoints.most:
                saved = [each for each in self._known if each.is_saved]
                if not saved:  # what is too much is being saved just now: whoever does it looks again
                    return
                others = [each for each in saved if each is not newest and self._checkpoints.sizes.get(each.id)]
                logger.warning("more is saved than SANDBOX_SAVED_BYTES: a container ends")
                await self._end(least_missed(others or saved))

    async def _end(self, container: LivingContainer, *, forget: bool = True) -> None:
        self._known.remove(container)  # before anything is awaited
        session, container.session = container.session, None
        if session is not None:
            try:
                await session.close()
            # Counted until its memory is free.
            finally:
                self._started.discard(container.id)
        await container.calls.aclose()
        await container.skills.remove()
        if forget and self._checkpoints is not None:
            await self._checkpoints.forget(container.id)


def has_memory(memory: MemoryLimit, most: int) -> bool:
    """Whether a container may have so much; the least there is, it may have everywhere."""
    return MEMORY[memory] <= max(most, min(MEMORY.values()))


def memory_refused(memory: MemoryLimit, most: int) -> str:
    """Return the refusal of so much memory, with the limits that there are."""
    allowed = ", ".join(each for each in MEMORY if has_memory(each, most))
    return f"memory_limit {memory} is more than a container has here: {allowed} (SANDBOX_MEMORY_BYTES)"
