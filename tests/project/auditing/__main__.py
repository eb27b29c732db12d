"""`python -m tests.project.auditing`, what `make audit` calls: are there known holes in the packages that are pinned?

pip-audit asks a database over the network, for each version that is pinned. Of a package that it could not look
up it says that it skipped it, and ends as if all were well; here that is the same as a database out of reach.

Exit status: 0 no hole is known, 1 one is, 3 nobody knows: the database could not be asked for every package. With
`--offline-is-fine`, as in CI, 3 becomes 0, and what is said stays the same.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit import pip
from tests.project.pinning import DEVELOPS, SERVES, pins

HERE = Path(__file__).parent
OFFLINE_IS_FINE = "--offline-is-fine"
AUDIT_SECONDS = 300.0
NO_HOLE, HOLES, NOBODY_KNOWS = 0, 1, 3


def audit(command: Sequence[str], pinned: Path) -> tuple[int, str]:
    """Run pip-audit; return the exit status, and what a person is told."""
    asked = [
        *command,
        "--requirement",
        str(pinned),
        "--no-deps",
        "--disable-pip",
        "--format",
        "json",
        "--aliases",
        "on",
    ]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=AUDIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return NOBODY_KNOWS, "NOT AUDITED: the database of vulnerabilities did not answer in time."
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, LookupError, TypeError):
        reason = done.stderr.strip().rpartition("\n")[2][:300]
        return NOBODY_KNOWS, f"NOT AUDITED: the database of vulnerabilities cannot be reached ({reason})."
    return judge(packages)


def judge(packages: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """Return the exit status, and what a person is told of what pip-audit found."""
    holes = [
        f"{package['name']} {package['version']}: {hole['id']} ({', '.join(hole['aliases'])}), "
        f"mended in {', '.join(hole['fix_versions']) or 'no version yet'}"
        for package in packages
        for hole in package.get("vulns", ())
    ]
    if holes:
        return HOLES, "\n".join(holes)
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if skipped or not packages:
        return NOBODY_KNOWS, f"NOT AUDITED: {len(skipped)} of {len(packages)} packages could not be looked up."
    return NO_HOLE, f"No hole is known in any of {len(packages)} packages."


def report(command: Sequence[str], *, offline_is_fine: bool) -> int:
    """Audit, say what was found, and return the exit status."""
    with tempfile.TemporaryDirectory() as beside:
        pinned = Path(beside, "pinned.txt")  # without hashes: pip-audit wants them for all packages, or for none
        pinned.write_text("".join(f"{pin.name}=={pin.version}\n" for path in (SERVES, DEVELOPS) for pin in pins(path)))
        status, told = audit(command, pinned)
    print(told)
    return NO_HOLE if status == NOBODY_KNOWS and offline_is_fine else status


if __name__ == "__main__":
    python = pip.installed(HERE / "requirements.txt")
    raise SystemExit(report([str(python), "-m", "pip_audit"], offline_is_fine=OFFLINE_IS_FINE in sys.argv[1:]))
