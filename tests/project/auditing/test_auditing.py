"""What `make audit` says of what pip-audit says, which stands here for it: no test needs a network."""

import json
import sys
from pathlib import Path

import pytest

from tests.project.auditing.__main__ import HOLES, NO_HOLE, NOBODY_KNOWS, audit, report

HOLE = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"], "description": "bad"}
CLEAN = {"name": "a", "version": "1.0", "vulns": []}
HOLEY = {"name": "b", "version": "1.0", "vulns": [HOLE]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (1.0)"}


def saying(folder: Path, text: str, *, status: int = 0) -> list[str]:
    """Return a command that says this, whatever it is asked."""
    program = folder / "says.py"
    program.write_text(f"import sys\nsys.stdout.write({text!r})\nsys.exit({status})\n")
    return [sys.executable, str(program)]


@pytest.mark.parametrize(
    ("packages", "status", "told"),
    [
        ([CLEAN], NO_HOLE, "No hole is known in any of 1 packages."),
        ([CLEAN, HOLEY], HOLES, "b 1.0: PYSEC-1 (CVE-1), mended in 2.0"),
        ([SKIPPED, HOLEY], HOLES, "b 1.0: PYSEC-1 (CVE-1), mended in 2.0"),
        ([CLEAN, SKIPPED], NOBODY_KNOWS, "NOT AUDITED: 1 of 2 packages could not be looked up."),
        ([], NOBODY_KNOWS, "NOT AUDITED: 0 of 0 packages could not be looked up."),
    ],
)
def test_what_is_told(packages: list[object], status: int, told: str, tmp_path: Path) -> None:
    command = saying(tmp_path, json.dumps({"dependencies": packages}), status=1 if HOLEY in packages else 0)
    assert audit(command, tmp_path) == (status, told)


def test_a_database_out_of_reach_is_not_a_clean_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = saying(tmp_path, "Traceback …", status=1)
    assert report(command, offline_is_fine=False) == NOBODY_KNOWS
    assert report(command, offline_is_fine=True) == NO_HOLE
    assert capsys.readouterr().out.count("NOT AUDITED") == 2


def test_in_ci_a_hole_counts_all_the_same(tmp_path: Path) -> None:
    command = saying(tmp_path, json.dumps({"dependencies": [HOLEY]}))
    assert report(command, offline_is_fine=True) == HOLES
