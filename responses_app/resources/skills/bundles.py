"""`read_zip` and `read_folder`: bundles of skills as clients send them → a zip file in one form, and nothing bad in it.

A bundle is a zip file, or the files of a folder one by one. Whoever sent it may mean harm, so of a zip file nothing is
believed: not how many files it says it has, nor how large they are; what is unpacked is counted while it comes. Paths
lead nowhere but into the folder, and what is neither a file nor a folder (links, devices) is refused.

What comes of it lies below one folder, named as the skill, in the order of the paths, without times, owners and
comments. Its digest is the same for the same files, so it tells whether a container has them already. All of this
blocks; a large bundle takes seconds.
"""

import hashlib
import io
import lzma
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.errors import reason_of
from responses_app.protocol.files.skills import MANIFEST, MAX_DESCRIPTION, MAX_NAME, NAME
from responses_app.protocol.setting import MIB
from responses_app.resources.skills.fields import SkillSettings

MAX_FILES = 500  # of a bundle, as at OpenAI
MAX_FILE_BYTES = 25 * MIB  # of one file, as at OpenAI
MAX_PATH, MAX_PART, MAX_DEPTH = 512, 255, 16  # bytes of a path and of a name in it; folders in each other
MAX_DIRECTORY_BYTES = MIB  # of a zip file's table of contents: it is read as a whole
MAX_FRONT_MATTER = 8 * 1024  # bytes
MAX_BRACKETS = 200  # that open in it: thousands take a core for seconds, whatever they hold
# A file of more than `_SMALL` bytes that was packed to less than so small a part holds nothing that anybody needs.
MAX_RATIO, _SMALL = 500, MIB
_JUNK = "__MACOSX"  # a folder that macOS adds to zip files, with what its own file system knows of them
_END, _LOCATOR = (
    b"PK\x05\x06",
    b"PK\x06\x07",
)  # how a zip file's last record begins, and what is before it in large ones
_END_SIZE, _LOCATOR_SIZE, _MAX_COMMENT = 22, 20, 65535
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that zip files know
_PIECE = 256 * 1024
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IS_ENCRYPTED = 0x1
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, NotImplementedError)


class BadBundle(Exception):
    """A bundle that is refused; the text says why, and clients read it."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that may be kept."""

    name: str
    description: str  # one line
    digest: str  # SHA-256 of its files and their paths, in hex, however they are packed
    unpacked: int  # bytes of its files
    content: bytes  # a zip file

    def columns(self) -> dict[str, Any]:
        """Return the columns of the version that has it."""
        about = {"name": self.name, "description": self.description, "digest": self.digest}
        return {**about, "bytes": len(self.content), "unpacked": self.unpacked}


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file of a bundle as it was sent."""

    path: str  # as it was sent, unchecked
    read: Callable[[], Iterator[bytes]]  # its content
    runs: bool = False  # its sender says that it is a program


def read_zip(content: bytes, settings: SkillSettings) -> Bundle:
    """Return the bundle in a zip file. Raises `BadBundle`."""
    if len(content) > settings.skill_max_bytes:
        raise BadBundle(f"the zip file has more than the {settings.skill_max_bytes} bytes that it may have")
    _check_directory(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > 2 * MAX_FILES:  # folders have entries of their own
                raise BadBundle(f"it has more than the {MAX_FILES} files that a skill may have")
            files = [_sent(archive, each) for each in entries if not each.filename.startswith(f"{_JUNK}/")]
            return read_folder(files, settings)
    except _BROKEN as problem:
        raise BadBundle(f"it is not a zip file that can be read ({reason_of(problem)})") from None


# A zip file.


def _check_directory(content: bytes) -> None:
    """Refuse a zip file whose table of contents is large: `zipfile` reads all of it before anybody can count."""
    end = content.rfind(_END, max(0, len(content) - _END_SIZE - _MAX_COMMENT))
    if end < 0 or len(content) < end + _END_SIZE:
        raise BadBundle("it is not a zip file")
    if content[max(0, end - _LOCATOR_SIZE) : end].startswith(_LOCATOR):
        raise BadBundle("it is a zip file of the form for more than 4 GB")
    # Behind the signature and four numbers of 16 bits.
    (size,) = struct.unpack_from("<I", content, end + 12)
    if size > MAX_DIRECTORY_BYTES:
        raise BadBundle(f"it has more than the {MAX_FILES} files that a skill may have")


def _sent(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> SentFile:
    mode = entry.external_attr >> 16
    # `orig_filename`: the other one ends before a NUL.
    path = entry.orig_filename
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadBundle(f"{_quoted(path)} is a link or a device, and no file")
    if entry.flag_bits & _IS_ENCRYPTED:
        raise BadBundle(f"{_quoted(path)} is encrypted")
    if entry.compress_type not in _METHODS:
        raise BadBundle(f"{_quoted(path)} is packed in a way that is not taken; use deflate")
    if entry.file_size > MAX_FILE_BYTES:
        raise BadBundle(_too_large(path))
    return SentFile(path, lambda: _unpacked(archive, entry), runs=bool(mode & 0o111) and not stat.S_ISDIR(mode))


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    size = 0
    with archive.open(entry) as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            if size > _SMALL and size > MAX_RATIO * max(entry.compress_size, 1):
                raise BadBundle(f"{_quoted(entry.filename)} is packed more than {MAX_RATIO} times")
            yield piece


# The files of any bundle.


def read_folder(files: Iterable[SentFile], settings: SkillSettings) -> Bundle:
    """Return the bundle of a folder's files. Raises `BadBundle`."""
    paths = _checked(files)
    manifest = _manifest_of(paths)
    top = manifest.rpartition("/")[0]
    if any(not path.startswith(f"{top}/") for path in paths if top):
        raise BadBundle(f"all files lie in one folder, the one with {MANIFEST}")
    name, description = front_matter(_beginning(paths[manifest]))
    packed, unpacked, digest = io.BytesIO(), 0, hashlib.sha256()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        inside = {path: MANIFEST if path == manifest else path[len(top) + 1 if top else 0 :] for path in paths}
        for path in sorted(inside, key=inside.__getitem__):
            room = min(MAX_FILE_BYTES, settings.skill_max_unpacked_bytes - unpacked)
            unpacked += _pack(archive, f"{name}/{inside[path]}", paths[path], room=room, digest=digest)
            if packed.tell() > settings.skill_max_bytes:
                raise BadBundle(f"packed it has more than the {settings.skill_max_bytes} bytes that it may have")
    return Bundle(name, description, digest.hexdigest(), unpacked, packed.getvalue())


def _pack(archive: zipfile.ZipFile, path: str, file: SentFile, *, room: int, digest: "hashlib._Hash") -> int:
    """Add a file of at most `room` bytes, to the digest as well; return its size."""
    content = io.BytesIO()
    for piece in file.read():
        content.write(piece)
        if content.tell() > room:
            raise BadBundle(_too_large(file.path))
    runs = file.runs or content.getvalue()[:2] == b"#!"
    entry = zipfile.ZipInfo(path, _EPOCH)
    entry.create_system = 3  # Unix: the mode counts
    entry.external_attr = (stat.S_IFREG | (0o555 if runs else 0o444)) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content.getbuffer())
    # Each part has a fixed length or stands behind one, so that no two bundles read the same.
    name = path.encode()
    digest.update(struct.pack(">QB", len(name), runs) + name + hashlib.sha256(content.getbuffer()).digest())
    return content.tell()


def _too_large(path: str) -> str:
    return (
        f"{_quoted(path)} is too large: a file has at most {MAX_FILE_BYTES} bytes, and all of them together as many as "
        "SKILL_MAX_UNPACKED_BYTES says"
    )


def _checked(files: Iterable[SentFile]) -> dict[str, SentFile]:
    """Return the files by their paths, without folders. Raises `BadBundle`."""
    checked: dict[str, SentFile] = {}
    spelled: dict[str, str] = {}  # how each path and each folder is spelled, by what it is without case
    for file in files:
        path = checked_path(file.path.removesuffix("/"))
        _check_spelling(path, spelled)
        if file.path.endswith("/"):
            continue
        if path in checked:
            raise BadBundle(f"{_quoted(path)} comes twice")
        checked[path] = file
        if len(checked) > MAX_FILES:
            raise BadBundle(f"it has more than the {MAX_FILES} files that a skill may have")
    split = [path.split("/") for path in checked]
    folders = {"/".join(parts[:end]) for parts in split for end in range(1, len(parts))}
    for path in folders.intersection(checked):
        raise BadBundle(f"{_quoted(path)} is a file and a folder")
    return checked


def checked_path(path: str) -> str:
    """Return the path of a file below a skill's folder. Raises `BadBundle` for one that leads elsewhere."""
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or re.match(r"[A-Za-z]:", path) or ".." in parts:
        raise BadBundle(f"the path {_quoted(path)} leads out of its folder")
    if any(part in ("", ".") for part in parts) or any(unicodedata.category(each) in ("Cc", "Cs") for each in path):
        raise BadBundle(f"{_quoted(path)} is not the path of a file")
    if len(path.encode()) > MAX_PATH or len(parts) > MAX_DEPTH or any(len(part.encode()) > MAX_PART for part in parts):
        raise BadBundle(f"the path {_quoted(path)} is too long or too deep")
    return path


def _check_spelling(path: str, spelled: dict[str, str]) -> None:
    """Refuse two names that are one where case does not count: which of them is meant would depend on the machine."""
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        here = "/".join(parts[:end])
        earlier = spelled.setdefault(unicodedata.normalize("NFC", here).casefold(), here)
        if earlier != here:
            raise BadBundle(f"{_quoted(earlier)} and {_quoted(here)} differ in case alone")


def _manifest_of(paths: Iterable[str]) -> str:
    """Return the path of the one SKILL.md, at the top or in the one folder there."""
    manifests = [path for path in paths if path.rpartition("/")[2].casefold() == MANIFEST.casefold()]
    if len(manifests) > 1:
        raise BadBundle(f"it has more than one {MANIFEST}")
    if not manifests or manifests[0].count("/") > 1:
        raise BadBundle(f"it has no {MANIFEST} in its top folder")
    return manifests[0]


def _quoted(path: str) -> str:
    return repr(path[:80].encode(errors="replace").decode())


# SKILL.md


def _beginning(file: SentFile) -> bytes:
    content = b""
    for piece in file.read():
        content += piece
        if len(content) > MAX_FRONT_MATTER:
            break
    return content


def front_matter(content: bytes) -> tuple[str, str]:
    """Return the name and the description that a SKILL.md begins with. Raises `BadBundle`."""
    # Where it is cut, a character may be.
    strictly = "strict" if len(content) <= MAX_FRONT_MATTER else "ignore"
    try:
        text = content[:MAX_FRONT_MATTER].decode("utf-8-sig", errors=strictly)
    except UnicodeDecodeError:
        raise BadBundle(f"{MANIFEST} is not written in UTF-8") from None
    match = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", text, re.DOTALL | re.MULTILINE)
    if match is None:
        raise BadBundle(
            f"{MANIFEST} has to begin with a front matter of at most {MAX_FRONT_MATTER} bytes: '---', 'name: …', "
            "'description: …' and '---', a line each"
        )
    fields = _yaml(match[1])
    texts = (fields.get(each) for each in ("name", "description"))
    name, description = (one_line(each) if isinstance(each, str) else "" for each in texts)
    if not re.match(NAME, name) or len(name) > MAX_NAME:
        raise BadBundle(
            f"the 'name' in {MANIFEST} has 1 to {MAX_NAME} characters: small letters, digits, and single hyphens "
            "between them"
        )
    if not 0 < len(description) <= MAX_DESCRIPTION:
        raise BadBundle(f"the 'description' in {MANIFEST} has 1 to {MAX_DESCRIPTION} characters")
    return name, description


def _yaml(text: str) -> dict[object, object]:
    import yaml  # 20 ms, which only those pay who send a skill

    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise BadBundle(f"the front matter of {MANIFEST} has more than {MAX_BRACKETS} opening brackets")
    try:
        # All scalars as texts, and no merging of keys, which can grow without an end.
        fields = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError):
        raise BadBundle(f"the front matter of {MANIFEST} is not YAML") from None
    if not isinstance(fields, dict):
        raise BadBundle(f"the front matter of {MANIFEST} has no fields")
    return fields


def one_line(text: str) -> str:
    """Return a text without breaks and control characters."""
    printable = "".join(" " if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") else each for each in text)
    return " ".join(printable.split())
