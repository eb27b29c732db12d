"""Where the servers of a pool are: URLs, a DNS name with several addresses, a file of URLs; the last two may change.

What a part of ENGINE_URL may be:

    http://gpu-1:8001            the URL of a server; https://, a path before /v1 too
    dns+http://vllm:8001         a DNS name, each address of which is a server
    file:///etc/vllm/servers     a file of URLs, one a line; empty lines and those that begin with # are left out

A list that cannot be read, is empty or is not one of URLs leaves the servers that were known, and says so once. What
belongs to the API is left out: `https://models.example.com/vllm/v1/` is used as `https://models.example.com/vllm`.
A user or a password is refused: URLs are logged.
"""

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from engine.backends.base import OptionReader
from engine.errors import EngineConfigurationError, EngineUnavailable

logger = logging.getLogger("respsite.engine")

MAX_SERVERS = 256  # of one pool: each has a task that watches it
MAX_FILE_BYTES = 65536  # so that a wrong path (a log, a device) is not read to its end
# Seconds; the system's own resolver may take a minute.
RESOLVE_SECONDS = 5.0
DNS, FILE = "dns+http://", "file:///"
WANTED = (
    "URLs of vLLM servers, separated by commas, like http://127.0.0.1:8001, dns+http://vllm:8001 for all "
    "addresses of a name, or file:///etc/vllm-servers for a file of URLs"
)

Server = TypeVar("Server")


def as_part(text: object) -> str | None:
    """Return a part of ENGINE_URL as it is used, None for what names nothing."""
    if not isinstance(text, str):
        return None
    if text.startswith(FILE):
        return text if len(text) > len(FILE) else None
    if text.startswith(DNS):
        url = as_server(text.removeprefix("dns+"))
        return None if url is None else f"dns+{url}"
    return as_server(text)


def as_server(text: str) -> str | None:
    """Return the URL of a server as it is used, None for what cannot be one."""
    from yarl import URL

    try:
        url = URL(text)
        # `port` raises `ValueError` for one that is no number; a query would end up in the middle of a path.
        is_one = url.scheme in ("http", "https") and bool(url.host) and url.port is not None and not url.query_string
    except ValueError:
        return None
    return text.rstrip("/").removesuffix("/v1") if is_one and not has_secret(text) else None


def has_secret(url: object) -> bool:
    """Whether a URL has a user or a password in it."""
    from yarl import URL

    try:
        return isinstance(url, str) and "@" in URL(url).raw_authority
    except ValueError:
        return False


def named_servers(
    options: OptionReader, urls: object, read: Callable[[str], Server | None], *, secret: str, expected: str
) -> list[Server]:
    """Read the option `urls`, at least one; `secret` and `expected` are what an operator is told of a wrong one."""
    parts = urls if isinstance(urls, list | tuple) else ()
    if any(map(has_secret, parts)):
        raise EngineConfigurationError(secret)
    servers = [server for each in parts if isinstance(each, str) and (server := read(each)) is not None]
    if not servers or len(servers) < len(parts):
        raise options.wrong("urls", expected)
    return servers


class UnreadableList(Exception):
    """A list of servers cannot be read now; the text says why, for the log."""


class ServerSource(ABC):
    """Something that says where servers are, and may say another thing later."""

    @abstractmethod
    async def read(self) -> Sequence[str]:
        """Return the URLs, one at least. Raises `UnreadableList`."""


class NamedServers(ServerSource):
    """The addresses of a DNS name, as the system resolves it."""

    def __init__(self, url: str) -> None:
        from yarl import URL

        self._url = URL(url.removeprefix("dns+"))

    def __str__(self) -> str:
        return f"the addresses of {self._url.host}"

    async def read(self) -> Sequence[str]:
        assert self._url.host is not None
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                # A stream socket: else each address would come once for each kind of socket.
                entries = await asyncio.get_running_loop().getaddrinfo(
                    self._url.host, self._url.port, type=socket.SOCK_STREAM
                )
        except OSError as error:  # TimeoutError is one
            raise UnreadableList(f"{self} cannot be resolved: {error or 'no answer'}") from error
        # Sorted: a DNS server turns the order of its answers about, and that is no change.
        addresses = sorted({str(address[0]) for *_, address in entries})
        return [str(self._url.with_host(address)).rstrip("/") for address in addresses]


class ServerFile(ServerSource):
    """The lines of a file."""

    def __init__(self, url: str) -> None:
        self._path = Path(unquote(urlsplit(url).path))

    def __str__(self) -> str:
        return f"the file {self._path}"

    async def read(self) -> Sequence[str]:
        try:
            # The file may lie on a network disk that hangs.
            text = await asyncio.to_thread(self._read)
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableList(f"{self} cannot be read: {error}") from error
        lines = [line.strip() for line in text.splitlines()]
        urls = [as_server(line) for line in lines if line and not line.startswith("#")]
        good = [url for url in urls if url is not None]
        # One wrong line spoils the list: a file that is being written is half there.
        if not good or len(good) < len(urls):
            raise UnreadableList(f"{self} is to have a URL like http://127.0.0.1:8001 on each line")
        return good

    def _read(self) -> str:
        with self._path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        # One byte more than allowed was asked for: so too long is told from just long enough.
        if len(content) > MAX_FILE_BYTES:
            raise OSError(f"it has more than {MAX_FILE_BYTES} bytes")
        return content.decode()


class ServerList:
    """The servers that URLs and sources name together, each once."""

    def __init__(self, sources: Sequence[str | ServerSource]) -> None:
        self._sources = sources
        # What each source said last, which holds while it cannot be read.
        self._known: dict[str | ServerSource, Sequence[str]] = {}
        self._problem = ""  # the one that was logged last

    @property
    def changes(self) -> bool:
        """Whether it is worth reading again."""
        return any(isinstance(source, ServerSource) for source in self._sources)

    async def read(self) -> tuple[str, ...]:
        """Return the URLs, `MAX_SERVERS` at most; raises `EngineUnavailable` where none is known."""
        problems = []
        for source in self._sources:
            try:
                self._known[source] = (source,) if isinstance(source, str) else await source.read()
            except UnreadableList as problem:
                problems.append(str(problem))
        # `dict.fromkeys`: without those named twice, in the order of ENGINE_URL.
        urls = tuple(dict.fromkeys(url for source in self._sources for url in self._known.get(source, ())))
        if len(urls) > MAX_SERVERS:
            problems.append(f"there are {len(urls)} servers, of which the first {MAX_SERVERS} are used")
        self._note("; ".join(problems))
        if not urls:
            raise EngineUnavailable(f"No vLLM server is known: {'; '.join(problems)}.")
        return urls[:MAX_SERVERS]

    def _note(self, problem: str) -> None:
        if problem and problem != self._problem:
            logger.warning("the vLLM servers stay those that were known: %s", problem)
        elif self._problem and not problem:
            logger.info("the list of vLLM servers can be read again")
        self._problem = problem


def as_source(value: object) -> str | ServerSource | None:
    """Return what a part of ENGINE_URL names, None for what names nothing."""
    part = as_part(value)
    if part is not None and part.startswith(FILE):
        return ServerFile(part)
    return NamedServers(part) if part is not None and part.startswith(DNS) else part
