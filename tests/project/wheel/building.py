"""Builds the wheel of this checkout, in a copy of what it is made of: nothing of an earlier build gets into it."""

import shutil
import subprocess
from pathlib import Path

from tests.kit import pip
from tests.kit.server import ROOT

PACKAGES = ("engine", "responses_app", "respsite")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
SECONDS = 120.0


def build_wheel(folder: Path) -> Path:
    """Build it in an empty folder, and return its path."""
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for name in BESIDE:
        shutil.copy(ROOT / name, source)
    python = pip.installed(Path(__file__).parent / "requirements.txt")
    done = subprocess.run(
        [python, "-c", BUILD, folder], cwd=source, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel
