"""Clients that tests run are installed once for a user, in the user's cache, and used by all test runs from then on."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

INSTALL_SECONDS = 600.0  # some 300 MB each


def folder_for(manifest: Path, *also: str) -> Path:
    """Return where what a manifest names is installed: its name changes with the file's content, and with `also`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    content = hashlib.sha256("\0".join([manifest.read_text(), *also]).encode()).hexdigest()
    return cache / "respsite-tests" / f"{manifest.parent.name}-{content[:12]}"


def install_once(folder: Path, install: Callable[[Path], None], *, tool: str) -> None:
    """Let `install` fill a folder, unless it is there already.

    One process installs with a tool at a time; others wait for it. It fills a folder beside `folder`, which is renamed:
    `folder` is whole, or is not there.
    """
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{tool}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # another process was first
            return
        beside = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed
        beside.mkdir()
        install(beside)
        beside.rename(folder)


def run_installer(command: Sequence[str | Path], *, cwd: Path, what: Path) -> None:
    """Run a command that installs `what`, and fail with what it says where it does."""
    done = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    tool = Path(command[0]).name
    assert done.returncode == 0, f"{tool} could not install {what}:\n{done.stderr}"
