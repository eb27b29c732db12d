"""What `make install` gets is what was tested: `constraints.txt` names a version for every package of it."""

import tomllib
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.server import ROOT

OURS = "respsite"


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


def test_every_package_has_its_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    packages = needed("dev")
    assert {"django", "pytest", "psycopg-binary", "ruff"} <= packages, "the extras of extras count, too"
    assert packages - pinned == set()
