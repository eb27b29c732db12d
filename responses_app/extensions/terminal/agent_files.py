"""Puts settings into an agent's own file, beside what else is there: nothing of that is lost, or nothing is written.

A file that cannot be read as what it is, or changed without a loss, is refused with a sentence. What is written is
whole or not there, readable by its owner alone where it is new, and the file as it was lies beside it as a backup.
"""

import contextlib
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from engine.errors import reason_of
from responses_app.command_line.endpoint import CommandFailed
from responses_app.extensions.terminal.agents import CodingAgent, Format

MAX_BYTES = 4 * 1024 * 1024  # of a file; they have some KB
MAX_BACKUPS = 100  # within one second
OWNER_ONLY, OWNERS_FOLDER = 0o600, 0o700
SET_HOME = "Set HOME to that of the person who runs the agent."


@dataclass(frozen=True, slots=True)
class Written:
    """What was done to a file."""

    file: Path  # itself, not a link to it
    backup: Path | None  # None where there was none
    is_changed: bool = True
    replaced: tuple[str, ...] = ()  # settings that had other values
    overruled_by: tuple[str, ...] = ()  # variables in its table `env` that count more than what was written


def place_of(agent: CodingAgent, environ: Mapping[str, str]) -> Path | None:
    """Return an agent's file, None where it has none. Raises `CommandFailed`."""
    if agent.place is None:
        return None
    try:
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError:  # no such user, in a container say
        raise CommandFailed(f"HOME is not set, and this user has no home folder. {SET_HOME}") from None
    place = agent.place(environ, home)
    if not place.is_absolute():
        raise CommandFailed(f"{place} is no absolute path: HOME, or the variable with the agent's folder, is wrong.")
    if place.is_relative_to(home) and not os.path.isdir(home):
        raise CommandFailed(f"HOME={home} is not a folder. {SET_HOME}")
    return place


def write(agent: CodingAgent, place: Path, text: str) -> Written:
    """Merge what an agent has to be told into its file. Raises `CommandFailed`; then nothing was changed."""
    by_hand = f"`respsite configure {agent.name}` prints what belongs there: put it in by hand."
    try:
        file = _itself(place)
        before = _read(file)
        if before is None:
            file.parent.mkdir(mode=OWNERS_FOLDER, parents=True, exist_ok=True)
            _replace(file, text.encode(), None)
            return Written(file, None)
        old = _Content(agent.format, before.text)
        new, replaced = _merged(old, agent, text)
        variables = old.data.get("env")
        found = tuple(each for each in agent.overruled_by if isinstance(variables, Mapping) and each in variables)
        if new == before.text:
            return Written(file, None, is_changed=False, overruled_by=found)
        return Written(file, _replace(file, new.encode(), before), replaced=replaced, overruled_by=found)
    except _Refused as problem:
        raise CommandFailed(f"{place} {problem} Nothing was changed. {by_hand}") from None
    except OSError as error:
        raise CommandFailed(f"{place} cannot be written ({reason_of(error)}). {by_hand}") from None


class _Refused(Exception):
    """The file is left as it is; the text goes on behind its name."""


@dataclass(frozen=True, slots=True)
class _Before:
    """A file as it was read."""

    text: str  # without a byte order mark
    content: bytes
    state: os.stat_result


def _itself(place: Path) -> Path:
    """Return where a file lies that may be a link, as with people who keep all such files in one folder."""
    if not place.is_symlink():
        return place
    file = Path(os.path.realpath(place))
    if not file.exists():
        raise _Refused(f"is a link to {file}, which is not there.")
    return file


def _read(file: Path) -> _Before | None:
    """Read a file; None where there is none."""
    try:
        state = file.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(state.st_mode):
        raise _Refused("is not a file.")
    if state.st_size > MAX_BYTES:
        raise _Refused(f"is larger than {MAX_BYTES} bytes.")
    if not os.access(file, os.W_OK):
        raise _Refused("may not be written.")
    content = file.read_bytes()
    try:
        return _Before(content.decode("utf-8-sig"), content, state)
    except UnicodeDecodeError:
        raise _Refused("is not text in UTF-8.") from None


class _Content:
    """A text as data; `document` is what is changed, so that comments and order stay."""

    def __init__(self, format: Format, text: str) -> None:
        self.format = format
        self.text = text
        self.data = self._parse(text)
        self.document: MutableMapping[str, Any] = tomlkit.parse(text) if format is Format.TOML else self._parse(text)

    def changed(self) -> str:
        """Return the document as text. Raises `ValueError`."""
        if self.format is Format.TOML:
            return tomlkit.dumps(self.document)
        indent = re.search(r"\n([ \t]+)\S", self.text)
        # Numbers that JSON has no word for come from ones that are too large.
        text = json.dumps(self.document, indent=indent[1] if indent else 2, ensure_ascii=False, allow_nan=False)
        text.encode()
        return text + "\n"

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            if self.format is Format.TOML:
                return tomllib.loads(text)
            whole = json.loads(text, object_pairs_hook=_unique) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            kind = "TOML" if self.format is Format.TOML else "JSON without comments"
            raise _Refused(f"cannot be read as {kind} ({str(error).rstrip('.')}).") from None
        if not isinstance(whole, dict):
            raise _Refused("does not hold a JSON object.")
        return whole


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, in which one of two fields with one name would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _merged(old: _Content, agent: CodingAgent, text: str) -> tuple[str, tuple[str, ...]]:
    """Return the file's new text, the old one where it says all that already, and the names of what was replaced."""
    new = _Content(agent.format, text)
    wanted = _Content(agent.format, old.text).data
    merge = _Merge(agent)
    merge.put(wanted, new.data)
    if wanted == old.data:
        return old.text, ()
    # With its comments, and else, as in a table that stands on one line, without.
    for source in (new.document, new.data):
        changed = _attempt(old, agent, source)
        # A program that changes a file in place may err: what was not meant to change has not.
        if changed is not None and _Content(agent.format, changed).data == wanted:
            return changed, tuple(merge.replaced)
    raise _Refused("cannot be changed by a program without a loss.")


def _attempt(old: _Content, agent: CodingAgent, source: Mapping[str, Any]) -> str | None:
    """Return the file's text with settings in it, None where it cannot be made."""
    content = _Content(agent.format, old.text)
    try:
        _Merge(agent).put(content.document, source)
        changed = content.changed()
        _Content(agent.format, changed)
    except (ValueError, KeyError, TOMLKitError, _Refused):
        return None
    return changed


class _Merge:
    """Puts settings into others: tables into tables, models into a list of them, anything else in place of the old."""

    def __init__(self, agent: CodingAgent) -> None:
        self.replaced: list[str] = []  # settings that had other values
        self._kept = agent.kept
        self._headers = agent.headers

    def put(self, into: MutableMapping[str, Any], new: Mapping[str, Any], at: str = "") -> None:
        """Put them there; `at` is the table's name. Raises `_Refused`."""
        for name, value in new.items():
            here = f"{at}.{name}" if at else name
            if name not in into:
                into[name] = value
            elif isinstance(value, Mapping):
                if not isinstance(into[name], MutableMapping):
                    raise _Refused(f"has a setting {here} that holds no others.")
                self.put(into[name], value, here)
            elif isinstance(value, list) and all(isinstance(each, dict) for each in value):
                if not isinstance(into[name], list):
                    raise _Refused(f"has a setting {here} that is not a list.")
                into[name] = self._with_models(into[name], value, here)
            elif here == self._headers and isinstance(into[name], str):
                lines = into[name].splitlines()
                into[name] = "\n".join(lines if value in lines else [*lines, value])
            elif into[name] != value and not (self._kept and at == self._kept):
                self.replaced.append(here)
                into[name] = value

    def _with_models(self, old: list[Any], new: list[dict[str, Any]], at: str) -> list[Any]:
        """Return a list of models, the new ones first: agents take the first with a name."""
        rest, first = list(old), []
        for model in new:
            place = next((i for i, each in enumerate(rest) if _key_of(each) == _key_of(model)), None)
            first.append({} if place is None else rest.pop(place))
            self.put(first[-1], model, at)
        return [*first, *rest]


def _key_of(model: object) -> object:
    """Return what makes an entry the same model as another; in a person's list may be anything."""
    return (model.get("id"), model.get("baseUrl")) if isinstance(model, Mapping) else None


def _replace(file: Path, content: bytes, before: _Before | None) -> Path | None:
    """Give a file its new content at once, and return the backup of the old one."""
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # mode 0600
    try:
        _save(descriptor, content, before)
        backup = _backup(file, before) if before else None
        if not _is_as_before(file, before):
            if backup is not None:
                backup.unlink()
            raise _Refused("was changed by somebody else just now.")
        os.replace(draft, file)
        return backup
    finally:
        with contextlib.suppress(FileNotFoundError):  # it is the file now
            os.unlink(draft)


def _backup(file: Path, before: _Before) -> Path:
    """Keep a file as it was, under a name that is free."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    for number in range(1, MAX_BACKUPS + 1):
        backup = file.with_name(f"{file.name}.backup-{stamp}" + (f"-{number}" if number > 1 else ""))
        try:
            descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
        except FileExistsError:
            continue
        _save(descriptor, before.content, before)
        return backup
    raise _Refused("has too many backups of this second.")


def _save(descriptor: int, content: bytes, before: _Before | None) -> None:
    """Write a file, with the owner and the mode of the one it is to take the place of."""
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        if before is not None:
            if (before.state.st_uid, before.state.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, before.state.st_uid, before.state.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(before.state.st_mode))
        os.fsync(descriptor)


def _is_as_before(file: Path, before: _Before | None) -> bool:
    if before is None:
        return not os.path.lexists(file)
    now, then = file.stat(), before.state
    return (now.st_ino, now.st_size, now.st_mtime_ns) == (then.st_ino, then.st_size, then.st_mtime_ns)
