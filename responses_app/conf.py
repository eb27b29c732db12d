"""The settings: one environment variable each, read once, here and nowhere else.

`respsite/settings.py` calls `from_environ` and puts the result into Django's settings as `RESPSITE`; the rest of the
code gets what it needs handed in. A wrong value raises `ConfigurationError` with one sentence that names the variable,
the value and what it takes. Imports no Django, so that a broken setting is told before anything else happens.
"""

import json
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from responses_app.protocol.dialects import OPENAI, PRESETS, Dialect, parse_dialect
from responses_app.protocol.tiers import TIERS

KIB, MIB = 1024, 1024 * 1024


class ConfigurationError(Exception):
    """A setting is wrong; the text is one sentence for the operator."""


def _text(value: str) -> str:
    return value


def _flag(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError("on or off")


def _whole(minimum: int = 0, maximum: int | None = None) -> Callable[[str], int]:
    wanted = f"a whole number of at least {minimum}" + (f" and at most {maximum}" if maximum is not None else "")

    def parse(value: str) -> int:
        if not value.strip().isdecimal() or int(value) < minimum or (maximum is not None and int(value) > maximum):
            raise ValueError(wanted)
        return int(value)

    return parse


def _seconds(minimum: float = 0.0) -> Callable[[str], float]:
    def parse(value: str) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not minimum <= seconds < 10**9:
            raise ValueError(f"a number of seconds of at least {minimum:g}")
        return seconds

    return parse


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.strip().lower() not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return value.strip().lower()

    return parse


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise ValueError("host names, separated by commas")
    return names


def _secrets(value: str) -> tuple[str, ...]:
    secrets = tuple(secret.strip() for secret in value.split(",") if secret.strip())
    if not secrets or min(map(len, secrets)) < 16:
        raise ValueError("secrets of at least 16 characters, separated by commas")
    return secrets


def _tiers(value: str) -> tuple[str, ...]:
    tiers = tuple(dict.fromkeys(name.strip().lower() for name in value.split(",") if name.strip()))
    if not tiers or not set(tiers) <= set(TIERS):
        raise ValueError(f"some of {','.join(TIERS)}, separated by commas")
    return tiers


def _dialect(value: str) -> Dialect:
    try:
        return parse_dialect(value)
    except ValueError:
        names = ", ".join(PRESETS)
        raise ValueError(f"the presets {names}, and switches (see Dialects), separated by commas") from None


def _origins(value: str) -> tuple[str, ...]:
    origins = tuple(origin.strip().rstrip("/") for origin in value.split(",") if origin.strip())
    if not origins or not all(origin.startswith(("http://", "https://")) for origin in origins):
        raise ValueError("origins with their scheme, separated by commas, like https://models.example.com")
    return origins


def _pages(value: str) -> tuple[str, ...]:
    pages = tuple(page.strip().rstrip("/").lower() for page in value.split(",") if page.strip())
    if not pages or not all(re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s@?#*]+", page) for page in pages):
        raise ValueError("origins with their scheme, separated by commas, like http://localhost:3000, or * for any")
    return pages


def _urls(value: str) -> tuple[str, ...]:
    urls = tuple(url.strip().rstrip("/") for url in value.split(",") if url.strip())
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise ValueError("URLs of vLLM servers, separated by commas, like http://127.0.0.1:8001")
    return tuple(url.removesuffix("/v1") for url in urls)


def _json_object(value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError('a JSON object, like {"tokens_per_second": 50}')
    return parsed


def _setting(default: Any, parse: Callable[[str], Any], about: str, *, default_text: str | None = None) -> Any:
    metadata = {"parse": parse, "about": about, "default_text": default_text}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting; a field's name in capitals is its environment variable."""

    host: str = _setting("127.0.0.1", _text, "address `make run` listens on")
    port: int = _setting(8000, _whole(1, 65535), "port `make run` listens on")
    debug: bool = _setting(False, _flag, "Django's debug mode; never on a network", default_text="off")
    data_dir: str = _setting("var", _text, "folder of what the server keeps", default_text="./var")
    secret_key: str = _setting(
        "", _text, "Django's secret; several hosts must share one", default_text="made once, in DATA_DIR/secret_key"
    )
    database_url: str = _setting(
        "", _text, "`sqlite:///…` or `postgres://user:password@host/name`",
        default_text="sqlite:///DATA_DIR/respsite.sqlite3",
    )  # fmt: skip
    database_timeout_seconds: float = _setting(
        10.0, _seconds(0.1), "how long the database may take to answer; then clients get a 503", default_text="10"
    )
    redis_url: str = _setting(
        "", _text, "`redis://host:6379/0`: shares limits between workers", default_text="unset: in memory"
    )
    allowed_hosts: tuple[str, ...] = _setting(
        LOOPBACK, _names, "host names clients may use; required when HOST is not loopback",
        default_text="localhost,127.0.0.1,[::1]",
    )  # fmt: skip
    allowed_origins: tuple[str, ...] = _setting(
        (), _pages, "web pages, besides the server's own, that may use it from a browser: `http://localhost:3000`",
        default_text="unset",
    )  # fmt: skip
    csrf_trusted_origins: tuple[str, ...] = _setting(
        (), _origins, "where the admin is opened behind a proxy with TLS: `https://models.example.com`",
        default_text="unset",
    )  # fmt: skip
    admin_login_failures: int = _setting(
        10, _whole(1), "failed logins to the admin as one user, or from one address, until they are locked"
    )
    admin_login_lock_seconds: float = _setting(
        900.0, _seconds(1), "how long they are locked, from the last failure", default_text="900"
    )
    log_level: str = _setting("info", _choice("debug", "info", "warning", "error"), "how much is logged")

    engine: str = _setting(
        "demo", _choice("demo", "vllm", "vllm-server", "scripted"),
        "`demo` (no model), `vllm` (in this process), `vllm-server` (at ENGINE_URL) or `scripted` (tests)",
    )  # fmt: skip
    engine_url: tuple[str, ...] = _setting(
        (), _urls, "vLLM servers for ENGINE=vllm-server, separated by commas", default_text="unset"
    )
    engine_api_key: str = _setting("", _text, "what those servers were given as `--api-key`", default_text="unset")
    model: str = _setting(
        "", _text, "what the engine loads: a hub name, a folder, or the name at ENGINE_URL",
        default_text="the engine's name",
    )  # fmt: skip
    model_format: str = _setting("harmony", _choice("harmony"), "how the model at ENGINE_URL is talked to")
    model_name: str = _setting("", _text, "what clients call it", default_text="MODEL")
    engine_options: dict[str, Any] = _setting(
        {}, _json_object, 'the engine\'s own options, as JSON: `{"tokens_per_second": 50}`', default_text="{}"
    )
    engine_script: str = _setting("", _text, "file with the completions of ENGINE=scripted", default_text="unset")

    max_websocket_connections: int = _setting(100, _whole(1), "open WebSockets, over all workers that share a Redis")
    websocket_lifetime_seconds: float = _setting(3600.0, _seconds(1), "a connection's life", default_text="3600")
    websocket_warning_seconds: float = _setting(
        3300.0, _seconds(), "when `connection_expiring` is sent, from the connection's start", default_text="3300"
    )
    websocket_grace_seconds: float = _setting(
        300.0, _seconds(), "what runs at the end of a connection's life may take this long", default_text="300"
    )
    websocket_busy: str = _setting("queue", _choice("queue", "reject"), "a create on a busy connection: queue or 409")
    websocket_max_message_bytes: int = _setting(32 * MIB, _whole(KIB), "largest message", default_text="32 MiB")
    websocket_max_queued: int = _setting(64, _whole(), "creates that may wait on a connection")
    websocket_max_state_bytes: int = _setting(
        64 * MIB, _whole(KIB), "chains a connection remembers, and creates it queues", default_text="64 MiB"
    )
    stream_max_lag_bytes: int = _setting(
        4 * MIB, _whole(64 * KIB), "a reader further behind than this is dropped", default_text="4 MiB"
    )
    stream_stall_seconds: float = _setting(
        30.0, _seconds(0.1), "a reader that takes no byte for this long is dropped", default_text="30"
    )
    stream_delta_ms: int = _setting(
        0, _whole(0, 10_000), "text is gathered this long before it is a delta, but an item's first; 0 = as it comes"
    )
    max_body_bytes: int = _setting(32 * MIB, _whole(KIB), "largest HTTP body", default_text="32 MiB")
    max_input_items: int = _setting(5000, _whole(1), "items in the `input` of one request")
    max_json_values: int = _setting(
        100_000, _whole(1000), "JSON values in one request or message: texts, numbers, arrays, objects"
    )
    request_arrival_seconds: float = _setting(
        30.0, _seconds(0.1), "a request must be here in this time; a long body may take as long as 16 KiB/s need",
        default_text="30",
    )  # fmt: skip
    responses_ping_interval_seconds: float = _setting(
        15.0, _seconds(), "a silent stream gets a sign of life this often; 0 = never", default_text="15"
    )
    responses_dialect: Dialect = _setting(
        OPENAI, _dialect, "how events are worded: presets and switches, separated by commas (see Dialects)",
        default_text="openai",
    )  # fmt: skip
    responses_compatibility_mode: bool = _setting(
        True, _flag, "refuse fields that only vLLM knows; `false` takes them (see Fields of the engine)",
        default_text="on",
    )  # fmt: skip
    responses_usage_per_turn: bool = _setting(
        False, _flag, "`usage` has lists of each turn's tokens beside the sums; some clients break on them",
        default_text="off",
    )  # fmt: skip
    responses_max_in_flight: int = _setting(2000, _whole(1), "responses running in one worker; more get a 503")
    responses_store: bool = _setting(True, _flag, "keep responses in the database", default_text="on")
    responses_store_ttl: float = _setting(
        0.0, _seconds(), "a stored response is forgotten this long after its creation; 0 = never", default_text="0"
    )
    responses_store_max_entries: int = _setting(
        0, _whole(), "stored responses of a project; over it the oldest finished ones go; 0 = any number"
    )
    responses_store_max_bytes: int = _setting(0, _whole(), "the same for their size; 0 = any size")
    responses_session_ttl: float = _setting(
        600.0, _seconds(), "a finished stream's events stay in memory this long after its last event or reader",
        default_text="600",
    )  # fmt: skip
    responses_max_active_sessions: int = _setting(2000, _whole(1), "streams kept for that in one worker")
    responses_max_session_bytes: int = _setting(
        256 * MIB, _whole(KIB), "memory of all their events in one worker", default_text="256 MiB"
    )
    reconnect_grace_seconds: float = _setting(
        0.0,
        _seconds(),
        "a stored stream whose client is gone goes on this long, to be picked up again",
        default_text="0",
    )
    background_max_running: int = _setting(64, _whole(1), "background responses that run at once in one worker")
    background_max_queued: int = _setting(1000, _whole(), "background responses that may wait in one worker")
    shutdown_grace_seconds: float = _setting(
        30.0, _seconds(), "how long running responses may take to end when the server stops", default_text="30"
    )
    worker_lease_seconds: float = _setting(
        15.0, _seconds(1), "a worker not seen for this long is dead; others take over its responses", default_text="15"
    )
    conversations_max_entries: int = _setting(0, _whole(), "conversations of a project; 0 = any number")
    reasoning_encryption_keys: tuple[str, ...] = _setting(
        (), _secrets, "secrets, separated by commas: the first seals compactions, all open them",
        default_text="made from SECRET_KEY",
    )  # fmt: skip

    responses_default_service_tier: str = _setting(
        "auto", _choice(*TIERS), "the tier of requests that ask for none or for `auto`; `auto` means `default`"
    )
    responses_allowed_service_tiers: tuple[str, ...] = _setting(
        TIERS, _tiers, "tiers a request may ask for; `fast` is `priority`", default_text=",".join(TIERS)
    )

    @property
    def serves_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def trusted_pages(self) -> tuple[str, ...]:
        """The origins of web pages that may use the API, besides those with the address that a request went to."""
        return (*self.allowed_origins, *self.csrf_trusted_origins)

    @property
    def served_name(self) -> str:
        """What clients call the model."""
        return self.model_name or self.model or self.engine

    @property
    def database(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{Path(self.data_dir).absolute()}/respsite.sqlite3"


@dataclass(frozen=True)
class Row:
    """A setting as the README's table shows it."""

    name: str
    default: str
    about: str


def table() -> list[Row]:
    """Return every setting with its default and what it is for."""
    return [
        Row(f.name.upper(), f.metadata["default_text"] or str(f.default), f.metadata["about"]) for f in fields(Settings)
    ]


def from_environ(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Read the settings; return them and warnings for the operator. An empty variable counts as unset.

    Raises `ConfigurationError`.
    """
    warnings: list[str] = []
    values: dict[str, Any] = {}
    for setting in fields(Settings):
        name = setting.name.upper()
        raw = environ.get(name, "")
        if raw.strip():
            try:
                values[setting.name] = setting.metadata["parse"](raw.strip())
            except ValueError as wanted:
                raise ConfigurationError(f"{name}={raw!r} is not valid: it takes {wanted}.") from None
    if "host" in values and not _resolves(values["host"]):
        warnings.append(f"HOST={values['host']!r} is not an address of this machine and is ignored; using 127.0.0.1.")
        del values["host"]
    settings = Settings(**values)
    _check_together(settings, values)
    return settings, warnings


def _check_together(settings: Settings, given: Mapping[str, Any]) -> None:
    if not settings.serves_loopback and "allowed_hosts" not in given:
        raise ConfigurationError(
            f"HOST={settings.host} can be reached from the network, so ALLOWED_HOSTS must say which host names clients "
            "use, for example ALLOWED_HOSTS=models.example.com."
        )
    if settings.websocket_warning_seconds > settings.websocket_lifetime_seconds and given.get(
        "websocket_warning_seconds"
    ):
        raise ConfigurationError("WEBSOCKET_WARNING_SECONDS must not be greater than WEBSOCKET_LIFETIME_SECONDS.")
    if settings.engine == "scripted" and not settings.engine_script:
        raise ConfigurationError("ENGINE=scripted needs ENGINE_SCRIPT, the file with its completions.")
    if settings.engine == "vllm" and not settings.model:
        raise ConfigurationError("ENGINE=vllm needs MODEL, a model's name on the hub or its folder.")
    if settings.engine == "vllm-server" and not (settings.engine_url and settings.model):
        raise ConfigurationError(
            "ENGINE=vllm-server needs ENGINE_URL, like http://127.0.0.1:8001, and MODEL, the name the model has there."
        )
    if settings.database_url and not settings.database_url.startswith(("sqlite:", "postgres:", "postgresql:")):
        raise ConfigurationError(
            "DATABASE_URL is not valid: it takes sqlite:///path or postgres://user:password@host/name."
        )
    if settings.redis_url and not settings.redis_url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigurationError("REDIS_URL is not valid: it takes redis://host:6379/0 (or rediss://, unix://).")


def _resolves(host: str) -> bool:
    """Some shells export HOST as the machine's name, which need not be an address."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
