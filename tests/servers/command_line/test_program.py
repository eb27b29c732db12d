"""The program itself: its help, its version, its completions, and the commands that are Django's."""

import signal
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import httpx
import pytest

from responses_app import __version__
from responses_app.command_line.parser import EFFORTS, build_parser
from responses_app.protocol.requests.create_fields import Effort
from tests.kit.server import Server
from tests.servers.command_line.program import PROGRAM, respsite

pytestmark = [pytest.mark.any_database, pytest.mark.any_server]

COMMANDS = ("serve", "chat", "replay", "bench", "export", "import", "doctor", "completion")


def test_its_version_is_the_package_s() -> None:
    assert respsite("--version").stdout == f"respsite {__version__}\n"
    assert version("respsite") == __version__


def test_the_efforts_of_a_chat_are_those_of_the_api() -> None:
    assert get_args(Effort) == EFFORTS
    assert build_parser().parse_args(["chat", "--effort", "none"]).effort == "none"


def test_every_command_is_in_the_help_and_can_be_completed() -> None:
    shown = build_parser().format_help()
    assert [name for name in COMMANDS if f"\n    {name}" not in shown] == []
    for shell in ("bash", "zsh"):
        script = respsite("completion", shell).stdout
        assert [name for name in (*COMMANDS, "--server-tools", "--port") if name not in script] == []
        if shell == "bash":
            assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_every_effort_of_the_api_can_be_asked_for() -> None:
    assert get_args(Effort) == EFFORTS


def test_without_a_command_it_says_what_there_is() -> None:
    done = respsite()
    assert done.returncode == 2
    assert "usage: respsite" in done.stderr


class ServedByTheProgram(Server):
    """`respsite serve` with flags, in place of `manage.py serve`."""

    def _command(self) -> list[str]:
        return [*PROGRAM, "serve", "--port", str(self.port), "--workers", "1"]


def test_it_serves(tmp_path: Path) -> None:
    """Flags become settings; it says where it is, answers, and ends with Ctrl-C."""
    with ServedByTheProgram(tmp_path, port=1) as site:
        assert site.process is not None
        assert "--port" not in Path(f"/proc/{site.process.pid}/cmdline").read_text()
        assert f"Open      {site.url}/ in a browser" in site.output
        assert httpx.post(f"{site.base_url}/responses", json={"input": "Hello"}).status_code == 200
        assert site.stop(signal.SIGINT) == 0
        assert "Traceback" not in site.output


def test_djangos_commands_are_there(tmp_path: Path) -> None:
    done = respsite("manage", "create_key", "--help", DATA_DIR=str(tmp_path))
    assert done.returncode == 0
    assert "usage: respsite manage create_key" in done.stdout
