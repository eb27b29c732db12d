"""Python packages that tests use as clients: a requirements.txt with exact versions, installed once, in a venv apart.

So they may want other versions than this server and its tests.
"""

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kit.installing import folder_for, install_once, run_installer

FLAGS = "--quiet --disable-pip-version-check --no-input --no-deps --no-compile".split()


def installed(requirements: Path, *, any_python: bool = False) -> Path:
    """Return the `python` that has what a requirements.txt names, and nothing else.

    `any_python` is for packages that ask for a newer Python than the parts of them need which a test runs.
    """
    folder = folder_of(requirements)
    flags = ["--ignore-requires-python"] if any_python else []
    install_once(folder, lambda beside: _install(requirements, beside, flags), tool="pip")
    return folder / "bin" / "python"


def folder_of(requirements: Path) -> Path:
    """Return the venv of a requirements.txt: another one for each version of Python, and for each place of it."""
    return folder_for(requirements, platform.python_version(), sys.base_prefix)


def _install(requirements: Path, folder: Path, flags: Sequence[str]) -> None:
    """Make a venv without a pip of its own, which would take some seconds, and fill it with that of these tests."""
    run_installer([sys.executable, "-m", "venv", "--without-pip", folder], cwd=folder, what=requirements)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    command = [*pip, "install", *FLAGS, *flags, "--requirement", requirements.resolve()]
    run_installer(command, cwd=folder, what=requirements)
