"""The versions that are installed: `constraints.txt` has what serves, with hashes, `constraints-dev.txt` the rest."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from tests.kit.server import ROOT

SERVES = ROOT / "constraints.txt"
DEVELOPS = ROOT / "constraints-dev.txt"
OURS = canonicalize_name("respsite")
EXTRAS = ("postgres", "otel", "parquet", "sandlock")  # what serves beside what the project itself needs
_PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)(?P<hashes>(?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Pin(NamedTuple):
    """One version of one package."""

    name: NormalizedName
    version: str
    hashes: list[str]  # SHA-256 of each file of this version that may be installed; none in `constraints-dev.txt`


def pins(path: Path) -> Iterator[Pin]:
    """Read a file of versions."""
    for found in _PIN.finditer(path.read_text()):
        yield Pin(canonicalize_name(found["name"]), found["version"], _HASH.findall(found["hashes"]))


def needed(extras: Sequence[str]) -> dict[NormalizedName, set[NormalizedName]]:
    """Return each package that is installed for this project with some extras, and what it needs itself."""
    found: dict[NormalizedName, set[NormalizedName]] = {}
    left = [(OURS, extra) for extra in ("", *extras)]
    seen = set(left)
    while left:
        package, extra = left.pop()
        try:
            wanted = list(map(Requirement, _named(extra) if package == OURS else requires(package) or ()))
        except PackageNotFoundError:  # it was left out, as for another platform
            continue
        asked = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": extra})]
        found.setdefault(package, set()).update(canonicalize_name(each.name) for each in asked)
        new = {(canonicalize_name(each.name), more) for each in asked for more in ("", *each.extras)} - seen
        left += new
        seen |= new
    return found


def _named(extra: str) -> list[str]:
    """Return what `pyproject.toml` names; what is installed of this project may be older."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names: list[str] = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return names
