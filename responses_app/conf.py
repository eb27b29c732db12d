"""The settings: one environment variable each, read once, here and nowhere else.

`respsite/settings.py` calls `from_environ` and puts the result into Django's settings as `RESPSITE`; the rest of the
code gets what it needs handed in. A wrong value raises `ConfigurationError` with one sentence that names the variable,
the value and what it takes. Imports no Django, so that a broken setting is told before anything else happens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from responses_app.embedding_settings import EmbeddingSettings
from responses_app.model_settings import EngineSettings, problem_of
from responses_app.observing.traces import can_be_exported
from responses_app.protocol.dialects import OPENAI, Dialect
from responses_app.protocol.tiers import TIERS
from responses_app.setting_types import (
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
from responses_app.tool_settings import ToolSettings

KIB, MIB = 1024, 1024 * 1024


class ConfigurationError(Exception):
    """A setting is wrong; the text is one sentence for the operator."""


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Settings(ToolSettings, EmbeddingSettings, EngineSettings):
    """Every setting; a field's name in capitals is its environment variable."""

    host: str = setting("127.0.0.1", text, "address `make run` listens on")
    port: int = setting(8000, whole(1, 65535), "port `make run` listens on")
    debug: bool = setting(False, flag, "Django's debug mode; never on a network", default_text="off")
    data_dir: str = setting("var", text, "folder of what the server keeps", default_text="./var")
    workers: int = setting(1, whole(1, 1000), "processes that `make run` serves with (see Several workers)")
    worker_max_memory_bytes: int = setting(
        0, whole(0), "a worker that holds more is replaced by a new one; 0 = any size", default_text="0"
    )
    worker_start_seconds: float = setting(
        120.0, seconds(1), "a worker that is not ready by then is given up, where others are", default_text="120"
    )
    worker_silence_seconds: float = setting(
        30.0, seconds(), "a worker that stands still for this long is killed and replaced; 0 = never",
        default_text="30",
    )  # fmt: skip
    secret_key: str = setting(
        "", text, "Django's secret; several hosts must share one",
        default_text="made once, in DATA_DIR/secret_key",
        secret=True,
    )  # fmt: skip
    database_url: str = setting(
        "", url_of("sqlite:///path or postgres://user:password@host/name", "sqlite:", "postgres:", "postgresql:"),
        "`sqlite:///…` or `postgres://user:password@host/name`",
        default_text="sqlite:///DATA_DIR/respsite.sqlite3", secret=True,
    )  # fmt: skip
    database_timeout_seconds: float = setting(
        10.0, seconds(0.1), "how long the database may take to answer; then clients get a 503", default_text="10"
    )
    database_patience_seconds: float = setting(
        30.0, seconds(), "how long a response that ends waits for a database that is away; then it has failed",
        default_text="30",
    )  # fmt: skip
    redis_url: str = setting(
        "", url_of("redis://host:6379/0 (or rediss://, unix://)", "redis://", "rediss://", "unix://"),
        "`redis://host:6379/0`: shares limits between workers", default_text="unset: in memory", secret=True,
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = setting(
        LOOPBACK, names, "host names clients may use; required when HOST is not loopback",
        default_text="localhost,127.0.0.1,[::1]",
    )  # fmt: skip
    allowed_origins: tuple[str, ...] = setting(
        (), pages, "web pages, besides the server's own, that may use it from a browser: `http://localhost:3000`",
        default_text="unset",
    )  # fmt: skip
    auth: str = setting(
        "auto", choice("auto", "on", "off"),
        "whether clients need an API key: `auto` asks for one unless only this machine can reach the server",
    )  # fmt: skip
    csrf_trusted_origins: tuple[str, ...] = setting(
        (), origins, "where the admin is opened behind a proxy with TLS: `https://models.example.com`",
        default_text="unset",
    )  # fmt: skip
    behind_proxy: str = setting(
        "no", choice("no", "http", "tls"),
        "a proxy is in front: its `X-Forwarded-For` and `-Proto` count, and all need keys; `tls`: browsers use HTTPS",
    )  # fmt: skip
    admin_login_failures: int = setting(
        10, whole(1), "failed logins to the admin as one user, or from one address, until they are locked"
    )
    admin_login_lock_seconds: float = setting(
        900.0, seconds(1), "how long they are locked, from the last failure", default_text="900"
    )
    log_level: str = setting("info", choice("debug", "info", "warning", "error"), "how much is logged")
    log_format: str = setting("line", choice("line", "json"), "`json`: each line of the log is a JSON object")
    metrics: str = setting(
        "auto", choice("auto", "public", "off"),
        "who reads `/metrics`: who needs no key, or has one for it; everybody; nobody (see Watching it)",
    )  # fmt: skip
    metrics_dir: str = setting(
        "", text, "folder where workers behind one address share their metrics", default_text="unset: each has its own"
    )

    traces: bool = setting(False, flag, "trace responses with OpenTelemetry (see Traces)", default_text="off")

    max_websocket_connections: int = setting(100, whole(1), "open WebSockets, over all workers that share a Redis")
    websocket_lifetime_seconds: float = setting(3600.0, seconds(1), "a connection's life", default_text="3600")
    websocket_warning_seconds: float = setting(
        3300.0, seconds(), "when `connection_expiring` is sent, from the connection's start", default_text="3300"
    )
    websocket_grace_seconds: float = setting(
        300.0, seconds(), "what runs at the end of a connection's life may take this long", default_text="300"
    )
    websocket_busy: str = setting("queue", choice("queue", "reject"), "a create on a busy connection: queue or 409")
    websocket_max_message_bytes: int = setting(32 * MIB, whole(KIB), "largest message", default_text="32 MiB")
    websocket_max_queued: int = setting(64, whole(), "creates that may wait on a connection")
    websocket_max_state_bytes: int = setting(
        64 * MIB, whole(KIB), "chains a connection remembers, and creates it queues", default_text="64 MiB"
    )
    stream_max_lag_bytes: int = setting(
        4 * MIB, whole(64 * KIB), "a reader further behind than this is dropped", default_text="4 MiB"
    )
    stream_stall_seconds: float = setting(
        30.0, seconds(0.1), "a reader that takes no byte for this long is dropped", default_text="30"
    )
    stream_delta_ms: int = setting(
        0, whole(0, 10_000), "text is gathered this long before it is a delta, but an item's first; 0 = as it comes"
    )
    max_body_bytes: int = setting(32 * MIB, whole(KIB), "largest HTTP body", default_text="32 MiB")
    max_input_items: int = setting(5000, whole(1), "items in the `input` of one request")
    max_json_values: int = setting(
        100_000, whole(1000), "JSON values in one request or message: texts, numbers, arrays, objects"
    )
    request_arrival_seconds: float = setting(
        30.0, seconds(0.1), "a request must be here in this time; a long body may take as long as 16 KiB/s need",
        default_text="30",
    )  # fmt: skip
    responses_ping_interval_seconds: float = setting(
        15.0, seconds(), "a silent stream gets a sign of life this often; 0 = never", default_text="15"
    )
    responses_dialect: Dialect = setting(
        OPENAI, dialect, "how events are worded: presets and switches, separated by commas (see Dialects)",
        default_text="openai",
    )  # fmt: skip
    responses_compatibility_mode: bool = setting(
        True, flag, "refuse fields that only vLLM knows; `false` takes them (see Fields of the engine)",
        default_text="on",
    )  # fmt: skip
    responses_usage_per_turn: bool = setting(
        False, flag, "`usage` has lists of each turn's tokens beside the sums; some clients break on them",
        default_text="off",
    )  # fmt: skip
    responses_tool_mode: str = setting(
        "complete", choice("complete", "wait"),
        "streams end with calls of the client's tools, or wait for their outputs (see Waiting for tools)",
    )  # fmt: skip
    responses_tool_timeout: float = setting(
        300.0, seconds(0.1), "how long a response waits for them; then it has failed", default_text="300"
    )
    responses_max_tool_output_bytes: int = setting(
        MIB, whole(KIB), "largest output that such a response is given", default_text="1 MiB"
    )
    responses_max_in_flight: int = setting(2000, whole(1), "responses running in one worker; more get a 503")
    responses_store: bool = setting(True, flag, "keep responses in the database", default_text="on")
    responses_store_ttl: float = setting(
        0.0, seconds(), "a stored response is forgotten this long after its creation; 0 = never", default_text="0"
    )
    responses_store_max_entries: int = setting(
        0, whole(), "stored responses of a project; over it the oldest finished ones go; 0 = any number"
    )
    responses_store_max_bytes: int = setting(0, whole(), "the same for their size; 0 = any size")
    responses_session_ttl: float = setting(
        600.0, seconds(), "a finished stream's events stay in memory this long after its last event or reader",
        default_text="600",
    )  # fmt: skip
    responses_max_active_sessions: int = setting(2000, whole(1), "streams kept for that in one worker")
    responses_max_session_bytes: int = setting(
        256 * MIB, whole(KIB), "memory of all their events in one worker", default_text="256 MiB"
    )
    responses_max_unsaved_bytes: int = setting(
        256 * MIB, whole(KIB), "ends of responses that wait for the database in one worker", default_text="256 MiB"
    )
    reconnect_grace_seconds: float = setting(
        0.0, seconds(), "a stored stream whose client is gone goes on this long, to be picked up again",
        default_text="0",
    )  # fmt: skip
    background_max_running: int = setting(64, whole(1), "background responses that run at once in one worker")
    background_max_queued: int = setting(1000, whole(), "background responses that may wait in one worker")
    shutdown_grace_seconds: float = setting(
        30.0, seconds(), "how long running responses may take to end when the server stops", default_text="30"
    )
    worker_lease_seconds: float = setting(
        15.0, seconds(1), "a worker not seen for this long is dead; others take over its responses", default_text="15"
    )
    conversations_max_entries: int = setting(0, whole(), "conversations of a project; 0 = any number")
    reasoning_encryption_keys: tuple[str, ...] = setting(
        (), secrets, "secrets, separated by commas: the first seals what clients carry, all open it",
        default_text="made from SECRET_KEY", secret=True,
    )  # fmt: skip
    reasoning_summaries: str = setting(
        "model", choice("model", "text", "off"),
        "`model`: it writes `reasoning.summary`; `text`: the thought's first sentences are it; `off`: there is none",
    )  # fmt: skip

    responses_default_service_tier: str = setting(
        "auto", choice(*TIERS), "the tier of requests that ask for none or for `auto`; `auto` means `default`"
    )
    responses_allowed_service_tiers: tuple[str, ...] = setting(
        TIERS, tiers, "tiers a request may ask for; `fast` is `priority`", default_text=",".join(TIERS)
    )

    default_openai_organization: str = setting(
        "", header_value, "`openai-organization` of answers to requests without it", default_text="unset"
    )
    default_openai_version: str = setting(
        "", header_value, "`openai-version` of answers to requests without it", default_text="unset"
    )
    azure_region: str = setting(
        "", header_value, "answers have Azure's headers too: `x-ms-region` (this), `x-ms-request-id`",
        default_text="unset",
    )  # fmt: skip

    @property
    def serves_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

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
    return [Row(f.name.upper(), f.metadata["default_text"] or str(f.default), f.metadata["about"]) for f in _all()]


def _all() -> Sequence["Field[Any]"]:
    """Return every setting: those of tools, which are fewer servers' concern, at the end."""
    of_tools = {each.name for part in (EmbeddingSettings, ToolSettings) for each in fields(part)}
    return sorted(fields(Settings), key=lambda each: each.name in of_tools)


def secret_files() -> list[str]:
    """Return the variables that may name a file with a secret instead of the secret's own."""
    return [f"{known.name.upper()}_FILE" for known in _all() if known.metadata["secret"]]


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
    if problem := problem_of(settings.all_models, given) or settings.problem_of_tools:
        raise ConfigurationError(problem)
