"""`manage.py serve`: migrate, then serve with daphne in the foreground. What `make run` calls."""

import os
import sys
from typing import Any

from channels.routing import get_default_application
from django.conf import settings
from django.core.management import BaseCommand, CommandParser, call_command
from django.db import connection

FLAGS = {  # older names, and the settings they stand for
    "--host": "HOST",
    "--port": "PORT",
    "--max-websocket-connections": "MAX_WEBSOCKET_CONNECTIONS",
    "--responses-ping-interval-seconds": "RESPONSES_PING_INTERVAL_SECONDS",
}


class Command(BaseCommand):
    """Serves on HOST and PORT until it is interrupted."""

    help = "Migrate the database and serve in the foreground."

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
        self.check(fail_level=40)
        for warning in settings.RESPSITE_WARNINGS:
            self.stderr.write(f"warning: {warning}")
        call_command("migrate", interactive=False, verbosity=0)
        connection.close()
        self._serve()

    def _serve(self) -> None:
        from daphne.server import Server  # installs Twisted's reactor: not before it is needed
        from twisted.internet import reactor

        own = settings.RESPSITE
        host = f"[{own.host}]" if ":" in own.host else own.host
        server = Server(
            application=get_default_application(),
            endpoints=[f"tcp:port={own.port}:interface={own.host.replace(':', chr(92) + ':')}"],
            websocket_timeout=-1,  # a connection's life is WEBSOCKET_LIFETIME_SECONDS, said to the client
            verbosity=0,
        )
        reactor.callWhenRunning(self._announce, server, host)
        server.run()
        if not server.listening_addresses:
            raise SystemExit(f"respsite: {host}:{own.port} is in use or not this machine's; choose another PORT.")

    def _announce(self, server: Any, host: str) -> None:
        own = settings.RESPSITE
        if not server.listening_addresses:
            return
        url = f"http://{host}:{own.port}/v1"
        self.stdout.write(f"URL       {url} (WebSocket at the same path)")
        self.stdout.write(f"Engine    {own.engine}, model {own.served_name}")
        self.stdout.write(f"Database  {_database()}")
        self.stdout.write(f"Redis     {_redis() or 'none: limits hold in this process'}")
        self.stdout.write(
            f"Try       curl {url}/responses -H 'content-type: application/json' -d '{{\"input\": \"Hello\"}}'"
        )


def _database() -> str:
    """Name the database without its password."""
    configured = settings.DATABASES["default"]
    if configured["ENGINE"].endswith("sqlite3"):
        return f"SQLite, {configured['NAME']}"
    return f"PostgreSQL, {configured['NAME']} on {configured['HOST'] or 'localhost'}"


def _redis() -> str:
    return settings.RESPSITE.redis_url.rpartition("@")[2] if settings.RESPSITE.redis_url else ""
