"""What `make install` gets is what was tested: a version for every package of it, and hashes for what serves."""

from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.project.pinning import DEVELOPS, EXTRAS, OURS, SERVES, needed, pins

OLDEST_PYTHON = "3.11.2"  # Debian 12's, which the README begins with
VERSIONS = {pin.name: pin.version for path in (SERVES, DEVELOPS) for pin in pins(path)}


def test_every_package_has_its_version_in_one_place() -> None:
    packages = needed(["dev"]).keys() - {OURS}
    assert {"django", "pytest", "psycopg-binary", "ruff"} <= packages, "the extras of extras count, too"
    assert packages - VERSIONS.keys() == set()
    assert {pin.name for pin in pins(SERVES)} & {pin.name for pin in pins(DEVELOPS)} == set()


def test_every_package_that_serves_has_hashes() -> None:
    hashed = {pin.name for pin in pins(SERVES) if pin.hashes}
    assert needed(EXTRAS).keys() - {OURS} - hashed == set()
    assert [pin.name for pin in pins(SERVES) if not pin.hashes] == []
    assert "setuptools" in hashed, "it builds what `make run` serves"


def test_every_version_is_for_the_oldest_python() -> None:
    """`make run` on Debian 12 would end with a conflict that names no Python."""
    found = {canonicalize_name(each.metadata["Name"]): each for each in distributions()}
    tested = {name: each for name, each in found.items() if VERSIONS.get(name) == each.version}
    assert "django" in tested
    needs = {name: each.metadata.get("Requires-Python", "") for name, each in tested.items()}
    assert {name: need for name, need in needs.items() if not SpecifierSet(need or "").contains(OLDEST_PYTHON)} == {}
