"""Where programs in a container find its proxy, and a container's network as everybody may know it.

The standard library alone: a sandbox is tried by users who have no more than its folder and this page.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PROXY_PORT = 3128  # of 127.0.0.1 inside, where there is a proxy
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"  # inside, where there is a proxy: the certificates to be trusted


@dataclass(frozen=True, slots=True)
class NamedSecret:
    """A secret of a container, without its value."""

    domain: str
    name: str  # the variable that it has inside


@dataclass(frozen=True, slots=True)
class NetworkRecord:
    """The network of a container."""

    allowed_domains: Sequence[str]
    secrets: Sequence[NamedSecret]
    key: str  # the same for all that reach the same (`EgressPolicy.key`)
