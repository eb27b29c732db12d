"""What a model server answers, whichever it is: errors, and generations whose chunks come as server-sent events.

Nothing here does I/O; `engine.backends.client` has the connections.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from engine import orjson
from engine.errors import GenerationFailed
from engine.types import TokenChunk

JsonObject = dict[str, Any]

# The buffer of a stream holds one event at most.
MAX_LINE = 16 * 1024 * 1024  # bytes of one event; the first one of a completion of vLLM's repeats the prompt
MAX_TEXT = 300  # characters of a server's own words in a message of ours


class Refusal(Exception):
    """A server answered with an error; `status` is HTTP's, or the code of an error inside a stream."""

    def __init__(self, status: int, text: str, *, retry_after: int | None = None) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text
        self.retry_after = retry_after


class AnswerReader(ABC):
    """Turns the bytes of one answer into chunks, however they are cut."""

    def __init__(self) -> None:
        self._last: TokenChunk | None = None  # the chunk with the finish reason; None until it has come

    @property
    def finished(self) -> bool:
        """Whether a finish reason has come; the usage may come after it."""
        return self._last is not None

    @abstractmethod
    def feed(self, data: bytes) -> Iterator[TokenChunk]:
        """Yield the chunks that `data` completes, all but the last one; iterate to the end.

        Raises `Refusal` for an error in the answer, `GenerationFailed` for what no server of this kind says.
        """

    def end(self) -> bool:
        """Say whether the answer may end here, where no more bytes come. Raises as `feed` does."""
        return False

    def last(self) -> TokenChunk:
        """Return the chunk with the finish reason."""
        assert self._last is not None, "asked for before it was there"
        return self._last


class WholeBytes:
    """Collects the bytes of an answer that is not streamed: at most `most`. Errors name the `server` that sends it."""

    def __init__(self, server: str, most: int) -> None:
        self._server = server
        self._most = most
        self._parts: list[bytes] = []  # joined in `take`
        self._size = 0

    def add(self, data: bytes) -> None:
        """Keep `data`. Raises `GenerationFailed` for more than such a server would send."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._most:
            raise GenerationFailed(f"{self._server} sent an answer of more than {self._most} bytes.")

    def take(self) -> bytes:
        """Return all of it, and let go of it: parsed, it takes as much memory again."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


class EventLines:
    """Divides the bytes of a stream into events. Each is on one line, as vLLM and llama.cpp write them."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []  # of a line whose end has not come
        self._kept_bytes = 0  # of all of `_kept`

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that `data` completes. Raises `GenerationFailed` for a line without end."""
        lines, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep(data)
            return []
        # Parts are joined once a line ends. Joining at each `feed` would take a time that grows with its square.
        whole = b"".join((*self._kept, lines))
        self._kept, self._kept_bytes = [], 0
        self._keep(rest)
        return [line[5:] for line in whole.split(b"\n") if line.startswith(b"data:")]

    def _keep(self, part: bytes) -> None:
        if not part:
            return
        self._kept.append(part)
        self._kept_bytes += len(part)
        if self._kept_bytes > MAX_LINE:
            raise GenerationFailed(f"The engine's server sent a line of more than {MAX_LINE} bytes.")


def error_text(content: bytes) -> str:
    """Return what the body of an error says; `{"error": {"message"}}` is vLLM's own form."""
    try:
        message = orjson.loads(content)
    except ValueError:
        return shown(content)
    # Each server, gateway and framework has another form: vLLM's, a plain message, FastAPI's `detail`.
    if isinstance(message, dict):
        message = message.get("error") or message.get("message") or message.get("detail") or message
    if isinstance(message, dict):
        message = message.get("message") or message
    return shown(str(message))


def shown(text: str | bytes) -> str:
    """Return text from outside as one short line for a log."""
    # Cut first, as most of a long page is never shown; four times as long, as white space goes.
    beginning = text[: 4 * MAX_TEXT]
    if isinstance(beginning, bytes):
        beginning = beginning.decode(errors="replace")
    line = " ".join("".join(each if each.isprintable() else " " for each in beginning).split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"


def refusal_in(message: JsonObject) -> Refusal:
    """Return the error that an answer of status 200 has in it."""
    error = message["error"]
    code = error.get("code") if isinstance(error, dict) else None
    # Some errors carry a text as their code ("invalid_api_key"): they count as the server's own.
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    return Refusal(status, error_text(orjson.dumps(message)))
