"""Python clients are installed whole, into a venv of their own."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kit import pip

NAME = "greeting-1.0.0"


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


def test_what_cannot_be_installed_is_not_there(requirements: Path) -> None:
    requirements.write_text("greeting @ file:///nowhere/greeting-1.0.0-py3-none-any.whl\n")
    with pytest.raises(AssertionError, match=f"{Path(sys.executable).name} could not install"):
        pip.installed(requirements)
    assert not pip.folder_of(requirements).exists()
