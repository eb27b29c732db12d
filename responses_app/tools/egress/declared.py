"""What a request says of its container's network, and what the model is told of it."""

from collections.abc import Sequence

from responses_app.protocol.errors import JsonObject
from responses_app.tools.base import ToolUse
from responses_app.tools.egress.base import NetworkRecord
from responses_app.tools.egress.policy import EgressPolicy

_REACHED = (
    " Of the internet these domains alone can be reached, by http:// and https://: {domains}. Programs find the proxy "
    "for that in the variables HTTP_PROXY and HTTPS_PROXY."
)
_SECRET = (
    " The variable {name} holds what stands for a secret of {domain}: sent there in a header or in the URL, the secret "
    "takes its place."
)


def network_of(use: ToolUse) -> EgressPolicy | None:
    """Return what the container of a request is to reach; None for nothing."""
    container = use.declared.get("container")
    policy = container.get("network_policy") if isinstance(container, dict) else None
    if not isinstance(policy, dict) or policy.get("type") != "allowlist":
        return None
    return EgressPolicy.read(policy, values_of(use))


def values_of(use: ToolUse) -> Sequence[JsonObject]:
    """Return the secrets of a request with their values; none where another worker has read it."""
    secrets = use.private.get("domain_secrets")
    return [each for each in secrets if isinstance(each, dict)] if isinstance(secrets, list) else ()


def told_of_network(network: NetworkRecord | None, offline: str) -> str:
    """Return what the model is told of what its container reaches; `offline` where that is nothing."""
    if network is None:
        return offline
    secrets = (_SECRET.format(name=each.name, domain=each.domain) for each in network.secrets)
    return _REACHED.format(domains=", ".join(network.allowed_domains)) + "".join(secrets)
