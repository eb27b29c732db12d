"""`respsite serve`: migrate, then serve with daphne in the foreground. What `make run` calls.

With WORKERS=1 that is this process; with more of them this process only looks after those that serve.
"""

import asyncio
import ctypes
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import run_checks
from django.core.management import BaseCommand, CommandParser, call_command
from django.db import DatabaseError, connection

from engine.errors import reason_of
from responses_app.kit.extension import extensions
from responses_app.management.address import base_url, daphne_server
from responses_app.management.flags import add_flags, explain, start_over
from responses_app.management.fleet import Fleet
from responses_app.management.forking import can_fork
from responses_app.management.supervisor import Supervisor, kept_table, pace
from responses_app.observing.memory import forbid_core_dumps
from responses_app.settings.conf import Settings
from responses_app.web.servers.listening import BACKLOG
from responses_app.wiring.site import get_site

_PR_SET_PDEATHSIG = 1  # prctl(2)
NO_REDIS = (
    "warning: WORKERS=%d without REDIS_URL: limits hold in each worker for itself, and what runs in one cannot be "
    "cancelled, or given outputs, through another; set REDIS_URL."
)
NEWER = (
    "warning: a newer version of respsite has migrated the database (%s). This one serves all the same, as a rolling "
    "upgrade wants it to. After that, or without one: %s"
)


class Command(BaseCommand):
    """Serves on HOST and PORT until it is interrupted."""

    help = "Migrate the database and serve in the foreground."
    requires_system_checks = ()  # `handle` runs them itself, for one line each

    def add_arguments(self, parser: CommandParser) -> None:
        add_flags(parser)
        explain(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Start over with the flags as settings, or serve."""
        # It does not return where there are flags: the process begins anew with them as settings.
        start_over(options)
        if not settings.RESPSITE.core_dumps:
            forbid_core_dumps()  # also of workers, an engine and a host of containers, which it starts
        try:
            listener = self._prepare(settings.RESPSITE)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        with ExitStack() as beside:
            own = settings.RESPSITE
            for extension in extensions():
                own = beside.enter_context(extension.beside(own))
            if own.workers > 1:
                self._serve_with_workers(own, listener)
            else:
                settings.RESPSITE = own  # the worker is this process
                self._serve()

    def _prepare(self, own: Settings) -> socket.socket:
        """Take the address and migrate, unless something is in the way of serving."""
        # A supervisor lives long, and needs nothing of the 13 MiB that both import.
        do = _do_in_child if own.workers > 1 and can_fork(own) else _do
        do(self._check)
        listener = _listen(own)
        if own.workers == 1:
            listener.close()  # daphne binds it itself, and nobody should wait for that meanwhile
        elif not own.redis_url:
            self.stderr.write(NO_REDIS % own.workers)
        do(self._migrate)
        return listener

    def _check(self) -> None:
        for issue in run_checks():
            if issue.is_serious():
                raise SystemExit(f"respsite: {issue.msg}")
            self.stderr.write(f"warning: {issue.msg}")

    def _migrate(self) -> None:
        from responses_app.management.terminal import now_and_then  # with `rich`, which a supervisor needs no more

        try:
            began = time.monotonic()
            with now_and_then(lambda: f"migrating the database, {time.monotonic() - began:.0f} s"):
                call_command("migrate", interactive=False, verbosity=0)
            from responses_app.stores.database.versions import REMEDY, newer_migration

            if newer := newer_migration(connection):
                self.stderr.write(NEWER % (newer, REMEDY))
        except DatabaseError as error:
            from responses_app.kit.errors import cause_of

            reason = str(error).strip().partition("\n")[0]
            remedy = cause_of(error) or "Check that it runs and what DATABASE_URL names."
            raise SystemExit(f"respsite: the database cannot be used ({reason}). {remedy}") from None
        # Nothing of it may be inherited by what is started below.
        connection.close()

    def _serve_with_workers(self, own: Settings, listener: socket.socket) -> None:
        times = pace(
            grace_seconds=own.shutdown_grace_seconds,
            start_seconds=own.worker_start_seconds,
            silence_seconds=own.worker_silence_seconds,
        )
        fleet = Fleet(own.workers, times)

        async def serve(shares_core: bool) -> bool:
            supervisor = Supervisor(
                listener,
                fleet,
                max_bytes=own.worker_max_memory_bytes,
                shares_core=shares_core,
                forks=can_fork(own),
                announce=partial(self._announce, own),
            )
            return await supervisor.serve()

        with _shared_metrics(own), _shared_core(own) as shares_core:
            serves = asyncio.run(serve(shares_core))
        if not serves:
            raise SystemExit("respsite: the workers cannot start; what they said is above.")

    def _serve(self) -> None:
        own = settings.RESPSITE
        # Twisted separates the parts of an endpoint by colons; those of an IPv6 address have a backslash before them.
        server = daphne_server([f"tcp:port={own.port}:interface={own.host.replace(':', chr(92) + ':')}"])
        from twisted.internet import reactor  # not before daphne has installed it

        reactor.callWhenRunning(lambda: self._announce(own) if server.listening_addresses else None)
        with kept_table(Path(own.data_dir)) as table:
            if table is not None:
                reactor.callWhenRunning(lambda: get_site().service.running.attach(table, 0))
            server.run()
        if not server.listening_addresses:
            raise SystemExit(1)  # something took the address in the meantime; daphne has logged it

    def _announce(self, own: Settings) -> None:
        url = base_url(own)
        self.stdout.write(f"URL       {url} (WebSocket at the same path)")
        for model in own.served:
            names = ", ".join(model.names)
            rate = model.options.get("tokens_per_second") if model.engine == "demo" else None
            slowed = f", slowed to {rate} tokens per second (ENGINE_OPTIONS)" if rate else ""
            self.stdout.write(f"Engine    {model.engine}, model {names}{slowed}")
        self.stdout.write(f"Database  {_database()}")
        self.stdout.write(f"Keys      {_keys(own)}")
        redis = own.redis_url.rpartition("@")[2]  # without its password
        self.stdout.write(f"Redis     {redis or 'none: limits hold in each process'}")
        if own.workers > 1:
            self.stdout.write(f"Workers   {own.workers}, of process {os.getpid()}")
        key = ' -H "authorization: Bearer $OPENAI_API_KEY"' if own.needs_keys else ""
        self.stdout.write(
            f"Try       curl {url}/responses{key} -H 'content-type: application/json' -d '{{\"input\": \"Hello\"}}'"
        )
        page = "playground" if any(each.label == "playground" for each in extensions()) else "documentation"
        self.stdout.write(f"Open      {url.removesuffix('v1')} in a browser: the {page}")
        self.stdout.flush()  # a pipe would keep them until the end


def _do(work: Callable[[], None]) -> None:
    work()


def _do_in_child(work: Callable[[], None]) -> None:
    """Do this in a forked process, so that what it imports and opens goes with it. Exits where that fails."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        # SIGTERM ends this process when its parent ends.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
        work()
        raise SystemExit(0)
    _, status = os.waitpid(pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        # It has said why; a signal is told as shells tell it.
        raise SystemExit(code if code > 0 else 128 - code)


@contextmanager
def _shared_metrics(own: Settings) -> Iterator[None]:
    """Give the workers a folder for their metrics, if they have none: a scrape reaches any of them."""
    if own.metrics_dir or own.metrics == "off":
        yield
        return
    with tempfile.TemporaryDirectory(prefix="respsite-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ["METRICS_DIR"] = folder
        yield


@contextmanager
def _shared_core(own: Settings) -> Iterator[bool]:
    """Name the socket of an engine core for the workers; yield whether the supervisor has to start one there."""
    if own.in_process is None or own.engine_core:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="respsite-core-", ignore_cleanup_errors=True) as folder:
        os.environ["ENGINE_CORE"] = os.path.join(folder, "socket")
        yield True


def _listen(own: Settings) -> socket.socket:
    """Return a socket that listens on HOST and PORT. Exits with one sentence if that cannot be."""
    try:
        family = socket.AF_INET6 if ":" in own.host else socket.AF_INET
        listener = socket.create_server((own.host, own.port), family=family, backlog=BACKLOG)
        listener.setblocking(False)  # as its workers want it, who race for what comes
        return listener
    except OSError as error:
        raise SystemExit(
            f"respsite: cannot listen on HOST={own.host} PORT={own.port} ({reason_of(error)}). "
            "Stop what uses it, or choose another PORT."
        ) from None


def _database() -> str:
    """Name the database without its password."""
    configured = settings.DATABASES["default"]
    if configured["ENGINE"].endswith("sqlite3"):
        return f"SQLite, {configured['NAME']}"
    return f"PostgreSQL, {configured['NAME']} on {configured['HOST'] or 'localhost'}"


def _keys(own: Settings) -> str:
    """Say who needs a key."""
    if own.auth == "off":
        return "nobody needs one (AUTH=off)"
    if own.needs_keys:
        return "everybody needs one, here in OPENAI_API_KEY: respsite manage create_key --project NAME"
    return "not needed on this machine"
