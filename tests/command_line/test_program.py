"""The program itself: its help, its version, its completions, and the commands that are Django's."""

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from responses_app import __version__
from responses_app.command_line import COMMANDS
from responses_app.command_line.parser import build_parser
from tests.command_line.program import respsite

pytestmark = [pytest.mark.any_database, pytest.mark.any_server]


def test_its_version_is_the_package_s() -> None:
    assert respsite("--version").stdout == f"respsite {__version__}\n"
    assert version("respsite") == __version__


def test_every_command_is_in_the_help_and_can_be_completed() -> None:
    shown = build_parser().format_help()
    assert [name for name in COMMANDS if f"\n    {name}" not in shown] == []
    for shell in ("bash", "zsh"):
        script = respsite("completion", shell).stdout
        assert [name for name in (*COMMANDS, "--server-tools", "--port") if name not in script] == []
        if shell == "bash":
            assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_without_a_command_it_says_what_there_is() -> None:
    done = respsite()
    assert done.returncode == 2
    assert "usage: respsite" in done.stderr


def test_djangos_commands_are_there(tmp_path: Path) -> None:
    done = respsite("manage", "create_key", "--help", DATA_DIR=str(tmp_path))
    assert done.returncode == 0
    assert "usage: respsite manage create_key" in done.stdout
