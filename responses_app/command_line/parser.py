"""The arguments of every command of `respsite`. Imports neither Django nor what a command does."""

from argparse import ArgumentParser

from responses_app import __version__
from responses_app.management.flags import add_flags

ABOUT = "respsite: the stateful Responses API server for open models, and what belongs to it."


def build_parser() -> ArgumentParser:
    """Return the parser of the whole program; `command` is None where none was given."""
    parser = ArgumentParser(prog="respsite", description=ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"respsite {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def command(name: str, about: str) -> ArgumentParser:
        return commands.add_parser(name, help=about, description=about, allow_abbrev=False)

    add_flags(command("serve", "Migrate the database and serve in the foreground."))
    _manage(command("manage", "Run one of Django's commands: `respsite manage create_key`, `respsite manage help`."))
    _completion(command("completion", "Print what a shell needs to complete these commands."))
    return parser


def _manage(parser: ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="the command and its arguments")


def _completion(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell")
