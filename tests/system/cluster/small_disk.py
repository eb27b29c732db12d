"""A disk that a test can fill."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PART = b"\0" * 64 * 1024


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a disk of this size at a new folder, which everybody may write to. Skips where nothing may be mounted."""
    folder.mkdir(parents=True)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    how = ("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0777", "tmpfs", folder)
    mounted = subprocess.run(how, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", folder), check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill a disk to its last byte, and make room again behind it; what others free meanwhile they may use."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(PART)
    try:
        yield
    finally:
        filler.unlink()
