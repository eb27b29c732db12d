"""npm packages that tests use as clients: named in a package.json with exact versions, installed once for a user."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL_SECONDS = 600.0  # some 300 MB each
FLAGS = "--ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error".split()


def installed(manifest: Path) -> Path:
    """Return the `node_modules` with what a package.json names; skip the test where nothing can install it.

    One process installs at a time; others wait for it.
    """
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed: make services installs it.")
    folder = folder_of(manifest)
    if not folder.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed: make services installs it.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name("npm.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():  # else another process was first
                _install(manifest, folder)
    return folder / "node_modules"


def folder_of(manifest: Path) -> Path:
    """Return where a package.json is installed: in the user's cache, under a name that changes with the file."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    content = hashlib.sha256(manifest.read_bytes()).hexdigest()
    return cache / "respsite-tests" / f"{manifest.parent.name}-{content[:12]}"


def _install(manifest: Path, folder: Path) -> None:
    """Install into a folder beside `folder`, and rename it: `folder` is whole, or is not there."""
    beside = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed
    beside.mkdir()
    shutil.copy(manifest, beside)
    done = subprocess.run(
        ["npm", "install", *FLAGS],
        cwd=beside,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"npm could not install {manifest}:\n{done.stderr}"
    beside.rename(folder)
