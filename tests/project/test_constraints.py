"""What `make install` gets is what was tested: `constraints.txt` names a version for every package of it."""

import tomllib
from importlib.metadata import PackageNotFoundError, distributions, requires

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.kit.server import ROOT

OURS = "respsite"
OLDEST_PYTHON = "3.11.2"  # Debian 12's, which the README begins with


def needed(extra: str) -> set[str]:
    """Return the packages that are installed for this project with an extra: what it names, and what that needs."""
    found: set[str] = set()
    left = [(OURS, ""), (OURS, extra)]
    seen = set(left)
    while left:
        package, extra = left.pop()
        try:
            wanted = list(map(Requirement, _named(extra) if package == OURS else requires(package) or ()))
        except PackageNotFoundError:  # it was left out, as for another platform
            continue
        found.add(package)
        for each in wanted:
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                new = {(str(canonicalize_name(each.name)), asked) for asked in ("", *each.extras)} - seen
                left += new
                seen |= new
    return found - {OURS}


def _named(extra: str) -> list[str]:
    """Return what `pyproject.toml` names; what is installed of this project may be older."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names: list[str] = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return names


def pins() -> dict[str, str]:
    """Return the version of every package that `constraints.txt` names."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    named = [line.partition(";")[0].partition("==") for line in lines if "==" in line]
    return {canonicalize_name(name): version.strip() for name, _, version in named}


def test_every_package_has_its_version() -> None:
    pinned = pins().keys()
    packages = needed("dev")
    assert {"django", "pytest", "psycopg-binary", "ruff"} <= packages, "the extras of extras count, too"
    assert packages - pinned == set()


def test_every_version_is_for_the_oldest_python() -> None:
    """`make run` on Debian 12 would end with a conflict that names no Python."""
    pinned = pins()
    found = {canonicalize_name(each.metadata["Name"]): each for each in distributions()}
    tested = {name: each for name, each in found.items() if pinned.get(name) == each.version}
    assert "django" in tested
    needs = {name: each.metadata.get("Requires-Python", "") for name, each in tested.items()}
    assert {name: need for name, need in needs.items() if not SpecifierSet(need or "").contains(OLDEST_PYTHON)} == {}
