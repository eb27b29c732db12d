"""`python -m tests.project.pinning [PACKAGE …]`, what `make pins` calls: write `constraints.txt` anew.

It names what serves (the project and its extras, vLLM's apart), with the hashes of all files of each version. Versions
stay as they are, but those of the packages that are named: `django` for its newest one, `django==5.2.20` for this one.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kit import pip
from tests.kit.server import ROOT
from tests.project.pinning import EXTRAS, SERVES

HERE = Path(__file__).parent
SOURCES = (ROOT / "pyproject.toml", ROOT / "tests/project/wheel/requirements.txt")  # the second is what builds it
# A resolution for the oldest Python holds for the newer ones: what it adds for old ones is small, and does no harm.
FOR = ("--python-version", "3.11.2", "--python-platform", "x86_64-manylinux_2_28")
HOW = ("--quiet", "--system-certs", "--generate-hashes", "--no-annotate")
HEADER = "make pins"


def pin(new: Sequence[str] = (), *, into: Path = SERVES) -> None:
    """Resolve what serves, and write it with its hashes."""
    uv = pip.installed(HERE / "requirements.txt").parent / "uv"
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    upgraded = [word for package in new for word in ("--upgrade-package", package)]
    command = [uv, "pip", "compile", *HOW, *FOR, "--custom-compile-command", HEADER, *extras, *upgraded]
    subprocess.run([*command, *SOURCES, "--output-file", into], cwd=ROOT, check=True)


if __name__ == "__main__":
    pin(sys.argv[1:])
