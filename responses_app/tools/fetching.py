"""`Fetcher`: gets a page of somebody's server, by the rules of `network`, bounded in time, size and redirects."""

import asyncio
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from responses_app.tools.network import Network, NetworkError

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver
    from yarl import URL

KIB, MIB = 1024, 1024 * 1024
CONNECT_SECONDS = 10.0
MAX_CONNECTIONS = 50
MAX_CONNECTIONS_PER_HOST = 8
MAX_URL = 8 * KIB  # characters
USER_AGENT = "Mozilla/5.0 (compatible; respsite)"
_REDIRECTS = (301, 302, 303, 307, 308)
_SCHEMES = ("http", "https")
_PLAIN = ("", "identity")
_GZIP = ("gzip", "x-gzip")
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class FetchFailed(NetworkError):
    """A page could not be had; the text says why, and tells nothing of this server's network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """What one page may take: `seconds` in all, redirects included, and bytes as sent and as unpacked.

    A longer body is cut there, unless it is to be whole: half a JSON document is of no use.
    """

    seconds: float = 20.0
    max_bytes: int = 4 * MIB
    max_redirects: int = 8
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a server answered. `url` is where it came from, behind all redirects; `truncated`: the body goes on."""

    url: str
    status: int
    content_type: str
    charset: str | None
    body: bytes
    truncated: bool


class Fetcher:
    """Gets pages; has connections, so it belongs to one event loop, which closes it. Knows no cookies, no proxies."""

    def __init__(self, network: Network, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._network = network
        self._ssl_context = ssl_context
        self._session: aiohttp.ClientSession | None = None

    async def get(
        self, url: str, limits: FetchLimits, *, params: Mapping[str, str] | None = None, accept: str = "*/*"
    ) -> Fetched:
        """Return what is at a URL, whatever its status. Raises `NetworkError`."""
        where = _parsed(url).update_query(params) if params else _parsed(url)
        try:
            async with asyncio.timeout(limits.seconds):
                return await self._follow(where, limits, accept)
        except TimeoutError:  # aiohttp's own ones too
            raise FetchFailed(f"{where.host} did not answer within {limits.seconds:g} s.") from None

    async def aclose(self) -> None:
        """Close all connections, and what looks up names for them."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self._network.close()

    async def _follow(self, url: "URL", limits: FetchLimits, accept: str) -> Fetched:
        for _ in range(limits.max_redirects + 1):
            answer = await self._get(url, limits, accept)
            if isinstance(answer, Fetched):
                return answer
            url = answer
        raise FetchFailed(f"The page redirects more than {limits.max_redirects} times.")

    async def _get(self, url: "URL", limits: FetchLimits, accept: str) -> "Fetched | URL":
        """Return what is at a URL, or where it redirects to."""
        import aiohttp

        host = url.host or ""
        # aiohttp resolves no address that is written as one, so it is judged here; names are when it connects.
        self._network.check_literal(host, url.port or 0)
        try:
            async with self._open_session().get(
                url, allow_redirects=False, headers={"Accept": accept, "Accept-Encoding": "gzip"}
            ) as answer:
                if answer.status in _REDIRECTS and answer.headers.get("Location"):
                    return _redirected(url, answer.headers["Location"])
                return await _read(answer, url, limits)
        except (ssl.SSLError, aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError):
            raise FetchFailed(f"The certificate of {host} is not valid, or it speaks no TLS.") from None
        except aiohttp.ClientConnectionError:
            raise FetchFailed(f"No connection to {host} could be made, or it broke.") from None
        except (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError, OSError, ValueError):
            raise FetchFailed(f"{host} did not answer as HTTP wants it.") from None

    def _open_session(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=_resolver(self._network),
                use_dns_cache=False,
                limit=MAX_CONNECTIONS,
                limit_per_host=MAX_CONNECTIONS_PER_HOST,
                ssl=self._ssl_context or True,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_SECONDS),
                headers={"User-Agent": USER_AGENT},
                auto_decompress=False,
            )
        return self._session


def _resolver(network: Network) -> "AbstractResolver":
    """Return what tells aiohttp the addresses of a name: those that the rules allow, at every connection anew."""
    import socket

    from aiohttp.abc import AbstractResolver, ResolveResult

    class CheckedResolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            return [
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                    proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in await network.addresses(host, port)
            ]

        async def close(self) -> None:
            """Nothing is open."""

    return CheckedResolver()


def _parsed(url: str) -> "URL":
    from yarl import URL

    try:
        parsed = URL(url.strip()) if len(url) <= MAX_URL else None
    except ValueError:
        parsed = None
    if parsed is None or parsed.scheme not in _SCHEMES or not parsed.host:
        raise FetchFailed(f"{url[:200]!r} is not a URL of the web: it begins with http:// or https://.")
    return parsed.with_user(None).with_fragment(None)


def _redirected(url: "URL", location: str) -> "URL":
    from yarl import URL

    try:
        return _parsed(str(url.join(URL(location))))
    except (ValueError, FetchFailed):
        raise FetchFailed(f"{url.host} redirects to what is not a URL of the web.") from None


async def _read(answer: "aiohttp.ClientResponse", url: "URL", limits: FetchLimits) -> Fetched:
    """Read a body up to its limit, and leave the rest: its connection is closed."""
    encoding = answer.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in (*_PLAIN, *_GZIP):
        raise FetchFailed(f"{url.host} answered with {encoding[:40]!r}, a compression that was not asked for.")
    unpacked = zlib.decompressobj(_GZIP_WINDOW) if encoding in _GZIP else None
    body, received, truncated = bytearray(), 0, False
    async for part in answer.content.iter_any():
        received += len(part)
        left = limits.max_bytes - len(body)
        try:
            body += unpacked.decompress(part, left + 1) if unpacked is not None else part[: left + 1]
        except zlib.error:
            raise FetchFailed(f"What {url.host} sent is not gzip, though it says so.") from None
        if len(body) > limits.max_bytes or received > limits.max_bytes:
            truncated = True
            break
    if truncated:
        answer.close()
        if limits.whole:
            raise FetchFailed(f"{url.host} answered with more than {limits.max_bytes} bytes.")
    content_type, _, _ = answer.headers.get("Content-Type", "").partition(";")
    return Fetched(
        str(url),
        answer.status,
        content_type.strip().lower(),
        answer.charset,
        bytes(body[: limits.max_bytes]),
        truncated,
    )
