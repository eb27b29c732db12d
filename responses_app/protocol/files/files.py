"""How long files stay, as requests say it, and names of files that everybody takes."""

import re
from collections.abc import Container
from typing import Literal
from unicodedata import category

from pydantic import Field

from responses_app.protocol.fields import ClientModel

MIN_SECONDS, MAX_SECONDS = 3600, 30 * 24 * 3600  # that `expires_after` may say: an hour to 30 days
MAX_FILENAME = 255  # characters
_MAX_STEM, _MAX_SUFFIX = 80, 16  # characters of a name in a container
_JOINERS = "\u200c\u200d"  # characters that do not show, and change the letters or pictures beside them
_NOT_IN_NAMES = re.compile(r'[\\/:*?"<>|]')  # what some file system takes for something else


class FileExpiry(ClientModel):
    """How long the file stays once the upload is completed."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_SECONDS, le=MAX_SECONDS)


def plain_name(sent: str) -> str:
    """Return a file's name as it is kept: without a path and characters that do not show, at most `MAX_FILENAME`.

    Spaces of any kind and what joins letters stay: macOS has a narrow space in the names of screenshots.
    """
    name = sent.replace("\\", "/").rpartition("/")[2]
    name = "".join(each for each in name if each.isprintable() or each in _JOINERS or category(each) == "Zs")
    return "file" if name in ("", ".", "..") else _cut(name, MAX_FILENAME)


def name_on_disk(name: str, max_bytes: int = MAX_FILENAME) -> str:
    """Return a name that file systems take: they count bytes, not characters."""
    most = len(name)
    while len(name.encode()) > max_bytes:
        most -= 1
        name = _cut(name, most)
    return name


def _cut(name: str, most: int) -> str:
    """Return a name of at most so many characters, with its suffix where that is none too long."""
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > _MAX_SUFFIX:
        return name[:most]
    return f"{stem[: most - len(suffix) - 1]}{dot}{suffix}"


def name_in_container(filename: str, taken: Container[str]) -> str:
    """Return a name for a file among others of a container: its own, or with a number before the suffix."""
    # No dot at either end: `..` would leave the folder, and `.x` would be hidden.
    name = _NOT_IN_NAMES.sub("_", filename).strip(". ") or "file"
    stem, dot, suffix = name.rpartition(".")
    # What is behind the last dot of a long name may be a sentence, not a suffix.
    if not dot or len(suffix) > _MAX_SUFFIX:
        stem, dot, suffix = name, "", ""
    # Short enough in bytes, too, with the number of one of many.
    stem = name_on_disk(f"{stem[:_MAX_STEM]}{dot}{suffix}", MAX_FILENAME - 16).removesuffix(f"{dot}{suffix}")
    candidate, number = f"{stem}{dot}{suffix}", 1
    while candidate in taken:
        number += 1
        candidate = f"{stem}_{number}{dot}{suffix}"
    return candidate
