"""JavaScript as a test runs it: on a Node.js and with packages that npm installed once, all of exact versions."""

import json
import shutil
from pathlib import Path

from responses_app.protocol.errors import JsonObject
from tests.kit import npm
from tests.kit.programs import Finished, run_program, secluded

SCRIPT_SECONDS = 60.0


def installed() -> Path:
    """Return the `node_modules`; skip the test where there is no npm to install them with."""
    return npm.installed(Path(__file__).with_name("package.json"))


async def run_script(script: Path, *arguments: str, packages: Path, folder: Path) -> Finished:
    """Run a script in `folder` with packages that it finds by their names."""
    here = _beside(packages, script, folder)
    environ = secluded(folder)
    return await run_program(_node(packages), here, *arguments, cwd=folder, environ=environ, seconds=SCRIPT_SECONDS)


def _node(packages: Path) -> Path | str:
    """Return the Node.js among the packages, or else the machine's; Debian's is too old for the SDKs."""
    own = sorted(packages.glob("node-*/bin/node"))  # npm has them for Linux
    return own[0] if own else "node"


def _beside(packages: Path, script: Path, folder: Path) -> Path:
    """Copy a script to where the packages are: what it imports is looked for beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / packages.name).symlink_to(packages)
    return Path(shutil.copy(script, folder))


async def run(name: str, *arguments: str, packages: Path, folder: Path) -> JsonObject:
    """Run a script that lies here, and return the object that it prints in the end."""
    script = Path(__file__).with_name(name)
    done = await run_script(script, *arguments, packages=packages, folder=folder)
    assert done.exit_code == 0, done.complaints
    printed: JsonObject = json.loads(done.printed)
    return printed
