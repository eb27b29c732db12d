"""The files of containers, seen from the host: what they take, where they lie, and how they are removed.

Code in the container owns these files, and goes on to change them: what cannot be looked at counts as too much.

`Folders`: where containers lie on the host's disk, where they do. Nothing of them is left, however the server ends.

A process has a folder of its own, with a lock that it holds as long as it lives; the folders of those that have been
killed are removed by the next one that needs one.
"""

import atexit
import contextlib
import fcntl
import os
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from responses_app.extensions.containers.sandbox import processes
from responses_app.extensions.containers.sandbox.settings import SCRATCH, WORK_FOLDER

ENTRY_BYTES = 4096  # that a file takes at least, and a folder: a disk has a bound for their number, too
MAX_PATH = 3000  # characters of a folder's path; the system can follow 4096
REMOVE_SECONDS = 60.0  # for each of the commands
_IN_MEMORY = (WORK_FOLDER, SCRATCH, "/dev/shm")  # file systems of a container that lie in memory


def used(folder: Path, root: int, most: int) -> int:
    """Return the bytes on the disk of all files below a folder, also of those that only processes still hold.

    `root` is the process from which these descend. More than `most` is not counted to its end.
    """
    # Files without a name take space as long as somebody has them open.
    total = _unlinked(root, os.stat(folder).st_dev)
    waiting = [str(folder)]
    while waiting:
        place = waiting.pop()
        if len(place) > MAX_PATH:
            return most + 1
        try:
            with os.scandir(place) as entries:
                for each in entries:
                    with contextlib.suppress(FileNotFoundError):
                        # `st_blocks` counts blocks of 512 bytes, whatever the file system's own are.
                        total += max(each.stat(follow_symlinks=False).st_blocks * 512, ENTRY_BYTES)
                        if each.is_dir(follow_symlinks=False):
                            waiting.append(each.path)
                    if total > most:
                        return total
        except (FileNotFoundError, NotADirectoryError):  # it was removed meanwhile
            continue
        except OSError:
            return most + 1
    return total


def files_in_memory(root: int) -> int:
    """Return how many files there are in memory, on the file systems of the processes below this one."""
    inside = processes.first_below(root)
    total = 0
    for folder in _IN_MEMORY:
        with contextlib.suppress(OSError):  # it has ended
            system = os.statvfs(f"/proc/{inside}/root{folder}")
            total += system.f_files - system.f_ffree
    return total


def remove(folder: Path) -> None:
    """Remove a folder, however deep it is. Nothing works in it any more."""
    # Code may have taken its own rights to a folder away, so they are given back before the second attempt.
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        if os.path.lexists(folder):
            # A program, not `shutil.rmtree`: that fails on paths longer than the system takes in one call.
            subprocess.run([*command, "--", str(folder)], capture_output=True, check=False, timeout=REMOVE_SECONDS)


def _unlinked(root: int, device: int) -> int:
    """Return the bytes of files on a device that have no name any more, and are open or mapped below a process."""
    sizes: dict[int, int] = {}
    for pid in processes.tree(root):
        if pid == root:
            continue
        for path in _held(pid):
            with contextlib.suppress(OSError):
                about = os.stat(path)
                if about.st_nlink == 0 and about.st_dev == device and stat.S_ISREG(about.st_mode):
                    # By its inode: several processes may hold the same one.
                    sizes[about.st_ino] = about.st_blocks * 512
    return sum(sizes.values())


def _held(pid: int) -> Iterator[str]:
    # Mapped files need no descriptor.
    for folder in (f"/proc/{pid}/map_files", *(f"{thread}/fd" for thread in processes.threads(pid))):
        with contextlib.suppress(OSError):
            yield from (f"{folder}/{name}" for name in os.listdir(folder))


_PREFIX = "respsite-containers-"
_LOCK = "lock"
_YOUNG = 60.0  # seconds: one without a lock may be about to get it


class Folders:
    """The folders of this process's containers."""

    def __init__(self) -> None:
        self._all: Path | None = None
        self._making = threading.Lock()  # containers start on several threads

    def make(self) -> Path:
        """Make a folder that others may enter and not read; its user removes it."""
        with self._making:
            if self._all is None:
                remove_those_of_the_dead()
                self._all = _of_this_process()
        folder = Path(tempfile.mkdtemp(dir=self._all))
        folder.chmod(0o711)
        return folder


def _of_this_process() -> Path:
    """Make the folder of all folders of this process, which is locked as long as the process lives."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(remove, folder)
    # Others may enter, as the container's own user must, but not see what is in it.
    folder.chmod(0o711)
    # Locked before it has its name: another process takes one that nobody has locked for that of a dead one.
    unnamed = folder / f"{_LOCK}.new"
    _locked(unnamed, os.O_CREAT)
    unnamed.rename(folder / _LOCK)
    return folder


def remove_those_of_the_dead() -> None:
    """Remove the folders of processes of this user that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            # `lstat`: a link of somebody else's is not followed.
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            lock = _locked(folder / _LOCK)
        except FileNotFoundError:
            if time.time() - about.st_mtime < _YOUNG:
                continue
            lock = -1  # there is none to be closed
        except OSError:  # its process lives
            continue
        remove(folder)
        if lock != -1:
            os.close(lock)


def _locked(path: Path, flags: int = 0) -> int:
    """Lock a file, for as long as its descriptor is open. Raises `OSError` where another process has."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    try:
        # Not waiting: who has it lives.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
