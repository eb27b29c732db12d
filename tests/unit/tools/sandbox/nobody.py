"""Programs that are run by a user who is not root, and what tests need for that."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 65534
PARENTS = ("protocol", "extensions", "extensions/containers")  # of what is copied
HAS_SANDLOCK = find_spec("sandlock") is not None
needs_sandlock = pytest.mark.needs("sandlock")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists(), reason="this is not root, or has no Python of the system"
)


def copied() -> Iterator[Path]:
    """Yield a folder with the package of sandboxes and the programs that try it, which any user may read."""
    folder = Path(tempfile.mkdtemp(prefix="respsite-readable-"))
    package = ROOT / "responses_app/extensions/containers"
    alone = [package / each for each in ("egress/__init__.py", "egress/base.py")]
    alone += [ROOT / each for each in ("engine/errors.py", "responses_app/protocol/setting.py")]
    for path in (*sorted(package.glob("sandbox/**/*.py")), *alone):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for name in ("leaks.py", "wakers.py"):
        shutil.copy(Path(__file__).with_name(name), folder)
    for name in ("engine", "responses_app", *(f"responses_app/{each}" for each in PARENTS)):
        (folder / name / "__init__.py").touch()
    if HAS_SANDLOCK:
        shutil.copytree(str(Path(str(find_spec("sandlock").origin)).parent), folder / "sandlock")  # type: ignore[union-attr]
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    yield folder
    shutil.rmtree(folder)


def run_as_nobody(folder: Path, *command: str) -> str:
    """Run a program as a user that is not root; return what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
