"""What tests run as clients is installed whole and once, with npm or into a venv, by a test or by `make clients`."""

import asyncio
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kit import npm, pip
from tests.kit.client_packages import (
    FOR_A_NEWER_PYTHON,
    OF_COMMANDS,
    TESTS,
    install_all,
    missing_of_npm,
    missing_of_pip,
)
from tests.kit.programs import run_program
from tests.kit.server import ROOT, clean_environ

needs_npm = pytest.mark.needs("npm")
SAY_WHERE = "import sys, pathlib; from tests.kit import npm; print(npm.installed(pathlib.Path(sys.argv[1])))"
NAME = "greeting-1.0.0"


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


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A requirements.txt that wants a wheel of this machine, and a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = tmp_path / f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "HELLO = 'hello'")
        archive.writestr(f"{NAME}.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0.0\n")
        archive.writestr(f"{NAME}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{NAME}.dist-info/RECORD", "")
    wanted = tmp_path / "client" / "requirements.txt"
    wanted.parent.mkdir()
    wanted.write_text(f"greeting @ {wheel.as_uri()}\n")
    return wanted


@needs_npm
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


def test_a_venv_has_what_is_named_and_nothing_else(requirements: Path) -> None:
    python = pip.installed(requirements)
    assert python.is_relative_to(pip.folder_of(requirements))
    print_it = [python, "-c", "import greeting; print(greeting.HELLO)"]
    assert subprocess.run(print_it, capture_output=True, text=True, check=True).stdout == "hello\n"
    ours = subprocess.run([python, "-c", "import django"], capture_output=True, check=False)
    assert b"No module named 'django'" in ours.stderr
    before = pip.folder_of(requirements)
    requirements.write_text(requirements.read_text() + "# another one\n")
    assert pip.folder_of(requirements) != before


@needs_npm
def test_what_npm_cannot_install_is_not_there(manifest: Path) -> None:
    manifest.write_text("{")
    with pytest.raises(AssertionError, match="npm could not install"):
        npm.installed(manifest)
    assert not npm.folder_of(manifest).exists()


def test_what_pip_cannot_install_is_not_there(requirements: Path) -> None:
    requirements.write_text("greeting @ file:///nowhere/greeting-1.0.0-py3-none-any.whl\n")
    with pytest.raises(AssertionError, match=f"{Path(sys.executable).name} could not install"):
        pip.installed(requirements)
    assert not pip.folder_of(requirements).exists()


def test_what_is_there_is_not_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    codex, aider = TESTS / "clients/codex/package.json", TESTS / "clients/aider/requirements.txt"
    of_npm, of_pip = missing_of_npm(), missing_of_pip()
    assert codex in of_npm
    assert aider in of_pip
    for folder in (npm.folder_of(codex), pip.folder_of(aider)):
        folder.mkdir(parents=True)
    assert (missing_of_npm(), missing_of_pip()) == (
        [each for each in of_npm if each != codex],
        [each for each in of_pip if each != aider],
    )


def test_folders_that_are_named_have_a_manifest() -> None:
    assert all((folder / "requirements.txt").exists() for folder in (*OF_COMMANDS, *FOR_A_NEWER_PYTHON))


def test_one_that_cannot_be_installed_is_told_and_the_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    manifests = [TESTS / name / "requirements.txt" for name in ("first", "second")]

    def install(manifest: Path) -> None:
        assert manifest != manifests[0], f"pip could not install {manifest}"

    (failure,) = install_all(install, manifests)
    assert failure.startswith(f"pip could not install {manifests[0]}")
    assert capsys.readouterr().out.strip().endswith("tests/second/requirements.txt")
