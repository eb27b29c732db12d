"""The commands of every page: each is run here, or by the tests that `ELSEWHERE` names; what shows settings is read.

A page's commands run one after the other, against the server and in the folder that all pages share; a command that
several pages have runs once. `make` only says what it would do. In a block `console` what stands under a command is
what it prints, an ellipsis for anything.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from responses_app.settings.conf import ConfigurationError, from_environ, secret_files, table
from tests.kit.databases import database_settings
from tests.kit.server import ROOT, Server, clean_environ, manage
from tests.project.docs.pages import ADDRESS, Block, all_blocks

SECONDS = 300.0  # bound of one command, on a busy machine
SHELLS = ("sh", "bash", "console")
SETTINGS = {*(row.name for row in table()), *secret_files()}
ELSEWHERE = {  # programs, and commands of ours, that these tests run
    **{"codex": "clients/codex", "copilot": "clients/copilot", "daphne": "kit/server.py", "uvicorn": "kit/server.py"},
    **{"respsite manage createsuperuser": "kit/people.py", "respsite serve": "wire/command_line"},
    **{"npm": "kit/npm.py", "npx": "kit/npm.py", "pip": "kit/pip.py"},
    **dict.fromkeys(("claude", "opencode", "qwen", "aider", "respsite configure"), "system/agents"),
    **{"node": "clients/javascript", "litellm": "clients/python_clients"},
}
MANAGE = re.compile(r"(\.venv/bin/)?respsite manage ")
KEY = re.compile(r"sk-[\w-]{20,}")
EXAMPLE_KEY = re.compile(r"sk-Ab12Cd\b")

pytestmark = [pytest.mark.limit(300)]  # a page has many commands


@dataclass
class Command:
    """A line of a shell, and what a page says that it prints."""

    line: str
    prints: list[str] = field(default_factory=list)

    @property
    def program(self) -> str:
        """What is run first; of a program with commands of its own, that one too."""
        words = shlex.split(self.line, comments=True)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        names = [Path(word).name for word in words[:3]]
        if names[:2] == ["respsite", "manage"]:
            return " ".join(names)
        return " ".join(names[:2]) if names[0] == "respsite" else names[0]


def commands_of(block: Block) -> Iterator[Command]:
    """Yield the commands of a block; a backslash or an open quote goes on in the next line."""
    command: Command | None = None
    open_line = ""
    for line in block.code.splitlines():
        if block.language == "console" and not open_line:
            if not line.startswith("$ "):
                if command is not None:
                    command.prints.append(line)
                continue
            line = line[2:]
        open_line += line
        if open_line.endswith("\\"):
            open_line = open_line[:-1]
            continue
        try:
            shlex.split(open_line, comments=True)
        except ValueError:
            open_line += "\n"
            continue
        if shlex.split(open_line, comments=True):
            command = Command(open_line.strip())
            yield command
        open_line = ""
    assert not open_line, f"{block}: a quote is left open"


def shell_pages() -> dict[str, list[Command]]:
    found: dict[str, list[Command]] = {}
    for block in all_blocks():
        if block.language in SHELLS and not block.why_not:
            found.setdefault(block.page, []).extend(commands_of(block))
    return found


PAGES = shell_pages()
COMMANDS = [command for commands in PAGES.values() for command in commands]


def is_elsewhere(command: Command) -> bool:
    """Whether other tests run it."""
    return command.program in ELSEWHERE or command.program.partition(" ")[0] in ELSEWHERE


@dataclass
class Shell:
    """Where a page's commands run."""

    folder: Path
    server: Server
    environ: dict[str, str]
    manage: "subprocess.Popen[str]"  # see `manage_warm`
    keys: list[str] = field(default_factory=list)
    done: set[str] = field(default_factory=set)

    def run(self, command: Command) -> None:
        """Run a command, which has to succeed and to print what the page says."""
        if not command.prints and command.line in self.done:
            return  # another page has it, too
        self.done.add(command.line)
        line = command.line.replace(ADDRESS, f"127.0.0.1:{self.server.port}")
        line = EXAMPLE_KEY.sub(self.keys[-1] if self.keys else "sk-none", line)
        if command.program == "curl":
            line += " --silent --show-error --fail"
        code, output, complaints = self._managed(line) if MANAGE.match(line) else self._run(line)
        assert code == 0, f"{line}\n{output[-1000:]}{complaints[-2000:]}"
        self.keys += KEY.findall(output)
        wanted = ".*".join(re.escape(each) for part in command.prints for each in (*part.split("…"), "\n"))
        assert re.search(wanted, output + "\n", re.DOTALL), f"{line}\n{output[-2000:]}"
        if "/v1/" in line and '"stream": true' not in line:
            json.loads(output)

    def _run(self, line: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def _managed(self, line: str) -> tuple[int, str, str]:
        assert self.manage.stdin is not None
        assert self.manage.stdout is not None
        print(json.dumps(shlex.split(MANAGE.sub("", line, count=1), comments=True)), file=self.manage.stdin, flush=True)
        told = json.loads(self.manage.stdout.readline())
        return told["code"], told["output"], told["complaints"]


@pytest.fixture(scope="module")
def shell(daphne_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A folder with a migrated database, and programs where a page looks for them."""
    tmp_path = tmp_path_factory.mktemp("shell")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, does in {
        "respsite": f'exec {shlex.quote(sys.executable)} -m respsite "$@"',
        "make": f'exec /usr/bin/make --directory {ROOT} --dry-run --no-print-directory "$@"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    environ = clean_environ(
        DATA_DIR=str(tmp_path),
        PATH=f"{programs}:{os.environ['PATH']}",
        OPENAI_BASE_URL=daphne_server.base_url,
        **database_settings(tmp_path, manage),
    )
    folder = tmp_path / "here"
    folder.mkdir()
    warm = [sys.executable, "-m", "tests.project.docs.manage_warm"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(warm, cwd=folder, env=environ, text=True, **pipes) as process:
        yield Shell(folder, daphne_server, environ, process)


@pytest.mark.parametrize("page", [page for page, commands in PAGES.items() if not all(map(is_elsewhere, commands))])
def test_commands_do_what_they_say(page: str, shell: Shell) -> None:
    for command in PAGES[page]:
        if command.program == "export":
            assert_settings(command)
        elif not is_elsewhere(command):
            shell.run(command)


def assert_settings(command: Command) -> None:
    """Assert that what is exported are settings with values that they take, or variables of other programs."""
    given = dict(word.split("=", 1) for word in shlex.split(command.line, comments=True)[1:])
    ours = {name: value for name, value in given.items() if name in SETTINGS}
    assert ours or all("_" in name for name in given)
    try:
        from_environ(ours)
    except ConfigurationError as error:
        pytest.fail(f"{command.line}: {error}")


def test_what_is_run_elsewhere_has_tests_there() -> None:
    assert [folder for folder in ELSEWHERE.values() if not (ROOT / "tests" / folder).exists()] == []


NOT_RUN = [block for block in all_blocks() if block.why_not and block.language in SHELLS]


@pytest.mark.parametrize("block", NOT_RUN, ids=str)
def test_commands_that_are_not_run_are_commands(block: Block) -> None:
    code = re.sub(r"^\$ ", "", block.code, flags=re.MULTILINE) if block.language == "console" else block.code
    done = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


READ = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


@pytest.mark.parametrize("block", [block for block in all_blocks() if block.language in READ], ids=str)
def test_what_is_data_can_be_read(block: Block) -> None:
    READ[block.language](block.code)


@pytest.mark.each_server
def test_uvicorn_is_started_as_these_tests_start_it(tmp_path: Path) -> None:
    flags = next(shlex.split(command.line) for command in COMMANDS if command.program == "uvicorn")
    tested = Server(tmp_path, kind="uvicorn", database_url="sqlite:///unused")._command()
    for flag, value in (("--ws", "websockets-sansio"), ("--ws-per-message-deflate", "false")):
        assert flags[flags.index(flag) + 1] == value == tested[tested.index(flag) + 1]
