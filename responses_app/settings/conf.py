"""The settings: one environment variable each, read once, here and nowhere else.

`respsite/settings.py` calls `from_environ` and puts the result into Django's settings as `RESPSITE`; the rest of the
code gets what it needs handed in. A wrong value raises `ConfigurationError` with one sentence that names the variable,
the value and what it takes. Imports no Django, so that a broken setting is told before anything else happens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from responses_app.observing.traces import can_be_exported
from responses_app.protocol.events.dialects import OPENAI, Dialect
from responses_app.protocol.tiers import TIERS, ServiceTiers
from responses_app.settings.embeddings import EmbeddingSettings
from responses_app.settings.models import EngineSettings, problem_of
from responses_app.settings.tools import ToolSettings
from responses_app.settings.types import (
    choice,
    dialect,
    flag,
    header_value,
    names,
    origins,
    pages,
    resolves,
    seconds,
    secret,
    secrets,
    setting,
    text,
    tiers,
    url_of,
    whole,
)

KIB, MIB = 1024, 1024 * 1024


class ConfigurationError(Exception):
    """A setting is wrong; the text is one sentence for the operator."""


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Settings(ToolSettings, EmbeddingSettings, EngineSettings):
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
    database_patience_seconds: float = setting(
        30.0, seconds(),
        "how long a response waits for a database that is away: with its end, which then has failed, and with a call"
        " that must not be made twice, which then is not made",
    )  # fmt: skip
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
    websocket_lifetime_seconds: float = setting(3600.0, seconds(1), "how long a WebSocket may stay open")
    websocket_warning_seconds: float = setting(
        3300.0, seconds(), "how long after its start a WebSocket is told `connection_expiring`"
    )
    websocket_grace_seconds: float = setting(
        300.0, seconds(), "how long responses that still run may go on when a WebSocket's time is over"
    )
    websocket_busy: str = setting(
        "queue", choice("queue", "reject"),
        "what becomes of a `response.create` while another one runs: it waits (`queue`), or is refused with a 409"
        " (`reject`)",
    )  # fmt: skip
    websocket_max_message_bytes: int = setting(
        32 * MIB, whole(KIB), "largest message that a client may send on a WebSocket"
    )
    websocket_max_unfinished_bytes: int = setting(
        128 * MIB, whole(KIB),
        "memory of one worker for messages on WebSockets that have not arrived whole, of all connections together",
    )  # fmt: skip
    websocket_max_queued: int = setting(64, whole(), "`response.create`s that may wait on one WebSocket")
    websocket_max_state_bytes: int = setting(
        64 * MIB, whole(KIB),
        "memory of one WebSocket for the chains that it can continue, for requests that wait and for steering",
    )  # fmt: skip
    stream_max_lag_bytes: int = setting(
        4 * MIB, whole(64 * KIB),
        "bytes of a stream that may wait for a slow reader; a reader that is further behind is dropped",
    )  # fmt: skip
    stream_stall_seconds: float = setting(
        30.0, seconds(0.1), "how long a reader may take no byte of its stream; then it is dropped"
    )
    stream_delta_ms: int = setting(
        0, whole(0, 10_000),
        "for how many milliseconds text is gathered into one event, but for the first of an item; 0 = events as "
        "the text comes",
    )  # fmt: skip
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
        "outputs (`wait`; see Waiting for tools)",
    )  # fmt: skip
    responses_tool_timeout: float = setting(
        300.0, seconds(0.1),
        "with RESPONSES_TOOL_MODE=wait, how long a response waits for outputs of the client's tools; then it has "
        "failed",
    )  # fmt: skip
    responses_max_tool_output_bytes: int = setting(
        MIB, whole(KIB), "with RESPONSES_TOOL_MODE=wait, the largest output that a running response can be given"
    )
    responses_max_in_flight: int = setting(
        2000, whole(1), "responses, completions, decisions and embeddings at once in one worker; one more gets a 503"
    )
    responses_store: bool = setting(
        True, flag, "keep responses in the database; `off` keeps none, whatever requests say"
    )
    responses_store_ttl: float = setting(
        0.0, seconds(), "how long after its creation a stored response is forgotten; 0 = never"
    )
    responses_store_max_entries: int = setting(
        0, whole(),
        "stored responses of one project; when there are more, the oldest finished ones are forgotten; 0 = any "
        "number",
    )  # fmt: skip
    responses_store_max_bytes: int = setting(
        0, whole(),
        "size of the stored responses of one project together; when it is more, the oldest finished ones are "
        "forgotten; 0 = any size",
    )  # fmt: skip
    responses_session_ttl: float = setting(
        600.0, seconds(),
        "how long a worker remembers, in memory, the events of a finished stream, so that a reader can pick it up"
        " again, and the sampled tokens of a chat's turns, so that its next request goes on with them; Redis "
        "keeps the latter for as long, sealed",
    )  # fmt: skip
    responses_max_active_sessions: int = setting(
        2000, whole(1),
        "finished streams that one worker remembers, to be picked up again; and, counted apart, turns of chats "
        "whose sampled tokens it remembers",
    )  # fmt: skip
    responses_max_session_bytes: int = setting(
        256 * MIB, whole(KIB),
        "memory of one worker for the events of streams that can be picked up again; and as much, counted apart, "
        "for the sampled tokens of chats' turns",
    )  # fmt: skip
    responses_max_unsaved_bytes: int = setting(
        256 * MIB, whole(KIB), "memory of one worker for ends of responses that wait to be written to the database"
    )
    reconnect_grace_seconds: float = setting(
        0.0, seconds(), "how long a stored stream whose client is gone goes on, so that the client can pick it up again"
    )
    background_max_running: int = setting(64, whole(1), "background responses that run at once in one worker")
    background_max_queued: int = setting(
        1000, whole(), "background responses that may wait for their turn in one worker"
    )
    shutdown_grace_seconds: float = setting(
        30.0, seconds(), "how long running responses may take to end when the server stops"
    )
    worker_lease_seconds: float = setting(
        15.0, seconds(1),
        "how long a worker may not be heard of; then it counts as dead, and others take over its responses",
    )  # fmt: skip
    conversations_max_entries: int = setting(0, whole(), "conversations that one project may have; 0 = any number")
    reasoning_encryption_keys: tuple[str, ...] = setting(
        (), secrets,
        "secrets, separated by commas, that seal what clients carry for the server, like `encrypted_content`: the"
        " first seals, all of them open",
        default_text="made from SECRET_KEY", secret=True,
    )  # fmt: skip
    reasoning_summaries: str = setting(
        "model", choice("model", "text", "off"),
        "where summaries of reasoning come from: the model writes them (`model`), the thought's first sentences "
        "are taken (`text`), or there are none (`off`)",
    )  # fmt: skip

    responses_default_service_tier: str = setting(
        "auto", choice(*TIERS), "the service tier of requests that ask for none or for `auto`; `auto` means `default`"
    )
    responses_allowed_service_tiers: tuple[str, ...] = setting(
        TIERS, tiers, "service tiers that a request may ask for; `fast` means `priority`", default_text=",".join(TIERS)
    )

    default_openai_organization: str = setting(
        "", header_value,
        "the header `openai-organization` of answers, where the request has none",
        default_text="unset",
    )  # fmt: skip
    default_openai_version: str = setting(
        "", header_value, "the header `openai-version` of answers, where the request has none", default_text="unset"
    )
    azure_region: str = setting(
        "", header_value,
        "answer with Azure's headers, too: this value as `x-ms-region`, and `x-ms-request-id`",
        default_text="unset",
    )  # fmt: skip

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
class Row:
    """A setting as the reference shows it."""

    name: str
    default: str
    about: str


def table() -> list[Row]:
    """Return every setting with its default and what it is for."""
    return [Row(f.name.upper(), f.metadata["default_text"] or written(f.default), f.metadata["about"]) for f in _all()]


def written(value: object) -> str:
    """Return a value as its variable has it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _all() -> Sequence["Field[Any]"]:
    """Return every setting: those of tools, which are fewer servers' concern, at the end."""
    of_tools = {each.name for part in (EmbeddingSettings, ToolSettings) for each in fields(part)}
    return sorted(fields(Settings), key=lambda each: each.name in of_tools)


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
                values[known.name] = known.metadata["parse"](raw.strip())
            except ValueError as wanted:
                given = name if is_secret else f"{name}={raw!r}"
                raise ConfigurationError(f"{given} is not valid: it takes {wanted}.") from None
    if "host" in values and not resolves(values["host"]):
        warnings.append(f"HOST={values['host']!r} is not an address of this machine and is ignored; using 127.0.0.1.")
        del values["host"]
    warnings += [told for name, told in RETIRED.items() if environ.get(name, "").strip()]
    settings = Settings(**values)
    _check_together(settings, values)
    return settings, warnings


def _secret(name: str, environ: Mapping[str, str]) -> str:
    try:
        return secret(name, environ)
    except ValueError as problem:
        raise ConfigurationError(str(problem)) from None


def _check_together(settings: Settings, given: Mapping[str, Any]) -> None:
    if settings.traces and not can_be_exported():
        raise ConfigurationError("TRACES=on needs OpenTelemetry: install the extra 'otel' (pip install '.[otel]').")
    if not settings.serves_loopback and "allowed_hosts" not in given:
        raise ConfigurationError(
            f"HOST={settings.host} can be reached from the network, so ALLOWED_HOSTS must say which host names clients "
            "use, for example ALLOWED_HOSTS=models.example.com."
        )
    warns_late = settings.websocket_warning_seconds > settings.websocket_lifetime_seconds
    if warns_late and given.get("websocket_warning_seconds"):
        raise ConfigurationError("WEBSOCKET_WARNING_SECONDS must not be greater than WEBSOCKET_LIFETIME_SECONDS.")
    tiers = ServiceTiers(
        default=settings.responses_default_service_tier, allowed=settings.responses_allowed_service_tiers
    )
    if not tiers.allow_default:
        raise ConfigurationError(
            f"RESPONSES_DEFAULT_SERVICE_TIER={tiers.default} is not among RESPONSES_ALLOWED_SERVICE_TIERS="
            f"{','.join(tiers.allowed)}: choose one of these."
        )
    if problem := problem_of(settings.all_models, given) or settings.problem_of_tools:
        raise ConfigurationError(problem)
