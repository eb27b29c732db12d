"""`manage.py serve`, what `make run` calls, as a real process: how it begins and how it ends."""

import contextlib
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.kit.databases import postgres
from tests.kit.forking import ForkedProcess, fork, run_forked
from tests.kit.server import ROOT, START_SECONDS, Server, free_port, manage, server_environ

GRACE = 300  # seconds, which Ctrl-C does not wait for
PROMPTLY = 60.0  # seconds in which Ctrl-C has to end it, on a machine that is busy
LINES = ["URL", "Engine", "Database", "Keys", "Redis", "Try", "Open"]


class ServedSite(Server):
    """`manage.py serve` with a data folder and a port of its own.

    The first start migrates, and imports all by itself; others are forked (`tests.kit.forking`) on a migrated database.
    """

    def __init__(self, folder: Path, *flags: str, is_first: bool = False, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.environ.setdefault("PORT", str(self.port))
        self._flags = [flag.replace("PORT", str(self.port)) for flag in flags]
        self._is_first = is_first
        if is_first:
            (folder / "respsite.sqlite3").unlink()

    def _begin(self, command: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes] | ForkedProcess":
        if self._is_first:
            return super()._begin(command, log)
        return fork(command[1:], cwd=ROOT, environ=self.environ, output=log, errors=log)

    def _command(self) -> list[str]:
        return [sys.executable, "manage.py", "serve", *self._flags]

    @property
    def output(self) -> str:
        """What it has logged, without how far it was with what took long: on a busy machine that is much."""
        return "".join(line for line in super().output.splitlines(keepends=True) if not line.startswith("… "))

    def interrupt(self) -> float:
        """Press Ctrl-C, and return how long the end took."""
        began = time.monotonic()
        self.stop(signal.SIGINT)
        return time.monotonic() - began


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedSite]:
    """A site whose engine is slow enough to be interrupted."""
    slow = '{"tokens_per_second": 200}'
    with ServedSite(tmp_path, is_first=True, engine_options=slow, shutdown_grace_seconds=GRACE) as site:
        yield site


def test_it_says_some_lines_of_which_one_is_to_be_tried_and_ends_at_once(served: ServedSite) -> None:
    lines = served.output.splitlines()
    assert [line.split()[0] for line in lines[: len(LINES)]] == LINES
    assert served.base_url in lines[0]
    assert lines[1] == "Engine    demo, model demo, slowed to 200 tokens per second (ENGINE_OPTIONS)"
    assert str(served.folder / "respsite.sqlite3") in lines[2]
    assert f"{served.base_url}/responses" in lines[5]
    assert f"{served.url}/ in a browser" in lines[6]
    tried = _tried(served)
    assert tried.returncode == 0, tried.stderr
    assert '"status":"completed"' in tried.stdout

    with connect(served.ws_url) as idle, httpx.Client() as http:
        body = {"input": "count to 9000", "stream": True}
        with http.stream("POST", f"{served.base_url}/responses", json=body, timeout=60) as stream:
            streamed = stream.iter_lines()
            assert next(streamed) == "event: response.created"
            idle.send('{"type": "response.create", "input": "count to 9000"}')
            assert "response.created" in str(idle.recv())
            assert served.interrupt() < PROMPTLY
            with contextlib.suppress(httpx.TransportError):
                for _ in streamed:
                    pass
    assert served.stop() == 0
    said = served.output.splitlines()[len(LINES) :]
    told = ("completed input=", "the server stopped", "(no answer in time)")  # the last where the machine stood still
    assert [line for line in said if not any(word in line for word in told)] == [], "no traceback, no warning"


def test_where_a_key_is_needed_the_command_to_try_has_one(tmp_path: Path) -> None:
    with ServedSite(tmp_path, auth="on") as site:
        key = next(line.split()[2] for line in site.output.splitlines() if line.startswith("API key"))
        tried = _tried(site, OPENAI_API_KEY=key)
    assert tried.returncode == 0, tried.stderr
    assert '"status":"completed"' in tried.stdout


def test_a_port_in_use_is_told_in_one_line_before_anything_is_migrated(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = _refused(DATA_DIR=str(tmp_path), PORT=str(port))
    assert line.startswith(f"respsite: cannot listen on HOST=127.0.0.1 PORT={port} (Address already in use).")
    assert not (tmp_path / "respsite.sqlite3").exists()


def test_a_database_that_is_away_is_told_in_one_line(tmp_path: Path) -> None:
    url = f"postgres://user:hidden@127.0.0.1:{free_port()}/name"
    line = _refused(DATA_DIR=str(tmp_path), PORT=str(free_port()), DATABASE_URL=url)
    assert line.startswith("respsite: the database cannot be used")
    assert "DATABASE_URL" in line
    assert "hidden" not in line


@pytest.mark.needs("postgres")
def test_a_database_that_has_no_connection_left_is_told_in_one_line(tmp_path: Path) -> None:
    role = postgres().create_role(connections=0)
    url = postgres().url.replace("postgres@", f"{role}@")
    line = _refused(DATA_DIR=str(tmp_path), PORT=str(free_port()), DATABASE_URL=url)
    assert line.endswith("lower DATABASE_CONNECTIONS, or run fewer workers.")
    postgres().drop_role(role)


def test_a_database_of_a_newer_version_is_told_and_served(tmp_path: Path) -> None:
    site = ServedSite(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "respsite.sqlite3")) as database, database:
        row = ("responses_app", "9999_of_a_later_version")
        database.execute("INSERT INTO django_migrations (app, name, applied) VALUES (?, ?, '2026-01-01')", row)
    with site:
        warning, *_ = site.output.splitlines()
    assert warning.startswith(
        "warning: a newer version of respsite has migrated the database (9999_of_a_later_version)"
    )
    assert "restore the backup" in warning


def test_flags_are_settings_and_win_over_variables(tmp_path: Path) -> None:
    given = {
        "--host": ("HOST", "127.0.0.1"),
        "--max-websocket-connections": ("MAX_WEBSOCKET_CONNECTIONS", "1"),
        "--responses-ping-interval-seconds": ("RESPONSES_PING_INTERVAL_SECONDS", "0"),
        "--responses-session-ttl": ("RESPONSES_SESSION_TTL", "5"),
        "--reconnect-grace-seconds": ("RECONNECT_GRACE_SECONDS", "4"),
        "--served-model-name": ("MODEL_NAME", "large"),
        "--responses-max-active-sessions": ("RESPONSES_MAX_ACTIVE_SESSIONS", "6"),
        "--responses-store-ttl": ("RESPONSES_STORE_TTL", "3600"),
        "--responses-store-max-entries": ("RESPONSES_STORE_MAX_ENTRIES", "8"),
        "--responses-store-max-bytes": ("RESPONSES_STORE_MAX_BYTES", "9000"),
        "--max-tool-output-bytes": ("RESPONSES_MAX_TOOL_OUTPUT_BYTES", "2048"),
        "--responses-tool-mode": ("RESPONSES_TOOL_MODE", "wait"),
        "--responses-tool-timeout": ("RESPONSES_TOOL_TIMEOUT", "7"),
        "--enable-computer-call": ("ENABLE_COMPUTER_CALL", "on"),
        "--image-service-config": ("IMAGE_SERVICE_URL", "http://127.0.0.1:9/v1"),
        "--responses-compatibility-mode": ("RESPONSES_COMPATIBILITY_MODE", "false"),
        "--responses-default-service-tier": ("RESPONSES_DEFAULT_SERVICE_TIER", "flex"),
        "--responses-allowed-service-tiers": ("RESPONSES_ALLOWED_SERVICE_TIERS", "auto,flex"),
        "--reasoning-encryption-key": ("REASONING_ENCRYPTION_KEYS", "a secret of many words"),
        "--default-openai-organization": ("DEFAULT_OPENAI_ORGANIZATION", "org-a"),
        "--default-openai-version": ("DEFAULT_OPENAI_VERSION", "2020-10-01"),
    }
    flags = [word for flag, (_, value) in given.items() for word in (flag, value)]
    flags += ["--legacy-reasoning-events", "--compatibility-mode", "--disable-responses-store"]
    given["both"] = ("RESPONSES_DIALECT", "turn-id,completed-calls")
    with ServedSite(tmp_path, "--port", "PORT", *flags, port=1, host="nonsense.invalid") as site:
        assert site.output.startswith("URL"), "what a flag wins over is not looked at"
        process = Path(f"/proc/{site.process.pid}")
        environ = dict(line.split("=", 1) for line in process.joinpath("environ").read_text().split("\0") if line)
        assert {name: environ[name] for name, _ in given.values()} == dict(given.values())
        assert "secret" not in process.joinpath("cmdline").read_text(), "everybody on this machine may read it"
        stream = httpx.post(f"{site.base_url}/responses", json={"input": "Hi", "stream": True}).text
        assert '"service_tier":"flex"' in stream
        assert "event: response.reasoning_text.delta" in stream
        assert "event: response.reasoning.delta" not in stream
        assert '"store":false' in stream
        with connect(site.ws_url), connect(site.ws_url) as second:
            assert "websocket_connection_limit_reached" in str(second.recv())


@pytest.mark.parametrize(
    ("flags", "settings", "said"),
    [
        # The one before it means `on`, and does not take the next flag as its value.
        (
            ("--responses-compatibility-mode", "--responses-ping-interval-seconds", "often"),
            {},
            "RESPONSES_PING_INTERVAL_SECONDS='often' is not valid: it takes a number of seconds of at least 0.\n",
        ),
        (
            (),
            {"RESPONSES_DEFAULT_SERVICE_TIER": "flex", "RESPONSES_ALLOWED_SERVICE_TIERS": "auto,default"},
            "RESPONSES_DEFAULT_SERVICE_TIER=flex is not among RESPONSES_ALLOWED_SERVICE_TIERS=auto,default: "
            "choose one of these.\n",
        ),
        # vLLM is not installed beside the tests, which says that it was asked for.
        (("openai/gpt-oss-20b", "--max-model-len", "8192"), {}, "ENGINE=vllm needs vLLM"),
    ],
    ids=["a wrong flag", "a tier that is not allowed", "a model in place of a flag"],
)
def test_what_stops_the_start_is_told_in_one_line(flags: tuple[str, ...], settings: dict[str, str], said: str) -> None:
    ended = _serve(*flags, **settings)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert ended.stderr.startswith(f"respsite: {said}")


def test_a_doubtful_setting_is_warned_of_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = _serve(DATA_DIR=str(tmp_path), PORT=str(taken.getsockname()[1]), HOST="nonsense.invalid")
    warning, _ = ended.stderr.splitlines()
    assert warning.startswith("warning: HOST='nonsense.invalid'")


def test_every_flag_is_in_the_help() -> None:
    said = " ".join(manage("serve", "--help").split())
    for flag in ("--host", "--port", "--max-websocket-connections", "--responses-ping-interval-seconds"):
        assert f"{flag} VALUE" in said
    for flag in ("--disable-responses-store", "--compatibility-mode", "--legacy-reasoning-events"):
        assert flag in said
    assert "RECONNECT_GRACE_SECONDS: how long a stored stream continues after its client disconnects" in said


@pytest.mark.parametrize("kind", ["SQLite", "PostgreSQL"])
def test_an_unmigrated_database_is_told_with_the_command_until_it_is_migrated(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/empty.sqlite3"
    if kind == "PostgreSQL":
        url = postgres().url_of(postgres().create_database())
    said = "The database lacks migrations: run `respsite manage migrate`."
    server = Server(tmp_path, database_url=url, worker_lease_seconds=1)
    server.start(wait=False)
    try:
        answer = server.wait_until("/ready", 503)
        assert answer.json()["database"] == said
        assert "retry-after" in answer.headers
        for path, body in (("responses", {"input": "Hello"}), ("conversations", {}), ("responses", {"input": "Hi"})):
            answer = httpx.post(f"{server.base_url}/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["message"]) == (503, said)
        assert httpx.get(f"{server.base_url}/files").json()["error"]["message"] == said
        problems = [line for line in server.output.splitlines() if "WARNING" in line or "ERROR" in line]
        assert len(problems) == 1, problems
        assert said in problems[0]
        manage("migrate", "--verbosity", "0", DATA_DIR=str(tmp_path), DATABASE_URL=server.environ["DATABASE_URL"])
        server.wait_until("/ready", 200)
        assert httpx.post(f"{server.base_url}/responses", json={"input": "Hello"}).status_code == 200
    finally:
        server.stop()


def _tried(site: ServedSite, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run the command that it tells to try."""
    command = next(line for line in site.output.splitlines() if line.startswith("Try")).removeprefix("Try").strip()
    return subprocess.run(
        ["sh", "-c", f"{command} --silent --fail"], env={**site.environ, **environ},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def _refused(**settings: str) -> str:
    """Run it with settings that it does not start with, and return the one line that it says."""
    ended = _serve(**settings)
    assert ended.returncode == 1
    (line,) = (ended.stdout + ended.stderr).splitlines()
    return line


def _serve(*flags: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run `manage.py serve`, expected to end by itself before it serves."""
    command = ["manage.py", "serve", *flags]
    return run_forked(command, cwd=ROOT, environ=server_environ(**settings), seconds=START_SECONDS)
