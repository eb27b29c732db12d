"""The network policy of a container, with its secrets: as requests declare it, as hosts get it, and as it is kept.

Values of secrets are in memory alone, of the worker that has read them and of the host that has the container. What is
written to the disk, shown or compared has none (`public`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from engine import orjson
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.containers import Domain, NetworkPolicy


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

    def public(self) -> JsonObject:
        """Return the part of it that may be shown and stored."""
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
        """A text that is the same for two policies that allow the same: containers are chosen by it."""
        allowed = sorted(map(str, self.domains))
        secrets = sorted((str(each.domain), each.name) for each in self.secrets)
        return sha256(orjson.dumps([allowed, secrets])).hexdigest()[:16]


def policy_of(policy: NetworkPolicy | None) -> EgressPolicy | None:
    """Return the policy that a client has just sent; None where it allows nothing."""
    if policy is None or not policy.is_open:
        return None
    secrets = [{"domain": each.domain, "name": each.name, "value": each.value} for each in policy.domain_secrets or ()]
    return EgressPolicy.read({"allowed_domains": policy.allowed_domains, "domain_secrets": secrets})
