"""`respsite sandboxes`: a host of containers, for web workers on this machine or on others. It needs no database."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from responses_app.command_line.endpoint import CommandFailed
from responses_app.extensions.containers.making import serve_host
from responses_app.extensions.containers.sandbox.hosts import BACKLOG, HostListener
from responses_app.observing.logs import JsonLogLines, Seldom, TextLines
from responses_app.observing.memory import forbid_core_dumps
from responses_app.settings.conf import ConfigurationError, from_environ

if TYPE_CHECKING:
    from responses_app.extensions.containers.settings import ServerSettings

BEAT_SECONDS = 1.0


def run(options: Namespace) -> int:
    """Have containers until a signal, or the end of `--lifeline`, says to stop."""
    try:
        settings = cast("ServerSettings", from_environ(os.environ)[0])
    except ConfigurationError as error:
        raise CommandFailed(str(error)) from None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogLines() if settings.log_format == "json" else TextLines())
    handler.addFilter(Seldom())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("respsite").setLevel(settings.log_level.upper())
    door = _door(settings, options)
    problem = asyncio.run(_serve(settings, door, options))
    if problem:
        raise CommandFailed(f"there is no sandbox here, so no containers. {problem}")
    return 0


def _door(settings: "ServerSettings", options: Namespace) -> HostListener:
    if options.listener is not None:
        return HostListener(socket.socket(fileno=options.listener))
    if not options.listen:
        raise CommandFailed("--listen says where servers find it: HOST:PORT, or the path of a Unix socket")
    if "/" in options.listen:
        return HostListener(_unix(Path(options.listen)))
    name, _, port = options.listen.rpartition(":")
    if not name or not port.isdecimal():
        raise CommandFailed("--listen takes HOST:PORT, or the path of a Unix socket")
    for setting in ("sandbox_secret", "sandbox_tls_cert", "sandbox_tls_key"):
        if not getattr(settings, setting):
            raise CommandFailed(
                f"{setting.upper()} is not set: who reaches this port may run code, so it needs a secret and TLS"
            )
    host = name.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, int(port)), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise CommandFailed(f"cannot listen on {options.listen} ({error})") from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(settings.sandbox_tls_cert, settings.sandbox_tls_key)
    except (OSError, ssl.SSLError) as error:
        raise CommandFailed(f"SANDBOX_TLS_CERT and SANDBOX_TLS_KEY cannot be used ({error})") from None
    return HostListener(listener, settings.sandbox_secret, context)


def _unix(path: Path) -> socket.socket:
    """Return a socket at a path, which this user alone may open; one that was left over is replaced."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with socket.socket(socket.AF_UNIX) as other:
            if other.connect_ex(str(path)) == 0:
                raise CommandFailed(f"another process listens at {path}")
        if path.is_socket():
            path.unlink()
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"cannot listen at {path} ({error})") from None
    return listener


async def _serve(settings: "ServerSettings", door: HostListener, options: Namespace) -> str:
    if not settings.core_dumps:
        forbid_core_dumps()
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()
    serving = asyncio.current_task()
    assert serving is not None

    def stop() -> None:
        # The second one is taken as haste.
        serving.cancel() if leaving.is_set() else leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # A terminal's end is the supervisor's; alone it is a new certificate.
    loop.add_signal_handler(signal.SIGHUP, _renew, settings, door)
    if options.lifeline is not None:
        os.set_inheritable(options.lifeline, False)

        def orphaned() -> None:
            loop.remove_reader(options.lifeline)
            leaving.set()

        loop.add_reader(options.lifeline, orphaned)  # it can be read at its end alone: nothing is ever written
    beats = asyncio.create_task(_beat(options.heartbeat)) if options.heartbeat is not None else None
    try:
        return await serve_host(settings, door, leaving=leaving, checks=options.listener is None)
    except asyncio.CancelledError:
        return ""
    finally:
        if beats is not None:
            beats.cancel()


async def _beat(descriptor: int) -> None:
    """Say every second that this event loop lives."""
    os.set_inheritable(descriptor, False)
    os.set_blocking(descriptor, False)
    while True:
        with contextlib.suppress(OSError):  # nobody reads now
            os.write(descriptor, b".")
        await asyncio.sleep(BEAT_SECONDS)


def _renew(settings: "ServerSettings", door: HostListener) -> None:
    if door.tls is None:
        return
    try:
        door.tls.load_cert_chain(settings.sandbox_tls_cert, settings.sandbox_tls_key)
    except (OSError, ssl.SSLError) as error:
        logging.getLogger("respsite.sandbox").error("the old certificate stays: the new one cannot be read (%s)", error)
