"""`python -m tests.project.releasing VERSION [--dry-run]`, which `make release` calls: from checks to a tag.

    checks ──> version and changelog, one commit ──> wheel, SBOM, constraints, notes and hashes in dist/ ──> tag

The tag comes last, so what fails leaves none. A dry run does all of it in a clone that is removed behind it.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.kit.server import ROOT

VERSION_FILE, CHANGELOG = "responses_app/__init__.py", "CHANGELOG.md"
NEEDED = ("pyproject.toml", "constraints.txt", "constraints-dev.txt")  # make installs anew what is older than these
UNRELEASED = "## Unreleased"


class ReleaseError(Exception):
    """This cannot be released; the text says why."""


def cut(changelog: str, version: str, day: str) -> tuple[str, str]:
    """Return a changelog in which what is unreleased is a version, and its notes. Raises `ReleaseError`."""
    match = re.search(rf"^{UNRELEASED}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    notes = match[1].strip() if match else ""
    if match is None or not notes:
        raise ReleaseError(f"{CHANGELOG} has nothing under Unreleased")
    if f"\n## {version} " in changelog:
        raise ReleaseError(f"{CHANGELOG} has the version {version} already")
    begin, end = changelog[: match.start()], changelog[match.end() :]
    return f"{begin}{UNRELEASED}\n\n## {version} - {day}\n\n{notes}\n{end and chr(10)}{end}", notes


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version. Raises `ReleaseError`."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"{version or 'an empty VERSION'} is no version: make release VERSION=0.2.0")
    return tuple(map(int, version.split(".")))


def is_of_the_version(diff: str) -> bool:
    """Whether what was changed is the same but for the version, and for fingerprints, which are made of it."""
    removed, added = (
        [re.sub(r"\bfp_[0-9a-f]+|\b\d+\.\d+\.\d+", "", line[1:]) for line in diff.splitlines() if line[:1] == sign]
        for sign in "-+"
    )
    return [line for line in removed if line[:2] != "--"] == [line for line in added if line[:2] != "++"]


class Release:
    """The steps of a version in a tree."""

    def __init__(self, tree: Path, version: str) -> None:
        self.tree = tree
        self.version = version
        self.tag = f"v{version}"

    def check(self) -> None:
        """Find what stands in the way, then lint, types, budgets and known holes. Raises `ReleaseError`."""
        self._find_changes()
        if self._output("git", "tag", "--list", self.tag):
            raise ReleaseError(f"the tag {self.tag} is there already")
        if numbers(self.version) <= numbers(self._version()):
            raise ReleaseError(f"{self.version} does not come behind {self._version()}")
        cut((self.tree / CHANGELOG).read_text(), self.version, "")
        self._make("check")
        self._make("audit", "AUDIT=--offline-is-fine")

    def commit(self) -> str:
        """Write the version and the date, commit them with the goldens that have the version, and return the notes."""
        changelog, notes = cut((self.tree / CHANGELOG).read_text(), self.version, f"{datetime.now(UTC):%Y-%m-%d}")
        (self.tree / CHANGELOG).write_text(changelog)
        file = self.tree / VERSION_FILE
        file.write_text(file.read_text().replace(f'"{self._version()}"', f'"{self.version}"'))
        self._run(sys.executable, "-m", "tests.inprocess.goldens", "--write")
        if not is_of_the_version(self._output("git", "diff", "--unified=0", "tests")):
            raise ReleaseError("the goldens change in more than the version: see `git diff tests`")
        self._run("git", "commit", "--quiet", "--all", "--message", f"Release {self.version}")
        return notes

    def build(self, notes: str) -> None:
        """Make all that is published, in `dist`: with the hashes of its files."""
        self._make("wheel")
        dist = self.tree / "dist"
        shutil.copy(self.tree / "constraints.txt", dist)
        (dist / "NOTES.md").write_text(f"{notes}\n")
        sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(dist.iterdir())]
        (dist / "SHA256SUMS").write_text("".join(sums))

    def make_tag(self) -> None:
        """Tag the commit, signed where git has a key to sign with. Raises `ReleaseError` where it is not all."""
        self._find_changes()
        has_key = self._output("git", "config", "--default", "", "user.signingkey").strip()
        self._run("git", "tag", "--sign" if has_key else "--annotate", self.tag, "--message", f"Version {self.version}")

    def _find_changes(self) -> None:
        if changed := self._output("git", "status", "--porcelain"):
            raise ReleaseError(f"the tree has changes that are not committed:\n{changed}")

    def _version(self) -> str:
        match = re.search(r'__version__ = "(.+)"', (self.tree / VERSION_FILE).read_text())
        assert match is not None
        return match[1]

    def _make(self, *words: str) -> None:
        self._run("make", *words)

    def _run(self, *command: str) -> None:
        if subprocess.run(command, cwd=self.tree, check=False).returncode:
            raise ReleaseError(f"`{' '.join(command)}` failed")

    def _output(self, *command: str) -> str:
        return subprocess.run(command, cwd=self.tree, check=True, capture_output=True, text=True).stdout


def release(tree: Path, version: str) -> Iterator[str]:
    """Release a version; yield what was done."""
    made = Release(tree, version)
    made.check()
    yield "checked"
    notes = made.commit()
    yield f"committed as Release {version}"
    made.build(notes)
    yield f"dist/: {', '.join(sorted(each.name for each in (tree / 'dist').iterdir()))}"
    made.make_tag()
    yield f"tagged {made.tag}"


def clone(folder: Path) -> Path:
    """Clone what is committed here, with this environment; return where."""
    tree = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    for name in NEEDED:
        os.utime(tree / name, (0, 0))  # make has just seen to it that what they name is installed
    return tree


def main(arguments: Sequence[str]) -> None:
    """Release the version that is named, or try to."""
    version, is_dry = next(iter(arguments), ""), "--dry-run" in arguments
    try:
        with tempfile.TemporaryDirectory(prefix="respsite-release-") as folder:
            for line in release(clone(Path(folder)) if is_dry else ROOT, version):
                print(f"release: {line}", flush=True)
    except ReleaseError as error:
        sys.exit(f"release: {error}.")
    print("release: nothing was changed here." if is_dry else f"Now: git push && git push origin v{version}")


if __name__ == "__main__":
    main(sys.argv[1:])
