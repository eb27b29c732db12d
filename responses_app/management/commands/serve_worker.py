"""`respsite manage serve_worker`: one worker of `respsite serve --workers`, which starts it; nobody else does."""

from typing import Any

from django.core.management import BaseCommand, CommandParser

from responses_app.management.supervisor.worker import Pipes, Worker


class Command(BaseCommand):
    """Serves on an inherited socket until its supervisor ends it."""

    help = "One worker of `serve --workers`, which starts it with what it needs."
    requires_system_checks = ()  # `serve` has run them

    def add_arguments(self, parser: CommandParser) -> None:
        """Take descriptors that the process has inherited."""
        parser.add_argument("--number", type=int, required=True, help="its number among the workers")
        for flag, about in (
            ("--listener", "the listening socket"),
            ("--lifeline", "a pipe that ends with the supervisor"),
            ("--shares", "the file with what each worker holds"),
            ("--says", "a pipe to say in that it accepts and that it is ready"),
        ):
            parser.add_argument(flag, type=int, required=True, metavar="DESCRIPTOR", help=about)
        parser.add_argument("--at-once", action="store_true", help="accept connections before it is ready")

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve."""
        pipes = Pipes(**{name: options[name] for name in ("listener", "lifeline", "says", "shares")})
        Worker(options["number"], pipes, at_once=options["at_once"]).serve()
