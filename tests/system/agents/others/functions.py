"""Functions that a model can call in the working folder: `llm` and Strands offer them."""

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
    """Replace a text by another."""
    file = Path(path)
    file.write_text(file.read_text().replace(old, new))
    return "It is edited."
