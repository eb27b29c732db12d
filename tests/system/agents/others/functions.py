"""What a model can do in the working folder: the functions that programs of two libraries offer it."""

import subprocess
from pathlib import Path


def bash(command: str) -> str:
    """Run a command."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def read(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def write(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text)
    return "It is written."


def edit(path: str, old: str, new: str) -> str:
    """Put a text in another one's place."""
    file = Path(path)
    file.write_text(file.read_text().replace(old, new))
    return "It is edited."
