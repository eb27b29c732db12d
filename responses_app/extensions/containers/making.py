"""Containers as the settings say: those of this process, hosts that have them, and the program that is such a host."""

import asyncio
import logging
import os
import ssl
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import reason_of
from responses_app.extensions.containers.sandbox.checkpoints import Checkpoints
from responses_app.extensions.containers.sandbox.choosing import choose
from responses_app.extensions.containers.sandbox.containers import Containers
from responses_app.extensions.containers.sandbox.hosts import BaseHost, HostListener, HostServer, OwnHost, RemoteHost
from responses_app.extensions.containers.sandbox.records import SandboxError
from responses_app.extensions.containers.settings import ContainerSettings
from responses_app.kit.clock import IdFactory

if TYPE_CHECKING:
    from responses_app.extensions.containers.egress.proxies import ContainerProxies
    from responses_app.extensions.containers.settings import ServerSettings

logger = logging.getLogger("respsite.sandbox")


def own_containers(settings: "ServerSettings") -> Containers:
    """Return containers of this process; what was saved by one before it is there."""
    return Containers(
        partial(choose, settings.sandbox, settings.sandbox_python or plain_python()),
        settings,
        new_id=IdFactory(time.time),
        checkpoints=_checkpoints(settings),
        proxies=partial(_proxies, settings),
    )


def _proxies(settings: "ServerSettings") -> "ContainerProxies":
    from responses_app.extensions.containers.egress.proxies import ContainerProxies

    return ContainerProxies(settings)


def _checkpoints(settings: "ServerSettings") -> Checkpoints | None:
    if not settings.sandbox_saved_bytes:
        return None
    folder = Path(settings.data_dir) / "containers"
    try:
        return Checkpoints(folder, settings.sandbox_saved_bytes)
    except OSError as problem:
        logger.warning("idle containers end, and are not saved: %s cannot be used (%s)", folder, reason_of(problem))
        return None


def plain_python() -> str:
    """Return the Python that this one's virtual environment was made of: nothing of the server is installed there."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def hosts_of(settings: "ServerSettings") -> Sequence[BaseHost]:
    """Return who has containers: those of SANDBOX_HOSTS, or this process itself."""
    if not settings.sandbox_hosts:
        return [OwnHost(own_containers(settings))]
    return remote_hosts(settings)


def remote_hosts(settings: ContainerSettings) -> list[RemoteHost]:
    """Return the hosts of SANDBOX_HOSTS; nothing is connected yet."""

    def tls() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=settings.sandbox_tls_ca or None)

    return [RemoteHost(each, secret=settings.sandbox_secret, tls=tls) for each in settings.sandbox_hosts]


async def serve_host(settings: "ServerSettings", door: HostListener, *, leaving: asyncio.Event, checks: bool) -> str:
    """Be a host until `leaving` is set. With `checks` the sandbox is tried first: return why there is none, or ""."""
    containers = own_containers(settings)
    if checks:
        try:
            name = await containers.check()
        except SandboxError as problem:
            await containers.aclose()
            return str(problem)
        logger.info("this is a host of containers, each in a sandbox of %s", name)
    server = HostServer(containers, door, grace=settings.shutdown_grace_seconds)

    async def leave() -> None:
        await leaving.wait()
        logger.info("this host of containers stops: it makes no more of them")
        server.leave()

    leaves = asyncio.create_task(leave())
    try:
        await server.serve()
    finally:
        leaves.cancel()
    return ""
