"""The Python that runs in a sandbox, and the folders it needs to be seen in there."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ASK_SECONDS = 10.0
# Of the system's own, what every sandbox shows; all but the first are links into it on most systems.
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_QUESTION = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, sys.version_info[:2]]))"
OLDEST = (3, 9)


class InterpreterError(Exception):
    """There is no such Python, or it is too old."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python. `executable` is its path as it is called, `folders` what it needs beside the system's folders."""

    executable: str
    folders: tuple[str, ...]


def find_interpreter(executable: str) -> Interpreter:
    """Ask a Python where it lives. Takes 20 ms. Raises `InterpreterError`."""
    try:
        asked = subprocess.run(
            [executable, "-I", "-c", _QUESTION], capture_output=True, timeout=ASK_SECONDS, check=True, text=True
        )
        *prefixes, version = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise InterpreterError(f"{executable} is not a Python that can be run") from None
    if tuple(version) < (*OLDEST,):
        raise InterpreterError(f"{executable} is older than Python {'.'.join(map(str, OLDEST))}")
    wanted = [*prefixes, *(str(folder) for folder in _on_the_way(Path(executable)))]
    return Interpreter(executable, tuple(dict.fromkeys(each for each in wanted if not _is_system(each))))


def _on_the_way(path: Path) -> Iterator[Path]:
    """Yield the folders of the links that lead to the program: each must be seen, or it cannot be found inside."""
    for _ in range(40):  # as many links as the kernel follows
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
        yield path.parent


def _is_system(folder: str) -> bool:
    return folder in ("/", "") or any(folder == each or folder.startswith(f"{each}/") for each in SYSTEM_FOLDERS)
