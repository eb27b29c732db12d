"""The settings: one environment variable each, read once, here and nowhere else.

Each room declares its own (`protocol/setting.py` says how), and those of the rooms above this one are declared here.
`respsite/settings.py` calls `from_environ` and puts the result into Django's settings as `RESPSITE`; each
room is handed its own. A wrong value raises `ConfigurationError` with one sentence that names the variable,
the value and what it takes. Imports no Django, so that a broken setting is told before anything else happens.
"""

import re
import socket
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engine.errors import reason_of
from responses_app.auth.proxies import Network, trusted_proxies
from responses_app.auth.sign_on.settings import SignOnSettings
from responses_app.kit.extension import Extension
from responses_app.observing.traces import can_be_exported
from responses_app.protocol.events.dialects import OPENAI, PRESETS, Dialect, parse_dialect
from responses_app.protocol.idempotency import IdempotencySettings
from responses_app.protocol.prices import PriceSettings
from responses_app.protocol.rollouts.requests import RolloutSettings
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
from responses_app.resources.batches.fields import BatchSettings
from responses_app.resources.conversations.fields import ConversationSettings
from responses_app.resources.files.fields import FileSettings
from responses_app.resources.skills.fields import SkillSettings
from responses_app.resources.vector_stores.settings import VectorStoreSettings
from responses_app.resources.webhooks.settings import WebhookSettings
from responses_app.runs.plan.settings import RunSettings
from responses_app.settings.extensions import DEFAULT, chosen, extension_names, load
from responses_app.settings.models import EmbeddingSettings, EngineSettings
from responses_app.settings.order import ORDER
from responses_app.tools.settings import ImageSettings, MeaningSettings, PictureSettings, SearchSettings


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
        reason = reason_of(error) if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"{name}_FILE={file} cannot be read ({reason}).") from None
    if not content.strip():
        raise ValueError(f"{name}_FILE={file} is empty.")
    return content


class ConfigurationError(Exception):
    """A setting is wrong; the text is one sentence for the operator."""


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # as `Host` headers name this machine


@dataclass(frozen=True, kw_only=True)
class Settings(
    SessionSettings,
    RunSettings,
    FileSettings,
    IdempotencySettings,
    BatchSettings,
    ConversationSettings,
    SkillSettings,
    RolloutSettings,
    VectorStoreSettings,
    MeaningSettings,
    EngineSettings,
    EmbeddingSettings,
    SearchSettings,
    ImageSettings,
    PictureSettings,
    WebhookSettings,
    HeaderSettings,
    PriceSettings,
    SignOnSettings,
):
    """Every setting; a field's name in capitals is its environment variable."""

    host: str = setting("127.0.0.1", text, "address that `respsite serve` and `make run` listen on")
    port: int = setting(8000, whole(1, 65535), "port that `respsite serve` and `make run` listen on")
    debug: bool = setting(
        False, flag,
        "Django's debug mode, which shows source code and settings in error pages; never use it on a network",
    )  # fmt: skip
    data_dir: str = setting(
        "var", text, "folder for the server's files: the SQLite database, the secret key, the sandbox's containers"
    )
    extensions: tuple[str, ...] = setting(
        (DEFAULT,), extension_names,
        "extensions that are loaded, separated by commas: `default` for all that the server has itself, names of some "
        "of them, names of those that packages have installed, or `none` (see Extensions)",
        default_text="default",
    )  # fmt: skip
    workers: int = setting(
        1, whole(1, 1000), "number of worker processes of `respsite serve` and `make run` (see Several workers)"
    )
    worker_max_memory_bytes: int = setting(
        0, whole(0),
        "memory of one worker; a worker that holds more is replaced, if WORKERS is more than 1; 0 = no limit",
    )  # fmt: skip
    worker_start_seconds: float = setting(
        120.0, seconds(1),
        "how long a worker may take until it is ready; if other workers are running, a slower one is killed",
    )  # fmt: skip
    worker_silence_seconds: float = setting(
        30.0, seconds(),
        "how long the event loop of a worker, or of the host of containers, may be blocked; then that process is "
        "killed and replaced; 0 = forever",
    )  # fmt: skip
    secret_key: str = setting(
        "", text,
        "Django's secret key, which signs sessions and, without REASONING_ENCRYPTION_KEYS, encrypts "
        "`encrypted_content`; servers that share a database need the same key",
        default_text="made once, in DATA_DIR/secret_key", secret=True,
    )  # fmt: skip
    database_url: str = setting(
        "", url_of("sqlite:///path or postgres://user:password@host/name", "sqlite:", "postgres:", "postgresql:"),
        "the database: `sqlite:///…` or `postgres://user:password@host/name`",
        default_text="sqlite:///DATA_DIR/respsite.sqlite3", secret=True,
    )  # fmt: skip
    database_timeout_seconds: float = setting(
        10.0, seconds(0.1), "timeout of one database query; after it the client gets a 503"
    )
    database_connections: int = setting(
        10, whole(4, 1000), "connections of one worker to PostgreSQL, at most; pages of the admin open further ones"
    )
    redis_url: str = setting(
        "", url_of("redis://host:6379/0 (or rediss://, unix://)", "redis://", "rediss://", "unix://"),
        "Redis, which workers need to share rate limits and the token cache of chats, and to cancel each other's "
        "responses: `redis://host:6379/0`",
        default_text="unset: in memory", secret=True,
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = setting(
        LOOPBACK, names,
        "host names that clients may use for the server, separated by commas; required if HOST is not a loopback "
        "address",
        default_text="localhost,127.0.0.1,[::1]",
    )  # fmt: skip
    allowed_origins: tuple[str, ...] = setting(
        (), pages,
        "web pages, besides the server's own, that may use the API from a browser (CORS, and the WebSocket): "
        "`http://localhost:3000`",
        default_text="unset",
    )  # fmt: skip
    auth: str = setting(
        "auto", choice("auto", "on", "off"),
        "whether clients need an API key; `auto`: only if other machines can reach the server (see When keys are "
        "required)",
    )  # fmt: skip
    csrf_trusted_origins: tuple[str, ...] = setting(
        (), origins,
        "addresses under which people open the admin behind a TLS proxy: `https://models.example.com`",
        default_text="unset",
    )  # fmt: skip
    behind_proxy: str = setting(
        "no", choice("no", "http", "tls"),
        "trust `X-Forwarded-For` and `X-Forwarded-Proto` from a proxy: `http`, or `tls` if browsers use HTTPS; "
        "every request then needs an API key",
    )  # fmt: skip
    trusted_proxies: tuple[Network, ...] = setting(
        (), trusted_proxies,
        "with BEHIND_PROXY, the addresses and networks of all proxies, separated by commas: required if there are "
        "several in a row, or if one calls from a public address (see Several proxies)",
        default_text="unset: one proxy, which calls from this machine or a private network",
    )  # fmt: skip
    admin_login_failures: int = setting(
        10, whole(1), "failed admin logins after which the user name and the address are locked"
    )
    admin_login_lock_seconds: float = setting(
        900.0, seconds(1), "how long a user name or an address stays locked after the last failed admin login"
    )
    log_level: str = setting(
        "info", choice("debug", "info", "warning", "error"), "lowest level of the messages that are logged"
    )
    log_format: str = setting(
        "line", choice("line", "json"), "format of the log: `line` for plain lines, `json` for one JSON object per line"
    )
    core_dumps: bool = setting(
        False, flag, "let the processes of the server leave core dumps, which contain prompts, answers and keys"
    )
    metrics: str = setting(
        "auto", choice("auto", "public", "off"),
        "who may read `/metrics`: with `auto` everybody if the API needs no key, else keys with the scope "
        "`api.metrics.read`; with `public` everybody; with `off` nobody (see Metrics)",
    )  # fmt: skip
    metrics_dir: str = setting(
        "", text,
        "shared folder for the metrics of several workers behind one address; WORKERS sets one by itself",
        default_text="unset: each has its own",
    )  # fmt: skip

    traces: bool = setting(False, flag, "send OpenTelemetry traces of requests, responses and tool calls (see Traces)")

    traces_content: tuple[str, ...] = setting(
        (), names,
        "with TRACES=on, projects whose traces also have contents: messages, instructions, arguments and outputs of "
        "tools; * for all. A project that keeps nothing never has any (see Traces)",
        default_text="unset",
    )  # fmt: skip
    traces_content_in: str = setting(
        "spans", choice("spans", "events"),
        "with TRACES_CONTENT, where contents stand: in attributes of `spans`, or in `events`, one of each response, "
        "which are exported as logs are; then spans have none, and arguments and outputs of tools are not recorded",
    )  # fmt: skip

    max_websocket_connections: int = setting(
        100, whole(1),
        "open WebSockets in all workers that share a Redis; further ones get an error frame with status 429 and "
        "are closed",
    )  # fmt: skip
    websocket_max_message_bytes: int = setting(
        32 * MIB, whole(KIB),
        "largest message that a client may send on a WebSocket; larger ones get error 413 and close code 1009",
    )  # fmt: skip
    websocket_max_unfinished_bytes: int = setting(
        128 * MIB, whole(KIB), "memory of one worker for incomplete WebSocket messages of all connections together"
    )
    stream_stall_seconds: float = setting(
        30.0, seconds(0.1), "how long a client may read nothing from its stream; then it is disconnected"
    )
    stream_first_word_ms: int = setting(
        50, whole(0, 60_000),
        "how many milliseconds an HTTP stream waits for the engine's first output before it begins, so that early "
        "errors get an HTTP status; 0 = it begins at once",
    )  # fmt: skip
    max_body_bytes: int = setting(
        32 * MIB, whole(KIB), "largest body of an HTTP request, except file uploads (FILE_MAX_BYTES)"
    )
    max_input_items: int = setting(5000, whole(1), "items in the `input` or `messages` of one request")
    max_json_values: int = setting(
        100_000, whole(1000), "JSON values in one request or message: strings, numbers, arrays and objects together"
    )
    request_arrival_seconds: float = setting(
        30.0, seconds(0.1), "how long a request may take to arrive; a large body has as long as it needs at 16 KiB/s"
    )
    responses_ping_interval_seconds: float = setting(
        15.0, seconds(), "interval of keepalive pings on a stream without events; 0 = none"
    )
    responses_dialect: Dialect = setting(
        OPENAI, dialect,
        "event format for clients that expect an older one: presets and switches, separated by commas (see "
        "Dialects)",
        default_text="openai",
    )  # fmt: skip
    unknown_fields: str = setting(
        "ignore", choice("ignore", "refuse"),
        "unknown request fields: `ignore` runs the request and names the field in the response header "
        "`respsite-ignored` (see Request fields), `refuse` answers 400, as OpenAI does",
    )  # fmt: skip
    foreign_seals: str = setting(
        "refuse", choice("refuse", "note"),
        "`encrypted_content` of compactions and reasoning, and signatures of thinking, that this server cannot open: "
        "OpenAI or an installation with other keys made them. `refuse` answers 400, `note` has the model read a note "
        "in their place, or the text of the reasoning, and names them in the response header `respsite-ignored`. The "
        "header `Respsite-Foreign-Seals` says it for one request or connection (see Encrypted reasoning)",
    )  # fmt: skip
    chat_reasoning: str = setting(
        "both", choice("both", "reasoning", "reasoning_content"),
        "field of a chat's answer that has the model's reasoning: `reasoning`, as vLLM calls it now, "
        "`reasoning_content`, as clients of DeepSeek and older versions of vLLM know it, or `both`, so that every "
        "client finds it (see Chat Completions)",
    )  # fmt: skip
    responses_compatibility_mode: bool = setting(
        True,
        flag,
        "refuse some request fields that only vLLM has; `off` accepts them (see vLLM-specific request fields)",
    )
    responses_usage_per_turn: bool = setting(
        False, flag, "add the token counts of each turn to `usage`; some clients cannot parse them"
    )
    responses_tool_mode: str = setting(
        "complete", choice("complete", "wait"),
        "when a streamed response calls the client's tools, it ends (`complete`) or waits for their outputs "
        "(`wait`; see Wait for function outputs in the stream)",
    )  # fmt: skip
    responses_max_tool_output_bytes: int = setting(
        MIB, whole(KIB), "with RESPONSES_TOOL_MODE=wait, largest output that can be sent to a waiting response"
    )
    enable_computer_call: bool = setting(
        False, flag, "allow clients to get the screenshots of `computer_call_output` in item lists, by `include`"
    )
    shutdown_grace_seconds: float = setting(
        30.0,
        seconds(),
        "how long running responses, and clients that read their answers, may take when the server stops",
    )
    reasoning_encryption_keys: tuple[str, ...] = setting(
        (), secrets,
        "keys, separated by commas, for data that clients send back, like `encrypted_content`: the first one "
        "encrypts, all of them decrypt",
        default_text="made from SECRET_KEY", secret=True,
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return what does not fit together, of the settings above."""
        if self.traces and not can_be_exported():
            return "TRACES=on needs OpenTelemetry: install the extra 'otel' (pip install '.[otel]')."
        if self.trusted_proxies and self.behind_proxy == "no":
            return "TRUSTED_PROXIES needs BEHIND_PROXY=tls, or BEHIND_PROXY=http where browsers use no HTTPS."
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


def settings_class(extensions: tuple[str, ...] = (DEFAULT,)) -> type[Settings]:
    """Return the class of all settings, those of these extensions among them.

    Raises `ValueError` for an extension that cannot be loaded, or has a setting that is there already.
    """
    return _joined(load(extensions))


@cache
def _joined(loaded: Sequence[type[Extension]]) -> type[Settings]:
    known = {each.name: "the server" for each in fields(Settings)}
    for extension in loaded:
        own = {each.name for room in extension.settings for each in fields(room)}
        if twice := sorted(own & known.keys()):
            name = twice[0]
            raise ValueError(f"{extension.name} has the setting {name.upper()}, as {known[name]} has.")
        known |= dict.fromkeys(own, extension.name)
    rooms = [room for extension in loaded for room in extension.settings]
    return make_dataclass("Settings", (), bases=(*rooms, Settings), frozen=True, kw_only=True) if rooms else Settings


@dataclass(frozen=True)
class SettingRow:
    """A setting as the reference shows it."""

    group: str  # the heading that it is under
    name: str  # of the environment variable
    default: str  # as it is written there, or a few words where it depends
    about: str  # what it is for


def table(extensions: tuple[str, ...] = (DEFAULT,)) -> list[SettingRow]:
    """Return every setting with its default and what it is for; those of these extensions, too."""
    return [
        SettingRow(
            group, each.name.upper(), each.metadata["default_text"] or written(each.default), each.metadata["about"]
        )
        for each, group in _all(settings_class(extensions))
    ]


def written(value: object) -> str:
    """Return a value as its variable has it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _all(settings: type[Settings]) -> Sequence[tuple["Field[Any]", str]]:
    """Return every setting with its heading, in the order of the reference."""
    # By the variable's name: its place in the reference.
    ordered = {name: place for place, (name, _) in enumerate(ORDER)}
    place, places = 0, {}
    for each in fields(settings):
        # A setting that `ORDER` lacks gets the place of the one before; sorting keeps their order.
        place = places[each.name] = ordered.get(each.name.upper(), place)
    known = sorted(fields(settings), key=lambda each: places[each.name])
    return [(each, ORDER[places[each.name]][1]) for each in known]


def secret_files(extensions: tuple[str, ...] = (DEFAULT,)) -> list[str]:
    """Return the variables that may name a file with a secret instead of the secret's own."""
    return [f"{known.name.upper()}_FILE" for known, _ in _all(settings_class(extensions)) if known.metadata["secret"]]


RETIRED = {  # settings that were, and what an operator is told who still has them
    "MCP_SSE": "MCP_SSE means nothing any more: servers of MCP's older transport are found without it. Remove it.",
}


def _waits_for_nothing(settings: Settings, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each setting of waiting responses that was given where no response waits by default."""
    for name in ("responses_tool_timeout", "responses_max_tool_output_bytes"):
        if name in values and settings.responses_tool_mode != "wait":
            yield (
                f"{name.upper()} is set, and no response waits for outputs of tools unless its request has the header "
                "'Respsite-Tool-Mode: wait'. RESPONSES_TOOL_MODE=wait (--responses-tool-mode wait) has all of them "
                "wait."
            )


def _of_what_is_not_loaded(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each setting that is given of an extension of the server's own that is not loaded."""
    left_out = (each for each in load((DEFAULT,)) if each not in load(settings.extensions))
    for extension in left_out:
        for name in sorted(each.name.upper() for room in extension.settings for each in fields(room)):
            if not hasattr(settings, name.lower()) and environ.get(name, "").strip():
                yield f"{name} is set, and means nothing: it is of an extension that EXTENSIONS does not name."


def from_environ(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Read the settings; return them and warnings for the operator. An empty variable counts as unset.

    A secret may lie in a file that `NAME_FILE` names, as Docker, Kubernetes and systemd hand secrets out. The text of
    an error never holds one.

    Raises `ConfigurationError`.
    """
    warnings: list[str] = []
    values: dict[str, Any] = {}
    try:
        made = settings_class(chosen(environ))  # which settings there are
    except ValueError as wrong:
        raise ConfigurationError(str(wrong)) from None
    for known, _ in _all(made):
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
    settings = made(**values)
    warnings += _waits_for_nothing(settings, values)
    warnings += _of_what_is_not_loaded(settings, environ)
    # Each room checks its own: `problem` is called by class, as `super()` would need each of them to go on.
    rooms = [room for room in made.__mro__ if issubclass(room, RoomSettings)]
    rooms.sort(key=lambda room: not issubclass(Settings, room))  # those of extensions rely on the server's
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
