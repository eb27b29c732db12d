"""Pages of the web: fetched, read, and kept for a while.

`Fetcher` gets a page of somebody's server, by the rules of `network`, bounded in time, size and redirects. `PageReader`
has processes read it (`reading.pages`), and ends one that takes too long; a PDF or DOCX file is read as file search
reads one, by a process for it alone. `PageCache` keeps what was read.
"""

import asyncio
import logging
import ssl
import sys
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from responses_app.protocol.setting import KIB, MIB
from responses_app.protocol.transport import GZIP, codings_of
from responses_app.tools.network import Network, NetworkError
from responses_app.tools.reading.pages import (
    MAX_LINES,
    MAX_TITLE,
    WIDTH,
    WebPage,
    domain_of,
    escaped,
    lines_of,
    one_line,
)
from responses_app.tools.reading.processes import NO_ANSWER, DocumentReader, ReadFailed, ReadingPool

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver
    from yarl import URL

logger = logging.getLogger("respsite.tools")

CONNECT_SECONDS = 10.0  # for one connection
MAX_CONNECTIONS = 50  # of this process
MAX_CONNECTIONS_PER_HOST = 8  # so that one site never takes them all
MAX_URL = 8 * KIB  # characters
# Some sites refuse what does not say that it is a browser.
USER_AGENT = "Mozilla/5.0 (compatible; respsite)"
_REDIRECTS = (301, 302, 303, 307, 308)
_SCHEMES = ("http", "https")
_GZIP_WINDOW = 16 + zlib.MAX_WBITS  # zlib's way to say that the header is gzip's


class FetchFailed(NetworkError):
    """A page could not be had; the text says why, and tells nothing of this server's network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds of one page."""

    seconds: float = 20.0  # in all, redirects included
    max_bytes: int = 4 * MIB  # as sent, and as unpacked
    max_redirects: int = 8  # one more is an error
    whole: bool = False  # a longer body is an error, as half a JSON document is of no use; else it is cut there
    unpacked: bool = True  # else the body stays as it was sent: an answer of which only the status counts


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer of a server."""

    url: str  # where it came from, behind all redirects
    status: int  # of HTTP
    content_type: str  # without parameters, in small letters; "" where the server says none
    charset: str | None  # as the server says it; None: it does not
    body: bytes  # unpacked if `FetchLimits` says so, `max_bytes` at most
    truncated: bool  # the body goes on
    location: str = ""  # where it redirects to; then nothing of the body is read


class Fetcher:
    """Gets pages; has connections, so it belongs to one event loop, which closes it. Knows no cookies, no proxies."""

    def __init__(
        self,
        network: Network,
        *,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        max_connections_per_host: int = MAX_CONNECTIONS_PER_HOST,
    ) -> None:
        self._network = network
        self._ssl_context = ssl_context
        self._max_connections = max_connections
        self._max_connections_per_host = max_connections_per_host
        self._session: aiohttp.ClientSession | None = None  # made at the first page

    async def get(
        self, url: str, limits: FetchLimits, *, params: Mapping[str, str] | None = None, accept: str = "*/*"
    ) -> Fetched:
        """Return the answer of a URL, whatever its status. Raises `NetworkError`."""
        where = _parsed(url).update_query(params) if params else _parsed(url)
        host = where.host
        try:
            async with asyncio.timeout(limits.seconds):
                # One request more than redirects: the last one may answer.
                for _ in range(limits.max_redirects + 1):
                    answer = await self._ask("GET", where, limits, {"Accept": accept, "Accept-Encoding": "gzip"})
                    if answer.status not in _REDIRECTS or not answer.location:
                        return answer
                    where = _redirected(where, answer.location)
        except TimeoutError:  # aiohttp's own ones too
            raise FetchFailed(f"{host} did not answer within {limits.seconds:g} s.") from None
        raise FetchFailed(f"The page redirects more than {limits.max_redirects} times.")

    async def post(self, url: str, limits: FetchLimits, *, body: bytes, headers: Mapping[str, str]) -> Fetched:
        """Send JSON to a URL; return the answer, whatever its status: no redirect is followed.

        Raises `NetworkError`.
        """
        where = _parsed(url)
        sent = {**headers, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        try:
            async with asyncio.timeout(limits.seconds):
                return await self._ask("POST", where, limits, sent, body)
        except TimeoutError:
            raise FetchFailed(f"{where.host} did not answer within {limits.seconds:g} s.") from None

    async def aclose(self) -> None:
        """Close all connections, and end the lookups of names for them."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self._network.close()

    async def _ask(
        self, method: str, url: "URL", limits: FetchLimits, headers: Mapping[str, str], body: bytes | None = None
    ) -> Fetched:
        """Make one request. Raises `NetworkError`; the caller bounds the time."""
        import aiohttp

        host = url.host or ""
        # aiohttp resolves no address that is written as one, so it is judged here; names are when it connects.
        self._network.check_literal(host, url.port or 0)
        try:
            async with self._open_session().request(
                method, url, allow_redirects=False, headers=headers, data=body
            ) as answer:
                if answer.status in _REDIRECTS and (location := answer.headers.get("Location")):
                    # What else it says is nothing for anybody, and may be anything.
                    return Fetched(str(url), answer.status, "", None, b"", truncated=False, location=location)
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
                # A name is judged at every connection, so no answer may be kept.
                use_dns_cache=False,
                limit=self._max_connections,
                limit_per_host=self._max_connections_per_host,
                ssl=self._ssl_context or True,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                # No total: `get` bounds the whole.
                timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_SECONDS),
                headers={"User-Agent": USER_AGENT},
                # `_read` unpacks, and bounds what comes of it.
                auto_decompress=False,
            )
        return self._session


def _resolver(network: Network) -> "AbstractResolver":
    """Return a resolver for aiohttp: of the addresses of a name those that the rules allow, at each connection anew."""
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
    # A user, a password and a part of the page are nothing for its server.
    return parsed.with_user(None).with_fragment(None)


def _redirected(url: "URL", location: str) -> "URL":
    from yarl import URL

    try:
        return _parsed(str(url.join(URL(location))))
    except (ValueError, FetchFailed):
        raise FetchFailed(f"{url.host} redirects to what is not a URL of the web.") from None


async def _read(answer: "aiohttp.ClientResponse", url: "URL", limits: FetchLimits) -> Fetched:
    """Read a body up to its limit, and leave the rest: its connection is closed."""
    codings = codings_of(answer.headers.getall("Content-Encoding", ())) if limits.unpacked else []
    if codings not in ([], [GZIP]):
        named = ", ".join(codings)
        raise FetchFailed(f"{url.host} answered with {named[:40]!r}, a compression that was not asked for.")
    unpacked = zlib.decompressobj(_GZIP_WINDOW) if codings else None
    body, received, truncated = bytearray(), 0, False
    async for part in answer.content.iter_any():
        received += len(part)
        left = limits.max_bytes - len(body)
        try:
            # One byte more than allowed, which is how too long a body is known.
            body += unpacked.decompress(part, left + 1) if unpacked is not None else part[: left + 1]
        except zlib.error:
            raise FetchFailed(f"What {url.host} sent is not gzip, though it says so.") from None
        # Packed as well: a body may unpack to nothing.
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


MAX_PROCESSES = 2  # so one page that takes long does not hold up all others
READ_SECONDS = 8.0  # for one document, on a busy machine; a usual one takes 0.1
MAX_ANSWER = 32 * 1024 * 1024  # bytes: 20,000 lines as JSON have some 2 MB
DOCUMENT_SECONDS = 20.0  # for a PDF or DOCX file, with the start of its process; one of a hundred pages takes 2
_DOCUMENTS = ("application/pdf", "application/vnd.openxmlformats-officedocument.wordprocessingml.document")
_PDF = b"%PDF-"  # which some servers send as nothing in particular
MODULE = "responses_app.tools.reading.pages"


class PageReader(ReadingPool):
    """Reads documents, as many at once as it has processes."""

    def __init__(self, *, seconds: float = READ_SECONDS, processes: int = MAX_PROCESSES) -> None:
        super().__init__(MODULE, seconds=seconds, max_answer=MAX_ANSWER, processes=processes)
        self._documents = DocumentReader(seconds=DOCUMENT_SECONDS, at_once=processes)

    async def read(self, fetched: Fetched) -> WebPage:
        """Return a page. Raises `FetchFailed` for one that is no text, or cannot be read in time."""
        is_unnamed = fetched.content_type in ("", "application/octet-stream")
        if fetched.content_type in _DOCUMENTS or (is_unnamed and fetched.body.startswith(_PDF)):
            return await self._document(fetched)
        header = {"url": fetched.url, "content_type": fetched.content_type, "charset": fetched.charset}
        try:
            answer = await self.ask(header, fetched.body)
        except TimeoutError:
            logger.warning("a page of %s was not read in time", domain_of(fetched.url))
            raise FetchFailed("The page could not be read in time.") from None
        except NO_ANSWER:
            logger.warning("the process that reads pages ended at one of %s", domain_of(fetched.url))
            raise FetchFailed("The page could not be read.") from None
        if "error" in answer:
            raise FetchFailed(f"The page cannot be shown. {answer['error']}")
        truncated = answer.pop("truncated") or fetched.truncated
        return WebPage(url=fetched.url, truncated=truncated, **answer)

    async def _document(self, fetched: Fetched) -> WebPage:
        if fetched.truncated:  # what tells where its parts are stands at its end
            raise FetchFailed(f"The page cannot be shown. It is a document of more than {len(fetched.body)} bytes.")
        most = MAX_LINES * WIDTH
        try:
            text = await self._documents.text(_name(fetched.url), fetched.body, most=most)
        except ReadFailed as problem:
            raise FetchFailed(f"The page cannot be shown. {problem}") from None
        lines, truncated = await asyncio.to_thread(lines_of, escaped(text), max_lines=MAX_LINES)
        title = escaped(one_line(_name(fetched.url)))[:MAX_TITLE] or domain_of(fetched.url)
        return WebPage(url=fetched.url, title=title, lines=lines, truncated=truncated or len(text) == most)


def _name(url: str) -> str:
    """Return the name of a document, by its address."""
    return unquote(urlsplit(url).path.rpartition("/")[2])


MAX_KEPT_BYTES = 32 * 1024 * 1024  # of one worker, about
PAGE_BYTES, LINE_BYTES = 640, 16  # of a page, and of a line, beside its text
KEPT_SECONDS = 1800.0  # then a page is fetched anew, though it was shown


class PageCache:
    """Pages that one worker has read lately, so that scrolling and finding in them fetches nothing.

    They are kept by project and address: what one project has read, no other one sees.
    """

    def __init__(
        self, *, max_bytes: int = MAX_KEPT_BYTES, seconds: float = KEPT_SECONDS, now: Callable[[], float] = monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._now = now
        # When it expires, its bytes, and the page; the one unused for longest first.
        self._pages: OrderedDict[tuple[str, str], tuple[float, int, WebPage]] = OrderedDict()
        self.bytes = 0  # of all of them, about

    def get(self, project: str, url: str) -> WebPage | None:
        """Return a page, None where it is not kept, or too old."""
        entry = self._pages.get((project, url))
        if entry is None:
            return None
        until, _, page = entry
        if until < self._now():
            self._drop((project, url))
            return None
        self._pages.move_to_end((project, url))
        return page

    def put(self, project: str, url: str, page: WebPage) -> None:
        """Keep a page; those that were not asked for the longest go first."""
        key = (project, url)
        # About: of other than Latin text a character takes two or four bytes.
        size = PAGE_BYTES + sum(sys.getsizeof(line) + LINE_BYTES for line in (*page.lines, *page.links))
        # Before the bound: an older version must not stay in its place.
        self._drop(key)
        if size > self._max_bytes:
            return
        self._pages[key] = (self._now() + self._seconds, size, page)
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: tuple[str, str]) -> None:
        entry = self._pages.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]
