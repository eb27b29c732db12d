"""The settings of the hosts that containers may reach."""

from dataclasses import dataclass

from responses_app.protocol.files.containers import DOMAIN_WANTED, Domain
from responses_app.protocol.setting import MIB, RoomSettings, setting, whole
from responses_app.tools.network import NOTHING_ALLOWED, AllowedHosts, hosts

MAX_DOMAINS = 1000  # of SANDBOX_NETWORK


@dataclass(frozen=True, slots=True)
class Reachable:
    """The domains that requests may allow containers to reach."""

    any: bool = False  # all there are
    domains: tuple[Domain, ...] = ()

    def includes(self, domain: Domain) -> bool:
        """Whether a request may allow a domain."""
        return self.any or any(each.includes(domain) for each in self.domains)


NOTHING_REACHABLE = Reachable()


def reachable(value: str) -> Reachable:
    """Domains that requests may allow."""
    word = value.strip().lower()
    if word in ("off", "any"):
        return Reachable(any=word == "any")
    try:
        if word in ("on", "yes", "true", "all"):  # nobody means a domain of this name
            raise ValueError
        domains = tuple(map(Domain.parse, filter(None, (each.strip() for each in value.split(",")))))
    except ValueError:
        domains = ()
    if not 0 < len(domains) <= MAX_DOMAINS:
        raise ValueError(f"off, any, or domains separated by commas, each {DOMAIN_WANTED}")
    return Reachable(domains=domains)


@dataclass(frozen=True, kw_only=True)
class EgressSettings(RoomSettings):
    """The settings of the proxy by which containers reach hosts."""

    sandbox_network: Reachable = setting(
        NOTHING_REACHABLE, reachable,
        "domains that requests may let containers reach, by `network_policy`: `off`, `any`, or a list like "
        "`pypi.org,*.example.com` (see Shell)",
        default_text="off",
    )  # fmt: skip
    sandbox_allowed_hosts: AllowedHosts = setting(
        NOTHING_ALLOWED, hosts,
        "hosts in private networks that containers may reach, if SANDBOX_NETWORK and the request allow their names: "
        "`api.internal:8080,10.1.0.0/16`",
        default_text="unset: none",
    )  # fmt: skip
    sandbox_network_bytes: int = setting(
        1024 * MIB, whole(1), "how many bytes one container may send and receive over the network in its life"
    )
