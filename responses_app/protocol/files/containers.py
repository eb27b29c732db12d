"""Containers of the code interpreter and the shell: as requests name them, and the Containers API's bodies.

`network_policy` says what one may reach. A domain is one name, `*.name` for all names below one, or either with a port.
Without a port it stands for 80 and 443.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from responses_app.protocol.errors import ApiError, JsonObject, invalid_value, not_found, rate_limited
from responses_app.protocol.fields import CallableTool, ClientModel, is_of_client, missing, validate
from responses_app.protocol.files.skills import NamedSkills

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


MemoryLimit = Literal["1g", "4g", "16g", "64g"]
MAX_FILES = 50  # that a container begins with
_CONTAINER_ID = r"^cntr_.{1,200}$"
MAX_MINUTES = 24 * 60  # that a container may do nothing


class _Auto(ClientModel):
    """A container that the server chooses: the one of the chain, or a new one."""

    type: Literal["auto"]
    file_ids: list[str] | None = Field(default=None, max_length=MAX_FILES)
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: NamedSkills | None = None

    own: ClassVar = ("skills",)  # which OpenAI's shell alone has


class CodeInterpreter(CallableTool):
    """The tool, as a request declares it. OpenAI requires `container`; here its absence means `auto`."""

    container: str | _Auto = _Auto.model_construct(type="auto")  # not validated: that would build the model here


class AutoEnvironment(ClientModel):
    """A container that the server chooses for a shell, as `_Auto` is one for the code interpreter."""

    type: Literal["container_auto"]
    file_ids: list[str] | None = Field(default=None, max_length=MAX_FILES)
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: NamedSkills | None = None


class ReferenceEnvironment(ClientModel):
    """A container that is there already."""

    type: Literal["container_reference"]
    container_id: str = Field(pattern=_CONTAINER_ID)


class AutoShell(CallableTool):
    """A shell whose commands run in a container that the server chooses."""

    environment: AutoEnvironment


class ReferenceShell(CallableTool):
    """A shell whose commands run in a container that is there already."""

    environment: ReferenceEnvironment


class ExpiresAfterMinutes(ClientModel):
    """How long a container may do nothing."""

    anchor: Literal["last_active_at"]
    minutes: int = Field(ge=1, le=MAX_MINUTES)


class NewContainer(ClientModel):
    """The body of a create."""

    name: str = Field(min_length=1, max_length=256)
    expires_after: ExpiresAfterMinutes | None = None
    file_ids: list[str] | None = Field(default=None, max_length=MAX_FILES)
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: NamedSkills | None = None

    @property
    def idle_seconds(self) -> float | None:
        """How long it may do nothing, in seconds; None: as long as any."""
        return None if self.expires_after is None else self.expires_after.minutes * 60.0


def parse_container(data: Mapping[str, object]) -> NewContainer:
    """Read the body of a create. Raises `ApiError` that names the field and says what it takes."""
    container = validate(NewContainer, data)
    check_network(container.network_policy, "network_policy")
    return container


class CopiedFile(ClientModel):
    """The body that copies a file of the Files API into a container."""

    file_id: str = Field(min_length=1, max_length=256)

    beside: ClassVar = ("file",)  # which a form has


def parse_copied(data: Mapping[str, object]) -> CopiedFile:
    """Read the body of a copy. Raises `ApiError`."""
    if data.get("file_id") is None:
        raise missing("file")  # which a form would have
    return validate(CopiedFile, data)


def container_file_not_found(container_id: str, file_id: str) -> ApiError:
    """The container has no such file, or not any more (404)."""
    message = f"File with id '{file_id[:80]}' not found in container '{container_id[:80]}'."
    return not_found(message, param="file_id")


def too_many_containers(message: str) -> ApiError:
    """All containers are at work (429)."""
    return rate_limited(f"{message[:1].upper()}{message[1:]}.", retry_after=5)


def echoed_interpreter(tool: JsonObject, at: str) -> JsonObject:
    """Validate the code interpreter as a tool of a request; return it as it is echoed. Raises `ApiError`."""
    given = tool.get("container")
    if isinstance(given, dict):  # by itself, so that an error names the field of it, and not the forms that it has
        validate(_Auto, given, at=f"{at}.container")
    container = validate(CodeInterpreter, tool, at=at).container
    if isinstance(container, str):
        if not container.startswith("cntr_"):
            raise invalid_value(f"{at}.container", "the id of a container begins with 'cntr_'.")
        return {"type": "code_interpreter", "container": container}
    check_network(container.network_policy, f"{at}.container.network_policy")
    return {"type": "code_interpreter", "container": container.model_dump(exclude_none=True)}


def echoed_shell(tool: JsonObject, at: str) -> JsonObject:
    """Validate a shell of the server as a tool of a request; return it as it is echoed. Raises `ApiError`."""
    given = tool["environment"]
    assert isinstance(given, dict), "it is a shell of the server"
    if given["type"] == "container_auto":
        auto = validate(AutoShell, tool, at=at).environment
        check_network(auto.network_policy, f"{at}.environment.network_policy")
        environment: ClientModel = auto
    else:
        environment = validate(ReferenceShell, tool, at=at).environment
    callers = tool.get("allowed_callers")
    return {
        "type": "shell",
        "environment": environment.model_dump(exclude_none=True),
        **({} if callers is None else {"allowed_callers": callers}),
    }
