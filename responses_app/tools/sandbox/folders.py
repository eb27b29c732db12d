"""`Folders`: where containers lie on the host's disk, where they do. Nothing of them is left, however the server ends.

A process has a folder of its own, with a lock that it holds as long as it lives; the folders of those that have been
killed are removed by the next one that needs one.
"""

import atexit
import fcntl
import os
import stat
import tempfile
import time
from pathlib import Path

from responses_app.tools.sandbox import disk

_PREFIX = "respsite-containers-"
_LOCK = "lock"
_YOUNG = 60.0  # seconds: one without a lock may be about to get it


class Folders:
    """The folders of this process's containers."""

    def __init__(self) -> None:
        self._all: Path | None = None

    def make(self) -> Path:
        """Make a folder that others may enter and not read; its user removes it."""
        if self._all is None:
            remove_those_of_the_dead()
            self._all = Path(tempfile.mkdtemp(prefix=_PREFIX))
            atexit.register(disk.remove, self._all)
            self._all.chmod(0o711)
            _locked(self._all / _LOCK, os.O_CREAT)  # for good
        folder = Path(tempfile.mkdtemp(dir=self._all))
        folder.chmod(0o711)
        return folder


def remove_those_of_the_dead() -> None:
    """Remove what processes of this user have left that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            lock = _locked(folder / _LOCK)
        except FileNotFoundError:
            if time.time() - about.st_mtime < _YOUNG:
                continue
            lock = -1
        except OSError:  # its process lives
            continue
        disk.remove(folder)
        if lock != -1:
            os.close(lock)


def _locked(path: Path, flags: int = 0) -> int:
    """Lock a file, for as long as its descriptor is open. Raises `OSError` where another process has."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
