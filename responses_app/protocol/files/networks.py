"""`network_policy`: what a container may reach, as requests and the Containers API say it, and the domains in it.

A domain is one name, `*.name` for all names below one, or either with a port. Without a port it stands for 80 and 443.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from responses_app.protocol.errors import JsonObject, invalid_value
from responses_app.protocol.fields import ClientModel, is_of_client, missing

MAX_DOMAINS = 200  # of one policy
MAX_SECRETS = 32
LEAST_SECRET, MOST_SECRET = 8, 8192  # characters: a shorter one could not be found in an answer
USUAL_PORTS = (80, 443)
DOMAIN_WANTED = "a domain like pypi.org, *.example.com or api.example.com:8443; no URL, and no address"
_MAX_NAME = 253  # characters (RFC 1035)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A host that ends in a number is an IPv4 address, as URLs are read: 127.1, 0x7f.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# Variables that programs obey, and that the container or its proxy needs.
_RESERVED = re.compile(
    r"(?:LD|DYLD|PYTHON|BASH|NODE|GIT|PERL|RUBY|JAVA|SSL|MPL|OMP|OPENBLAS)_?.*|.*_PROXY|.*_CA_BUNDLE|"
    r"PATH|HOME|LANG|LC_.*|ENV|IFS|SHELL|SHELLOPTS|PS[0-9]|PROMPT_COMMAND|PWD|TMPDIR|TERM|USER",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain of an allowlist."""

    name: str  # in small letters and ASCII, without a dot at its end
    below: bool = False  # it stands for all names below it, and not for itself
    port: int | None = None  # the only one; None: `USUAL_PORTS`

    @classmethod
    def parse(cls, text: str) -> "Domain":
        """Read one. Raises `ValueError`."""
        name, colon, port = text.strip().lower().partition(":")
        if colon and not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65535):
            raise ValueError(DOMAIN_WANTED)
        below = name.startswith("*.")
        return cls(_checked_name(name.removeprefix("*.")), below, int(port) if colon else None)

    def covers(self, host: str, port: int) -> bool:
        """Whether a host and its port are of this domain."""
        return self.has_name(host) and (port in USUAL_PORTS if self.port is None else port == self.port)

    def has_name(self, host: str) -> bool:
        """Whether a host is of this domain, whatever its port."""
        return host.endswith(f".{self.name}") if self.below else host == self.name

    def includes(self, other: "Domain") -> bool:
        """Whether all that another one stands for is of this domain."""
        ports = other.port == self.port or (self.port is None and other.port in USUAL_PORTS)
        # What is below a name that is below this one is so, too.
        names = self.has_name(other.name) or (self.below and other.below and other.name == self.name)
        return ports and names and (self.below or not other.below)

    def __str__(self) -> str:
        return ("*." if self.below else "") + self.name + ("" if self.port is None else f":{self.port}")


class DomainSecret(ClientModel):
    """A secret that the proxy puts into requests to one domain. Its value is neither echoed nor stored."""

    domain: str
    name: str
    value: str | None = Field(default=None, exclude=True, repr=False)


class NetworkPolicy(ClientModel):
    """What a container may reach: nothing, or the domains of a list."""

    type: Literal["disabled", "allowlist"]
    allowed_domains: list[str] | None = Field(default=None, max_length=MAX_DOMAINS)
    domain_secrets: list[DomainSecret] | None = Field(default=None, max_length=MAX_SECRETS)

    @property
    def is_open(self) -> bool:
        """Whether there is anything that may be reached."""
        return self.type == "allowlist"


def check_network(policy: NetworkPolicy | None, at: str) -> None:
    """Check what a policy says; `at` is the path to it. Raises `ApiError`, which never tells a secret."""
    if policy is None:
        return
    if not policy.is_open:
        for name in ("allowed_domains", "domain_secrets"):
            if getattr(policy, name):
                raise invalid_value(f"{at}.{name}", "only a policy of the type 'allowlist' has it.")
        return
    if not policy.allowed_domains:
        raise missing(f"{at}.allowed_domains")
    allowed = [_domain(each, f"{at}.allowed_domains[{place}]") for place, each in enumerate(policy.allowed_domains)]
    seen = set()
    for place, secret in enumerate(policy.domain_secrets or ()):
        domain = _check_secret(secret, allowed, f"{at}.domain_secrets[{place}]")
        if (domain, secret.name) in seen:
            raise invalid_value(f"{at}.domain_secrets[{place}].name", "the domain has another secret of this name.")
        seen.add((domain, secret.name))


def secret_values(policy: object) -> list[JsonObject]:
    """Return the secrets of a policy as it came, with their values: `{"domain", "name", "value"}`.

    `policy` has been validated.
    """
    secrets = policy.get("domain_secrets") if isinstance(policy, dict) else None
    names = ("domain", "name", "value")
    return [{name: each[name] for name in names if name in each} for each in secrets or () if isinstance(each, dict)]


def without_values(declared: JsonObject) -> JsonObject:
    """Return a tool without the values of its container's secrets, also where nobody has validated it."""
    changed = dict(declared)
    for at in ("environment", "container"):
        container = changed.get(at)
        policy = container.get("network_policy") if isinstance(container, dict) else None
        secrets = policy.get("domain_secrets") if isinstance(policy, dict) else None
        if isinstance(container, dict) and isinstance(policy, dict) and secrets is not None:
            without = [
                {name: each[name] for name in ("domain", "name") if name in each}
                for each in (secrets if isinstance(secrets, list) else ())
                if isinstance(each, dict)
            ]
            changed[at] = {**container, "network_policy": {**policy, "domain_secrets": without}}
    return changed


def _domain(text: str, at: str) -> Domain:
    try:
        return Domain.parse(text)
    except ValueError as problem:
        raise invalid_value(at, f"expected {problem}.") from None


def _check_secret(secret: DomainSecret, allowed: Iterable[Domain], at: str) -> Domain:
    domain = _domain(secret.domain, f"{at}.domain")
    if domain.below:
        raise invalid_value(f"{at}.domain", "a secret is for one domain, without a '*'.")
    if not any(_is_within(domain, each) for each in allowed):
        raise invalid_value(f"{at}.domain", "'allowed_domains' does not have it.")
    if not _VARIABLE.fullmatch(secret.name):
        raise invalid_value(f"{at}.name", "expected the name of a variable: letters, digits and '_', like API_KEY.")
    if _RESERVED.fullmatch(secret.name):
        raise invalid_value(
            f"{at}.name", "programs read this variable for something else: give the secret another name."
        )
    if secret.value is None:
        if is_of_client():
            raise missing(f"{at}.value")
    elif not LEAST_SECRET <= len(secret.value) <= MOST_SECRET or not _is_visible(secret.value):
        wanted = f"{LEAST_SECRET} to {MOST_SECRET} visible characters of ASCII, without a space at an end."
        raise invalid_value(f"{at}.value", f"expected {wanted}")
    return domain


def _is_within(domain: Domain, allowed: Domain) -> bool:
    ports = domain.port is None or allowed.port == domain.port or (allowed.port is None and domain.port in USUAL_PORTS)
    return allowed.has_name(domain.name) and ports


def _is_visible(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()


def _checked_name(name: str) -> str:
    try:
        plain = (name if name.isascii() else name.encode("idna").decode()).removesuffix(".")
    except UnicodeError:
        plain = ""
    labels = plain.split(".")
    if len(plain) > _MAX_NAME or not all(map(_LABEL.fullmatch, labels)) or _NUMBER.fullmatch(labels[-1]):
        raise ValueError(DOMAIN_WANTED)
    return plain
