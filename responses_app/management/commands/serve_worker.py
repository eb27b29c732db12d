"""`respsite manage serve_worker`: one worker of `respsite serve --workers`, which starts it; nobody else does.

Where it can be, it is forked instead (`fork_workers`). It is daphne on the socket that all share, and the ends of two
pipes (see `management.supervisor`).
"""

import asyncio
import logging
import mmap
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandParser

from responses_app.limits.suspects import SuspectTable
from responses_app.management.address import daphne_server
from responses_app.management.processes import ACCEPTS, LIVES, READY, SHARED_SUSPECTS
from responses_app.web.servers.listening import SharedListener, Shares
from responses_app.wiring.site import Site, get_site

logger = logging.getLogger("respsite.supervisor")

LIVES_SECONDS = 1.0  # between two words of an event loop that goes round
CHECK_SECONDS = 0.5  # between two looks at a database that does not work
LAST_SECONDS = 15.0  # beyond the grace, until a worker without a supervisor ends whatever it does


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """Descriptors that a worker has inherited."""

    listener: int  # the socket that all workers listen on
    lifeline: int  # a pipe that nobody writes to: it ends with the supervisor
    says: int  # a pipe for the words of this worker
    shares: int  # the file with how many connections each worker holds


class WorkerServer:
    """One worker. It accepts connections at once where nobody else does, else when it is ready."""

    def __init__(self, number: int, pipes: Pipes, *, at_once: bool) -> None:
        for descriptor in (pipes.listener, pipes.lifeline, pipes.says, pipes.shares):
            os.set_inheritable(descriptor, False)  # what this process starts must not keep them open
        os.set_blocking(pipes.says, False)  # a supervisor that stands still must not stop its workers
        self._pipes = pipes
        self._number, self._suspects = number, _shared_suspects()
        self._shares = Shares(pipes.shares, number)
        self._at_once = at_once
        self._listener: SharedListener | None = None
        self._readying: asyncio.Task[None] | None = None

    def serve(self) -> None:
        """Serve until the supervisor says otherwise, or is gone."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor's: a terminal's end is not ours
        last = settings.RESPSITE.shutdown_grace_seconds + LAST_SECONDS
        threading.Thread(target=self._end_with_supervisor, args=(last,), name="lifeline", daemon=True).start()
        # daphne wants an endpoint; it is taken away below, since daphne knows how to inherit IPv4 alone.
        server = daphne_server(["inherited"], ready_callable=lambda: self._listen(server))
        # Nothing else is to be listened on: `_listen` takes the inherited socket.
        server.endpoints = []
        from twisted.internet import reactor  # not before daphne has installed it

        reactor.callWhenRunning(self._begin)
        server.run()

    def _listen(self, server: Any) -> None:
        """Listen before the reactor runs: what the application bounds, it looks for when it does."""
        inherited = socket.socket(fileno=self._pipes.listener)
        self._listener = SharedListener(inherited.fileno(), inherited.family, server.http_factory, self._shares)
        inherited.close()  # Twisted has its own descriptor of it

    def _begin(self) -> None:
        """The reactor runs, and the application has begun to start."""
        assert self._listener is not None
        if self._suspects is not None:
            get_site().service.running.attach(self._suspects, self._number)
        if self._at_once:
            self._say(ACCEPTS)
        else:
            self._listener.pause()
        self._readying = asyncio.ensure_future(self._get_ready(get_site()))  # Twisted says so before its loop runs
        self._live()

    async def _get_ready(self, site: Site) -> None:
        """Wait until requests can be served, as `/ready` understands it, and say so."""
        assert self._listener is not None
        await site.engines.begun()
        last_problem = None
        while (problem := await site.upkeep.heartbeat.check()) is not None:
            if problem != last_problem:
                logger.warning("not ready yet: %s", problem)
            last_problem = problem
            await asyncio.sleep(CHECK_SECONDS)
        self._listener.open()
        self._say(READY)

    def _live(self) -> None:
        """Say again and again that the event loop goes round."""
        self._say(LIVES)
        asyncio.get_event_loop().call_later(LIVES_SECONDS, self._live)

    def _say(self, word: bytes) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # nobody has read for hours, or the supervisor is gone
            os.write(self._pipes.says, word)

    def _end_with_supervisor(self, seconds: float) -> None:
        """Runs on a thread of its own, whatever the event loop does."""
        os.read(self._pipes.lifeline, 1)  # returns when the supervisor is gone
        logger.warning("the supervisor is gone: this worker stops")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(seconds)
        # Whatever threads or handlers still do: nobody would end this process otherwise.
        os._exit(1)


def _shared_suspects() -> SuspectTable | None:
    """Return where the supervisor finds what runs here when this process dies; None if it does not ask for that."""
    shared = os.environ.get(SHARED_SUSPECTS)
    if not shared:
        return None
    os.set_inheritable(int(shared), False)
    memory = mmap.mmap(int(shared), 0)
    return SuspectTable(memory, SuspectTable.places_of(len(memory)))


class Command(BaseCommand):
    """Serves on an inherited socket until its supervisor ends it."""

    help = "Internal: one worker of `serve --workers`, which starts it."
    requires_system_checks = ()  # `serve` has run them

    def add_arguments(self, parser: CommandParser) -> None:
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
        pipes = Pipes(**{name: options[name] for name in ("listener", "lifeline", "says", "shares")})
        WorkerServer(options["number"], pipes, at_once=options["at_once"]).serve()
