"""`respsite manage fork_workers`: the process that the workers of `respsite serve --workers` are forked from."""

import os
import signal
import socket
import sys
import threading
from dataclasses import fields
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandParser

from responses_app.management.commands.serve_worker import Pipes, WorkerServer
from responses_app.management.fork_server import ForkServer
from responses_app.management.loading import count_threads, load_application
from responses_app.management.processes import READY, REFUSED


class Command(BaseCommand):
    """Loads the application, forks workers, and is each of them in its turn."""

    help = "Internal: load the application once, and fork the workers of `serve --workers`, which starts it."
    requires_system_checks = ()  # `serve` has run them

    def add_arguments(self, parser: CommandParser) -> None:
        """Take descriptors that the process has inherited."""
        parser.add_argument(
            "--control", type=int, required=True, metavar="DESCRIPTOR", help="a socket from which orders come"
        )
        parser.add_argument(
            "--says",
            type=int,
            required=True,
            metavar="DESCRIPTOR",
            help="a pipe to say in that it has loaded",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Fork whenever it is ordered; serve in a new process."""
        for descriptor in (options["control"], options["says"]):
            os.set_inheritable(descriptor, False)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor's: a terminal's end is not ours
        load_application(settings.RESPSITE)
        if count_threads() > 1:
            names = ", ".join(each.name for each in threading.enumerate() if each is not threading.main_thread())
            self.stderr.write(f"workers are not forked: threads run here already ({names or 'of a library'})")
            sys.exit(REFUSED)
        os.write(options["says"], READY)
        os.close(options["says"])
        ordered = ForkServer(socket.socket(fileno=options["control"])).serve()
        if ordered is not None:
            order, inherited = ordered
            pipes = Pipes(**{each.name: getattr(inherited, each.name) for each in fields(Pipes)})
            WorkerServer(order.number, pipes, at_once=order.at_once).serve()
