"""The MCP servers that the operator has configured, and how any server is reached.

    MCP_SERVERS={"wiki": "https://wiki.internal/mcp",
                 "files": {"command": "npx", "args": ["-y", "server-filesystem", "/srv/shared"]},
                 "crm": {"url": "https://crm.internal/sse", "transport": "sse", "headers": {"X-Key": "…"}}}

It may be a file with that JSON, too, also in the form of other programs (`{"mcpServers": {…}}`).
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from responses_app.protocol.requests.server_tools import LABEL, RESERVED_LABELS
from responses_app.tools.network import AddressRefused, AllowedHosts

WANTED = (
    'a JSON object of servers, like {"wiki": "https://wiki.internal/mcp", "files": {"command": "npx", "args": ["…"]}}, '
    "or a file with one"
)
TransportKind = Literal["http", "sse", "stdio"]
_FIELDS = {"url", "headers", "command", "args", "env", "transport", "type"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """How a server is reached: at a `url`, with `headers`; or by a `command`, which is started here with `env`."""

    transport: TransportKind
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def host(self) -> str:
        """What stands for it in the log: never a path or a query, which may hold credentials."""
        try:
            return urlsplit(self.url).hostname or self.command[0]
        except ValueError:
            return "an address that is none"


def parse_servers(value: str) -> dict[str, ServerAccess]:
    """Read MCP_SERVERS. Raises `ValueError`, whose text says what it takes and shows nothing of it."""
    text = value.strip()
    try:
        parsed = json.loads(text if text.startswith("{") else Path(text).read_text())
    except (OSError, ValueError):
        raise ValueError(WANTED) from None
    if not isinstance(parsed, dict):
        raise ValueError(WANTED)
    servers = parsed.get("mcpServers", parsed)
    if not isinstance(servers, dict):
        raise ValueError(WANTED)
    return {label: _server(label, each) for label, each in servers.items()}


def allowed_with(servers: Mapping[str, ServerAccess], allowed: AllowedHosts) -> AllowedHosts:
    """Return the hosts that may be reached: those that are allowed, and those of the operator's own servers."""
    own = [AllowedHosts.of_url(server.url) for server in servers.values() if server.url]
    return AllowedHosts(allowed.names.union(*(each.names for each in own)), allowed.networks)


def _server(label: str, given: object) -> ServerAccess:
    if not re.fullmatch(LABEL, label) or label in RESERVED_LABELS:
        raise ValueError(f"{WANTED}; {label[:64]!r} cannot be a label")
    if isinstance(given, str):
        key = "url" if given.startswith(("http://", "https://")) else "command"
        given = {key: given}
    if not isinstance(given, dict) or not set(given) <= _FIELDS or ("url" in given) == ("command" in given):
        raise ValueError(f"{WANTED}; {label!r} has a 'url' or a 'command'")
    if "command" in given:
        return _started(label, given)
    url, kind = given["url"], str(given.get("transport", given.get("type", "http")))
    if not isinstance(url, str) or not _is_url(url) or kind not in ("http", "streamable-http", "sse"):
        raise ValueError(f"{WANTED}; {label!r} has a url, and as its 'transport' http or sse")
    return ServerAccess(
        transport="sse" if kind == "sse" else "http", url=url, headers=_texts(label, given.get("headers"))
    )


def _started(label: str, given: Mapping[str, Any]) -> ServerAccess:
    command, arguments = given["command"], given.get("args", [])
    if not isinstance(command, str) or not isinstance(arguments, list):
        raise ValueError(f"{WANTED}; {label!r} has a command, which is text, and 'args', which are an array")
    words = (command, *map(str, arguments)) if arguments else tuple(shlex.split(command))
    if not words:
        raise ValueError(f"{WANTED}; {label!r} has an empty command")
    return ServerAccess(transport="stdio", command=words, env=_texts(label, given.get("env")))


def _is_url(url: str) -> bool:
    try:
        AllowedHosts.of_url(url)
    except (ValueError, AddressRefused):
        return False
    return url.startswith(("http://", "https://"))


def _texts(label: str, given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ValueError(f"{WANTED}; the headers and the env of {label!r} are objects of texts")
    return given
