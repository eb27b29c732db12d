"""`make clients` knows every manifest of the tests, and one that cannot be installed keeps no other from being so."""

from pathlib import Path

import pytest

from tests.kit.client_packages import TESTS, install_all, missing_of_npm, missing_of_pip

OF_COMMANDS = ("project/auditing", "project/pinning")  # `make audit` and `make pins`, which no test runs


def test_every_manifest_is_among_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    manifests = {*TESTS.rglob("package.json"), *TESTS.rglob("requirements.txt")}
    elsewhere = {TESTS / folder / "requirements.txt" for folder in OF_COMMANDS}
    assert {*missing_of_npm(), *missing_of_pip()} == manifests - elsewhere


def test_one_that_cannot_be_installed_is_told_and_the_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    manifests = [TESTS / name / "requirements.txt" for name in ("first", "second")]

    def install(manifest: Path) -> None:
        assert manifest != manifests[0], f"pip could not install {manifest}"

    (failure,) = install_all(install, manifests)
    assert failure.startswith(f"pip could not install {manifests[0]}")
    assert capsys.readouterr().out.strip().endswith("tests/second/requirements.txt")
