"""`make clients`: install what tests run as clients, where it is missing; where all is there this takes a second.

So no test waits for a download, and how long a test takes says something of the test.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.kit import npm, pip

TESTS = Path(__file__).parents[1]
OF_COMMANDS = (TESTS / "project/auditing", TESTS / "project/pinning")  # `make audit` and `make pins` install these
OF_AGENTS = TESTS / "system/agents/others"  # `make agents` installs these: 1.3 GB
FOR_A_NEWER_PYTHON = (TESTS / "system/trainers",)


def missing_of_npm() -> list[Path]:
    """Return the package.json files of tests that are not installed."""
    return [each for each in _manifests("package.json") if not npm.folder_of(each).exists()]


def missing_of_pip() -> list[Path]:
    """Return the requirements.txt files of tests whose venv is not there."""
    named = [each for each in _manifests("requirements.txt") if each.parent not in OF_COMMANDS]
    return [each for each in named if not pip.folder_of(each).exists()]


def _manifests(name: str) -> list[Path]:
    return [each for each in sorted(TESTS.rglob(name)) if OF_AGENTS not in each.parents]


def install_all(install: Callable[[Path], object], manifests: Sequence[Path]) -> list[str]:
    """Install one after the other; return why some could not be: the tests that want them fail with the same text."""
    failures = []
    for manifest in manifests:
        began = time.monotonic()
        try:
            install(manifest)
        except AssertionError as failure:
            failures.append(str(failure))
        else:
            print(f"{time.monotonic() - began:5.0f} s  {manifest.relative_to(TESTS.parent)}", flush=True)
    return failures


def _install_with_pip(manifest: Path) -> None:
    pip.installed(manifest, any_python=manifest.parent in FOR_A_NEWER_PYTHON)


def main() -> None:
    """Install what is missing: of npm and of pip at the same time."""
    of_npm = missing_of_npm() if shutil.which("npm") else []
    of_pip = missing_of_pip()
    if of_npm or of_pip:
        print("Installing the clients of the tests: some minutes, once.", flush=True)
    jobs = (partial(install_all, npm.installed, of_npm), partial(install_all, _install_with_pip, of_pip))
    with ThreadPoolExecutor() as threads:
        for failures in threads.map(lambda job: job(), jobs):
            print(*failures, sep="\n", end="\n" if failures else "", file=sys.stderr)


if __name__ == "__main__":
    main()
