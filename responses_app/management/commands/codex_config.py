"""`respsite manage codex_config`: print the config.toml with which the Codex CLI uses this server."""

import re
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser

from responses_app.management.address import base_url
from responses_app.protocol.codex import config_toml

KEY_VARIABLE = "RESPSITE_API_KEY"


class Command(BaseCommand):
    """Prints it, and writes no file: Codex's own config.toml may hold more than this."""

    help = "Print a config.toml for the Codex CLI: put it into ~/.codex/config.toml."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what the settings do not know: where clients reach the server, and where they keep their key."""
        parser.add_argument("--url", help="the server's base URL; by default made of HOST and PORT")
        parser.add_argument("--model", help="the model; by default the one that is served (MODEL_NAME)")
        parser.add_argument(
            "--key-variable",
            default=KEY_VARIABLE,
            help="the environment variable with the API key, where Codex runs (default: %(default)s); it may be unset",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the file."""
        own = settings.RESPSITE
        variable = options["key_variable"]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):  # it becomes part of a shell command
            raise CommandError(f"--key-variable={variable!r} is not the name of an environment variable.")
        url, model = options["url"] or base_url(own), options["model"] or own.served[0].name
        self.stdout.write(config_toml(base_url=url, model=model, key_variable=variable), ending="")
