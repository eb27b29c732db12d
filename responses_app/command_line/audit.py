"""`respsite audit verify` and `respsite audit export FILE`: the audit trail, checked and written out."""

import os
import sys
from argparse import Namespace
from contextlib import ExitStack
from typing import TextIO

from engine.errors import reason_of
from responses_app.command_line.endpoint import FAILED, USAGE, CommandFailed
from responses_app.command_line.transfer import database
from responses_app.management.terminal import errors, printable
from responses_app.resources.audit.fields import Head


def run_verify(options: Namespace) -> int:
    """Read the whole trail, and return 1 where it is not as it was written."""
    try:
        kept = None if options.head is None else Head.parsed(options.head)
    except ValueError:
        text = "--head takes what `respsite audit verify` printed as the head: a number, a colon and 64 hex digits."
        raise CommandFailed(text, status=USAGE) from None
    with database():
        from responses_app.resources.audit.chain import verify

        verdict = verify(kept)
    for problem in verdict.problems:
        errors().print(printable(problem))
    if verdict.has_more:
        errors().print("There are more problems; the rest was not read.")
    if verdict.problems:
        return FAILED
    sys.stdout.write(f"{verdict.entries:,} entries, all as they were written. Head: {verdict.head}\n")
    if kept is None:
        errors().print("Keep the head elsewhere, and give it to the next `respsite audit verify --head`.")
    return 0


def run_export(options: Namespace) -> int:
    """Write the file, which is its owner's alone."""
    with database(), ExitStack() as stack:
        from responses_app.management.database import note
        from responses_app.resources.audit.chain import lines
        from responses_app.resources.audit.fields import Action

        file = sys.stdout if options.file == "-" else stack.enter_context(_opened(options.file))
        note(Action.AUDIT_EXPORTED, [("", "")], after=options.after)
        number = 0
        for line in lines(after=options.after):
            file.write(f"{line}\n")
            number += 1
        file.flush()
    errors().print(f"Exported {number:,} entries.")
    return 0


def _opened(path: str) -> TextIO:
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
    except FileExistsError:
        raise CommandFailed(f"{path} is there already: name another file.", status=USAGE) from None
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written ({reason_of(error)}).") from None
