"""`manage.py serve`: migrate, then serve with daphne in the foreground. What `make run` calls."""

import os
import socket
import sys
from typing import Any

from channels.routing import get_default_application
from django.conf import settings
from django.core.checks import run_checks
from django.core.management import BaseCommand, CommandParser, call_command
from django.db import DatabaseError, connection

from responses_app.conf import Settings
from responses_app.management.address import base_url

FLAGS = {  # older names, and the settings they stand for
    "--host": "HOST",
    "--port": "PORT",
    "--max-websocket-connections": "MAX_WEBSOCKET_CONNECTIONS",
    "--responses-ping-interval-seconds": "RESPONSES_PING_INTERVAL_SECONDS",
    "--responses-session-ttl": "RESPONSES_SESSION_TTL",
    "--responses-max-active-sessions": "RESPONSES_MAX_ACTIVE_SESSIONS",
    "--responses-store-ttl": "RESPONSES_STORE_TTL",
    "--responses-store-max-entries": "RESPONSES_STORE_MAX_ENTRIES",
    "--responses-store-max-bytes": "RESPONSES_STORE_MAX_BYTES",
    "--responses-compatibility-mode": "RESPONSES_COMPATIBILITY_MODE",
    "--responses-default-service-tier": "RESPONSES_DEFAULT_SERVICE_TIER",
    "--responses-allowed-service-tiers": "RESPONSES_ALLOWED_SERVICE_TIERS",
    "--reasoning-encryption-key": "REASONING_ENCRYPTION_KEYS",
}


class Command(BaseCommand):
    """Serves on HOST and PORT until it is interrupted."""

    help = "Migrate the database and serve in the foreground."
    requires_system_checks = ()  # `handle` runs them itself, for one line each

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the settings that have a flag."""
        for flag, variable in FLAGS.items():
            parser.add_argument(flag, dest=variable, metavar="VALUE", help=f"same as {variable}=VALUE")
        parser.add_argument(
            "--disable-responses-store", dest="RESPONSES_STORE", action="store_const", const="off",
            help="same as RESPONSES_STORE=off",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        """Start over with the flags as settings, or serve."""
        given = {name: options[name] for name in (*FLAGS.values(), "RESPONSES_STORE") if options.get(name)}
        if given:
            os.environ.update(given)
            os.execv(sys.executable, [sys.executable, sys.argv[0], "serve"])  # settings are read once, at the start
        try:
            self._prepare(settings.RESPSITE)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        self._serve()

    def _prepare(self, own: Settings) -> None:
        """Migrate, unless something is in the way of serving."""
        for issue in run_checks():
            if issue.is_serious():
                raise SystemExit(f"respsite: {issue.msg}")
            self.stderr.write(f"warning: {issue.msg}")
        _check_address(own)
        try:
            call_command("migrate", interactive=False, verbosity=0)
        except DatabaseError as error:
            reason = str(error).strip().partition("\n")[0]
            raise SystemExit(
                f"respsite: the database cannot be used ({reason}). Check that it runs and what DATABASE_URL names."
            ) from None
        connection.close()

    def _serve(self) -> None:
        from daphne.server import Server  # installs Twisted's reactor: not before it is needed
        from twisted.internet import reactor

        own = settings.RESPSITE
        server = Server(
            application=get_default_application(),
            endpoints=[f"tcp:port={own.port}:interface={own.host.replace(':', chr(92) + ':')}"],
            websocket_timeout=-1,  # a connection's life is WEBSOCKET_LIFETIME_SECONDS, said to the client
            verbosity=0,
        )
        reactor.callWhenRunning(self._announce, server)
        server.run()
        if not server.listening_addresses:
            raise SystemExit(1)  # something took the address in the meantime; daphne has logged it

    def _announce(self, server: Any) -> None:
        own = settings.RESPSITE
        if not server.listening_addresses:
            return
        url = base_url(own)
        self.stdout.write(f"URL       {url} (WebSocket at the same path)")
        self.stdout.write(f"Engine    {own.engine}, model {own.served_name}")
        self.stdout.write(f"Database  {_database()}")
        self.stdout.write(f"Redis     {_redis() or 'none: limits hold in this process'}")
        self.stdout.write(
            f"Try       curl {url}/responses -H 'content-type: application/json' -d '{{\"input\": \"Hello\"}}'"
        )
        self.stdout.flush()  # a pipe would keep them until the end


def _check_address(own: Settings) -> None:
    """Exit with one sentence if HOST and PORT cannot be listened on."""
    try:
        socket.create_server((own.host, own.port), family=_family(own.host)).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # Python repeats the address behind it
        raise SystemExit(
            f"respsite: cannot listen on HOST={own.host} PORT={own.port} ({reason}). "
            "Stop what uses it, or choose another PORT."
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _database() -> str:
    """Name the database without its password."""
    configured = settings.DATABASES["default"]
    if configured["ENGINE"].endswith("sqlite3"):
        return f"SQLite, {configured['NAME']}"
    return f"PostgreSQL, {configured['NAME']} on {configured['HOST'] or 'localhost'}"


def _redis() -> str:
    return settings.RESPSITE.redis_url.rpartition("@")[2] if settings.RESPSITE.redis_url else ""
