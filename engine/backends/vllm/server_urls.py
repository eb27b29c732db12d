"""What a part of ENGINE_URL may be, and how it is used; also a line of a file of servers.

    http://gpu-1:8001            the URL of a server; https://, a path before /v1 too
    dns+http://vllm:8001         a DNS name, each address of which is a server
    file:///etc/vllm/servers     a file of URLs

What belongs to the API is left out: `https://models.example.com/vllm/v1/` is used as `https://models.example.com/vllm`.
A user or a password is refused: URLs are logged.
"""

from yarl import URL

DNS, FILE = "dns+http://", "file:///"
WANTED = (
    "URLs of vLLM servers, separated by commas, like http://127.0.0.1:8001, dns+http://vllm:8001 for all "
    "addresses of a name, or file:///etc/vllm-servers for a file of URLs"
)


def as_part(given: object) -> str | None:
    """Return a part of ENGINE_URL as it is used, None for what names nothing."""
    if not isinstance(given, str):
        return None
    if given.startswith(FILE):
        return given if len(given) > len(FILE) else None
    if given.startswith(DNS):
        url = as_server(given.removeprefix("dns+"))
        return None if url is None else f"dns+{url}"
    return as_server(given)


def as_server(given: str) -> str | None:
    """Return the URL of a server as it is used, None for what cannot be one."""
    try:
        url = URL(given)
        is_one = url.scheme in ("http", "https") and bool(url.host) and url.port is not None and not url.query_string
    except ValueError:
        return None
    return given.rstrip("/").removesuffix("/v1") if is_one and not has_secret(given) else None


def has_secret(given: object) -> bool:
    """Whether a URL has a user or a password in it."""
    try:
        return isinstance(given, str) and "@" in URL(given).raw_authority
    except ValueError:
        return False
