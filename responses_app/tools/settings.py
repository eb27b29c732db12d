"""The settings of the tools that the server runs (MCP servers, searches and images), and of the images in requests.

MCP_SERVERS says how the operator's servers are reached:

    MCP_SERVERS={"wiki": "https://wiki.internal/mcp",
                 "files": {"command": "npx", "args": ["-y", "server-filesystem", "/srv/shared"]},
                 "crm": {"url": "https://crm.internal/sse", "transport": "sse", "headers": {"X-Key": "…"}}}

It may be a file with that JSON, too, also in the form of other programs (`{"mcpServers": {…}}`).
"""

import json
import re
import shlex
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from responses_app.protocol.requests.server_tools import LABEL, RESERVED_LABELS
from responses_app.protocol.setting import KIB, MIB, RoomSettings, flag, seconds, setting, text, whole
from responses_app.tools.network import NOTHING_ALLOWED, AllowedHosts, hosts, operator_url

SERVERS_WANTED = (
    'a JSON object of servers, like {"wiki": "https://wiki.internal/mcp", "files": {"command": "npx", "args": ["…"]}}, '
    "or a file with one"
)
DDGS = "ddgs+"  # before the URL of a server of `ddgs`
TransportKind = Literal["http", "sse", "stdio", "inside"]
_SERVER_FIELDS = {"url", "headers", "command", "args", "env", "transport", "type"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """How an MCP server is reached: at a URL, by a command that is started here, or inside of this process."""

    transport: TransportKind
    url: str = ""  # of HTTP; "" for a command
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent with each request; may hold keys
    command: tuple[str, ...] = ()  # the program and its arguments; of a server inside, its label
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the command, beside the usual one
    make: Callable[[str], Any] | None = (
        None  # of a server inside: makes the one of a project, an `mcp.server.MCPServer`
    )

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
        # JSON begins with a brace; anything else is the path of a file.
        parsed = json.loads(text if text.startswith("{") else Path(text).read_text())
    except (OSError, ValueError):
        raise ValueError(SERVERS_WANTED) from None
    if not isinstance(parsed, dict):
        raise ValueError(SERVERS_WANTED)
    # The form of other programs has the servers one level deeper.
    servers = parsed.get("mcpServers", parsed)
    if not isinstance(servers, dict):
        raise ValueError(SERVERS_WANTED)
    return {label: _server(label, each) for label, each in servers.items()}


def allowed_with(servers: Mapping[str, ServerAccess], allowed: AllowedHosts) -> AllowedHosts:
    """Return the hosts that may be reached: those that are allowed, and those of the operator's own servers."""
    own = [AllowedHosts.of_url(server.url) for server in servers.values() if server.url]
    return AllowedHosts(allowed.names.union(*(each.names for each in own)), allowed.networks)


def _server(label: str, entry: object) -> ServerAccess:
    if not re.fullmatch(LABEL, label) or label in RESERVED_LABELS:
        raise ValueError(f"{SERVERS_WANTED}; {label[:64]!r} cannot be a label")
    if isinstance(entry, str):
        key = "url" if entry.startswith(("http://", "https://")) else "command"
        entry = {key: entry}
    if not isinstance(entry, dict) or not set(entry) <= _SERVER_FIELDS or ("url" in entry) == ("command" in entry):
        raise ValueError(f"{SERVERS_WANTED}; {label!r} has a 'url' or a 'command'")
    if "command" in entry:
        command, arguments = entry["command"], entry.get("args", [])
        if not isinstance(command, str) or not isinstance(arguments, list):
            raise ValueError(
                f"{SERVERS_WANTED}; {label!r} has a command, which is text, and 'args', which are an array"
            )
        # With arguments the command is the program alone; without, it is read as a shell would.
        words = (command, *map(str, arguments)) if arguments else tuple(shlex.split(command))
        if not words:
            raise ValueError(f"{SERVERS_WANTED}; {label!r} has an empty command")
        return ServerAccess(transport="stdio", command=words, env=_texts(label, entry.get("env")))
    url, kind = entry["url"], str(entry.get("transport", entry.get("type", "http")))
    if (
        not isinstance(url, str)
        or operator_url(url) != url.rstrip("/")
        or kind not in ("http", "streamable-http", "sse")
    ):
        raise ValueError(f"{SERVERS_WANTED}; {label!r} has a url, and as its 'transport' http or sse")
    return ServerAccess(
        transport="sse" if kind == "sse" else "http", url=url, headers=_texts(label, entry.get("headers"))
    )


def _texts(label: str, texts: object) -> dict[str, str]:
    if texts is None:
        return {}
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        raise ValueError(f"{SERVERS_WANTED}; the headers and the env of {label!r} are objects of texts")
    return texts


@dataclass(frozen=True, kw_only=True)
class McpSettings(RoomSettings):
    """The settings of MCP servers."""

    server_tool_seconds: float = setting(
        120.0, seconds(1), "how long a call of a tool run by the server may go without progress; then it fails"
    )
    mcp_servers: Mapping[str, ServerAccess] = setting(
        {}, parse_servers,
        "MCP servers by label, as JSON or as the path of a JSON file (see MCP servers)",
        default_text="unset: none", secret=True,
    )  # fmt: skip
    mcp_server_urls: bool = setting(
        True, flag, "allow requests to use MCP servers by URL, besides those of MCP_SERVERS"
    )
    mcp_allowed_hosts: AllowedHosts = setting(
        NOTHING_ALLOWED, hosts,
        "hosts in private networks that MCP URLs in requests may name: `mcp.internal,127.0.0.1:8900`",
        default_text="unset: none",
    )  # fmt: skip


def mcp_tool(value: str) -> str:
    """The label of an MCP server, or a tool of it."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}(?:\.[^\s.]\S{0,127})?", value.strip()):
        raise ValueError("the label of an MCP server, or label.tool, like brave.brave_web_search")
    return value.strip()


def mcp_problem(name: str, value: str, servers: Container[str]) -> str | None:
    """Return why a setting that `mcp_tool` has read names no server; None where it does, or is not set."""
    if value and value.partition(".")[0] not in servers:
        return f"{name}={value} names no server of MCP_SERVERS."
    return None


def search_url(value: str) -> str:
    """The URL of a search server."""
    kind = DDGS if value.strip().startswith(DDGS) else ""
    url = operator_url(value.strip().removeprefix(DDGS))
    if url is None:
        raise ValueError(
            "the URL of a SearXNG, like http://searxng:8080, or ddgs+http://127.0.0.1:8000 for one of ddgs"
        )
    return kind + url


@dataclass(frozen=True, kw_only=True)
class SearchSettings(McpSettings):
    """The settings of web searches, and of the pages that they open."""

    search_url: str = setting(
        "", search_url,
        "search engine of `web_search`: the URL of a SearXNG, or with `ddgs+http://…` of a ddgs server (see Web "
        "search)",
        default_text="unset: no web search",
    )  # fmt: skip
    search_mcp: str = setting(
        "", mcp_tool,
        "MCP server of MCP_SERVERS, or one tool of it, that does the searches of `web_search`: "
        "`brave.brave_web_search`",
        default_text="unset",
    )  # fmt: skip
    search_allowed_hosts: AllowedHosts = setting(
        NOTHING_ALLOWED, hosts,
        "hosts in private networks whose pages `web_search` may open: `wiki.internal,10.1.0.0/16`",
        default_text="unset: none",
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return what does not fit together."""
        if self.search_url and self.search_mcp:
            return "SEARCH_URL and SEARCH_MCP are both set: one of them is enough."
        return mcp_problem("SEARCH_MCP", self.search_mcp, self.mcp_servers)


def image_url(value: str) -> str:
    """The URL of an image service."""
    url = operator_url(value)
    if url is None:
        raise ValueError("the URL of a service with OpenAI's Images API, like http://127.0.0.1:8188/v1")
    # The operator may have named the whole path.
    return url.removesuffix("/generations").removesuffix("/images")


@dataclass(frozen=True, kw_only=True)
class ImageSettings(RoomSettings):
    """The settings of the service that makes images."""

    image_service_url: str = setting(
        "", image_url,
        "URL of a service with OpenAI's Images API that generates the images of `image_generation`: "
        "`http://127.0.0.1:8188/v1` (see Image generation)",
        default_text="unset: no image generation",
    )  # fmt: skip
    image_service_key: str = setting(
        "", text, "API key of the service at IMAGE_SERVICE_URL", default_text="unset", secret=True
    )
    image_service_model: str = setting(
        "", text,
        "model of the service at IMAGE_SERVICE_URL that is always used, whatever requests ask for",
        default_text="unset: what a request says",
    )  # fmt: skip
    image_service_seconds: float = setting(
        180.0, seconds(1), "timeout of the service at IMAGE_SERVICE_URL for one image"
    )
    image_max_bytes: int = setting(8 * MIB, whole(64 * KIB), "largest image that is generated, or accepted for editing")


OFF = "off"  # of FILE_SEARCH_EMBEDDING_MODEL


@dataclass(frozen=True, kw_only=True)
class MeaningSettings(RoomSettings):
    """Whether file search uses an embedding model, and how long that may take."""

    file_search_embedding_model: str = setting(
        "", text,
        "the embedding model that file search uses, by the name that clients know; `off`: words alone are searched "
        "(see File search)",
        default_text="the first embedding model that is not the demo's",
    )  # fmt: skip
    file_search_query_seconds: float = setting(
        2.0, seconds(0.01), "how long a search may wait for the vector of its query; then words alone are searched"
    )
    file_search_embedding_seconds: float = setting(
        60.0, seconds(0.1),
        "how long the embedding model may take for some chunks of a file, after waiting as long for its turn; the "
        "chunks of a worker that died are another's after twice this time and 10 s",
    )  # fmt: skip
    file_search_embedding_at_once: int = setting(
        1, whole(1, 64), "files whose chunks a worker embeds at once, in the background"
    )


@dataclass(frozen=True, kw_only=True)
class PictureSettings(RoomSettings):
    """How much of the images in requests is read, where the model sees."""

    refuse_images: bool = setting(
        False, flag, "refuse images if the model has no vision; `off` tells the model that an image was left out"
    )
    input_images_max: int = setting(100, whole(1), "images in one request, including those of its history")
    input_image_max_bytes: int = setting(20 * MIB, whole(KIB), "largest image in a request, as it was sent")
    input_image_max_pixels: int = setting(
        50_000_000, whole(64 * 64, 100_000_000), "largest image in a request, in pixels: width times height"
    )
    input_images_allowed_hosts: AllowedHosts = setting(
        NOTHING_ALLOWED, hosts,
        "hosts in private networks that image URLs in requests may name: `images.internal,10.1.0.0/16`",
        default_text="unset: none",
    )  # fmt: skip
    input_images_memory_bytes: int = setting(
        128 * MIB, whole(0),
        "memory of one worker for recently used images; images of stored responses are read again when needed",
    )  # fmt: skip
