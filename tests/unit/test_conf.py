"""Settings: what each takes, what is said where it is wrong, and the secret that makes itself."""

import dataclasses
import re
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from responses_app.protocol.events.dialects import parse_dialect
from responses_app.protocol.prices import Price
from responses_app.protocol.tiers import QueueBounds
from responses_app.settings.conf import RETIRED, ConfigurationError, Settings, from_environ, secret_files, table
from responses_app.tools.network import hosts
from tests.kit.forking import run_forked, start_forker
from tests.kit.server import ROOT, server_environ
from tests.kit.tool_settings import RIGHT_OF_TOOLS, TOOLS_TOGETHER, WRONG_OF_TOOLS

RIGHT: dict[str, tuple[str, Any]] = {
    "HOST": ("127.0.0.2", "127.0.0.2"),
    "FILE_SEARCH_EMBEDDING_MODEL": (" hashing-256 ", "hashing-256"),
    "FILE_SEARCH_QUERY_SECONDS": ("0.5", 0.5),
    "FILE_SEARCH_EMBEDDING_SECONDS": ("30", 30.0),
    "FILE_SEARCH_EMBEDDING_AT_ONCE": ("4", 4),
    "PORT": (" 8001 ", 8001),
    "DEBUG": ("on", True),
    "DATA_DIR": ("data", "data"),
    "ROLLOUT_ENGINE_PERCENT": ("30", 30),
    "WORKERS": ("4", 4),
    "WORKER_MAX_MEMORY_BYTES": ("1000000000", 10**9),
    "WORKER_START_SECONDS": ("2.5", 2.5),
    "WORKER_SILENCE_SECONDS": ("0", 0.0),
    "SECRET_KEY": ("s", "s"),
    "DATABASE_URL": ("postgres://u:p@h/n", "postgres://u:p@h/n"),
    "REDIS_URL": ("redis://h:6379/0", "redis://h:6379/0"),
    "ALLOWED_HOSTS": ("a.example, b.example,", ("a.example", "b.example")),
    "ALLOWED_ORIGINS": ("HTTP://localhost:3000/, app-1://b", ("http://localhost:3000", "app-1://b")),
    "CSRF_TRUSTED_ORIGINS": ("https://a.example/, https://b.example", ("https://a.example", "https://b.example")),
    "BEHIND_PROXY": ("TLS", "tls"),
    "ADMIN_LOGIN_FAILURES": ("3", 3),
    "ADMIN_LOGIN_LOCK_SECONDS": ("60", 60.0),
    "OIDC_ISSUER": (" ", ""),
    "OIDC_CLIENT_ID": ("respsite", "respsite"),
    "OIDC_CLIENT_SECRET": ("s", "s"),
    "OIDC_NAME": (" Example ", "Example"),
    "OIDC_SCOPES": ("openid,email groups", ("openid", "email", "groups")),
    "OIDC_GROUPS_CLAIM": ("https://example.com/groups", "https://example.com/groups"),
    "OIDC_ROLES": ('{"ops": "operator"}', {"ops": "operator"}),
    "OIDC_SESSION_SECONDS": ("3600", 3600.0),
    "LOG_LEVEL": ("DEBUG", "debug"),
    "LOG_FORMAT": ("json", "json"),
    "CORE_DUMPS": ("on", True),
    "METRICS": ("Public", "public"),
    "METRICS_DIR": ("metrics", "metrics"),
    "TRACES": ("on", True),
    "TRACES_CONTENT": ("support, research", ("support", "research")),
    "TRACES_CONTENT_IN": ("Events", "events"),
    "PRICES": ('{"m": {"input": 0.1}}', {"m": Price(Decimal("0.1"), Decimal("0.1"), Decimal(0))}),
    "PRICES_CURRENCY": ("EUR", "eur"),
    "PLAYGROUND_SHARING": ("on", True),
    "ENGINE": ("Demo", "demo"),
    "ENGINE_URL": (
        "http://a:8001/v1/, https://b,dns+http://c:8001,file:///srv/v1",
        ("http://a:8001", "https://b", "dns+http://c:8001", "file:///srv/v1"),
    ),
    "ENGINE_API_KEY": ("k", "k"),
    "ENGINE_CORE": ("/run/core", "/run/core"),
    "MODEL": ("m", "m"),
    "MODEL_FORMAT": ("Auto", "auto"),
    "TOKENIZER": ("/srv/model", "/srv/model"),
    "REASONING_PARSER": ("Qwen3", "qwen3"),
    "TOOL_PARSER": ("Hermes", "hermes"),
    "REFUSE_IMAGES": ("on", True),
    "INPUT_IMAGES_MAX": ("5", 5),
    "INPUT_IMAGE_MAX_BYTES": ("4096", 4096),
    "INPUT_IMAGE_MAX_PIXELS": ("4096", 4096),
    "INPUT_IMAGES_ALLOWED_HOSTS": ("10.0.0.0/8", hosts("10.0.0.0/8")),
    "INPUT_IMAGES_MEMORY_BYTES": ("0", 0),
    "IMAGE_TOKEN": ("<image>", "<image>"),
    "CHAT_TEMPLATE_KWARGS": ('{"thinking": true}', {"thinking": True}),
    "MODEL_NAME": ("n", "n"),
    "ENGINE_OPTIONS": ('{"tokens_per_second": 5}', {"tokens_per_second": 5}),
    "ENGINE_SCRIPT": ("script.json", "script.json"),
    "MODELS": ('{"a": {"engine": "Demo", "aliases": ["b"]}}', (("a", {"engine": "demo", "aliases": ("b",)}),)),
    "MAX_WEBSOCKET_CONNECTIONS": ("1", 1),
    "WEBSOCKET_LIFETIME_SECONDS": ("7200", 7200.0),
    "WEBSOCKET_WARNING_SECONDS": ("0", 0.0),
    "WEBSOCKET_GRACE_SECONDS": ("0.5", 0.5),
    "AUTH": ("off", "off"),
    "WEBSOCKET_BUSY": ("reject", "reject"),
    "UNKNOWN_FIELDS": ("Refuse", "refuse"),
    "WEBSOCKET_MAX_MESSAGE_BYTES": ("1024", 1024),
    "WEBSOCKET_MAX_QUEUED": ("0", 0),
    "WEBSOCKET_MAX_STATE_BYTES": ("1024", 1024),
    "WEBSOCKET_MAX_UNFINISHED_BYTES": ("1024", 1024),
    "STREAM_MAX_LAG_BYTES": ("65536", 65536),
    "STREAM_STALL_SECONDS": ("0.1", 0.1),
    "STREAM_DELTA_MS": ("50", 50),
    "STREAM_FIRST_WORD_MS": ("0", 0),
    "DATABASE_TIMEOUT_SECONDS": ("2.5", 2.5),
    "DATABASE_PATIENCE_SECONDS": ("0", 0.0),
    "MAX_BODY_BYTES": ("1024", 1024),
    "MAX_INPUT_ITEMS": ("50", 50),
    "MAX_JSON_VALUES": ("1000", 1000),
    "REQUEST_ARRIVAL_SECONDS": ("5", 5.0),
    "RESPONSES_PING_INTERVAL_SECONDS": ("0", 0.0),
    "RESPONSES_DIALECT": ("Open-Responses, ping-events,", parse_dialect("reasoning-names,ping-events")),
    "RESPONSES_TOOL_MODE": ("Wait", "wait"),
    "RESPONSES_TOOL_TIMEOUT": ("0.5", 0.5),
    "MULTI_AGENT_MAX_CONCURRENT": ("2", 2),
    "MULTI_AGENT_MAX_AGENTS": ("3", 3),
    "MULTI_AGENT_MAX_DEPTH": ("1", 1),
    "MULTI_AGENT_MAX_CALLS": ("5", 5),
    "MULTI_AGENT_WAIT_SECONDS": ("0.5", 0.5),
    "RESPONSES_MAX_TOOL_OUTPUT_BYTES": ("2048", 2048),
    "RESPONSES_MAX_IN_FLIGHT": ("1", 1),
    "RESPONSES_COMPATIBILITY_MODE": ("FALSE", False),
    "RESPONSES_USAGE_PER_TURN": ("on", True),
    "RESPONSES_STORE": ("off", False),
    "RESPONSES_STORE_TTL": ("3600", 3600.0),
    "RESPONSES_STORE_MAX_ENTRIES": ("10", 10),
    "RESPONSES_STORE_MAX_BYTES": ("10", 10),
    "RESPONSES_SESSION_TTL": ("1", 1.0),
    "RESPONSES_MAX_ACTIVE_SESSIONS": ("1", 1),
    "RESPONSES_MAX_SESSION_BYTES": ("1024", 1024),
    "RESPONSES_MAX_UNSAVED_BYTES": ("1024", 1024),
    "RECONNECT_GRACE_SECONDS": ("5", 5.0),
    "BACKGROUND_MAX_RUNNING": ("1", 1),
    "BACKGROUND_MAX_QUEUED": ("0", 0),
    "SHUTDOWN_GRACE_SECONDS": ("0", 0.0),
    "WORKER_LEASE_SECONDS": ("2", 2.0),
    "CONVERSATIONS_MAX_ENTRIES": ("5", 5),
    "IDEMPOTENCY_KEY_TTL": ("3600", 3600.0),
    "IDEMPOTENCY_MAX_KEYS": ("5", 5),
    "IDEMPOTENCY_MAX_BYTES": ("1024", 1024),
    "IDEMPOTENCY_MAX_ANSWER_BYTES": ("1024", 1024),
    "BATCH_MAX_LINES": ("5", 5),
    "BATCH_MAX_BYTES": ("4096", 4096),
    "BATCHES_MAX_OPEN": ("5", 5),
    "BATCH_LINES_RUNNING": ("5", 5),
    "ROLLOUT_TTL": ("5", 5.0),
    "ROLLOUTS_MAX_ENTRIES": ("5", 5),
    "ROLLOUT_MAX_GENERATIONS": ("5", 5),
    "ROLLOUT_MAX_BYTES": ("4096", 4096),
    "ROLLOUT_MEMORY_BYTES": ("0", 0),
    "REASONING_ENCRYPTION_KEYS": ("a" * 16 + ", " + "b" * 16, ("a" * 16, "b" * 16)),
    "REASONING_SUMMARIES": ("TEXT", "text"),
    "RESPONSES_DEFAULT_SERVICE_TIER": ("flex", "flex"),
    "RESPONSES_ALLOWED_SERVICE_TIERS": ("default, FLEX,default", ("default", "flex")),
    "DEFAULT_OPENAI_ORGANIZATION": ("org-a", "org-a"),
    "DEFAULT_OPENAI_VERSION": ("2020-10-01", "2020-10-01"),
    "AZURE_REGION": ("Sweden Central", "Sweden Central"),
    "ENGINE_MAX_RUNNING": ("64", 64),
    "ENGINE_MAX_QUEUED": ("0, flex=50,Fast=2", QueueBounds(0, {"flex": 50, "priority": 2})),
    "ENGINE_WEIGHTS": ("on", True),
    "ENGINE_PAUSE_SECONDS": ("60", 60.0),
    "ENGINE_WEIGHTS_SECONDS": ("5.5", 5.5),
    "ENGINE_RPC_METHODS": (" load_from, update2,", ("load_from", "update2")),
    **RIGHT_OF_TOOLS,
}
WRONG: dict[str, tuple[list[str], str]] = {
    "ROLLOUT_ENGINE_PERCENT": (["100", "-1", "a half"], "a whole number of at least 0 and at most 99"),
    "FILE_SEARCH_QUERY_SECONDS": (["0", "soon"], "a number of seconds of at least 0.01"),
    "FILE_SEARCH_EMBEDDING_SECONDS": (["0"], "a number of seconds of at least 0.1"),
    "FILE_SEARCH_EMBEDDING_AT_ONCE": (["0", "65"], "a whole number of at least 1 and at most 64"),
    "REFUSE_IMAGES": (["sometimes"], "on or off"),
    "INPUT_IMAGES_MAX": (["0"], "a whole number of at least 1"),
    "INPUT_IMAGE_MAX_BYTES": (["1000"], "a whole number of at least 1024"),
    "INPUT_IMAGE_MAX_PIXELS": (["0", "100000001"], "a whole number of at least 4096 and at most 100000000"),
    "INPUT_IMAGES_ALLOWED_HOSTS": (["a b"], "host names"),
    "INPUT_IMAGES_MEMORY_BYTES": (["-1"], "a whole number of at least 0"),
    "PORT": (["0", "65536", "-1", "80.5", "http"], "a whole number of at least 1 and at most 65535"),
    "WORKERS": (["0", "two", "1001"], "a whole number of at least 1 and at most 1000"),
    "WORKER_MAX_MEMORY_BYTES": (["-1", "1 GiB"], "a whole number of at least 0"),
    "WORKER_START_SECONDS": (["0", "soon"], "a number of seconds of at least 1"),
    "WORKER_SILENCE_SECONDS": (["-1", "never"], "a number of seconds of at least 0"),
    "DEBUG": (["perhaps", "2"], "on or off"),
    "ALLOWED_HOSTS": ([",", " , "], "names, separated by commas"),
    "ALLOWED_ORIGINS": (["a.example", ",", "null", "http://a/b", "https://*.a.example"], "origins with their scheme"),
    "CSRF_TRUSTED_ORIGINS": (["a.example", ","], "origins with their scheme"),
    "BEHIND_PROXY": (["on", "yes"], "one of no, http, tls"),
    "ADMIN_LOGIN_FAILURES": (["0"], "a whole number of at least 1"),
    "ADMIN_LOGIN_LOCK_SECONDS": (["0.5"], "a number of seconds of at least 1"),
    "OIDC_ISSUER": (
        [
            *"login.example.com http://login.example.com https://u:p@a https://a?b=1 https://a#b https://".split(),
            "https://a b",
        ],
        "the provider's issuer, a URL like https://",
    ),
    "OIDC_NAME": (["a\nb", "x" * 101], "up to 100 characters"),
    "OIDC_SCOPES": (["profile", ","], "scopes separated by spaces, one of them openid"),
    "OIDC_GROUPS_CLAIM": (["\x00"], "up to 100 characters"),
    "OIDC_ROLES": (["{", "[]", "{}", '{"a": "root"}', '{"a": ["viewer"]}'], "a JSON object of groups and their roles"),
    "OIDC_SESSION_SECONDS": (["59", "never"], "a number of seconds of at least 60"),
    "LOG_LEVEL": (["loud"], "one of debug, info, warning, error"),
    "LOG_FORMAT": (["xml"], "one of line, json"),
    "CORE_DUMPS": (["perhaps"], "on or off"),
    "METRICS": (["on", "yes"], "one of auto, public, off"),
    "TRACES": (["sometimes"], "on or off"),
    "TRACES_CONTENT": ([","], "names, separated by commas"),
    "TRACES_CONTENT_IN": (["logs"], "one of spans, events"),
    "PLAYGROUND_SHARING": (["sometimes"], "on or off"),
    "PRICES": (["cheap", '{"m": {"input": NaN}}', '{"m": {"input": -1}}', '{"m": 1}'], "a JSON object like"),
    "PRICES_CURRENCY": (["$", "dollars"], "the three letters of a currency"),
    "ENGINE": (["nonsense"], "one of "),
    "ENGINE_OPTIONS": (["{", "[]", "1"], "a JSON object"),
    "MODELS": (["{", "[]", "{}", '{"a": {}, "a": {}}'], "a JSON object of at most 32 models by their names, like"),
    "MAX_WEBSOCKET_CONNECTIONS": (["0", "-5", "many"], "a whole number of at least 1"),
    "WEBSOCKET_LIFETIME_SECONDS": (["0", "nan", "inf", "1h"], "a number of seconds of at least 1"),
    "WEBSOCKET_WARNING_SECONDS": (["-1"], "a number of seconds of at least 0"),
    "WEBSOCKET_GRACE_SECONDS": (["-1"], "a number of seconds of at least 0"),
    "AUTH": (["maybe"], "one of auto, on, off"),
    "DEFAULT_OPENAI_ORGANIZATION": (["a\nb", "é", "x" * 129], "up to 128 printable ASCII characters"),
    "DEFAULT_OPENAI_VERSION": (["é"], "up to 128 printable ASCII characters"),
    "AZURE_REGION": (["\x7f"], "up to 128 printable ASCII characters"),
    "ENGINE_MAX_RUNNING": (["-1"], "a whole number of at least 0"),
    "ENGINE_WEIGHTS": (["perhaps"], "on or off"),
    "ENGINE_PAUSE_SECONDS": (["0.5"], "a number of seconds of at least 1"),
    "ENGINE_WEIGHTS_SECONDS": (["0"], "a number of seconds of at least 1"),
    "ENGINE_RPC_METHODS": ([",", "a.b", "_init", "load from"], "names of methods, separated by commas, like load_from"),
    "ENGINE_MAX_QUEUED": (["-1", "flex=5", "1,slow=5", "1,flex", "1,auto=2"], "a whole number of at least 0, and othe"),
    "WEBSOCKET_BUSY": (["wait"], "one of queue, reject"),
    "UNKNOWN_FIELDS": (["drop"], "one of ignore, refuse"),
    "WEBSOCKET_MAX_MESSAGE_BYTES": (["1023", "64 MiB"], "a whole number of at least 1024"),
    "WEBSOCKET_MAX_QUEUED": (["-1", "²"], "a whole number of at least 0"),
    "WEBSOCKET_MAX_STATE_BYTES": (["1"], "a whole number of at least 1024"),
    "WEBSOCKET_MAX_UNFINISHED_BYTES": (["1"], "a whole number of at least 1024"),
    "STREAM_MAX_LAG_BYTES": (["1024"], "a whole number of at least 65536"),
    "DATABASE_TIMEOUT_SECONDS": (["0", "soon"], "a number of seconds of at least 0.1"),
    "DATABASE_PATIENCE_SECONDS": (["-1"], "a number of seconds of at least 0"),
    "STREAM_STALL_SECONDS": (["0"], "a number of seconds of at least 0.1"),
    "STREAM_DELTA_MS": (["-1", "0.5", "10001"], "a whole number of at least 0 and at most 10000"),
    "STREAM_FIRST_WORD_MS": (["-1", "60001"], "a whole number of at least 0 and at most 60000"),
    "MAX_BODY_BYTES": (["1"], "a whole number of at least 1024"),
    "MAX_INPUT_ITEMS": (["0"], "a whole number of at least 1"),
    "MAX_JSON_VALUES": (["10"], "a whole number of at least 1000"),
    "REQUEST_ARRIVAL_SECONDS": (["0", "long"], "a number of seconds of at least 0.1"),
    "RESPONSES_PING_INTERVAL_SECONDS": (["-1", "often"], "a number of seconds of at least 0"),
    "RESPONSES_DIALECT": (["codex", ",", "openai,nonsense"], "the presets openai, open-responses, "),
    "RESPONSES_TOOL_MODE": (["on", "waits"], "one of complete, wait"),
    "MULTI_AGENT_MAX_CONCURRENT": (["0", "1001"], "a whole number of at least 1 and at most 1000"),
    "MULTI_AGENT_MAX_AGENTS": (["0", "10001"], "a whole number of at least 1 and at most 10000"),
    "MULTI_AGENT_MAX_DEPTH": (["0", "101"], "a whole number of at least 1 and at most 100"),
    "MULTI_AGENT_MAX_CALLS": (["0", "many"], "a whole number of at least 1 and at most 100000"),
    "MULTI_AGENT_WAIT_SECONDS": (["0", "long"], "a number of seconds of at least 0.1"),
    "RESPONSES_TOOL_TIMEOUT": (["0", "-1", "long"], "a number of seconds of at least 0.1"),
    "RESPONSES_MAX_TOOL_OUTPUT_BYTES": (["1023", "1 MiB"], "a whole number of at least 1024"),
    "RESPONSES_MAX_IN_FLIGHT": (["0"], "a whole number of at least 1"),
    "RESPONSES_COMPATIBILITY_MODE": (["strict"], "on or off"),
    "RESPONSES_USAGE_PER_TURN": (["2"], "on or off"),
    "RESPONSES_STORE": (["sometimes"], "on or off"),
    "ENGINE_URL": (
        [*"localhost:8001 http://a,b , dns+https://a file:servers http:// http://a:99999 http://a?b=1".split()],
        "URLs of vLLM servers",
    ),
    "MODEL_FORMAT": (["chatml"], "one of harmony, chat-template, auto"),
    "REASONING_PARSER": (["gpt"], "one of auto, none, think"),
    "TOOL_PARSER": (["xml"], "one of auto, none, hermes"),
    "CHAT_TEMPLATE_KWARGS": (["thinking", "[]"], "a JSON object"),
    "RESPONSES_STORE_TTL": (["-1"], "a number of seconds of at least 0"),
    "RESPONSES_STORE_MAX_ENTRIES": (["-1"], "a whole number of at least 0"),
    "RESPONSES_STORE_MAX_BYTES": (["1 GiB"], "a whole number of at least 0"),
    "RESPONSES_SESSION_TTL": (["-1"], "a number of seconds of at least 0"),
    "RESPONSES_MAX_ACTIVE_SESSIONS": (["0"], "a whole number of at least 1"),
    "RESPONSES_MAX_SESSION_BYTES": (["1"], "a whole number of at least 1024"),
    "RESPONSES_MAX_UNSAVED_BYTES": (["1"], "a whole number of at least 1024"),
    "RECONNECT_GRACE_SECONDS": (["-1"], "a number of seconds of at least 0"),
    "BACKGROUND_MAX_RUNNING": (["0"], "a whole number of at least 1"),
    "BACKGROUND_MAX_QUEUED": (["-1"], "a whole number of at least 0"),
    "SHUTDOWN_GRACE_SECONDS": (["-1"], "a number of seconds of at least 0"),
    "WORKER_LEASE_SECONDS": (["0.5"], "a number of seconds of at least 1"),
    "CONVERSATIONS_MAX_ENTRIES": (["-1"], "a whole number of at least 0"),
    "IDEMPOTENCY_KEY_TTL": (["0"], "a number of seconds of at least 1"),
    "IDEMPOTENCY_MAX_KEYS": (["0"], "a whole number of at least 1"),
    "IDEMPOTENCY_MAX_BYTES": (["1"], "a whole number of at least 1024"),
    "IDEMPOTENCY_MAX_ANSWER_BYTES": (["1"], "a whole number of at least 1024"),
    "BATCH_MAX_LINES": (["0"], "a whole number of at least 1"),
    "BATCH_MAX_BYTES": (["5"], "a whole number of at least 1024"),
    "BATCHES_MAX_OPEN": (["0"], "a whole number of at least 1"),
    "BATCH_LINES_RUNNING": (["0", "10001"], "a whole number of at least 1 and at most 10000"),
    "ROLLOUT_TTL": (["-1", "soon"], "a number of seconds of at least 0"),
    "ROLLOUTS_MAX_ENTRIES": (["0"], "a whole number of at least 1"),
    "ROLLOUT_MAX_GENERATIONS": (["0"], "a whole number of at least 1"),
    "ROLLOUT_MAX_BYTES": (["5"], "a whole number of at least 1024"),
    "ROLLOUT_MEMORY_BYTES": (["-1"], "a whole number of at least 0"),
    "REASONING_ENCRYPTION_KEYS": (["short", ","], "secrets of at least 16 characters"),
    "REASONING_SUMMARIES": (["on", "detailed"], "one of model, text, off"),
    "RESPONSES_DEFAULT_SERVICE_TIER": (["cheap"], "one of auto, default"),
    "RESPONSES_ALLOWED_SERVICE_TIERS": (["cheap", ","], "some of auto,default"),
    **WRONG_OF_TOOLS,
}
TOGETHER = {  # environment → what its sentence has to name
    "a network without host names": ({"HOST": "0.0.0.0"}, ["HOST=0.0.0.0", "ALLOWED_HOSTS"]),
    "a warning after the end": (
        {"WEBSOCKET_WARNING_SECONDS": "20", "WEBSOCKET_LIFETIME_SECONDS": "10"},
        ["WEBSOCKET_WARNING_SECONDS", "WEBSOCKET_LIFETIME_SECONDS"],
    ),
    "a provider without a client": ({"OIDC_ISSUER": "https://a"}, ["OIDC_ISSUER=https://a", "OIDC_CLIENT_ID"]),
    "a provider without a secret": (
        {"OIDC_ISSUER": "http://localhost:1", "OIDC_CLIENT_ID": "a", "OIDC_ROLES": '{"a": "admin"}'},
        ["OIDC_CLIENT_SECRET"],
    ),
    "a provider without roles": (
        {"OIDC_ISSUER": "https://a", "OIDC_CLIENT_ID": "a", "OIDC_CLIENT_SECRET": "hidden"},
        ["OIDC_ROLES"],
    ),
    "scripted without a script": ({"ENGINE": "scripted"}, ["ENGINE=scripted", "ENGINE_SCRIPT"]),
    "vllm without a model": ({"ENGINE": "vllm"}, ["ENGINE=vllm", "MODEL"]),
    "vllm-server without its URL": ({"ENGINE": "vllm-server", "MODEL": "m"}, ["ENGINE_URL", "MODEL"]),
    "vllm-server without a model": ({"ENGINE": "vllm-server", "ENGINE_URL": "http://h"}, ["ENGINE_URL", "MODEL"]),
    **TOOLS_TOGETHER,
    "another database": ({"DATABASE_URL": "mysql://u:hidden@h/n"}, ["DATABASE_URL", "sqlite:///", "postgres://"]),
    "another Redis": ({"REDIS_URL": "http://:hidden@h"}, ["REDIS_URL", "redis://"]),
}


def read(**environ: str) -> Settings:
    """Read settings that leave nothing to be warned of."""
    settings, warnings = from_environ(environ)
    assert warnings == []
    return settings


def refusal(environ: dict[str, str]) -> str:
    """Return the sentence that these settings get."""
    with pytest.raises(ConfigurationError) as raised:
        from_environ(environ)
    return str(raised.value)


def assert_is_one_sentence(text: str) -> None:
    """Assert that an operator can read this."""
    assert re.fullmatch(r"[A-Z][^\n]*\.", text)
    assert len(text) < 250
    assert "None" not in text
    assert "Error" not in text


def test_every_setting_is_tested_here() -> None:
    assert set(RIGHT) == {row.name for row in table()}
    strings = {field.name.upper() for field in dataclasses.fields(Settings) if field.type in (str, "str")}
    assert set(WRONG) | strings >= set(RIGHT)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_value_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.settings.conf.can_be_exported", lambda: True)  # what it needs is told below
    raw, value = RIGHT[name]
    assert getattr(read(**{name: raw}), name.lower()) == value


@pytest.mark.parametrize("name", RIGHT)
def test_an_empty_value_counts_as_unset(name: str) -> None:
    assert read(**{name: " "}) == Settings()


@pytest.mark.parametrize(("name", "raw"), [(name, raw) for name, (values, _) in WRONG.items() for raw in values])
def test_a_wrong_value_is_told_in_one_sentence(name: str, raw: str) -> None:
    sentence = refusal({name: raw})
    assert_is_one_sentence(sentence)
    named = name if f"{name}_FILE" in secret_files() else f"{name}={raw!r}"  # nobody shows a secret
    assert sentence.startswith(f"{named} is not valid: it takes {WRONG[name][1]}")


@pytest.mark.parametrize(("environ", "named"), TOGETHER.values(), ids=TOGETHER)
def test_settings_that_do_not_fit_together(environ: dict[str, str], named: list[str]) -> None:
    sentence = refusal(environ)
    assert_is_one_sentence(sentence)
    assert [name for name in named if name not in sentence] == []
    assert "hidden" not in sentence, "no passwords in messages"


def test_a_search_by_a_configured_server() -> None:
    assert read(SEARCH_MCP=" a.b ", MCP_SERVERS='{"a": "https://a.example"}').search_mcp == "a.b"


def test_a_shorter_life_alone_needs_no_warning_time() -> None:
    assert read(WEBSOCKET_LIFETIME_SECONDS="10").websocket_lifetime_seconds == 10


def test_a_network_with_host_names() -> None:
    settings = read(HOST="0.0.0.0", ALLOWED_HOSTS="models.example")
    assert not settings.serves_loopback
    assert settings.allowed_hosts == ("models.example",)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "::1"])
def test_loopback_needs_no_host_names(host: str) -> None:
    assert read(HOST=host).serves_loopback


def test_a_host_that_does_not_resolve_is_ignored_with_a_warning() -> None:
    settings, (warning,) = from_environ({"HOST": "nonsense.invalid"})
    assert settings.host == "127.0.0.1"
    assert_is_one_sentence(warning)
    assert warning.startswith("HOST='nonsense.invalid'")


def test_the_model_is_called_what_is_known_of_it() -> None:
    names = [
        [model.name for model in read(**environ).served]
        for environ in ({}, {"MODEL": "a/b"}, {"MODEL": "a/b", "MODEL_NAME": "c"})
    ]
    assert names == [["demo"], ["a/b"], ["c"]]


def test_the_database_lies_in_the_data_folder_unless_it_is_named(tmp_path: Path) -> None:
    assert read(DATA_DIR=str(tmp_path)).database == f"sqlite:///{tmp_path}/respsite.sqlite3"
    assert read(DATABASE_URL="sqlite:///x").database == "sqlite:///x"


def test_the_table_tells_the_defaults_that_are() -> None:
    shown = {row.name: row.default for row in table()}
    for field in dataclasses.fields(Settings):
        if field.type in (int, "int"):
            assert shown[field.name.upper()] == str(field.default)
        elif field.type in (float, "float"):
            assert float(shown[field.name.upper()]) == field.default
        elif field.type in (bool, "bool"):
            assert shown[field.name.upper()] == ("on" if field.default else "off")
    assert all(row.about and "\n" not in row.about and "|" not in row.about for row in table())


def test_what_is_said_of_a_setting_leans_on_no_other() -> None:
    leaning = re.compile(r"(the same|it|its|they|those|that|such|this|how (it|they|long it|long they))\b")
    assert [row.name for row in table() if leaning.match(row.about)] == []


# What the processes say.


def start(code: str, folder: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run code that is expected to end, in a process of its own; it is kept in `folder`, in a file of its own."""
    with NamedTemporaryFile("w", dir=folder, suffix=".py", delete=False) as script:
        script.write(code)
    return run_forked([script.name], cwd=ROOT, environ=server_environ(**settings), seconds=60)


STARTS = {
    "daphne": ("-m", "daphne", "-p", "0", "respsite.asgi:application"),
    "uvicorn": ("-m", "uvicorn", "--port", "0", "respsite.asgi:application"),
    "serve": ("manage.py", "serve"),
}
TOLD = {
    "ENGINE='nonsense' is not valid": {"ENGINE": "nonsense"},
    "The demo engine does not know 'speed'": {"ENGINE_OPTIONS": '{"speed": 1}'},
    "DATABASE_URL is not valid": {"DATABASE_URL": "postgres://h:99999999/hidden"},
}


@pytest.mark.parametrize("command", STARTS)
@pytest.mark.parametrize("beginning", TOLD)
@pytest.mark.each_server
def test_a_wrong_setting_ends_every_server_with_one_line(beginning: str, command: str, tmp_path: Path) -> None:
    environ = server_environ(DATA_DIR=str(tmp_path), **TOLD[beginning])
    ended = run_forked(STARTS[command], cwd=ROOT, environ=environ, seconds=60)
    assert ended.returncode == 1
    (line,) = (ended.stdout + ended.stderr).splitlines()
    assert line.startswith(f"respsite: {beginning}")


def test_the_secret_is_made_once_however_many_start_at_once(tmp_path: Path) -> None:
    code = "from respsite.settings import SECRET_KEY; print(SECRET_KEY)"
    folder = tmp_path / "new" / "data"
    start_forker(server_environ())  # each thread would start one
    with ThreadPoolExecutor(6) as pool:
        starts = [pool.submit(start, code, tmp_path, DATA_DIR=str(folder)) for _ in range(6)]
        keys = {(ended.result().stdout.strip(), ended.result().stderr) for ended in starts}
    ((key, errors),) = keys
    assert (len(key) > 50, errors) == (True, "")
    file = folder / "secret_key"
    assert file.read_text() == key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in folder.glob("secret_key*")] == ["secret_key"]


def test_a_secret_that_is_given_is_not_kept(tmp_path: Path) -> None:
    code = "from respsite.settings import SECRET_KEY; print(SECRET_KEY)"
    ended = start(code, tmp_path, DATA_DIR=str(tmp_path), SECRET_KEY="given")
    assert ended.stdout.strip() == "given"
    assert not (tmp_path / "secret_key").exists()


@pytest.mark.parametrize("trouble", ["empty", "folder"])
def test_trouble_with_the_secret_is_told_in_one_line(trouble: str, tmp_path: Path) -> None:
    if trouble == "empty":
        (tmp_path / "secret_key").touch()
        data_dir = tmp_path
    else:
        data_dir = tmp_path / "file"
        data_dir.touch()
    ended = start("import respsite.settings", tmp_path, DATA_DIR=str(data_dir))
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("respsite: ")
    assert str(data_dir) in line


def test_traces_need_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.observing.traces.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"TRACES=on needs OpenTelemetry"):
        from_environ({"TRACES": "on"})


def test_a_setting_that_means_nothing_any_more_is_told() -> None:
    _, warnings = from_environ({"MCP_SSE": "on"})
    assert warnings == [RETIRED["MCP_SSE"]]
    assert not {name.lower() for name in RETIRED} & set(Settings.__dataclass_fields__)
