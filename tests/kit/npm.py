"""npm packages that tests use as clients: named in a package.json with exact versions, installed once for a user."""

import shutil
from pathlib import Path

from tests.kit.capabilities import require
from tests.kit.installing import folder_for, install_once, run_installer

FLAGS = "--ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error".split()


def installed(manifest: Path) -> Path:
    """Return the `node_modules` with what a package.json names; skip the test where nothing can install it."""
    require("node")
    folder = folder_of(manifest)
    if not folder.exists():
        require("npm")
    install_once(folder, lambda beside: _install(manifest, beside), tool="npm")
    return folder / "node_modules"


def program(manifest: Path, pattern: str) -> Path:
    """Return a program of what a package.json names, by its place in `node_modules`.

    Install scripts are not run, so the commands of some packages are stubs, and the programs lie elsewhere.
    """
    return sorted(installed(manifest).glob(pattern))[0]


def folder_of(manifest: Path) -> Path:
    """Return where a package.json is installed."""
    return folder_for(manifest)


def _install(manifest: Path, folder: Path) -> None:
    shutil.copy(manifest, folder)
    run_installer(["npm", "install", *FLAGS], cwd=folder, what=manifest)
