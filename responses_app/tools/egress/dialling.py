"""`Dialler`: connections to hosts, by the rules of `tools.network`, and how many there may be at once."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from responses_app.tools.network import Network, NetworkError
from responses_app.tools.places import NoPlace, SharedPlaces

CONNECT_SECONDS = 10.0  # to look a name up, connect, and greet with TLS
MAX_CONNECTIONS = 256  # of this process, to hosts
PROJECT_CONNECTIONS = 192  # of one project among them
WAIT_SECONDS = 10.0  # for one of them to be free
MAX_WAITING = 64  # of one project
# Names that are looked up at once. A name server that does not answer holds a thread for longer than anybody waits for
# it, and whoever has the allowlist may have the name server, too: so a project has a share of them.
MAX_LOOKUPS = 64
PROJECT_LOOKUPS = 16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Unreached(Exception):
    """A host could not be reached; the text is a sentence for whoever asked, and tells nothing of this network."""

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Target:
    """Where a connection leads."""

    host: str  # as `network.normal_host` writes it
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Dialler:
    """Connects for all containers of a process. Without `tls`, certificates are checked as this machine does it."""

    def __init__(self, network: Network, tls: ssl.SSLContext | None = None) -> None:
        self.network = network
        self._tls = tls
        self._places = SharedPlaces(
            most=MAX_CONNECTIONS, share=PROJECT_CONNECTIONS, seconds=WAIT_SECONDS, most_waiting=MAX_WAITING
        )
        # Who waits is bounded by the places above, and by the time for a connection.
        self._lookups = SharedPlaces(most=MAX_LOOKUPS, share=PROJECT_LOOKUPS)

    @contextlib.asynccontextmanager
    async def connected(self, target: Target, project: str, *, tls: bool) -> AsyncIterator[Streams]:
        """Be connected to a host; the connection is closed behind. Raises `Unreached`."""
        try:
            await self._places.take(project)
        except NoPlace:
            raise Unreached("Too many connections are open here. Try again later.", 503) from None
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._connect(target, project, self._client_tls() if tls else None)
            yield reader, writer
        finally:
            self._places.give_back(project)
            if writer is not None:
                writer.transport.abort()

    def close(self) -> None:
        """End what looks names up."""
        self.network.close()

    async def _connect(self, target: Target, project: str, tls: ssl.SSLContext | None) -> Streams:
        name = target.host if tls is not None else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                problem: OSError | None = None
                # These addresses and no others: a name that is asked for twice may have changed.
                for address in await self._addresses(target, project):
                    try:
                        return await asyncio.open_connection(address, target.port, ssl=tls, server_hostname=name)
                    except ssl.SSLError:
                        raise
                    except OSError as each:
                        problem = each
                raise problem or OSError
        except NetworkError as refused:
            raise Unreached(str(refused), 403) from None
        except TimeoutError:
            raise Unreached(f"The host '{target.host}' did not answer in time.", 504) from None
        except ssl.SSLError:
            raise Unreached(f"The certificate of '{target.host}' is not valid, or it speaks no TLS.") from None
        except OSError:
            raise Unreached(f"No connection to '{target}' could be made.") from None

    async def _addresses(self, target: Target, project: str) -> Sequence[str]:
        await self._lookups.take(project)
        looking = asyncio.ensure_future(self.network.addresses(target.host, target.port))
        # Not when this ends: the thread of a lookup goes on where nobody waits any more.
        looking.add_done_callback(lambda _: self._lookups.give_back(project))
        return await asyncio.shield(looking)

    def _client_tls(self) -> ssl.SSLContext:
        # Read when it is first needed: that takes 20 ms.
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
