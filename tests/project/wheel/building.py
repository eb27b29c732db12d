"""Builds wheels; that of this checkout in a copy of its parts, so that nothing of an earlier build gets into it."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.kit import pip
from tests.kit.server import ROOT

PACKAGES = ("engine", "responses_app", "respsite")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
SECONDS = 120.0
EPOCH = "1700000000"  # what `make wheel` takes from the commit


def build_wheel(folder: Path, *, changed_at: float | None = None) -> Path:
    """Build it in an empty folder, and return its path. `changed_at`: when its files were changed, in Unix seconds."""
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for name in BESIDE:
        shutil.copy(ROOT / name, source)
    for path in source.rglob("*") if changed_at is not None else ():
        os.utime(path, (changed_at, changed_at))
    return wheel_of(source, folder)


def wheel_of(source: Path, folder: Path) -> Path:
    """Build the wheel of a source tree into an empty folder, and return its path."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    python = pip.installed(Path(__file__).parent / "requirements.txt")
    command = [python, "-c", BUILD, folder]
    done = subprocess.run(
        command, cwd=source, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel
