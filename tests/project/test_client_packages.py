"""`make clients` installs what no run has yet, and one that cannot be installed keeps no other from being so."""

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
