"""The program itself: its help, its version, its completions, and the commands that are Django's."""

import shutil
import signal
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import httpx
import pytest
from django.core.management import get_commands

from responses_app import __version__
from responses_app.command_line import main
from responses_app.command_line.parser import build_parser
from responses_app.extensions.terminal.commands import EFFORTS
from responses_app.management.djangos import HIDDEN_FLAGS, OF_DJANGO
from responses_app.protocol.requests.create_fields import Effort
from tests.kit.server import Server, clean_environ
from tests.wire.command_line.program import PROGRAM, respsite

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
    for shell in ("bash", "zsh", "fish"):
        script = respsite("completion", shell).stdout
        assert [name for name in (*COMMANDS, "--server-tools", "--port") if name not in script] == []
        if shell == "bash":
            assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish: `make services` installs it")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("respsite comp", "completion"),
        ("respsite chat --eff", "--effort"),
        ("respsite chat --effort hi", "high"),
        ("respsite completion f", "fish"),
    ],
)
def test_fish_completes(fish_script: Path, typed: str, offered: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]', fish_script, typed],
        env=clean_environ(HOME=str(tmp_path)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line.partition("\t")[0] for line in done.stdout.splitlines() if line] == [offered], done.stderr


@pytest.fixture(scope="module")
def fish_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("fish") / "respsite.fish"
    script.write_text(respsite("completion", "fish").stdout)
    return script


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("chta",), "Did you mean chat?"),
        (("chat", "--modle", "x"), "respsite chat: error: unrecognized arguments: --modle. Did you mean --model?"),
        (("serve", "--prt=1"), "unrecognized arguments: --prt=1. Did you mean --port?"),
        (("replay", "--sped", "2"), "Did you mean --speed?"),
        (("chat", "--effort", "hgh"), "Did you mean high?"),
        (("bench",), "arguments are required: URL"),
        (("chat", "--xyzzy"), "unrecognized arguments: --xyzzy"),
        (
            ("manage", "creat_key"),
            "there is no command 'creat_key'. Did you mean create_key? `respsite manage help` lists the commands.",
        ),
        (("manage", "xyzzy"), "there is no command 'xyzzy'. `respsite manage help` lists the commands."),
        (("manage", "help", "migrat"), "Did you mean migrate? `respsite manage help` lists the commands."),
        (("manage", "forget", "--projct", "x"), "Did you mean --project?"),
        (("manage", "list_keys", "--verbosiy", "2"), "error: unrecognized arguments: --verbosiy 2"),
    ],
)
def test_a_wrong_word_is_told_with_the_nearest_right_one(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    told = capsys.readouterr().err
    assert (ended.value.code, told.endswith(f"{said}\n")) == (2, True), told


def test_without_a_command_it_says_what_there_is() -> None:
    done = respsite()
    assert done.returncode == 2
    assert "usage: respsite" in done.stderr


def test_a_command_of_an_extension_that_is_not_loaded_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXTENSIONS", "none")
    assert main(("conformance", "--list")) == 2
    assert capsys.readouterr().err.endswith(" needs an extension that EXTENSIONS leaves out.\n")


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
    assert [flag for flag in HIDDEN_FLAGS if flag in done.stdout] == []


@pytest.mark.parametrize("words", [(), ("help",), ("--help",)])
def test_manage_lists_our_commands_and_those_of_django_that_operators_need(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("manage", *words)) == 0
    ours, _, of_django = capsys.readouterr().out.partition("commands of Django:")
    assert "\n  create_key        Create an API key" in ours
    assert [row.split()[0] for row in of_django.splitlines() if row] == list(OF_DJANGO)
    assert set(OF_DJANGO) < set(get_commands())
    assert main(("manage", "help", "--commands")) == 0
    assert "\nsqlmigrate\n" in capsys.readouterr().out


def test_a_hidden_flag_works() -> None:
    assert main(("manage", "check", "--verbosity", "0", "--no-color", "--tag", "urls")) == 0
