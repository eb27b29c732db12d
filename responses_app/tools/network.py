"""Which hosts a tool may reach: `Network` finds the addresses of a name, and refuses those that are not public.

A URL may come from a client, from the model, or from a page that somebody else has written. Each could name what only
this machine or its network reaches: the database, another service, the cloud's metadata. So:

- The *addresses* of a name are judged, not the name: anybody can let a name point to 127.0.0.1.
- Who connects, connects to what `addresses` returned, and asks no second time: between two lookups a name can change.
- A name is refused where *any* of its addresses is not public.
- A redirect is a connection like the first, and judged like it.

Operators let tools reach hosts of their own by a setting (`AllowedHosts`), which the error names. `fetching` and
`httpx_network` are the two clients that connect by these rules.
"""

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

logger = logging.getLogger("respsite.tools")

MAX_LOOKUPS = 8  # names that are looked up at once; a name server that does not answer holds a thread for its time
MAX_ADDRESSES = 8  # of one name that are tried
MAX_HOST = 253  # characters (RFC 1035)

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]

# Where clouds tell a machine its credentials. Some of these addresses are public as far as their numbers go. They stay
# refused where an operator allows a network that holds one; only naming the address itself allows it.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"))
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last four bytes are an IPv4 address
# As URLs are read by browsers, a host that ends in a number is an IPv4 address, however it is written: 127.1, 0x7f.1.
_ENDS_IN_NUMBER = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)\.?$", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
# Letters, digits, `_`, `-` and dots; a dot at the end names the root.
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?\.?", re.IGNORECASE)


class NetworkError(Exception):
    """A host could not be reached, or may not be; the text is for the model and the client, and tells no address."""


class AddressRefused(NetworkError):
    """A host is not to be reached from here."""


class NameNotFound(NetworkError):
    """A name has no address, or none was found in time."""


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Hosts that may be reached wherever they are."""

    # Host names and addresses, with a port (`mcp.internal:8900`) or without. A name that begins with a dot is all
    # names below it.
    names: frozenset[str] = frozenset()
    networks: tuple[IPNetwork, ...] = ()  # addresses, whatever their name

    @classmethod
    def parse(cls, value: str) -> "AllowedHosts":
        """Read a list, separated by commas: `mcp.internal, .corp.example, 127.0.0.1:8900, 10.1.0.0/16`.

        Raises `ValueError`.
        """
        names, networks = set(), []
        for entry in filter(None, (part.strip().lower() for part in value.split(","))):
            if "/" in entry:
                networks.append(ipaddress.ip_network(entry))
            else:
                names.add(_normal_entry(entry))
        return cls(frozenset(names), tuple(networks))

    @classmethod
    def of_url(cls, url: str) -> "AllowedHosts":
        """Return the host and the port of a URL of the operator's. Raises `ValueError`."""
        parts = urlsplit(url)
        host, port = normal_host(parts.hostname or ""), parts.port or _PORTS.get(parts.scheme, 0)
        return cls(frozenset({_with_port(host, port)}))

    def has_name(self, host: str, port: int) -> bool:
        """Whether a host, as `normal_host` writes it, was named."""
        if {host, _with_port(host, port)} & self.names:
            return True
        labels = host.split(".")
        # `.corp.example` for `mcp.corp.example`: each ending, with its dot.
        parents = {"." + ".".join(labels[index:]) for index in range(1, len(labels))}
        return bool(parents & self.names)

    def names_host(self, host: str, port: int) -> bool:
        """Whether a host of a URL was named, by its name or as an address in one of the networks.

        Raises `AddressRefused` for what is not a host.
        """
        plain = normal_host(host)
        literal = _literal(plain)
        return self.has_name(plain, port) or (literal is not None and self.has_address(literal))

    def has_address(self, address: IPAddress) -> bool:
        """Whether an address lies in one of the networks."""
        return any(address in network for network in self.networks)


NOTHING_ALLOWED = AllowedHosts()


def operator_url(value: str) -> str | None:
    """Return the URL of a server of the operator's, without slashes at its end; None for what is not one."""
    url = value.strip().rstrip("/")
    try:
        AllowedHosts.of_url(url)
    except (ValueError, AddressRefused):
        return None
    return url if url.startswith(("http://", "https://")) else None


def hosts(value: str) -> AllowedHosts:
    """Hosts that tools may reach wherever they are."""
    try:
        return AllowedHosts.parse(value)
    except ValueError:
        raise ValueError(
            "host names, .endings of names, addresses and networks, separated by commas, the names with a port or "
            "without, like mcp.internal:8900, .corp.example, 10.1.0.0/16"
        ) from None


@dataclass(slots=True)
class Network:
    """Finds the addresses of hosts, and refuses those that are not public, but for `allowed`."""

    setting: str  # what the operator sets to allow more; errors name it
    allowed: AllowedHosts = NOTHING_ALLOWED  # beside what is public
    lookup: Lookup | None = None  # returns the addresses of a name, `OSError` where there is none; None: the system's
    max_lookups: int = MAX_LOOKUPS  # names that are looked up at once
    _lookups: "dict[tuple[str, int], asyncio.Future[list[str]]]" = field(default_factory=dict, init=False)
    _threads: ThreadPoolExecutor | None = field(default=None, init=False)  # made at the first lookup

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, the first to be tried first. Connect to these, and to nothing else.

        Raises `AddressRefused`, `NameNotFound`. The caller bounds the time.
        """
        host = normal_host(host)
        literal = _literal(host)
        addresses = [literal] if literal is not None else await self._look_up(host, port)
        self._check(addresses, host, port)
        return [str(address) for address in addresses]

    def check_literal(self, host: str, port: int) -> None:
        """Judge a host that is written as an address, for a client that does not ask for the addresses of those.

        Raises `AddressRefused`, also for what is not a host at all.
        """
        host = normal_host(host)
        literal = _literal(host)
        if literal is not None:
            self._check([literal], host, port)

    def close(self) -> None:
        """End the threads that look names up."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _check(self, addresses: Sequence[IPAddress], host: str, port: int) -> None:
        if self.allowed.has_name(host, port):
            return
        for address in addresses:
            if not self._may_reach(address):
                logger.warning("a tool was refused the host %r: it is at %s (%s)", host, address, self.setting)
                raise AddressRefused(
                    f"The host {host!r} is not on the public internet. The server's operator can allow it with "
                    f"{self.setting}."
                )

    def _may_reach(self, address: IPAddress) -> bool:
        real = embedded(address)
        # Before what is allowed: a network that holds it does not allow it.
        if real in _METADATA:
            return False
        return is_public(real) or self.allowed.has_address(real)

    async def _look_up(self, host: str, port: int) -> list[IPAddress]:
        try:
            names = await (self.lookup or self._ask_resolver)(host, port)
        except (OSError, UnicodeError):
            raise NameNotFound(f"The host {host!r} was not found.") from None
        addresses = [ipaddress.ip_address(address) for address in dict.fromkeys(names)]
        if not addresses:
            raise NameNotFound(f"The host {host!r} was not found.")
        return addresses[:MAX_ADDRESSES]

    async def _ask_resolver(self, host: str, port: int) -> list[str]:
        """Ask the system, in threads of our own: slow name servers hold up nothing but these lookups.

        One lookup is for all who ask for a name while it runs: a name that nobody answers for has one thread.
        """
        key = (host, port)
        answer = self._lookups.get(key)
        if answer is None:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.max_lookups, thread_name_prefix="name lookup")
            answer = asyncio.get_running_loop().run_in_executor(self._threads, _addresses_of, host, port)
            self._lookups[key] = answer
            answer.add_done_callback(lambda _: self._lookups.pop(key))
        # Not awaited itself: whoever is cancelled leaves, and the others go on waiting.
        await asyncio.wait([answer])
        return answer.result()


def _addresses_of(host: str, port: int) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in entries]


def normal_host(host: str) -> str:
    """Return a host in the form in which hosts are compared. Raises `AddressRefused` for what is not one."""
    # As URLs write IPv6 addresses, and as people write names.
    plain = host.strip().removeprefix("[").removesuffix("]").lower()
    literal = _literal(plain)
    if literal is not None:
        return str(literal)
    try:
        plain = plain if plain.isascii() else plain.encode("idna").decode()
    except UnicodeError:
        plain = ""
    if len(plain) > MAX_HOST or not _NAME.fullmatch(plain) or _ENDS_IN_NUMBER.search(plain):
        raise AddressRefused(f"{host[:80]!r} is not a host name.")
    return plain.removesuffix(".")


def embedded(address: IPAddress) -> IPAddress:
    """Return the IPv4 address that an IPv6 address leads to, where it does, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: IPAddress) -> bool:
    """Whether an address can be that of a server on the public internet."""
    if isinstance(address, ipaddress.IPv6Address) and (
        address.is_site_local or address.sixtofour is not None or address.teredo is not None
    ):  # tunnels, that lead to an IPv4 address which is not looked at
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _literal(host: str) -> IPAddress | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    # `fe80::1%eth0`: its meaning depends on who reads it.
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise AddressRefused(f"The host {host!r} is an address of one network only.")
    return address


def _normal_entry(entry: str) -> str:
    name, port = entry, ""
    # `[::1]:8900` or `name:8900`; an address of IPv6 without brackets has no port.
    if match := re.fullmatch(r"(\[[^\]]+\]|[^:]+):([0-9]{1,5})", entry):
        name, port = match[1], match[2]
    below = "." if name.startswith(".") else ""
    try:
        host = below + normal_host(name.removeprefix("."))
    except AddressRefused:
        raise ValueError(entry) from None
    return _with_port(host, int(port)) if port else host


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
