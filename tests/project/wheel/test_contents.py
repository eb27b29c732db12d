"""What is in the wheel: all that the server needs, and nothing else."""

import configparser
import email
import tomllib
import zipfile
from pathlib import Path

from responses_app import __version__
from tests.kit.server import ROOT
from tests.project.wheel.building import PACKAGES, build_wheel


def test_the_wheel_holds_the_packages_whole_and_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = f"respsite-{__version__}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{about}/METADATA"))
        scripts = configparser.ConfigParser()
        scripts.read_string(archive.read(f"{about}/entry_points.txt").decode())
    assert names == set(_files_of_the_packages())
    index = "responses_app/extensions/console/templates/admin/index.html"
    assert {"responses_app/migrations/0001_initial.py", index} < names
    assert "responses_app/static/respsite/admin.css" in names
    assert (metadata["Name"], metadata["Version"]) == ("respsite", __version__)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"], "it stands in one place"
    assert dict(scripts["console_scripts"]) == project["scripts"]


def test_two_builds_are_the_same_byte_by_byte(wheel: Path, tmp_path: Path) -> None:
    assert build_wheel(tmp_path, changed_at=1_500_000_000).read_bytes() == wheel.read_bytes()


def _files_of_the_packages() -> list[str]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    kept = (path for path in found if path.parent.name != "__pycache__" and path.name[0] != ".")
    return [path.relative_to(ROOT).as_posix() for path in kept]
