"""`respsite import FILE`: what `respsite export` wrote, into the database of the settings; once or several times."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from responses_app.command_line.base.exits import FAILED, CommandFailed
from responses_app.command_line.base.progress import progress
from responses_app.command_line.base.terminal import errors, printable
from responses_app.command_line.database import database

if TYPE_CHECKING:
    from responses_app.stores.database.transfer.importing import Imported

MAX_LINE = 512 * 1024 * 1024  # bytes: a response with its images
SHOWN = 10  # reasons why lines were passed over


def run(options: Namespace) -> int:
    """Read the file, and return 1 where some of it could not be read."""
    if options.file == "-":
        return _import(sys.stdin.buffer, 0)
    try:
        with open(options.file, "rb") as file:
            return _import(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise CommandFailed(f"{options.file} cannot be read ({error.strerror}).") from None


def _import(file: BinaryIO, size: int) -> int:
    with database():
        from responses_app.stores.database.transfer.importing import Imported, NotAnExport, take_in

        counted, read = Imported(), Read(file)
        try:
            with progress("bytes imported", size or None) as tell:
                for _ in take_in(read.lines(), counted):
                    tell(read.bytes)
        except NotAnExport as problem:
            raise CommandFailed(str(problem)) from None
    _tell(counted)
    return 0 if counted.is_whole and not counted.broken else FAILED


class Read:
    """The lines of a file, and how much of it has been read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes = 0

    def lines(self) -> Iterator[bytes]:
        """Yield them. One that is too long comes in pieces, which are not JSON."""
        while line := self._file.readline(MAX_LINE):
            self.bytes += len(line)
            yield line


def _tell(counted: "Imported") -> None:
    told = f"{counted.responses:,} responses, {counted.conversations:,} conversations"
    errors().print(f"Imported {told} and {counted.parts:,} parts of chains whose response is gone.")
    if counted.there:
        errors().print(f"Passed over: {counted.there:,} responses and conversations that are there already.")
    for reason in counted.reasons[:SHOWN]:
        errors().print(printable(f"Passed over: {reason}"))
    if counted.broken > SHOWN:
        errors().print(f"… and {counted.broken - SHOWN:,} more lines that cannot be read.")
    if not counted.is_whole:
        errors().print("The file ends early: go on with `respsite export FILE --resume`, and import it once more.")
