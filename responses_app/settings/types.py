"""How settings are read: each of these takes the text of a variable, and returns its value.

Raises `ValueError` for what is not one, with what the variable takes: the end of a sentence.
"""

import re
import socket
from collections.abc import Mapping
from pathlib import Path

from engine.backends.vllm.server_urls import WANTED, as_part, as_server, has_secret
from responses_app.protocol.events.dialects import PRESETS, Dialect, parse_dialect
from responses_app.protocol.setting import choice
from responses_app.protocol.tiers import QueueBounds, queue_bounds
from responses_app.tools.network import AddressRefused, AllowedHosts


def search_url(value: str) -> str:
    """The URL of a search server."""
    url = value.strip().rstrip("/")
    try:
        AllowedHosts.of_url(url.removeprefix("ddgs+"))
    except (ValueError, AddressRefused):
        url = ""
    if not url.startswith(("http://", "https://", "ddgs+http://", "ddgs+https://")):
        raise ValueError(
            "the URL of a SearXNG, like http://searxng:8080, or ddgs+http://127.0.0.1:8000 for one of ddgs"
        )
    return url


def mcp_tool(value: str) -> str:
    """The label of an MCP server, or a tool of it."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}(?:\.[^\s.]\S{0,127})?", value.strip()):
        raise ValueError("the label of an MCP server, or label.tool, like brave.brave_web_search")
    return value.strip()


def sandbox(value: str) -> str:
    """What keeps code apart."""
    if value.strip().lower() == "pyeryx":
        raise ValueError("one of auto, bubblewrap, sandlock, off; pyeryx has no package for the Python of this server")
    return choice("auto", "bubblewrap", "sandlock", "off")(value)


def secrets(value: str) -> tuple[str, ...]:
    """Secrets that are long enough."""
    secrets = tuple(secret.strip() for secret in value.split(",") if secret.strip())
    if not secrets or min(map(len, secrets)) < 16:
        raise ValueError("secrets of at least 16 characters, separated by commas")
    return secrets


def queued(value: str) -> QueueBounds:
    """How many of each service tier may wait."""
    try:
        return queue_bounds(value)
    except ValueError:
        raise ValueError("a whole number of at least 0, and others for some tiers, like 1000,flex=5000") from None


def dialect(value: str) -> Dialect:
    """Presets and switches of a dialect."""
    try:
        return parse_dialect(value)
    except ValueError:
        names = ", ".join(PRESETS)
        raise ValueError(f"the presets {names}, and switches (see Dialects), separated by commas") from None


def origins(value: str) -> tuple[str, ...]:
    """Origins of pages that the server itself has."""
    origins = tuple(origin.strip().rstrip("/") for origin in value.split(",") if origin.strip())
    if not origins or not all(origin.startswith(("http://", "https://")) for origin in origins):
        raise ValueError("origins with their scheme, separated by commas, like https://models.example.com")
    return origins


def pages(value: str) -> tuple[str, ...]:
    """Origins of web pages."""
    pages = tuple(page.strip().rstrip("/").lower() for page in value.split(",") if page.strip())
    if not pages or not all(re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s@?#*]+", page) for page in pages):
        raise ValueError("origins with their scheme, separated by commas, like http://localhost:3000, or * for any")
    return pages


def urls(value: str) -> tuple[str, ...]:
    """Parts of ENGINE_URL. One with a password is left to the engine, whose sentence about it does not show it."""
    given = [part.strip() for part in value.split(",") if part.strip()]
    parts = [part if has_secret(part) else as_part(part) for part in given]
    named = tuple(part for part in parts if part is not None)
    if not named or len(named) < len(given):
        raise ValueError(WANTED)
    return named


def server_urls(value: str) -> tuple[str, ...]:
    """URLs of servers alone: no names that stand for several, and no files. One with a password is left as above."""
    given = [part.strip() for part in value.split(",") if part.strip()]
    parts = [part if has_secret(part) else as_server(part) for part in given]
    named = tuple(part for part in parts if part is not None)
    if not named or len(named) < len(given):
        raise ValueError("URLs of vLLM servers, separated by commas, like http://127.0.0.1:8002")
    return named


def secret(name: str, environ: Mapping[str, str]) -> str:
    """Return what the variable of a secret says, or what is in the file that `NAME_FILE` names.

    Raises `ValueError` with a whole sentence.
    """
    raw, file = environ.get(name, ""), environ.get(f"{name}_FILE", "").strip()
    if not file:
        return raw
    if raw.strip():
        raise ValueError(f"{name} and {name}_FILE are both set: one of them is enough.")
    try:
        content = Path(file).read_text()
    except (OSError, ValueError) as error:  # ValueError: not text
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"{name}_FILE={file} cannot be read ({reason}).") from None
    if not content.strip():
        raise ValueError(f"{name}_FILE={file} is empty.")
    return content


def resolves(host: str) -> bool:
    """Whether an address is one: some shells export HOST as the machine's name, which need not be."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
