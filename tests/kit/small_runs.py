"""Runs of pytest on a file or two, with the plugins of this project and nothing else of it."""

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.kit.programs import Finished, run_program
from tests.kit.server import ROOT, clean_environ

OURS = ("tests.kit.failure_reports", "tests.kit.at_once", "tests.kit.limits", "tests.kit.capabilities")
SECONDS = 50.0  # bound of a run
# Servers are not started there, so nothing has to be imported for them.
CONFTEST = """
import threading
from tests.kit import at_once

def prepare():
    nothing = threading.Thread()
    nothing.start()
    return nothing

at_once.prepare = prepare
"""
INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"


async def run_pytest(folder: Path, *options: str, environ: Mapping[str, str] | None = None, **files: str) -> Finished:
    """Run pytest in a folder, on files that are named `test_NAME.py` there; `files` has their content by NAME."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(INI)
    plugins = [word for name in OURS for word in ("-p", name)]
    off = [word for name in ("randomly", "schemathesis", "django", "cacheprovider") for word in ("-p", f"no:{name}")]
    command = (sys.executable, "-m", "pytest", "-rA", *plugins, *off, *options)
    variables = clean_environ(**{"CI": "", "PYTHONPATH": str(ROOT), **(environ or {})})
    return await run_program(*command, cwd=folder, environ=variables, seconds=SECONDS)
