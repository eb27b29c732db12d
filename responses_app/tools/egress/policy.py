"""What a container may reach, and its secrets; and the settings that say which policies requests may have.

A policy comes from a request, goes to the host that has the container, and is kept. Values of secrets are in memory
alone, of the worker that has read them and of the host. What is written to the disk, shown or compared has none
(`public`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from engine import orjson
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.networks import DOMAIN_WANTED, Domain, NetworkPolicy
from responses_app.protocol.setting import MIB, RoomSettings, setting, whole
from responses_app.tools.network import NOTHING_ALLOWED, AllowedHosts, hosts

MAX_DOMAINS = 1000


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
        if word in ("on", "yes", "true", "all"):  # they are no names of domains that anybody means
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


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret of one domain."""

    domain: Domain
    name: str  # the variable that holds what stands for it inside
    value: str | None = field(default=None, repr=False)  # None where it was lost, as its host or worker ended

    def is_for(self, host: str, port: int) -> bool:
        """Whether requests to a host may have it."""
        return self.domain.has_name(host) and self.domain.port in (None, port)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """An allowlist with its secrets."""

    domains: tuple[Domain, ...]
    secrets: tuple[Secret, ...] = ()

    @classmethod
    def read(cls, declared: Mapping[str, Any], values: Sequence[Mapping[str, Any]] = ()) -> "EgressPolicy":
        """Read a policy that was validated; `values` are its secrets as they came, where they are known."""
        secrets = [Secret(Domain.parse(each["domain"]), each["name"], each.get("value")) for each in
                   declared.get("domain_secrets") or ()]  # fmt: skip
        policy = cls(tuple(dict.fromkeys(map(Domain.parse, declared["allowed_domains"]))), tuple(secrets))
        return policy.with_values(values)

    def with_values(self, values: Sequence[Mapping[str, Any]]) -> "EgressPolicy":
        """Return it with these values of its secrets; one that is not among them keeps its own."""
        known = {(Domain.parse(each["domain"]), each["name"]): each.get("value") for each in values}
        secrets = tuple(replace(each, value=known.get((each.domain, each.name)) or each.value) for each in self.secrets)
        return replace(self, secrets=secrets)

    def allows(self, host: str, port: int) -> bool:
        """Whether a port of a host may be reached."""
        return any(each.covers(host, port) for each in self.domains)

    def names_port(self, host: str, port: int) -> bool:
        """Whether a port of a host is written in it."""
        return any(each.port == port and each.has_name(host) for each in self.domains)

    def secrets_for(self, host: str, port: int) -> list[Secret]:
        """Return the secrets of a host."""
        return [each for each in self.secrets if each.is_for(host, port)]

    def beyond(self, reachable: Reachable) -> Domain | None:
        """Return a domain that the operator does not let requests allow; None where there is none."""
        return next((each for each in self.domains if not reachable.includes(each)), None)

    def public(self) -> JsonObject:
        """Return what of it may be shown and stored."""
        secrets: list[JsonObject] = [{"domain": str(each.domain), "name": each.name} for each in self.secrets]
        return {"allowed_domains": [str(each) for each in self.domains], "domain_secrets": secrets}

    def whole(self) -> JsonObject:
        """Return all of it, for the host that is to have the container."""
        secrets: list[JsonObject] = [
            {"domain": str(each.domain), "name": each.name, "value": each.value} for each in self.secrets
        ]
        return {**self.public(), "domain_secrets": secrets}

    @property
    def key(self) -> str:
        """What is the same for two policies that allow the same: containers are chosen by it."""
        allowed = sorted(map(str, self.domains))
        secrets = sorted((str(each.domain), each.name) for each in self.secrets)
        return sha256(orjson.dumps([allowed, secrets])).hexdigest()[:16]


def policy_of(policy: NetworkPolicy | None) -> EgressPolicy | None:
    """Return what a policy allows, as a client has just sent it; None for nothing."""
    if policy is None or not policy.is_open:
        return None
    secrets = [{"domain": each.domain, "name": each.name, "value": each.value} for each in policy.domain_secrets or ()]
    return EgressPolicy.read({"allowed_domains": policy.allowed_domains, "domain_secrets": secrets})
