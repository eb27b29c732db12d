"""The server that a command asks: a base URL, as SDKs have it, and a key; its JSON; how commands end where that fails.

Nothing here loads aiohttp before a request is made.
"""

import json
import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from engine.errors import reason_of

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

FAILED = 1
USAGE = 2  # argparse's own
INTERRUPTED = 130  # what shells say of a program that Ctrl-C ended


class CommandFailed(Exception):
    """A command cannot go on. The text is for the person who typed it: what is wrong, and what to do."""

    def __init__(self, text: str, *, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status


DEFAULT_URL = "http://127.0.0.1:8000/v1"
KEY_VARIABLE = "RESPSITE_API_KEY"
CONNECT_SECONDS = 10.0
MAX_ERROR_BYTES = 64 * 1024  # of an answer that is not a success, read for its message
MAX_LINE = 64 * 1024 * 1024  # bytes of an answer, or of an event: it may hold a whole response, with its images
MAX_NUMBER = 100_000_000


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server that a command asks."""

    base_url: str  # without a slash at its end
    key: str = ""  # "" for none
    variable: str = KEY_VARIABLE  # the environment variable that the key stood in

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def websocket_url(self) -> str:
        """Where `/responses` is upgraded: `ws:` for `http:`, `wss:` for `https:`."""
        return f"ws{self.base_url.removeprefix('http')}/responses"

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, which no proxy is asked for."""
        host = urlsplit(self.base_url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

    def unreachable(self, error: BaseException) -> CommandFailed:
        """Return the error of a server that does not answer."""
        start = " Start one with `respsite serve`, or name another with --url." if self.is_here else " Check the URL."
        return CommandFailed(f"{self.base_url} cannot be reached ({reason_of(error)}).{start}")

    def refused(self, status: int, body: object) -> CommandFailed:
        """Return the error that an answer tells, in the server's own words; `body` is None without any."""
        reason = f": {message_of(body).rstrip('.')}" if body else ""
        return CommandFailed(f"{self.base_url} answered {status}{reason}.{self._advice(status, body)}")

    def _advice(self, status: int, body: object) -> str:
        if status in (401, 403):
            has = "is refused" if self.key else "is not set"
            return f" The key is taken from the environment variable {self.variable}, which {has}."
        if status == 404 and not isinstance(body, Mapping):  # not an API's own answer
            return " Does the base URL end as it should, with /v1 in most cases?"
        return ""


def message_of(body: object) -> str:
    """Return the message of an error, as OpenAI's APIs word it, else the beginning of what came."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message)[:500] if message else "no reason was given."


def add_endpoint(parser: ArgumentParser, *, url_flag: bool = True) -> None:
    """Take what an endpoint is made of."""
    if url_flag:
        parser.add_argument("--url", help=f"the server's base URL (default: OPENAI_BASE_URL, else {DEFAULT_URL})")
    parser.add_argument(
        "--key-variable", default=KEY_VARIABLE, metavar="NAME",
        help="the environment variable with the API key (default: %(default)s); it may be unset",
    )  # fmt: skip


def whole_number(text: str) -> int:
    """Return an argument that counts tokens or rows."""
    if not text.isdecimal() or not 0 < int(text) <= MAX_NUMBER:
        raise ArgumentTypeError(f"a whole number of at least 1 and at most {MAX_NUMBER}")
    return int(text)


def endpoint_of(url: str | None, variable: str) -> RemoteServer:
    """Return the endpoint. A URL without a path gets `/v1`. Raises `CommandFailed`."""
    chosen = (url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL).rstrip("/")
    parts = urlsplit(chosen)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandFailed(f"{chosen} is not a base URL: it looks like {DEFAULT_URL}.", status=USAGE)
    return RemoteServer(chosen if parts.path else f"{chosen}/v1", os.environ.get(variable, ""), variable)


def session_options(endpoint: RemoteServer) -> dict[str, Any]:
    """Return the arguments of an `aiohttp.ClientSession` for it."""
    from aiohttp import ClientTimeout

    # A stream may take as long as it likes.
    timeout = ClientTimeout(total=None, connect=CONNECT_SECONDS)
    return {"headers": endpoint.headers, "timeout": timeout, "trust_env": not endpoint.is_here}


async def fetch(
    session: "ClientSession", endpoint: RemoteServer, path: str, method: str = "GET", **parameters: Any
) -> dict[str, Any]:
    """Return the JSON object that a path answers; `parameters` are aiohttp's. Raises `CommandFailed`."""
    from aiohttp import ClientError

    try:
        async with session.request(method, f"{endpoint.base_url}{path}", **parameters) as answer:
            if answer.status != 200:
                raise endpoint.refused(answer.status, await body_of(answer))
            raw = bytearray()
            async for chunk in answer.content.iter_any():
                raw += chunk
                if len(raw) > MAX_LINE:
                    raise CommandFailed(f"{endpoint.base_url}{path} answered with more than {MAX_LINE} bytes.")
            body = json.loads(raw)
    except (ClientError, OSError) as error:
        raise endpoint.unreachable(error) from None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise CommandFailed(f"{endpoint.base_url}{path} did not answer with a JSON object.")
    return body


async def body_of(answer: "ClientResponse") -> object:
    """Return the JSON of a short answer, or its text where it is none."""
    raw = await answer.content.read(MAX_ERROR_BYTES)
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace").strip()
