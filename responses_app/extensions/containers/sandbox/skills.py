"""The skills of containers: folders of the host that a container sees, and cannot write to.

Each container has one folder of its own here, which its sandbox shows read-only from its start on: what the host puts
there later is seen at once, and nothing inside is asked to do anything. How sure that is:

    bubblewrap                 a mount that is read-only, whoever writes
    sandlock, server is root   Landlock refuses to write, and the files are root's
    sandlock, any other user   Landlock refuses to write; the files are the container's user's own, so code can take its
                               own right to read them away, in its own container

Nothing is shared between containers, so none can change what another one reads. They take room where the system keeps
its temporary files: each container as much as SANDBOX_DISK_BYTES.
"""

import asyncio
import contextlib
import io
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from engine.errors import reason_of
from responses_app.extensions.containers.sandbox import disk
from responses_app.extensions.containers.sandbox.records import SandboxError, checked_path

Given = ParamSpec("Given")
Done = TypeVar("Done")

_PIECE = 256 * 1024  # bytes that are unpacked at once
Content = Iterable[tuple[str, bool, Iterator[bytes]]]  # path, whether it runs, and what is in it


@dataclass(frozen=True, slots=True)
class MountedSkill:
    """A skill that a container has."""

    folder: str  # its name, below `SKILLS_FOLDER`
    name: str
    description: str


def _to_its_end(work: Callable[Given, Coroutine[Any, Any, Done]]) -> Callable[Given, Coroutine[Any, Any, Done]]:
    """Have a caller that is cancelled wait for the end of the work: the thread that does it cannot be stopped.

    Otherwise files would exist that nobody knows of.
    """

    @wraps(work)
    async def whole(*args: Given.args, **more: Given.kwargs) -> Done:
        doing = asyncio.create_task(work(*args, **more), name="change the skills of a container")
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait([doing])
            if not doing.cancelled():
                doing.exception()  # whoever would be told has left
            raise

    return whole


@dataclass(slots=True)
class SkillFolder:
    """The skills of one container, on the host. `path` is made when it is first wanted."""

    path: Path | None = None
    mounted: dict[str, MountedSkill] = field(default_factory=dict)  # by their folders
    copied: frozenset[str] = frozenset()  # those that `copy_to` has written last
    used: int = 0  # bytes of all files on a disk
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # one at a time makes it, or adds to it

    @property
    def on_disk(self) -> int:
        """Bytes that it takes where containers live; saved ones lie elsewhere."""
        return self.used if self.path is not None else 0

    @_to_its_end
    async def made(self, folders: disk.Folders) -> Path:
        """Return where it is on the host."""
        async with self.changing:
            return await self._made(folders)

    async def _made(self, folders: disk.Folders) -> Path:
        if self.path is None:
            self.path = await asyncio.to_thread(_make, folders)
        return self.path

    @_to_its_end
    async def add(self, skill: MountedSkill, content: Content, folders: disk.Folders, *, most: int) -> None:
        """Add a skill, unless it is there; all of them have at most `most` bytes. Raises `SandboxError`."""
        async with self.changing:
            if skill.folder in self.mounted:
                return
            path = await self._made(folders)
            try:
                self.used += await asyncio.to_thread(_write, path, skill.folder, content, most - self.used)
            except OSError as problem:
                raise SandboxError(f"a skill cannot be kept ({reason_of(problem)})") from None
            self.mounted[skill.folder] = skill

    @_to_its_end
    async def copy_to(self, folder: Path) -> Sequence[MountedSkill]:
        """Write all of it into a new folder; return the skills there. Raises `OSError`."""
        async with self.changing:
            if self.path is not None:
                await asyncio.to_thread(shutil.copytree, self.path, folder)
            self.copied = frozenset(self.mounted)
            return list(self.mounted.values())

    @_to_its_end
    async def take_from(self, folder: Path, folders: disk.Folders) -> None:
        """Take the skills that `copy_to` has written there, where they are not here yet. Raises `OSError`."""
        async with self.changing:
            path, failed = await self._made(folders), None
            for name in list(self.mounted):
                try:
                    await asyncio.to_thread(_copy, folder / name, path / name)
                except OSError as problem:
                    del self.mounted[name]  # so it can be added again
                    failed = problem
            if failed is not None:
                raise failed

    async def rest(self) -> None:
        """Remove the skills that `copy_to` has written elsewhere; where more have come since, all of them stay."""
        if self.copied == self.mounted.keys():
            await self.remove()

    async def remove(self) -> None:
        """Remove all of it; nothing sees it any more."""
        async with self.changing:
            path, self.path = self.path, None
            if path is not None:
                await asyncio.to_thread(disk.remove, path.parent)


def contents(bundle: bytes) -> Content:
    """Yield the files of a bundle that `resources.skills.bundles` has made: all its folders but the first count."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        for entry in archive.infolist():
            path = checked_path(entry.filename.partition("/")[2])
            yield path, bool((entry.external_attr >> 16) & 0o111), _unpacked(archive, entry)


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(entry) as file:
        while piece := file.read(_PIECE):
            yield piece


def _make(folders: disk.Folders) -> Path:
    # Inside another one: the one that is shown has files of its own alone.
    path = folders.make() / "skills"
    path.mkdir()
    path.chmod(0o755)
    return path


def _copy(skill: Path, whole: Path) -> None:
    if whole.exists():
        return
    beside = whole.parent.parent / secrets.token_hex(8)
    try:
        shutil.copytree(skill, beside)
        beside.rename(whole)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove(beside)
        raise


def _write(path: Path, name: str, content: Content, room: int) -> int:
    """Write a skill, and show it once it is whole; return its size."""
    whole, beside = path / name, path.parent / secrets.token_hex(8)
    size = 0
    beside.mkdir()
    try:
        for inside, runs, pieces in content:
            file, begin = beside / inside, size
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file, "xb") as written:
                for piece in pieces:
                    size += len(piece)
                    if size > room:
                        raise SandboxError("the skills of a container are larger than its files may be")
                    written.write(piece)
            size = max(size, begin + disk.ENTRY_BYTES)  # so much an empty one takes, too
            file.chmod(0o555 if runs else 0o444)
        for folder, _, _ in os.walk(beside):
            os.chmod(folder, 0o755)
        # On one file system, so it is there as a whole or not at all.
        beside.rename(whole)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove(beside)
        raise
    return size
