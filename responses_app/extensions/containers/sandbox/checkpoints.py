"""`Checkpoints`: the files of containers that take no memory, on disk: of those that were idle, or whose host stopped.

    FOLDER/0/lock                   held by the process whose containers these are, as long as it lives
    FOLDER/0/tag                    the end of the ids of its containers: the same when it is started again
    FOLDER/0/cntr_…/about.json      what is known of the container, and of its files
    FOLDER/0/cntr_…/0, 1, …         the files themselves
    FOLDER/0/cntr_…/skills/         its skills

Files and skills alone are kept. What is in a process, its variables, is not: there is no snapshot of a process that
could be trusted to come back in another sandbox. Hidden files are left out, as everywhere; so are those behind the
first 1000. A process takes the first folder that no other one holds. All that lies there is bounded, by its bytes.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

from engine.errors import reason_of
from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.sandbox.channel import MessageError, read_as
from responses_app.extensions.containers.sandbox.disk import ENTRY_BYTES, Folders
from responses_app.extensions.containers.sandbox.living import (
    LIFE_SECONDS,
    MEMORY,
    KeptBytes,
    KeptCalls,
    LivingContainer,
)
from responses_app.extensions.containers.sandbox.records import (
    ContainerFileRecord,
    ContainerRecord,
    ListedFile,
    SandboxError,
    checked_path,
)
from responses_app.extensions.containers.sandbox.session import SandboxSession
from responses_app.extensions.containers.sandbox.skills import MountedSkill, SkillFolder

logger = logging.getLogger("respsite.sandbox")

TAG_DIGITS = 8  # hexadecimal
MAX_SLOTS = 1000  # processes that share a folder
PIECE = 256 * 1024  # bytes of a file that are in memory at once
SAVE_SECONDS = 60.0  # for the files of one container: those that wait for its room wait so long
_ABOUT, _SKILLS = "about.json", "skills"
# Of a container, what is the same when it comes back.
_KEPT = ("id", "project", "name", "created_at", "idle", "memory", "last_active")
# What is raised where what lies there is not what `save` has written; deep JSON is the one for `RecursionError`.
_BROKEN = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, MessageError, SandboxError)


class NotSaved(Exception):
    """The files of a container could not be saved; the text says why."""


class Checkpoints:
    """Below `folder`, at most `most` bytes. Raises `OSError` where there can be none."""

    def __init__(self, folder: Path, most: int) -> None:
        self.most = most
        self.sizes: dict[str, int] = {}  # bytes on disk of each container that is saved, by its id
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # What code and users have written: nobody else reads it.
        folder.chmod(0o700)
        self._folder, self._lock = _claimed(folder)
        self.tag = _tag(self._folder)

    @property
    def used(self) -> int:
        """Bytes on disk."""
        return sum(self.sizes.values())

    def load(self, kept: KeptBytes) -> Iterator[LivingContainer]:
        """Yield the containers that are saved; remove those that cannot be read. `kept` is for results of calls."""
        for folder in sorted(self._folder.iterdir()):
            if not folder.is_dir():
                continue
            try:
                if folder.name.startswith("."):
                    raise ValueError("it was not written to its end")
                yield self._loaded(folder, kept)
            except _BROKEN as problem:
                logger.warning("the files of container %s are removed, they cannot be read: %s", folder.name, problem)
                shutil.rmtree(folder, ignore_errors=True)

    def _loaded(self, folder: Path, kept: KeptBytes) -> LivingContainer:
        about = json.loads((folder / _ABOUT).read_text())
        record: ContainerRecord = read_as(ContainerRecord, {name: about[name] for name in _KEPT})
        files: list[ContainerFileRecord] = read_as(Sequence[ContainerFileRecord], about["files"])
        mounted: list[MountedSkill] = read_as(Sequence[MountedSkill], about["skills"])
        if record.id != folder.name or record.memory not in MEMORY:
            raise ValueError("it is not what was saved")
        for path in (*(each.path for each in files), *(each.folder for each in mounted)):
            checked_path(path)
        container = LivingContainer(
            **{name: getattr(record, name) for name in _KEPT}, calls=KeptCalls(kept), is_saved=True
        )
        if (network := about.get("network")) is not None:
            container.network = EgressPolicy.read(read_as(dict, network))
        container.files = {each.path: each for each in files}
        container.chain = OrderedDict.fromkeys(read_as(Sequence[str], about["chain"]))
        container.was_saved = read_as(bool, about["was_used"])
        used = read_as(int, about["used_by_skills"])
        container.skills = SkillFolder(mounted={each.folder: each for each in mounted}, used=used)
        self.sizes[container.id] = _on_disk(each.size for each in files) + used
        return container

    async def save(
        self,
        container: LivingContainer,
        session: SandboxSession | None,
        *,
        note: Callable[[Sequence[ListedFile]], object],
        most: int,
    ) -> None:
        """Save a container, with at most so many bytes of files, within `SAVE_SECONDS`.

        `note` makes its files known, and gives them ids. Raises `NotSaved`.
        """
        part = self._folder / f".{container.id}"
        try:
            await asyncio.to_thread(self._begin, part)
            sizes: dict[str, int] = {}
            if session is not None:
                files = await session.list_files()
                note(files)
                listed = {each.path: each.size for each in files}
                # In the order in which they are told of, which is not that of the list.
                sizes = {path: listed[path] for path in container.files}
                total = sum(sizes.values())
                if total > most:
                    raise NotSaved("its files are larger than SANDBOX_DISK_BYTES")
                if _on_disk(sizes.values()) + container.skills.used > self.most:
                    raise NotSaved("its files are larger than SANDBOX_SAVED_BYTES")
                async with asyncio.timeout(SAVE_SECONDS):
                    for number, (path, size) in enumerate(sizes.items()):
                        with await asyncio.to_thread(open, part / str(number), "wb") as file:
                            await _write(session, path, size, file)
            about = {name: getattr(container, name) for name in _KEPT}
            # Without the values of secrets, which are in memory alone.
            about["network"] = container.network.public() if container.network is not None else None
            # In the order of the files beside it, which have numbers for names.
            about["files"] = [asdict(replace(container.files[path], size=size)) for path, size in sizes.items()]
            about["skills"] = [asdict(each) for each in await container.skills.copy_to(part / _SKILLS)]
            about["used_by_skills"] = container.skills.used
            about |= {"chain": list(container.chain), "was_used": session is not None or container.was_saved}
            await asyncio.to_thread((part / _ABOUT).write_text, json.dumps(about))
            # Whole, or not at all; and noted whenever it is there, as nothing can be cancelled between the two.
            os.replace(part, self._folder / container.id)
            self.sizes[container.id] = _on_disk(sizes.values()) + about["used_by_skills"]
        except (OSError, SandboxError) as problem:  # and `TimeoutError`
            raise NotSaved(reason_of(problem)) from None
        finally:
            await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)

    def _begin(self, part: Path) -> None:
        for each in (part, self._folder / part.name[1:]):
            if each.exists():
                shutil.rmtree(each)
        part.mkdir(mode=0o700)

    async def restore(self, container: LivingContainer, session: SandboxSession, folders: Folders) -> None:
        """Write the files of a container into its new session; they stay here. Raises `OSError`, `SandboxError`.

        Its skills are put into its folder of those, below `folders`.
        """
        folder = self._folder / container.id
        await container.skills.take_from(folder / _SKILLS, folders)
        about = json.loads(await asyncio.to_thread((folder / _ABOUT).read_text))
        for number, each in enumerate(about["files"]):
            with await asyncio.to_thread(open, folder / str(number), "rb") as file:
                begin, piece = 0, await asyncio.to_thread(file.read, PIECE)
                # Also an empty one: a file of no bytes is one.
                while piece or not begin:
                    await session.put_part(checked_path(each["path"]), begin, piece)
                    begin += max(1, len(piece))
                    piece = await asyncio.to_thread(file.read, PIECE)

    async def forget(self, id: str) -> None:
        """Remove a container that is saved."""
        if self.sizes.pop(id, None) is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder / id, ignore_errors=True)

    def remove_forgotten(self, now: float) -> None:
        """Remove old containers from folders that no process holds, as fewer are started now: none lives so long."""
        for slot in self._folder.parent.iterdir():
            old = [each for each in slot.glob("*cntr_*") if now - each.stat().st_mtime > LIFE_SECONDS]
            if not old or (lock := _held(slot)) is None:
                continue
            try:
                for each in old:
                    shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(lock)

    def close(self) -> None:
        """Leave the folder to the next process."""
        with contextlib.suppress(OSError):
            os.close(self._lock)


def _on_disk(sizes: Iterable[int]) -> int:
    """Return the bytes that a container takes on disk with files of these sizes: empty ones take some, too."""
    return ENTRY_BYTES + sum(max(size, ENTRY_BYTES) for size in sizes)


async def _write(session: SandboxSession, path: str, size: int, to: BinaryIO) -> None:
    """Write a file of a container to the disk. Raises `NotSaved` where it is not of the size that was told."""
    begin = 0
    while begin < size:
        part = await session.get_part(path, begin, PIECE)
        # Code may have its warden say anything: no more is written than was counted.
        if part.size != size or not part.content:
            raise NotSaved("a file changes while it is saved")
        await asyncio.to_thread(to.write, part.content)
        begin += len(part.content)


def _claimed(folder: Path) -> tuple[Path, int]:
    """Return the first folder that no other process holds, and its lock. Raises `OSError`."""
    for number in range(MAX_SLOTS):
        slot = folder / str(number)
        slot.mkdir(exist_ok=True, mode=0o700)
        if (lock := _held(slot)) is not None:
            return slot, lock
    raise OSError("all folders are taken")


def _held(slot: Path) -> int | None:
    """Lock a folder for as long as the descriptor is open; None where another process has it."""
    lock = os.open(slot / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def new_tag() -> str:
    """Return the end of the ids of one process's containers."""
    return secrets.token_hex(TAG_DIGITS // 2)


def _tag(folder: Path) -> str:
    file = folder / "tag"
    with contextlib.suppress(OSError):
        tag = file.read_text().strip()
        if len(tag) == TAG_DIGITS:
            return tag
    tag = new_tag()
    file.write_text(tag)
    return tag
