"""The arguments of every command of `respsite`. Imports neither Django's settings nor the modules of commands."""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence

from responses_app import __version__
from responses_app.command_line.endpoint import add_endpoint
from responses_app.kit.extension import Command
from responses_app.management.flags import add_flags, explain, suggest
from responses_app.settings.extensions import chosen, load

HERE = "responses_app.command_line"
CHECK_SECONDS = 3.5
ABOUT = "respsite: the stateful Responses API server for open models."
# As `--help` lists them; those of others' extensions come last.
ORDER = """
    serve sandboxes chat replay bench batch conformance export import audit rollouts doctor manage configure completion
""".split()


def loaded_commands() -> list[Command]:
    """Return those of the kernel and of the extensions loaded. Raises `ValueError` with a whole sentence."""
    of_extensions = (each for extension in load(chosen(os.environ)) for each in extension.commands())
    return sorted((*_commands(), *of_extensions), key=lambda each: [*ORDER, each.name].index(each.name))


def build_parser() -> ArgumentParser:
    """Return the parser of the whole program; `command` is None where none was given.

    `runs` of what it parses is "module:function", which runs the command with the parsed arguments, "" for `serve`.
    """
    parser = ArgumentParser(prog="respsite", description=ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"respsite {__version__}")
    suggest(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Explained)
    for each in loaded_commands():
        added: ArgumentParser = commands.add_parser(
            each.name, help=each.about, description=each.about, allow_abbrev=False
        )
        added.set_defaults(runs=each.run)
        suggest(added)
        each.arguments(added)
    return parser


def _commands() -> Sequence[Command]:
    return (
        Command("serve", "Migrate the database and serve in the foreground.", add_flags),
        Command("batch", "Run the requests of a file as a batch: `respsite batch run FILE`.", _batch),
        Command(
            "export",
            "Export stored responses and conversations to a file of JSON Lines.",
            _export,
            f"{HERE}.transfer:run_export",
        ),
        Command(
            "import",
            "Import a file of `respsite export` into the database; existing rows are not changed.",
            _import,
            f"{HERE}.transfer:run_import",
        ),
        Command("audit", "Verify the audit trail, or export it as JSON lines.", _audit),
        Command(
            "doctor",
            "Diagnose this installation: what is wrong and what to do, in order.",
            _doctor,
            f"{HERE}.doctor:run",
        ),
        Command(
            "manage",
            "Run an administration command: `respsite manage create_key`; `respsite manage help` lists them.",
            lambda parser: parser.add_argument(
                "words", nargs="*", metavar="WORD", help="the command and its arguments"
            ),
        ),
        Command(
            "completion",
            "Print a completion script for your shell.",
            lambda parser: parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell"),
            f"{HERE}.parser:run_completion",
        ),
    )


class _Explained(ArgumentParser):
    """A parser whose flags say more than is known at once, where somebody asks for it."""

    def format_help(self) -> str:
        explain(self)
        return super().format_help()


def _batch(parser: ArgumentParser) -> None:
    about = "Upload FILE, run it as a batch, show how far it is, and write what was answered."
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    runs: ArgumentParser = actions.add_parser("run", help=about, description=about, allow_abbrev=False)
    runs.set_defaults(runs=f"{HERE}.batch:run")
    suggest(runs)
    runs.add_argument("file", metavar="FILE", help="JSON lines, each a request with custom_id, method, url and body")
    add_endpoint(runs)
    runs.add_argument("--endpoint", metavar="PATH", help="what answers the lines (default: the url of the first)")
    runs.add_argument("--output", metavar="FILE", help="file for the answers (default: FILE.output.jsonl)")
    runs.add_argument("--errors", metavar="FILE", help="file for lines that failed (default: FILE.errors.jsonl)")
    runs.add_argument("--batch", metavar="ID", help="go on with this batch, which was created for FILE before")


def _export(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="file to write; - is standard output")
    parser.add_argument("--project", metavar="NAME", help="only this project")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted export")


def _import(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="file that `respsite export` wrote; - is standard input")


def _audit(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    about = "Check that no entry was changed, removed or put in, and print the head; the status is 1 if one was."
    verifies: ArgumentParser = actions.add_parser("verify", help=about, description=about, allow_abbrev=False)
    verifies.set_defaults(runs=f"{HERE}.audit:run_verify")
    verifies.add_argument(
        "--head", metavar="N:HASH", help="a head that was printed before: then a cut or a new trail is found, too"
    )
    about = "Write the entries to FILE, the oldest first, each as a line of JSON."
    exports: ArgumentParser = actions.add_parser("export", help=about, description=about, allow_abbrev=False)
    exports.set_defaults(runs=f"{HERE}.audit:run_export")
    exports.add_argument("file", metavar="FILE", help="file to write; - is standard output")
    exports.add_argument("--after", type=_entry, default=0, metavar="N", help="only entries behind this number")
    suggest(verifies)
    suggest(exports)


def _entry(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ArgumentTypeError("the number of an entry, or 0")
    return int(text)


def _doctor(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=CHECK_SECONDS, metavar="N",
        help="time limit of all checks, which run in parallel (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_completion(options: Namespace) -> int:
    """Write what a shell needs to complete the commands to standard output."""
    import shtab  # here, as no other command needs it

    sys.stdout.write(shtab.complete(build_parser(), shell=options.shell))
    sys.stdout.write("\n")
    return 0
