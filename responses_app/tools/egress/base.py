"""What sandboxes know of a way out, and what everybody knows of what a container reaches.

The standard library alone: a sandbox is tried by users who have no more than its folder and this page.
"""

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROXY_PORT = 3128  # of 127.0.0.1 inside, where there is a proxy
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"  # inside, where there is a proxy: the certificates to be trusted


class BaseWayOut(ABC):
    """A proxy outside of a container, by which what runs in it reaches hosts: `tools.egress` has it."""

    @property
    @abstractmethod
    def env(self) -> Mapping[str, str]:
        """Variables by which programs inside find it."""

    @property
    @abstractmethod
    def bundle(self) -> bytes:
        """The certificates that programs inside trust, as PEM."""

    @abstractmethod
    def open(self, listener: socket.socket) -> None:
        """Serve what connects to a socket of the container's network."""

    @abstractmethod
    async def aclose(self) -> None:
        """Serve nothing more."""


@dataclass(frozen=True, slots=True)
class NamedSecret:
    """A secret of a container, without its value."""

    domain: str
    name: str  # the variable that it has inside


@dataclass(frozen=True, slots=True)
class NetworkRecord:
    """What a container reaches."""

    allowed_domains: Sequence[str]
    secrets: Sequence[NamedSecret]
    key: str  # the same for all that reach the same (`EgressPolicy.key`)
