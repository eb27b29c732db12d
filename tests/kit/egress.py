"""The proxy of a container without the container: it listens at a port of this machine."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.egress.proxies import ContainerProxies, ContainerProxy
from responses_app.extensions.containers.egress.settings import EgressSettings, reachable
from responses_app.tools.network import AllowedHosts, Network

TOKEN = 's3cr3t/value "of" a test'
NAMES = ("api.example", "open.example", "other.example")  # of certificates, and of this machine as `local` looks up


async def local(host: str, port: int) -> Sequence[str]:
    """Say that every host is this machine."""
    return ["127.0.0.1"]


def settings(allowed: str = "127.0.0.1/32", **fields: Any) -> EgressSettings:
    """Return settings by which requests may allow anything."""
    return EgressSettings(
        **{"sandbox_network": reachable("any"), "sandbox_allowed_hosts": AllowedHosts.parse(allowed), **fields}
    )


def proxies(own: EgressSettings | None = None, *, lookup: Any = local) -> ContainerProxies:
    own = own or settings()
    return ContainerProxies(own, network=Network("SANDBOX_ALLOWED_HOSTS", own.sandbox_allowed_hosts, lookup))


def policy(*domains: str, **secrets: str) -> EgressPolicy:
    """Return a policy; a secret is its name, and its domain: all have the same value."""
    named = [{"domain": domain, "name": name, "value": TOKEN} for name, domain in secrets.items()]
    return EgressPolicy.read({"allowed_domains": list(domains), "domain_secrets": named})


class Opened:
    """A proxy that listens at a port."""

    def __init__(self, proxy: ContainerProxy, port: int) -> None:
        self.proxy = proxy
        self.port = port
        self.env: Mapping[str, str] = proxy.env

    async def connected(self) -> "Raw":
        return Raw(*await asyncio.open_connection("127.0.0.1", self.port))

    async def said(self, sent: bytes, *, until: bytes = b"") -> bytes:
        """Send bytes on a connection of their own; return what comes to its end, or until something has."""
        async with await self.connected() as raw:
            return await raw.said(sent, until=until)


class Raw:
    """A connection on which anything can be sent; it is closed behind."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def said(self, sent: bytes, *, until: bytes = b"") -> bytes:
        """Send bytes, and return what comes to the end, or until something has."""
        self.writer.write(sent)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                await self.writer.drain()
            return await self.reader.readuntil(until) if until else await self.rest()

    async def rest(self) -> bytes:
        """Return what comes to the end."""
        content = b""
        with contextlib.suppress(ConnectionResetError):
            while part := await self.reader.read(65536):
                content += part
        return content

    async def __aenter__(self) -> "Raw":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def opened(
    allowed: EgressPolicy, own: EgressSettings | None = None, *, lookup: Any = local
) -> AsyncIterator[Opened]:
    """Have a proxy by these rules."""
    async with opened_all(allowed, ["p"], own, lookup=lookup) as (proxy,):
        yield proxy


@contextlib.asynccontextmanager
async def opened_all(
    allowed: EgressPolicy, projects: Sequence[str], own: EgressSettings | None = None, *, lookup: Any = local
) -> AsyncIterator[Sequence[Opened]]:
    """Have a proxy for a container of each of these projects, in one process."""
    shared, every = proxies(own, lookup=lookup), []
    try:
        for project in projects:
            proxy = await shared.proxy(project, allowed)
            listener = socket.create_server(("127.0.0.1", 0))
            every.append(Opened(proxy, listener.getsockname()[1]))
            proxy.open(listener)
        yield every
    finally:
        for each in every:
            await each.proxy.aclose()
        shared.close()
