"""The README as a program: what it prints is what happens."""

import contextlib
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from responses_app.conf import secret_files, table
from tests.server import ROOT, Server

README = (ROOT / "README.md").read_text()
ADDRESS = "127.0.0.1:8000"
PATTERN_OF_BLOCKS = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [code for found, code in PATTERN_OF_BLOCKS.findall(README) if found == language]


def needs_a_venv_of_its_own(code: str) -> bool:
    """Whether a Python example uses what these tests' environment does not have."""
    return bool(re.search(r"^from (?:pydantic_ai|langchain_openai) ", code, re.MULTILINE))


def commands() -> list[str]:
    """Return the lines of the shell blocks, without their comments."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line.split("   #")[0].strip() for line in lines if line.strip()]


def test_python_examples_print_what_they_say(demo_server: Server) -> None:
    session: dict[str, object] = {"__name__": "readme"}
    for code in blocks("python"):
        if needs_a_venv_of_its_own(code):
            continue  # tests/python_clients runs it
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code.replace(ADDRESS, f"127.0.0.1:{demo_server.port}"), "README.md", "exec"), session)
        promised = re.findall(r"^# -> (.*)$", code, re.MULTILINE)
        assert [line for line in printed.getvalue().splitlines() if line.strip()] == promised
    session["client"].close()  # type: ignore[attr-defined]


def test_there_are_examples_of_each_way_to_ask() -> None:
    code = "\n".join(blocks("python"))
    for way in ("responses.create(", "stream=True", "with client.responses.connect()", "async with", "stream_id="):
        assert way in code


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("curl")])
def test_curl_examples_are_answered(command: str, daphne_server: Server) -> None:
    words = shlex.split(command.replace(ADDRESS, f"127.0.0.1:{daphne_server.port}"))
    done = subprocess.run([*words, "--silent", "--show-error", "--fail"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if '"stream": true' in command:
        assert done.stdout.startswith("event: response.created\n")
        assert done.stdout.endswith("data: [DONE]\n\n")
    else:
        assert done.stdout.startswith("{")


def test_the_settings_table_has_exactly_the_settings() -> None:
    section = README.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{row.name}` | {row.default} | {row.about} |" for row in table()]


def test_every_setting_that_is_named_exists() -> None:
    known = {*(row.name for row in table()), *secret_files()}
    named = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", README)) - {
        "BENCH_JSON",
        "CLUSTER_TIMES",
        "FUZZ_SECONDS",
        "RESPSITE_API_KEY",
        "SOAK_MINUTES",
    }
    assert {name for name in named if not name.startswith(("COPILOT_", "OTEL_", "VLLM_"))} <= known  # other programs'
    assert {name for name in re.findall(r"`([A-Z]{4,})`", README) if name not in ("LICENSE",)} <= known


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE))
    assert {"run", "test", "check", "bench", "format", "superuser", "help"} <= named
    assert named <= targets


def test_every_path_that_is_named_exists() -> None:
    paths = [path for path in re.findall(r"`([\w./]+(?:/|\.py))`", README) if not path.startswith("/")]
    assert len(paths) > 20
    anywhere = [ROOT, ROOT / "responses_app", ROOT / "engine"]
    assert [path for path in paths if not any((folder / path).exists() for folder in anywhere)] == []


def test_the_map_names_every_module_and_folder_of_the_tools() -> None:
    rows = README.partition("| in `responses_app/tools/` | files |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", rows))
    tools = ROOT / "responses_app" / "tools"
    assert {path.stem for path in tools.iterdir() if not path.name.startswith("__")} <= named
    below = {path.stem for path in tools.rglob("*") if path.suffix == ".py" or path.is_dir()}
    assert named - below <= {"MCP_SERVERS"}


@pytest.mark.parametrize("folder", ["protocol", "runs"])
def test_the_map_names_every_module_of_the_largest_floors(folder: str) -> None:
    rows = README.partition(f"| in `responses_app/{folder}/` | files |")[2].partition("\n\n")[0]
    modules = {path.stem for path in (ROOT / "responses_app" / folder).glob("*.py")} - {"__init__"}
    named = set(re.findall(r"`(\w+)`", rows))
    assert modules <= named
    assert named - modules <= {"encrypted_content"}


def test_files_that_the_threat_model_names_exist() -> None:
    named = set(re.findall(r"`([\w-]+/[\w./-]+)`", (ROOT / "docs" / "threat-model.md").read_text()))
    assert len(named) > 60
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_servers_are_started_as_these_tests_start_them(tmp_path: Path) -> None:
    programs = {Path(shlex.split(line)[0]).name for line in commands() if not line.startswith("export ")}
    assert programs == {"make", "curl", "python", "daphne", "uvicorn", "copilot"}
    flags = next(shlex.split(line) for line in commands() if "/uvicorn " in line)
    tested = Server(tmp_path, kind="uvicorn", database_url="sqlite:///unused")._command()
    for flag, value in (("--ws", "websockets-sansio"), ("--ws-per-message-deflate", "false")):
        assert flags[flags.index(flag) + 1] == value == tested[tested.index(flag) + 1]


@pytest.mark.parametrize("client", ["codex", "copilot", "javascript"])
def test_clients_are_those_of_the_tests(client: str) -> None:
    packages = json.loads((ROOT / "tests" / client / "package.json").read_text())["dependencies"]
    versions = [wanted.rpartition("@")[2] for name, wanted in packages.items() if "openai" in name or "github" in name]
    assert versions
    assert [version for version in versions if not re.search(rf"(?<![\d.]){re.escape(version)}(?![\d])", README)] == []


def test_python_clients_are_those_of_the_tests() -> None:
    pinned = dict(
        re.findall(r"^(.+)==(.+)$", (ROOT / "tests/python_clients/requirements.txt").read_text(), re.MULTILINE)
    )
    for name in ("pydantic-ai-slim", "langchain-openai"):
        (chapter,) = re.findall(
            rf"^`pip install '?{name}(?:\[openai\])?'?`, tested with ([\d.]+)\.", README, re.MULTILINE
        )
        assert chapter == pinned[name]


def test_nothing_is_said_about_one_persons_machine() -> None:
    assert not re.findall(r"(?<!\w)/(?:root|home|work|tmp)/", README)
