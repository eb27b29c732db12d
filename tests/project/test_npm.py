"""Packages are installed whole and once, also when several test runs want them at the same time."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.kit import npm
from tests.kit.programs import run_program
from tests.kit.server import ROOT, clean_environ

pytestmark = pytest.mark.needs("npm")
SAY_WHERE = "import sys, pathlib; from tests.kit import npm; print(npm.installed(pathlib.Path(sys.argv[1])))"


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package.json that wants a package of this machine, and a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = tmp_path / "greeting"
    package.mkdir()
    (package / "package.json").write_text(json.dumps({"name": "greeting", "version": "1.0.0"}))
    wanted = tmp_path / "client" / "package.json"
    wanted.parent.mkdir()
    wanted.write_text(json.dumps({"private": True, "dependencies": {"greeting": f"file:{package}"}}))
    return wanted


async def test_several_runs_install_once(manifest: Path, tmp_path: Path) -> None:
    killed = tmp_path / "cache" / "respsite-tests" / f"{npm.folder_of(manifest).name}.unfinished"
    killed.mkdir(parents=True)
    command = (sys.executable, "-c", SAY_WHERE, str(manifest))
    runs = [run_program(*command, cwd=ROOT, environ=clean_environ(), seconds=60) for _ in range(3)]
    done = await asyncio.gather(*runs)
    assert [each.exit_code for each in done] == [0, 0, 0], done
    assert {each.printed.strip() for each in done} == {str(npm.folder_of(manifest) / "node_modules")}
    assert (npm.installed(manifest) / "greeting" / "package.json").exists()
    assert sorted(killed.parent.iterdir()) == sorted([npm.folder_of(manifest), killed.with_name("npm.lock")])


def test_what_cannot_be_installed_is_not_there(manifest: Path) -> None:
    manifest.write_text("{")
    with pytest.raises(AssertionError, match="npm could not install"):
        npm.installed(manifest)
    assert not npm.folder_of(manifest).exists()
