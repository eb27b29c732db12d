"""Django's command line as `respsite manage` shows it: our commands first, and no flags about Django itself."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from django.core.management import BaseCommand, ManagementUtility, get_commands, load_command_class

from responses_app.management.flags import meant, suggest

APP = "responses_app"
INTERNAL = ("fork_workers", "serve_engine", "serve_worker")  # that `serve` starts
# Those that operators of this server need; the rest is there, but not listed.
OF_DJANGO = {
    "migrate": "Create the tables, or bring them up to date.",
    "createsuperuser": "Create a user of the admin.",
    "changepassword": "Change the password of a user.",
    "axes_reset": "Let users and addresses log in again that failed too often.",
    "check": "Check the settings.",
    "showmigrations": "List the migrations and which of them were applied.",
    "clearsessions": "Delete expired sessions of the admin.",
    "shell": "Open a Python shell with the settings loaded.",
    "dbshell": "Open the database's own shell.",
}
# They work, but are for developers of Django projects.
HIDDEN_FLAGS = {
    *("--version", "--verbosity", "--settings", "--pythonpath", "--traceback", "--no-color", "--force-color"),
}


class Manage(ManagementUtility):
    """Runs a command, ours or Django's."""

    def main_help_text(self, commands_only: bool = False) -> str:
        """Return the list of commands; with `commands_only`, the names of all that there are."""
        if commands_only:
            return super().main_help_text(commands_only=True)
        ours = sorted(name for name, app in get_commands().items() if app == APP and name not in INTERNAL)
        lines = [
            f"usage: {self.prog_name} COMMAND [ARGUMENT ...]",
            *("", f"`{self.prog_name} help COMMAND` describes a command, and"),
            f"`{self.prog_name} help --commands` lists all commands of Django, too.",
            *("", "commands:", *_rows((name, load_command_class(APP, name).help) for name in ours)),
            *("", "commands of Django:", *_rows(OF_DJANGO.items())),
        ]
        return "\n".join(lines)

    def fetch_command(self, subcommand: str) -> BaseCommand:
        """Return a command. Exits with status 2 if there is none of this name."""
        commands = get_commands()
        if subcommand not in commands:
            message = f"{self.prog_name}: there is no command {subcommand!r}."
            question = meant(subcommand, (*commands, "help"))
            sys.stderr.write(f"{message}{question} `{self.prog_name} help` lists the commands.\n")
            raise SystemExit(2)
        command = super().fetch_command(subcommand)
        command.suppressed_base_arguments = HIDDEN_FLAGS
        _let_suggest(command)
        return command


def _let_suggest(command: BaseCommand) -> None:
    make = command.create_parser

    def create_parser(prog_name: str, subcommand: str, **options: Any) -> Any:
        parser = make(prog_name, subcommand, **options)
        suggest(parser)
        return parser

    command.create_parser = create_parser  # type: ignore[method-assign]


def _rows(commands: Iterable[tuple[str, str]]) -> Iterable[str]:
    return (f"  {name:<18}{about}" for name, about in commands)


def execute(words: Sequence[str]) -> None:
    """Run what stands in the words, of which the first is the program's name."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
    Manage(list(words)).execute()
