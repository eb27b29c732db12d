"""The program `respsite`. `parser` knows the arguments of all commands, and a command's module is imported to run it.

So what needs no database (`chat`, `replay`, `bench`, `--help`) starts without Django.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from responses_app.command_line.endpoint import INTERRUPTED, USAGE, CommandFailed

# `serve` runs these as commands of the program that it is itself, which may be `manage.py`.
INTERNAL = ("fork_workers", "serve_worker", "serve_engine", "migrate")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of `respsite` and return the program's exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except CommandFailed as problem:
        from responses_app.management.terminal import printable

        sys.stderr.write(printable(f"respsite: {problem}\n"))
        return problem.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # as in `respsite … | head`: what reads has gone, and so nothing is left to be told
        # Python writes out what is left as it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    if words and words[0] in (*INTERNAL, "manage"):  # all further words are Django's, --help too
        return _run_django(words[1:] if words[0] == "manage" else words)
    from responses_app.command_line.parser import ORDER, build_parser, loaded_commands

    try:
        if words and words[0] in ORDER and words[0] not in (each.name for each in loaded_commands()):
            raise CommandFailed(f"`respsite {words[0]}` needs an extension that EXTENSIONS leaves out.", status=USAGE)
        parser = build_parser()
    except ValueError as problem:  # of an extension
        raise CommandFailed(str(problem)) from None
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    if options.command == "serve":
        from responses_app.management.flags import start_over

        start_over(vars(options))  # flags become settings, and this process begins anew with them
        return _run_django(["serve"])
    module, _, function = options.runs.partition(":")
    return int(getattr(import_module(module), function)(options))


def _run_django(words: list[str]) -> int:
    """Run one of Django's commands, ours among them, as `manage.py` in a checkout; return the exit status."""
    from responses_app.management.djangos import execute

    execute(["respsite manage", *words])
    sys.stdout.flush()
    return 0
