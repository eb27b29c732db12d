"""`respsite export FILE` and `respsite import FILE`: responses with their chains, and conversations, as JSON Lines.

Both work on the database of the settings. An export that was cut goes on, and a file can be imported several times.
"""

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from engine.errors import reason_of
from responses_app.command_line.endpoint import FAILED, USAGE, CommandFailed
from responses_app.management.terminal import errors, printable, progress

if TYPE_CHECKING:
    from responses_app.stores.database.transfer.lines import Exported, ExportPlace


@contextmanager
def database() -> Iterator[None]:
    """Set Django up; an error of the database ends the command with one sentence."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
    import django

    django.setup(set_prefix=False)
    from django.db import DatabaseError

    from responses_app.management.database import unusable

    try:
        yield
    except DatabaseError as error:
        raise CommandFailed(unusable(error)) from None


# The beginning of a line: `{"kind":"response","id":"resp_1"`. The rest, which may be long, is not parsed.
_HEAD = re.compile(rb'\{"kind":"(\w+)"(?:,"id":"([^"]{1,64})")?')
THEN = "--resume goes on with it, or name another file."
NOT_EXPORTED = "Files, vector stores, API keys and limits are not part of it."


def run_export(options: Namespace) -> int:
    """Write the file."""
    if options.file != "-" and not options.resume and os.path.exists(options.file):
        raise CommandFailed(f"{options.file} is there already: {THEN}", status=USAGE)
    with database():
        from responses_app.management.database import note
        from responses_app.resources.audit.fields import Action
        from responses_app.stores.database.transfer.lines import Exported, ExportPlace, lines, to_export

        note(Action.CONTENT_EXPORTED, [(options.project or "all projects", options.project or "")])
        counted = Exported()
        if options.file == "-":
            _write(lines(options.project, ExportPlace(), counted), sys.stdout.buffer, counted, total=None)
        else:
            with _opened(options.file, resume=options.resume) as (file, place):
                if place.kind == "end":
                    errors().print(f"{options.file} is whole already.")
                    return 0
                records = lines(options.project, place, counted)
                count = errors().is_terminal and not place.kind  # to count takes a while
                _write(records, file, counted, total=to_export(options.project) if count else None)
    kinds = f"{counted.responses:,} responses, {counted.conversations:,} conversations"
    errors().print(f"Exported {kinds} and {counted.parts:,} parts of chains whose response is gone. {NOT_EXPORTED}")
    if counted.running_count:
        named = ", ".join(counted.running[:3])
        errors().print(
            f"Left out: {counted.running_count:,} responses that have not ended ({named}). Export once more, "
            "into another file, when they have; an import adds what is missing."
        )
    return 0


def _write(records: Iterator[str], file: BinaryIO, counted: "Exported", *, total: int | None) -> None:
    with progress("exported", total) as tell:
        for line in records:
            file.write(line.encode("utf-8"))
            file.write(b"\n")
            tell(counted.responses + counted.conversations)
    file.flush()


@contextmanager
def _opened(path: str, *, resume: bool) -> Iterator[tuple[BinaryIO, "ExportPlace"]]:
    """Open the file for its owner alone, at the place where the export goes on."""
    from responses_app.stores.database.transfer.lines import ExportPlace

    try:
        # O_EXCL: a file that came to be since the look above is not written over either.
        flags = os.O_RDWR | (os.O_CREAT if resume else os.O_CREAT | os.O_EXCL)
        with os.fdopen(os.open(path, flags, 0o600), "r+b") as file:
            place, offset = whole_lines(file) if resume else (ExportPlace(), 0)
            file.seek(offset)
            # What stands behind the last whole record was cut in its middle.
            file.truncate()
            yield file, place
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise CommandFailed(f"{path} is there already: {THEN}", status=USAGE) from None
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written ({reason_of(error)}).") from None


def whole_lines(file: BinaryIO) -> tuple["ExportPlace", int]:
    """Return what the last whole record of a file is, and where it ends. A conversation that may be cut is none."""
    from responses_app.stores.database.transfer.lines import ExportPlace

    place, before, offset, begin = ExportPlace(), ExportPlace(), 0, 0
    for line in file:
        head = _HEAD.match(line)
        if head is None or not line.endswith(b"\n"):
            break
        kind, name = head[1].decode(), (head[2] or b"").decode()
        if offset == 0 and kind != "header":
            raise CommandFailed("This file was not written by `respsite export`.", status=USAGE)
        # Its items follow on lines of their own: only the next record tells that they are all there.
        if kind == "conversation":
            before, begin = place, offset
        if kind != "items":
            place = ExportPlace(kind, name)
        offset += len(line)
    return (before, begin) if place.kind == "conversation" else (place, offset)


MAX_LINE = 512 * 1024 * 1024  # bytes: a response with its images
SHOWN = 10  # reasons why lines were passed over


def run_import(options: Namespace) -> int:
    """Read the file, and return 1 where some of it could not be read."""
    if options.file == "-":
        return _import(sys.stdin.buffer, 0, "standard input")
    try:
        with open(options.file, "rb") as file:
            return _import(file, os.fstat(file.fileno()).st_size, os.path.basename(options.file))
    except OSError as error:
        raise CommandFailed(f"{options.file} cannot be read ({reason_of(error)}).") from None


def _import(file: BinaryIO, size: int, name: str) -> int:
    with database():
        from responses_app.management.database import note
        from responses_app.resources.audit.fields import Action
        from responses_app.stores.database.transfer.lines import Imported, NotAnExport, take_in

        note(Action.CONTENT_IMPORTED, [(name, "")])
        counted, bytes_read = Imported(), 0

        def lines() -> Iterator[bytes]:
            nonlocal bytes_read
            while line := file.readline(MAX_LINE):  # one that is too long comes in pieces, which are not JSON
                bytes_read += len(line)
                yield line

        try:
            with progress("bytes imported", size or None) as tell:
                for _ in take_in(lines(), counted):
                    # Bytes, as nobody knows how many lines there are.
                    tell(bytes_read)
        except NotAnExport as problem:
            raise CommandFailed(str(problem)) from None
    kinds = f"{counted.responses:,} responses, {counted.conversations:,} conversations"
    errors().print(f"Imported {kinds} and {counted.parts:,} parts of chains whose response is gone.")
    if counted.there:
        errors().print(f"Passed over: {counted.there:,} responses and conversations that are there already.")
    for reason in counted.reasons[:SHOWN]:
        errors().print(printable(f"Passed over: {reason}"))
    if counted.broken > SHOWN:
        errors().print(f"… and {counted.broken - SHOWN:,} more lines that cannot be read.")
    if not counted.is_whole:
        errors().print("The file ends early: go on with `respsite export FILE --resume`, and import it once more.")
    return 0 if counted.is_whole and not counted.broken else FAILED
