"""A version's changelog and notes; see `make release`."""

import re

import pytest

from tests.kit.server import ROOT
from tests.project.releasing import CHANGELOG, ReleaseError, cut, is_of_the_version, numbers

BEFORE = "# Changelog\n\nText.\n\n## Unreleased\n\n### Added\n- A thing.\n"
OLDER = "\n## 0.1.0 - 2026-01-01\n\n- The first.\n"


@pytest.mark.parametrize("older", ["", OLDER])
def test_what_is_unreleased_becomes_a_version(older: str) -> None:
    changelog, notes = cut(BEFORE + older, "0.2.0", "2026-11-30")
    assert notes == "### Added\n- A thing."
    head = "# Changelog\n\nText.\n\n## Unreleased\n\n## 0.2.0 - 2026-11-30\n\n### Added\n- A thing.\n"
    assert changelog == head + older


@pytest.mark.parametrize(
    "changelog", ["# Changelog\n", "## Unreleased\n\n" + OLDER, BEFORE + OLDER.replace("0.1", "0.2")]
)
def test_there_has_to_be_something_to_release(changelog: str) -> None:
    with pytest.raises(ReleaseError):
        cut(changelog, "0.2.0", "2026-11-30")


@pytest.mark.parametrize(
    ("added", "is_of_it"),
    [('"version": "0.2.0", "x": "fp_8a"', True), ('"version": "0.2.0", "x": 1', False), ("", False)],
)
def test_goldens_change_in_the_version_alone(added: str, is_of_it: bool) -> None:
    diff = f'--- a/x\n+++ b/x\n@@ -1 +1 @@\n-"version": "0.1.0", "x": "fp_00"\n+{added}\n'
    assert is_of_the_version(diff) is is_of_it


def test_a_version_has_three_numbers() -> None:
    assert numbers("0.10.0") > numbers("0.9.12")
    for wrong in ("", "v0.2.0", "0.2", "0.2.0rc1"):
        with pytest.raises(ReleaseError):
            numbers(wrong)


def test_the_changelog_can_be_cut_or_has_nothing_new() -> None:
    assert re.search(r"^## Unreleased$", (ROOT / CHANGELOG).read_text(), re.MULTILINE)
