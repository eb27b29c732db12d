"""Which addresses only this machine can call, and by which names."""

from ipaddress import ip_address

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def is_local(host: str) -> bool:
    """Whether only this machine can call this address; so it is with what is not one: a name, a Unix socket's path."""
    return is_loopback(host, unknown=True)


def is_loopback(host: object, *, unknown: bool = False) -> bool:
    """Whether this is an address of the loopback interface; `unknown` is the answer for what is not an address."""
    try:
        address = ip_address(str(host))
    except ValueError:
        return unknown
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
