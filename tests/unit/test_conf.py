"""Settings: what each takes, what is said where it is wrong, and the secret that makes itself."""

import dataclasses
import re
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from responses_app.extensions.containers.egress.settings import Reachable
from responses_app.protocol.events.dialects import parse_dialect
from responses_app.protocol.files.containers import Domain
from responses_app.protocol.prices import Price
from responses_app.protocol.tiers import QueueBounds
from responses_app.settings.conf import (
    RETIRED,
    ConfigurationError,
    Settings,
    from_environ,
    secret_files,
    settings_class,
    table,
)
from responses_app.tools.network import hosts
from responses_app.tools.settings import ServerAccess
from tests.kit.forking import run_forked, start_forker
from tests.kit.server import ROOT, server_environ

WHOLE = {  # the least and the most: the settings that take a whole number between them
    (0, 99): "ROLLOUT_ENGINE_PERCENT",
    (0, None): (
        "BACKGROUND_MAX_QUEUED CONVERSATIONS_MAX_ENTRIES ENGINE_MAX_RUNNING FILES_MAX_BYTES FILES_MAX_ENTRIES "
        "FILE_SEARCH_CACHE_BYTES INPUT_IMAGES_MEMORY_BYTES RESPONSES_STORE_MAX_BYTES RESPONSES_STORE_MAX_ENTRIES "
        "ROLLOUT_MEMORY_BYTES SANDBOX_PROJECT_CONTAINERS SANDBOX_SAVED_BYTES SKILLS_MAX_VERSIONS UPLOADS_MAX_OPEN "
        "VECTOR_STORES_MAX_ENTRIES VECTOR_STORE_MAX_CHUNKS VECTOR_STORE_MAX_FILES WEBHOOK_ENDPOINTS_MAX "
        "WEBSOCKET_MAX_QUEUED WORKER_MAX_MEMORY_BYTES"
    ),
    (0, 10000): "STREAM_DELTA_MS",
    (0, 60000): "STREAM_FIRST_WORD_MS",
    (1, 64): "FILE_SEARCH_EMBEDDING_AT_ONCE",
    (1, 65535): "PORT",
    (1, 1000): "MULTI_AGENT_MAX_CONCURRENT WORKERS",
    (1, None): (
        "ADMIN_LOGIN_FAILURES BACKGROUND_MAX_RUNNING BACKGROUND_UNSTORED_MINUTES BATCHES_MAX_OPEN BATCH_MAX_LINES "
        "FILE_MAX_BYTES IDEMPOTENCY_MAX_KEYS INPUT_IMAGES_MAX MAX_INPUT_ITEMS MAX_WEBSOCKET_CONNECTIONS "
        "RESPONSES_MAX_ACTIVE_SESSIONS RESPONSES_MAX_IN_FLIGHT ROLLOUTS_MAX_ENTRIES ROLLOUT_MAX_GENERATIONS "
        "SANDBOX_NETWORK_BYTES SKILL_MAX_BYTES SKILL_MAX_UNPACKED_BYTES WEBHOOK_MAX_WAITING"
    ),
    (1, 10000): "BATCH_LINES_RUNNING MULTI_AGENT_MAX_AGENTS",
    (1, 100): "MULTI_AGENT_MAX_DEPTH",
    (1, 100000): "MULTI_AGENT_MAX_CALLS",
    (1, 4096): "SANDBOX_MAX_CONTAINERS",
    (4, 1000): "DATABASE_CONNECTIONS",
    (8, 4096): "SANDBOX_MAX_PROCESSES",
    (1000, None): "MAX_JSON_VALUES",
    (1024, None): (
        "BATCH_MAX_BYTES IDEMPOTENCY_MAX_ANSWER_BYTES IDEMPOTENCY_MAX_BYTES INPUT_IMAGE_MAX_BYTES MAX_BODY_BYTES "
        "RESPONSES_MAX_SESSION_BYTES RESPONSES_MAX_TOOL_OUTPUT_BYTES RESPONSES_MAX_UNSAVED_BYTES ROLLOUT_MAX_BYTES "
        "SERVER_TOOL_MAX_OUTPUT_BYTES WEBSOCKET_MAX_MESSAGE_BYTES WEBSOCKET_MAX_STATE_BYTES "
        "WEBSOCKET_MAX_UNFINISHED_BYTES"
    ),
    (4096, 100000000): "INPUT_IMAGE_MAX_PIXELS",
    (65536, None): "IMAGE_MAX_BYTES STREAM_MAX_LAG_BYTES",
    (1048576, None): "SANDBOX_DISK_BYTES",
    (67108864, None): "SANDBOX_MEMORY_BYTES",
}
SECONDS = {  # the least: the settings that take a number of seconds
    0: (
        "DATABASE_PATIENCE_SECONDS RECONNECT_GRACE_SECONDS RESPONSES_PING_INTERVAL_SECONDS RESPONSES_SESSION_TTL "
        "RESPONSES_STORE_TTL ROLLOUT_TTL SANDBOX_WAIT_SECONDS SHUTDOWN_GRACE_SECONDS WEBHOOK_KEPT_SECONDS "
        "WEBSOCKET_GRACE_SECONDS WEBSOCKET_WARNING_SECONDS WORKER_SILENCE_SECONDS"
    ),
    0.01: "FILE_SEARCH_QUERY_SECONDS",
    0.1: (
        "DATABASE_TIMEOUT_SECONDS FILE_SEARCH_EMBEDDING_SECONDS MULTI_AGENT_WAIT_SECONDS REQUEST_ARRIVAL_SECONDS "
        "RESPONSES_TOOL_TIMEOUT SANDBOX_CALL_SECONDS STREAM_STALL_SECONDS WEBHOOK_SECONDS"
    ),
    1: (
        "ADMIN_LOGIN_LOCK_SECONDS ENGINE_PAUSE_SECONDS ENGINE_WEIGHTS_SECONDS IDEMPOTENCY_KEY_TTL "
        "IMAGE_SERVICE_SECONDS SANDBOX_IDLE_SECONDS SANDBOX_SAVE_SECONDS SERVER_TOOL_SECONDS WEBHOOK_RETRY_SECONDS "
        "WEBSOCKET_LIFETIME_SECONDS WORKER_LEASE_SECONDS WORKER_START_SECONDS"
    ),
    60: "OIDC_SESSION_SECONDS",
}
CHOICES = {
    "BEHIND_PROXY": "no, http, tls",
    "LOG_LEVEL": "debug, info, warning, error",
    "LOG_FORMAT": "line, json",
    "METRICS": "auto, public, off",
    "TRACES_CONTENT_IN": "spans, events",
    "ENGINE": "demo, vllm, vllm-server, llama-server, scripted",
    "AUTH": "auto, on, off",
    "WEBSOCKET_BUSY": "queue, reject",
    "UNKNOWN_FIELDS": "ignore, refuse",
    "UNSERVED_TOOLS": "ignore, refuse",
    "FOREIGN_SEALS": "refuse, note",
    "CHAT_REASONING": "both, reasoning, reasoning_content",
    "RESPONSES_TOOL_MODE": "complete, wait",
    "MODEL_FORMAT": "harmony, chat-template, auto",
    "REASONING_PARSER": "auto, none, think, qwen3, think-open, deepseek_r1 or vllm:NAME",
    "TOOL_PARSER": "auto, none, hermes, qwen, json, llama3_json or vllm:NAME",
    "REASONING_SUMMARIES": "model, text, off",
    "RESPONSES_DEFAULT_SERVICE_TIER": "auto, default, flex, scale, priority, fast, ultrafast",
    "SANDBOX": "auto, bubblewrap, sandlock, off",
    "SERVER_TOOL_EARLY": "off, known, predicted",
}
HOSTS = [f"{what}_ALLOWED_HOSTS" for what in ("INPUT_IMAGES", "MCP", "SANDBOX", "SEARCH", "WEBHOOK")]
SWITCHES = (
    "CORE_DUMPS DEBUG ENABLE_COMPUTER_CALL ENGINE_WEIGHTS FILE_SEARCH MCP_SERVER_URLS PLAYGROUND_SHARING REFUSE_IMAGES "
    "RESPONSES_COMPATIBILITY_MODE RESPONSES_STORE RESPONSES_USAGE_PER_TURN TRACES"
).split()
TEXTS = (
    "DATA_DIR EMBEDDINGS_MODEL ENGINE_API_KEY ENGINE_CORE ENGINE_SCRIPT IMAGE_SERVICE_KEY IMAGE_SERVICE_MODEL "
    "IMAGE_TOKEN METRICS_DIR MODEL MODEL_NAME OIDC_CLIENT_ID OIDC_CLIENT_SECRET SANDBOX_PYTHON SANDBOX_TLS_CA "
    "SANDBOX_TLS_CERT SANDBOX_TLS_KEY SECRET_KEY TOKENIZER"
).split()


def other_than_its_default(name: str, *values: Any) -> Any:
    """Return the first of some values that the setting does not have by itself."""
    return next(value for value in values if value != getattr(settings_class()(), name.lower()))


def rights() -> Iterator[tuple[str, Any]]:
    """Yield each setting that takes a number, a word or any text, with a right value."""
    for (least, _), names in WHOLE.items():
        yield from ((name, other_than_its_default(name, least, least + 1)) for name in names.split())
    for least, names in SECONDS.items():
        yield from ((name, other_than_its_default(name, float(least), least + 0.5)) for name in names.split())
    yield from ((name, other_than_its_default(name, *words.split(", "))) for name, words in CHOICES.items())
    yield from ((name, "/a/text") for name in TEXTS)


OTHERS: dict[str, tuple[str, Any, list[str], str]] = {  # a right value and what it means, wrong ones, what it takes
    "ALLOWED_HOSTS": ("a.example, b.example,", ("a.example", "b.example"), [",", " , "], "names, separated by commas"),
    "TRUSTED_PROXIES": (" ", (), ["proxy.example", "10.0.0.5/8", ","], "addresses and networks, separated by commas"),
    "OIDC_NAME": (" Example ", "Example", ["a\nb", "x" * 101], "up to 100 characters"),
    "OIDC_GROUPS_CLAIM": ("https://example.com/groups", "https://example.com/groups", ["\x00"], "up to 100 characters"),
    "TRACES_CONTENT": ("support, research", ("support", "research"), [","], "names, separated by commas"),
    "PRICES_CURRENCY": ("EUR", "eur", ["$", "dollars"], "the three letters of a currency"),
    "CHAT_TEMPLATE_KWARGS": ('{"thinking": true}', {"thinking": True}, ["thinking", "[]"], "a JSON object"),
    "ENGINE_OPTIONS": ('{"tokens_per_second": 5}', {"tokens_per_second": 5}, ["{", "[]", "1"], "a JSON object"),
    "DEFAULT_OPENAI_ORGANIZATION": ("org-a", "org-a", ["a\nb", "é", "x" * 129], "up to 128 printable ASCII characters"),
    "DEFAULT_OPENAI_VERSION": ("2020-10-01", "2020-10-01", ["é"], "up to 128 printable ASCII characters"),
    "AZURE_REGION": ("Sweden Central", "Sweden Central", ["\x7f"], "up to 128 printable ASCII characters"),
    "EMBEDDINGS_OPTIONS": ('{"max_model_len": 512}', {"max_model_len": 512}, ["7"], "a JSON object"),
    "SEARCH_MCP": (" ", "", ["a b", "a.", ".b", "a..b"], "the label of an MCP server"),
    "SANDBOX_MCP": (" ", "", ["a b", ".b"], "the label of an MCP server"),
}
RIGHT: dict[str, tuple[str, Any]] = {
    **{name: (f" {str(value).upper() if name in CHOICES else value} ", value) for name, value in rights()},
    **{name: ("Off", False) if getattr(settings_class()(), name.lower()) else ("on", True) for name in SWITCHES},
    **{name: (raw, value) for name, (raw, value, _, _) in OTHERS.items()},
    **dict.fromkeys(HOSTS, ("Wiki.internal, 10.1.0.0/16", hosts("wiki.internal,10.1.0.0/16"))),
    "ENGINE": ("Demo", "demo"),  # all others need more
    "MODEL_FORMAT": ("Auto", "auto"),
    "HOST": ("127.0.0.2", "127.0.0.2"),
    "DATABASE_URL": ("postgres://u:p@h/n", "postgres://u:p@h/n"),
    "REDIS_URL": ("redis://h:6379/0", "redis://h:6379/0"),
    "EXTENSIONS": ("none", ("none",)),
    "FILE_SEARCH_EMBEDDING_MODEL": (" hashing-256 ", "hashing-256"),
    "ALLOWED_ORIGINS": ("HTTP://localhost:3000/, app-1://b", ("http://localhost:3000", "app-1://b")),
    "CSRF_TRUSTED_ORIGINS": ("https://a.example/, https://b.example", ("https://a.example", "https://b.example")),
    "OIDC_ISSUER": (" ", ""),
    "OIDC_SCOPES": ("openid,email groups", ("openid", "email", "groups")),
    "OIDC_ROLES": ('{"ops": "operator"}', {"ops": "operator"}),
    "PRICES": ('{"m": {"input": 0.1}}', {"m": Price(Decimal("0.1"), Decimal("0.1"), Decimal(0))}),
    "ENGINE_URL": (
        "http://a:8001/v1/, https://b,dns+http://c:8001,file:///srv/v1",
        ("http://a:8001", "https://b", "dns+http://c:8001", "file:///srv/v1"),
    ),
    "MODELS": ('{"a": {"engine": "Demo", "aliases": ["b"]}}', (("a", {"engine": "demo", "aliases": ("b",)}),)),
    "RESPONSES_DIALECT": ("Open-Responses, ping-events,", parse_dialect("reasoning-names,ping-events")),
    "REASONING_ENCRYPTION_KEYS": ("a" * 16 + ", " + "b" * 16, ("a" * 16, "b" * 16)),
    "RESPONSES_ALLOWED_SERVICE_TIERS": ("default, FLEX,default", ("default", "flex")),
    "ENGINE_MAX_QUEUED": ("0, flex=50,Fast=2", QueueBounds(0, {"flex": 50, "priority": 2})),
    "ENGINE_RPC_METHODS": (" load_from, update2,", ("load_from", "update2")),
    "EMBEDDINGS_URL": ("http://127.0.0.1:8002/v1", ("http://127.0.0.1:8002",)),
    "SEARCH_URL": (" ddgs+http://127.0.0.1:8000/ ", "ddgs+http://127.0.0.1:8000"),
    "IMAGE_SERVICE_URL": (" http://127.0.0.1:8188/v1/images/generations/ ", "http://127.0.0.1:8188/v1"),
    "SANDBOX_HOSTS": (" /run/box, /run/other,/run/box", ("/run/box", "/run/other")),
    "SANDBOX_SECRET": ("a secret of some length", "a secret of some length"),
    "SANDBOX_NETWORK": ("A.org, *.b.org", Reachable(domains=(Domain("a.org"), Domain("b.org", True)))),
    "MCP_SERVERS": (
        '{"wiki": "https://wiki.example/mcp", "files": "server-files --root \'/srv/my files\'"}',
        {
            "wiki": ServerAccess(transport="http", url="https://wiki.example/mcp"),
            "files": ServerAccess(transport="stdio", command=("server-files", "--root", "/srv/my files")),
        },
    ),
}
WRONG: dict[str, tuple[list[str], str]] = {
    **{
        name: (
            [str(least - 1), "80.5", "²", "1 GiB", *([] if most is None else [str(most + 1)])],
            f"a whole number of at least {least}" + ("" if most is None else f" and at most {most}."),
        )
        for (least, most), names in WHOLE.items()
        for name in names.split()
    },
    **{
        name: ([f"{least - 0.001:g}", "nan", "inf", "soon"], f"a number of seconds of at least {least}")
        for least, names in SECONDS.items()
        for name in names.split()
    },
    **{name: (["nonsense"], f"one of {words}.") for name, words in CHOICES.items()},
    **dict.fromkeys(SWITCHES, (["perhaps", "2"], "on or off")),
    **{name: (wrong, takes) for name, (_, _, wrong, takes) in OTHERS.items()},
    **dict.fromkeys(HOSTS, (["http://a", "10.0.0.1/8", "a b"], "host names, .endings of names, addresses")),
    "ALLOWED_ORIGINS": (["a.example", ",", "null", "http://a/b", "https://*.a.example"], "origins with their scheme"),
    "CSRF_TRUSTED_ORIGINS": (["a.example", ","], "origins with their scheme"),
    "OIDC_ISSUER": (
        [
            *"login.example.com http://login.example.com https://u:p@a https://a?b=1 https://a#b https://".split(),
            "https://a b",
        ],
        "the provider's issuer, a URL like https://",
    ),
    "OIDC_SCOPES": (["profile", ","], "scopes separated by spaces, one of them openid"),
    "OIDC_ROLES": (["{", "[]", "{}", '{"a": "root"}', '{"a": ["viewer"]}'], "a JSON object of groups and their roles"),
    "PRICES": (["cheap", '{"m": {"input": NaN}}', '{"m": {"input": -1}}', '{"m": 1}'], "a JSON object like"),
    "MODELS": (["{", "[]", "{}", '{"a": {}, "a": {}}'], "a JSON object of at most 32 models by their names, like"),
    "ENGINE_RPC_METHODS": ([",", "a.b", "_init", "load from"], "names of methods, separated by commas, like load_from"),
    "ENGINE_MAX_QUEUED": (["-1", "flex=5", "1,slow=5", "1,flex", "1,auto=2"], "a whole number of at least 0, and othe"),
    "EXTENSIONS": ([",", "default,none"], "names of extensions, separated by commas, 'default'"),
    "RESPONSES_DIALECT": (["codex", ",", "openai,nonsense"], "the presets openai, open-responses, "),
    "ENGINE_URL": (
        [*"localhost:8001 http://a,b , dns+https://a file:servers http:// http://a:99999 http://a?b=1".split()],
        "URLs of vLLM servers",
    ),
    "REASONING_ENCRYPTION_KEYS": (["short", ","], "secrets of at least 16 characters"),
    "RESPONSES_ALLOWED_SERVICE_TIERS": (["cheap", ","], "some of auto,default"),
    "EMBEDDINGS_URL": (
        ["host", "http://a?b=1", "dns+http://vllm:8002", "file:///servers"],
        "URLs of vLLM servers, separated by commas, like http",
    ),
    "IMAGE_SERVICE_URL": (["127.0.0.1:8188", "ftp://a", "http://", "http://a:x"], "the URL of a service"),
    "SANDBOX": (["docker", "pyeryx"], "one of auto, bubblewrap, sandlock, off"),
    "SANDBOX_HOSTS": (["box", "box:x", "box:99999", "run/box", ":80"], "addresses with a port, or paths of sockets"),
    "SANDBOX_SECRET": (["short"], "a secret of at least 16 characters"),
    "SEARCH_URL": (["searxng:8080", "ftp://a", "http://", "ddgs+http://a b", "http://a:x"], "the URL of a SearXNG"),
    "MCP_SERVERS": (
        [
            "[]",
            "{",
            "/no/such/file.json",
            '{"a b": "https://a"}',
            '{"python": "https://a"}',
            '{"a": 1}',
            '{"a": {}}',
            '{"a": {"url": "ftp://a"}}',
            '{"a": {"url": "https://a", "command": "b"}}',
            '{"a": {"url": "https://a", "transport": "carrier pigeon"}}',
            '{"a": {"url": "https://a", "headers": {"b": 1}}}',
            '{"a": {"command": ["b"]}}',
            '{"a": {"command": ""}}',
            '{"a": {"command": "b", "password": "c"}}',
        ],
        "a JSON object of servers",
    ),
    "SANDBOX_NETWORK": ([",", "on", "https://a.example", "10.0.0.1"], "off, any, or domains separated by commas"),
}
TOGETHER = {  # environment → what its sentence has to name
    "proxies that nobody is behind": ({"TRUSTED_PROXIES": "10.0.0.5"}, ["TRUSTED_PROXIES", "BEHIND_PROXY"]),
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
    "two interpreters": ({"SANDBOX": "bubblewrap", "SANDBOX_MCP": "a"}, ["SANDBOX", "SANDBOX_MCP"]),
    "an interpreter by a server that is not there": ({"SANDBOX_MCP": "a"}, ["SANDBOX_MCP=a", "MCP_SERVERS"]),
    "hosts without a secret": ({"SANDBOX_HOSTS": "box-1:8100"}, ["SANDBOX_HOSTS", "SANDBOX_SECRET"]),
    "two searches": ({"SEARCH_URL": "http://h", "SEARCH_MCP": "a"}, ["SEARCH_URL", "SEARCH_MCP"]),
    "a search by a server that is not there": ({"SEARCH_MCP": "a.b"}, ["SEARCH_MCP=a.b", "MCP_SERVERS"]),
    "another database": ({"DATABASE_URL": "mysql://u:hidden@h/n"}, ["DATABASE_URL", "sqlite:///", "postgres://"]),
    "another Redis": ({"REDIS_URL": "http://:hidden@h"}, ["REDIS_URL", "redis://"]),
}


def read(**environ: str) -> Settings:
    """Read settings that leave nothing to be warned of."""
    settings, warnings = from_environ(environ)
    assert warnings == []
    return settings


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        from_environ(environ)
    return str(raised.value)


def assert_is_one_sentence(text: str) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*\.", text)
    assert len(text) < 250
    assert "None" not in text
    assert "Error" not in text


def test_every_setting_is_tested_here() -> None:
    assert set(RIGHT) == {row.name for row in table()}
    strings = {field.name.upper() for field in dataclasses.fields(settings_class()) if field.type in (str, "str")}
    assert set(WRONG) | strings >= set(RIGHT)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_value_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.settings.conf.can_be_exported", lambda: True)  # what it needs is told below
    raw, value = RIGHT[name]
    # Of a time to wait where nothing waits there would be a warning.
    waits = {"RESPONSES_TOOL_MODE": "wait"} if name.startswith("RESPONSES_") else {}
    assert getattr(read(**{**waits, name: raw}), name.lower()) == value


@pytest.mark.parametrize("name", RIGHT)
def test_an_empty_value_counts_as_unset(name: str) -> None:
    assert read(**{name: " "}) == settings_class()()


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


@pytest.mark.parametrize(
    ("environ", "known"),
    [
        ({"SEARCH_MCP": " a.b ", "MCP_SERVERS": '{"a": "https://a.example"}'}, {"search_mcp": "a.b"}),
        ({"WEBSOCKET_LIFETIME_SECONDS": "10"}, {"websocket_lifetime_seconds": 10}),  # it needs no warning time
        (
            {"HOST": "0.0.0.0", "ALLOWED_HOSTS": "models.example"},
            {"serves_loopback": False, "allowed_hosts": ("models.example",)},
        ),
        *(({"HOST": host}, {"serves_loopback": True}) for host in ("localhost", "127.0.0.1", "127.0.0.2", "::1")),
    ],
    ids=str,
)
def test_settings_that_fit_together(environ: dict[str, str], known: dict[str, object]) -> None:
    settings = read(**environ)
    assert {name: getattr(settings, name) for name in known} == known


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


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"RESPONSES_TOOL_TIMEOUT": "300"}, ["RESPONSES_TOOL_TIMEOUT"]),
        ({"RESPONSES_MAX_TOOL_OUTPUT_BYTES": "2048"}, ["RESPONSES_MAX_TOOL_OUTPUT_BYTES"]),
        ({"RESPONSES_TOOL_TIMEOUT": "300", "RESPONSES_TOOL_MODE": "wait"}, []),
        ({"RESPONSES_TOOL_MODE": "wait"}, []),
    ],
    ids=str,
)
def test_a_time_to_wait_where_nothing_waits_is_told(environ: dict[str, str], told: list[str]) -> None:
    _, warnings = from_environ(environ)
    assert [warning.split()[0] for warning in warnings] == told
    assert all("--responses-tool-mode wait" in warning for warning in warnings)


def test_a_setting_of_an_extension_that_is_not_loaded_is_told() -> None:
    _, warnings = from_environ({"EXTENSIONS": "terminal", "SANDBOX": "off", "SANDBOX_SECRET": " "})
    assert warnings == ["SANDBOX is set, and means nothing: it is of an extension that EXTENSIONS does not name."]
    assert from_environ({"SANDBOX": "off"})[1] == []


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("default,x", "EXTENSIONS names 'x', which is not installed."),
        ("none,default", "EXTENSIONS='none,default' is not valid: it takes names of extensions"),
    ],
)
def test_extensions_that_cannot_be_loaded_are_told(names: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        from_environ({"EXTENSIONS": names})
    assert str(raised.value).startswith(problem)
