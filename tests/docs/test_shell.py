"""The commands of every page."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.command_line.program import respsite, settings_of
from tests.docs.pages import ADDRESS, blocks
from tests.server import Server


def commands() -> list[str]:
    """Return the lines of the shell blocks, without their comments."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line.split("   #")[0].strip() for line in lines if line.strip()]


@pytest.mark.any_server
@pytest.mark.any_database
@pytest.mark.parametrize("command", sorted({line for line in commands() if line.startswith("curl")}))
def test_curl_examples_are_answered(command: str, daphne_server: Server) -> None:
    words = shlex.split(command.replace(ADDRESS, f"127.0.0.1:{daphne_server.port}"))
    done = subprocess.run([*words, "--silent", "--show-error", "--fail"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if '"stream": true' in command:
        assert done.stdout.startswith("event: response.created\n")
        assert done.stdout.endswith("data: [DONE]\n\n")
    else:
        assert done.stdout.startswith("{")


@pytest.mark.any_server
@pytest.mark.any_database
@pytest.mark.parametrize("command", sorted({line for line in commands() if line.startswith("respsite ")}))
def test_respsite_s_commands_work(command: str, daphne_server: Server, tmp_path: Path) -> None:
    words = shlex.split(command.replace(ADDRESS, f"127.0.0.1:{daphne_server.port}"))[1:]
    done = respsite(*words, folder=tmp_path, **settings_of(daphne_server))
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_servers_are_started_as_these_tests_start_them(tmp_path: Path) -> None:
    programs = {Path(shlex.split(line)[0]).name for line in commands() if not line.startswith("export ")}
    assert programs == {"make", "curl", "python", "daphne", "uvicorn", "copilot", "codex", "respsite"}
    flags = next(shlex.split(line) for line in commands() if "/uvicorn " in line)
    tested = Server(tmp_path, kind="uvicorn", database_url="sqlite:///unused")._command()
    for flag, value in (("--ws", "websockets-sansio"), ("--ws-per-message-deflate", "false")):
        assert flags[flags.index(flag) + 1] == value == tested[tested.index(flag) + 1]
