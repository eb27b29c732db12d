"""Proxies in front: whether a request came through one, and which client a proxy that is trusted says it is for.

Each proxy adds the address that it was called from to the end of `X-Forwarded-For`, and a client can send the header
too. So only its end is known to be true, and it is read from there: an address counts if the one behind it, which
wrote it, is that of a trusted proxy. What stands before the first address that is not, is the client's own word.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Headers = Iterable[tuple[bytes, bytes]]

_FOR, _PROTO = b"x-forwarded-for", b"x-forwarded-proto"
_SCHEMES = ("http", "https")
_UNIX = "unix:"  # in place of an address: nginx was called by another proxy over a Unix socket


def trusted_proxies(value: str) -> tuple[Network, ...]:
    """Addresses and networks of proxies. Raises `ValueError`."""
    try:
        found = tuple(_network(each.strip()) for each in value.split(",") if each.strip())
    except ValueError:
        found = ()
    if not found:
        raise ValueError("addresses and networks, separated by commas, like 10.0.0.5, 10.1.0.0/16, 2001:db8::/48")
    if not all(network.prefixlen for network in found):
        raise ValueError("proxies alone, not everybody (/0): each client could then claim any address")
    return found


def _network(text: str) -> Network:
    network = ip_network(text)
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    # `address_of` reads ::ffff:192.0.2.1 as 192.0.2.1.
    return network if mapped is None or network.prefixlen < 96 else IPv4Network((mapped, network.prefixlen - 96))


@dataclass(frozen=True, slots=True)
class Sender:
    """Where a request came from."""

    host: str | None  # the client's address; None if it is not known, as behind a Unix socket
    scheme: str | None  # the scheme that the client used; None if no trusted proxy says so
    is_ignored: bool = False  # a header names a client, and the address that it came from is not a trusted proxy's


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The proxies that are trusted.

    Without any that are named, there is one: it calls from this machine or a private network, and what it was called
    from is the client. A Unix socket is always a proxy's.
    """

    networks: Sequence[Network] = ()

    def sender(self, peer: str | None, headers: Headers) -> Sender:
        """Return where a request came from; `peer` is the address that calls, None for a Unix socket."""
        values = list(headers)
        hops = _list_of(values, _FOR)
        if not self._is_trusted(peer, 0):
            return Sender(peer, None, is_ignored=bool(hops))
        host, believed = peer, 0
        for hop in reversed(hops):
            address = address_of(hop)
            is_known = address is not None or hop.lower().startswith(_UNIX)
            if not is_known or not self._is_trusted(host, believed):
                break
            host, believed = None if address is None else str(address), believed + 1
        return Sender(host, _scheme(_list_of(values, _PROTO), max(0, believed - 1)))

    def _is_trusted(self, host: str | None, hop: int) -> bool:
        """Whether this address, the `hop`th as seen from here, is a proxy's; 0 is the one that calls."""
        if host is None:
            return True
        address = address_of(host)
        if address is None:
            return False
        if self.networks:
            return any(address in network for network in self.networks)
        return hop == 0 and not address.is_global


def address_of(text: str) -> Address | None:
    """Return the address in an entry of `X-Forwarded-For`, which may have a port; None where there is none."""
    host = text.strip()
    if host.startswith("["):  # "[2001:db8::1]:443"
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:  # "192.0.2.1:443"
        host = host.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    # A socket of both protocols shows 192.0.2.1 as ::ffff:192.0.2.1.
    return getattr(address, "ipv4_mapped", None) or address


def _list_of(headers: Headers, wanted: bytes) -> list[str]:
    """Return the entries of a header that is a list, and may stand there several times, in their order."""
    return [
        entry.strip()
        for name, value in headers
        if name == wanted
        for entry in value.decode("latin1").split(",")
        if entry.strip()
    ]


def _scheme(schemes: Sequence[str], skipped: int) -> str | None:
    """Return the scheme in which a client called its proxy, if so many proxies stand between that one and here."""
    if not schemes:
        return None
    scheme = schemes[max(0, len(schemes) - 1 - skipped)].lower()
    return scheme if scheme in _SCHEMES else None
