"""The settings: one environment variable each, read once, here and nowhere else.

Each room declares its own (`protocol/setting.py` says how), and those of the rooms above this one are declared here.
`respsite/settings.py` calls `from_environ` and puts the result into Django's settings as `RESPSITE`; each
room is handed its own. A wrong value raises `ConfigurationError` with one sentence that names the variable,
the value and what it takes. Imports no Django, so that a broken setting is told before anything else happens.
"""

import re
import socket
from collections.abc import Container, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from responses_app.observing.traces import can_be_exported
from responses_app.protocol.events.dialects import OPENAI, PRESETS, Dialect, parse_dialect
from responses_app.protocol.session.session import SessionSettings
from responses_app.protocol.setting import (
    KIB,
    MIB,
    RoomSettings,
    choice,
    flag,
    names,
    seconds,
    setting,
    text,
    url_of,
    whole,
)
from responses_app.protocol.transport import HeaderSettings
from responses_app.runs.plan.settings import RunSettings
from responses_app.settings.models import EmbeddingSettings, EngineSettings
from responses_app.stores.files import FileSettings
from responses_app.stores.vector_stores import VectorStoreSettings
from responses_app.tools.sandbox.base import SandboxSettings
from responses_app.tools.settings import ImageSettings, McpSettings, PictureSettings, SearchSettings, mcp_tool


def dialect(value: str) -> Dialect:
    """Presets and switches of a dialect."""
    try:
        return parse_dialect(value)
    except ValueError:
        names = ", ".join(PRESETS)
        raise ValueError(f"the presets {names}, and switches (see Dialects), separated by commas") from None


def pages(value: str) -> tuple[str, ...]:
    """Origins of web pages."""
    pages = tuple(page.strip().rstrip("/").lower() for page in value.split(",") if page.strip())
    # `*`, or a scheme and a host with or without a port: "http://localhost:3000", "chrome-extension://abc".
    if not pages or not all(re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s@?#*]+", page) for page in pages):
        raise ValueError("origins with their scheme, separated by commas, like http://localhost:3000, or * for any")
    return pages


def origins(value: str) -> tuple[str, ...]:
    """Origins of pages that the server itself has."""
    origins = tuple(origin.strip().rstrip("/") for origin in value.split(",") if origin.strip())
    if not origins or not all(origin.startswith(("http://", "https://")) for origin in origins):
        raise ValueError("origins with their scheme, separated by commas, like https://models.example.com")
    return origins


def resolves(host: str) -> bool:
    """Whether an address is one: some shells export HOST as the machine's name, which need not be."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def secrets(value: str) -> tuple[str, ...]:
    """Secrets that are long enough."""
    secrets = tuple(secret.strip() for secret in value.split(",") if secret.strip())
    if not secrets or min(map(len, secrets)) < 16:
        raise ValueError("secrets of at least 16 characters, separated by commas")
    return secrets


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


@dataclass(frozen=True, kw_only=True)
class ToolSettings(McpSettings, SandboxSettings, SearchSettings):
    """The settings of tools that may go through MCP servers, and what of them does not fit together."""

    sandbox_mcp: str = setting(
        "", mcp_tool,
        "a server of MCP_SERVERS, or one tool of it, that runs the model's code in place of a sandbox on this "
        "machine",
        default_text="unset",
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return what does not fit together."""
        if self.search_url and self.search_mcp:
            return "SEARCH_URL and SEARCH_MCP are both set: one of them is enough."
        if self.sandbox_mcp and self.sandbox not in ("auto", "off"):
            return "SANDBOX and SANDBOX_MCP are both set: one of them is enough."
        for name, value in (("SEARCH_MCP", self.search_mcp), ("SANDBOX_MCP", self.sandbox_mcp)):
            if value and value.partition(".")[0] not in self.mcp_servers:
                return f"{name}={value} names no server of MCP_SERVERS."
        return None


class ConfigurationError(Exception):
    """A setting is wrong; the text is one sentence for the operator."""


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # as `Host` headers name this machine


@dataclass(frozen=True, kw_only=True)
class Settings(
    SessionSettings,
    RunSettings,
    FileSettings,
    VectorStoreSettings,
    EngineSettings,
    EmbeddingSettings,
    ToolSettings,
    ImageSettings,
    PictureSettings,
    HeaderSettings,
):
    """Every setting; a field's name in capitals is its environment variable."""

    host: str = setting("127.0.0.1", text, "address that `make run` and `respsite serve` listen on")
    port: int = setting(8000, whole(1, 65535), "port that `make run` and `respsite serve` listen on")
    debug: bool = setting(
        False, flag, "Django's debug mode, which shows code to whoever meets an error; never on a network"
    )
    data_dir: str = setting(
        "var", text,
        "folder of what the server keeps in files: the SQLite database, the secret key, the sandbox's containers",
    )  # fmt: skip
    workers: int = setting(
        1, whole(1, 1000), "processes that `make run` and `respsite serve` answer with (see Several workers)"
    )
    worker_max_memory_bytes: int = setting(
        0, whole(0),
        "memory of one worker; one that holds more is replaced by a new one, when there are several; 0 = any size",
    )  # fmt: skip
    worker_start_seconds: float = setting(
        120.0, seconds(1),
        "how long a worker may take until it is ready; one that takes longer is given up, where there are others",
    )  # fmt: skip
    worker_silence_seconds: float = setting(
        30.0, seconds(), "how long a worker may stand still; then it is killed and replaced; 0 = for ever"
    )
    secret_key: str = setting(
        "", text,
        "Django's secret key, which signs sessions; servers that share a database must share it",
        default_text="made once, in DATA_DIR/secret_key", secret=True,
    )  # fmt: skip
    database_url: str = setting(
        "", url_of("sqlite:///path or postgres://user:password@host/name", "sqlite:", "postgres:", "postgresql:"),
        "the database: `sqlite:///…` or `postgres://user:password@host/name`",
        default_text="sqlite:///DATA_DIR/respsite.sqlite3", secret=True,
    )  # fmt: skip
    database_timeout_seconds: float = setting(
        10.0, seconds(0.1), "how long one question to the database may take; then the client gets a 503"
    )
    redis_url: str = setting(
        "", url_of("redis://host:6379/0 (or rediss://, unix://)", "redis://", "rediss://", "unix://"),
        "Redis, where several workers share limits and turns of chats, and by which they reach each other: `redis://host:6379/0`",
        default_text="unset: in memory", secret=True,
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = setting(
        LOOPBACK, names,
        "host names by which clients may reach the server; needed when HOST is not this machine alone",
        default_text="localhost,127.0.0.1,[::1]",
    )  # fmt: skip
    allowed_origins: tuple[str, ...] = setting(
        (), pages,
        "web pages, besides the server's own, that may use the server from a browser: `http://localhost:3000`",
        default_text="unset",
    )  # fmt: skip
    auth: str = setting(
        "auto", choice("auto", "on", "off"),
        "whether clients need an API key: `auto` asks for one unless only this machine can reach the server",
    )  # fmt: skip
    csrf_trusted_origins: tuple[str, ...] = setting(
        (), origins,
        "addresses under which people open the admin behind a proxy with TLS: `https://models.example.com`",
        default_text="unset",
    )  # fmt: skip
    behind_proxy: str = setting(
        "no", choice("no", "http", "tls"),
        "whether a proxy stands in front (`http` or `tls`): its `X-Forwarded-For` and `X-Forwarded-Proto` count "
        "then, and every request needs a key; `tls` says that browsers use HTTPS",
    )  # fmt: skip
    admin_login_failures: int = setting(
        10, whole(1), "failed logins to the admin as one user, or from one address, until they are locked"
    )
    admin_login_lock_seconds: float = setting(
        900.0, seconds(1), "how long a user or an address is locked out of the admin, from the last failed login"
    )
    log_level: str = setting(
        "info", choice("debug", "info", "warning", "error"), "the least important messages that are logged"
    )
    log_format: str = setting(
        "line", choice("line", "json"), "form of the log: plain lines, or with `json` a JSON object a line"
    )
    metrics: str = setting(
        "auto", choice("auto", "public", "off"),
        "who may read `/metrics`: who may use the API or has a key for it (`auto`), everybody (`public`), nobody "
        "(`off`; see Watching it)",
    )  # fmt: skip
    metrics_dir: str = setting(
        "", text, "folder where workers behind one address share their metrics", default_text="unset: each has its own"
    )

    traces: bool = setting(False, flag, "send traces of responses with OpenTelemetry (see Traces)")

    max_websocket_connections: int = setting(
        100, whole(1),
        "WebSockets that are open at once, in all workers that share a Redis; one more is closed with a 429",
    )  # fmt: skip
    websocket_max_message_bytes: int = setting(
        32 * MIB, whole(KIB), "largest message that a client may send on a WebSocket"
    )
    websocket_max_unfinished_bytes: int = setting(
        128 * MIB, whole(KIB),
        "memory of one worker for messages on WebSockets that have not arrived whole, of all connections together",
    )  # fmt: skip
    stream_stall_seconds: float = setting(
        30.0, seconds(0.1), "how long a reader may take no byte of its stream; then it is dropped"
    )
    stream_first_word_ms: int = setting(
        50, whole(0, 60_000),
        "for how many milliseconds the stream of a response over HTTP waits for the engine's first word before it "
        "begins: what the engine refuses in that time is an error with a status; 0 = it begins at once",
    )  # fmt: skip
    max_body_bytes: int = setting(
        32 * MIB, whole(KIB), "largest body of an HTTP request, but for uploads of files (FILE_MAX_BYTES)"
    )
    max_input_items: int = setting(5000, whole(1), "items in the `input` or `messages` of one request")
    max_json_values: int = setting(
        100_000, whole(1000), "JSON values in one request or message: texts, numbers, arrays and objects together"
    )
    request_arrival_seconds: float = setting(
        30.0, seconds(0.1),
        "how long a request may take to arrive; a long body may take as long as 16 KiB a second need",
    )  # fmt: skip
    responses_ping_interval_seconds: float = setting(
        15.0, seconds(), "how often a silent stream gets a sign of life; 0 = never"
    )
    responses_dialect: Dialect = setting(
        OPENAI, dialect,
        "how events are worded: presets and switches, separated by commas (see Dialects)",
        default_text="openai",
    )  # fmt: skip
    unknown_fields: str = setting(
        "ignore", choice("ignore", "refuse"),
        "what becomes of a field of a request that this server does not know: `ignore` serves the request and names "
        "the field in the header `respsite-ignored` (see Fields), `refuse` answers 400, as OpenAI does",
    )  # fmt: skip
    responses_compatibility_mode: bool = setting(
        True, flag,
        "refuse some request fields that only vLLM knows; `off` takes them (see Fields of the engine)",
    )  # fmt: skip
    responses_usage_per_turn: bool = setting(
        False, flag, "add lists of each turn's tokens to `usage`, beside the sums; some clients break on them"
    )
    responses_tool_mode: str = setting(
        "complete", choice("complete", "wait"),
        "what a streamed response does at calls of the client's tools: end (`complete`), or wait for their "
        "outputs (`wait`; see Wait for function outputs in the stream)",
    )  # fmt: skip
    responses_max_tool_output_bytes: int = setting(
        MIB, whole(KIB), "with RESPONSES_TOOL_MODE=wait, the largest output that a running response can be given"
    )
    enable_computer_call: bool = setting(
        False, flag, "show the screenshots of `computer_call_output` in lists of items to clients that include them"
    )
    shutdown_grace_seconds: float = setting(
        30.0, seconds(), "how long running responses may take to end when the server stops"
    )
    conversations_max_entries: int = setting(0, whole(), "conversations that one project may have; 0 = any number")
    playground_sharing: bool = setting(
        False, flag,
        "let whoever may read responses of a project read any chat in the playground by its link, not only those of "
        "its own key or user (see What is kept)",
    )  # fmt: skip
    reasoning_encryption_keys: tuple[str, ...] = setting(
        (), secrets,
        "secrets, separated by commas, that seal what clients carry for the server, like `encrypted_content`: the"
        " first seals, all of them open",
        default_text="made from SECRET_KEY", secret=True,
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return what does not fit together, of the settings above."""
        if self.traces and not can_be_exported():
            return "TRACES=on needs OpenTelemetry: install the extra 'otel' (pip install '.[otel]')."
        if not self.serves_loopback and "allowed_hosts" not in given:
            return (
                f"HOST={self.host} can be reached from the network, so ALLOWED_HOSTS must say which host names clients "
                "use, for example ALLOWED_HOSTS=models.example.com."
            )
        return None

    @property
    def serves_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def serves_others(self) -> bool:
        """Whether others than this machine can reach the server, as far as the settings say."""
        return not self.serves_loopback or self.behind_proxy != "no"

    @property
    def needs_keys(self) -> bool:
        """Whether whoever asks needs an API key, as far as the settings say."""
        return self.auth == "on" or (self.auth == "auto" and self.serves_others)

    @property
    def trusted_pages(self) -> tuple[str, ...]:
        """The origins of web pages that may use the API, besides those with the address that a request went to."""
        return (*self.allowed_origins, *self.csrf_trusted_origins)

    @property
    def database(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{Path(self.data_dir).absolute()}/respsite.sqlite3"


@dataclass(frozen=True)
class SettingRow:
    """A setting as the reference shows it."""

    name: str  # of the environment variable
    default: str  # as it is written there, or a few words where it depends
    about: str  # what it is for


def table() -> list[SettingRow]:
    """Return every setting with its default and what it is for."""
    return [
        SettingRow(each.name.upper(), each.metadata["default_text"] or written(each.default), each.metadata["about"])
        for each in _all()
    ]


def written(value: object) -> str:
    """Return a value as its variable has it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


# The order of the reference: what is read together, however the rooms are that use it. A setting that is missing here
# follows the one above it in its room.
_ORDER = """
    ENGINE ENGINE_URL ENGINE_API_KEY ENGINE_CORE MODEL MODEL_FORMAT TOKENIZER REASONING_PARSER TOOL_PARSER IMAGE_TOKEN
    MODEL_NAME CHAT_TEMPLATE_KWARGS ENGINE_OPTIONS ENGINE_SCRIPT MODELS ENGINE_MAX_RUNNING ENGINE_MAX_QUEUED HOST
    PORT DEBUG DATA_DIR WORKERS WORKER_MAX_MEMORY_BYTES WORKER_START_SECONDS WORKER_SILENCE_SECONDS SECRET_KEY
    DATABASE_URL DATABASE_TIMEOUT_SECONDS DATABASE_PATIENCE_SECONDS REDIS_URL ALLOWED_HOSTS ALLOWED_ORIGINS AUTH
    CSRF_TRUSTED_ORIGINS BEHIND_PROXY ADMIN_LOGIN_FAILURES ADMIN_LOGIN_LOCK_SECONDS LOG_LEVEL LOG_FORMAT METRICS
    METRICS_DIR TRACES MAX_WEBSOCKET_CONNECTIONS WEBSOCKET_LIFETIME_SECONDS WEBSOCKET_WARNING_SECONDS
    WEBSOCKET_GRACE_SECONDS WEBSOCKET_BUSY WEBSOCKET_MAX_MESSAGE_BYTES WEBSOCKET_MAX_UNFINISHED_BYTES
    WEBSOCKET_MAX_QUEUED WEBSOCKET_MAX_STATE_BYTES STREAM_MAX_LAG_BYTES STREAM_STALL_SECONDS STREAM_DELTA_MS
    STREAM_FIRST_WORD_MS MAX_BODY_BYTES MAX_INPUT_ITEMS MAX_JSON_VALUES REQUEST_ARRIVAL_SECONDS
    RESPONSES_PING_INTERVAL_SECONDS RESPONSES_DIALECT UNKNOWN_FIELDS RESPONSES_COMPATIBILITY_MODE
    RESPONSES_USAGE_PER_TURN RESPONSES_TOOL_MODE RESPONSES_TOOL_TIMEOUT RESPONSES_MAX_TOOL_OUTPUT_BYTES
    RESPONSES_MAX_IN_FLIGHT RESPONSES_STORE RESPONSES_STORE_TTL RESPONSES_STORE_MAX_ENTRIES
    RESPONSES_STORE_MAX_BYTES RESPONSES_SESSION_TTL RESPONSES_MAX_ACTIVE_SESSIONS RESPONSES_MAX_SESSION_BYTES
    RESPONSES_MAX_UNSAVED_BYTES RECONNECT_GRACE_SECONDS BACKGROUND_MAX_RUNNING BACKGROUND_MAX_QUEUED
    SHUTDOWN_GRACE_SECONDS WORKER_LEASE_SECONDS CONVERSATIONS_MAX_ENTRIES PLAYGROUND_SHARING REASONING_ENCRYPTION_KEYS
    REASONING_SUMMARIES RESPONSES_DEFAULT_SERVICE_TIER RESPONSES_ALLOWED_SERVICE_TIERS DEFAULT_OPENAI_ORGANIZATION
    DEFAULT_OPENAI_VERSION AZURE_REGION EMBEDDINGS_URL EMBEDDINGS_MODEL EMBEDDINGS_OPTIONS SERVER_TOOL_SECONDS
    SERVER_TOOL_MAX_OUTPUT_BYTES MCP_SERVERS MCP_SERVER_URLS MCP_ALLOWED_HOSTS SANDBOX SANDBOX_MCP SANDBOX_PYTHON
    SANDBOX_MEMORY_BYTES SANDBOX_DISK_BYTES SANDBOX_MAX_PROCESSES SANDBOX_CALL_SECONDS SANDBOX_MAX_CONTAINERS
    SANDBOX_PROJECT_CONTAINERS SANDBOX_WAIT_SECONDS SANDBOX_IDLE_SECONDS SEARCH_URL SEARCH_MCP SEARCH_ALLOWED_HOSTS
    FILE_MAX_BYTES FILES_MAX_ENTRIES UPLOADS_MAX_OPEN FILES_MAX_BYTES FILE_SEARCH VECTOR_STORES_MAX_ENTRIES
    VECTOR_STORE_MAX_FILES VECTOR_STORE_MAX_CHUNKS IMAGE_SERVICE_URL IMAGE_SERVICE_KEY IMAGE_SERVICE_MODEL
    IMAGE_SERVICE_SECONDS IMAGE_MAX_BYTES REFUSE_IMAGES INPUT_IMAGES_MAX INPUT_IMAGE_MAX_BYTES INPUT_IMAGE_MAX_PIXELS
    INPUT_IMAGES_ALLOWED_HOSTS INPUT_IMAGES_MEMORY_BYTES ENABLE_COMPUTER_CALL
""".split()


def _all() -> Sequence["Field[Any]"]:
    """Return every setting, in the order of the reference."""
    # By the variable's name: its place in the reference.
    ordered = {name: place for place, name in enumerate(_ORDER)}
    place, places = 0, {}
    for each in fields(Settings):
        # A setting that `_ORDER` lacks gets the place of the one before; sorting keeps their order.
        place = places[each.name] = ordered.get(each.name.upper(), place)
    return sorted(fields(Settings), key=lambda each: places[each.name])


def secret_files() -> list[str]:
    """Return the variables that may name a file with a secret instead of the secret's own."""
    return [f"{known.name.upper()}_FILE" for known in _all() if known.metadata["secret"]]


RETIRED = {  # settings that were, and what an operator is told who still has them
    "MCP_SSE": "MCP_SSE means nothing any more: servers of MCP's older transport are found without it. Remove it.",
}


def from_environ(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Read the settings; return them and warnings for the operator. An empty variable counts as unset.

    A secret may lie in a file that `NAME_FILE` names, as Docker, Kubernetes and systemd hand secrets out. The text of
    an error never holds one.

    Raises `ConfigurationError`.
    """
    warnings: list[str] = []
    values: dict[str, Any] = {}
    for known in _all():
        name = known.name.upper()
        is_secret = known.metadata["secret"]
        raw = _secret(name, environ) if is_secret else environ.get(name, "")
        if raw.strip():
            try:
                # The error of a parser says what the setting takes, and never shows the value.
                values[known.name] = known.metadata["parse"](raw.strip())
            except ValueError as takes:
                shown = name if is_secret else f"{name}={raw!r}"
                raise ConfigurationError(f"{shown} is not valid: it takes {takes}.") from None
    # Only a HOST that was set: the default is always an address.
    if "host" in values and not resolves(values["host"]):
        warnings.append(f"HOST={values['host']!r} is not an address of this machine and is ignored; using 127.0.0.1.")
        del values["host"]
    warnings += [warning for name, warning in RETIRED.items() if environ.get(name, "").strip()]
    settings = Settings(**values)
    # Each room checks its own: `problem` is called by class, as `super()` would need each of them to go on.
    rooms = [room for room in Settings.__mro__ if issubclass(room, RoomSettings)]
    # Lazily: the first problem ends the start, and later rooms may rely on what earlier ones have checked.
    problems = (room.problem(settings, values) for room in rooms if "problem" in vars(room))
    if problem := next(filter(None, problems), None):
        raise ConfigurationError(problem)
    return settings, warnings


def _secret(name: str, environ: Mapping[str, str]) -> str:
    try:
        return secret(name, environ)
    except ValueError as problem:
        raise ConfigurationError(str(problem)) from None
