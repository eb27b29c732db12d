"""npm packages that tests use as clients: named in a package.json with exact versions, installed once for a user."""

import shutil
from pathlib import Path

import pytest

from tests.kit.installing import folder_for, install_once, run_installer

FLAGS = "--ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error".split()


def installed(manifest: Path) -> Path:
    """Return the `node_modules` with what a package.json names; skip the test where nothing can install it."""
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed: make services installs it.")
    folder = folder_of(manifest)
    if not folder.exists() and shutil.which("npm") is None:
        pytest.skip("npm is not installed: make services installs it.")
    install_once(folder, lambda beside: _install(manifest, beside), tool="npm")
    return folder / "node_modules"


def folder_of(manifest: Path) -> Path:
    """Return where a package.json is installed."""
    return folder_for(manifest)


def _install(manifest: Path, folder: Path) -> None:
    shutil.copy(manifest, folder)
    run_installer(["npm", "install", *FLAGS], cwd=folder, what=manifest)
