"""`respsite chat` against a real server, in pipes and in a terminal."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from responses_app.command_line import main
from responses_app.command_line.endpoint import RemoteServer
from responses_app.extensions.terminal.chat import TerminalChat
from responses_app.extensions.terminal.streams import ChatSession
from tests.kit.server import ROOT, Server, clean_environ, free_port
from tests.wire.command_line.program import AtTerminal, respsite

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps({"tools": [WEATHER]}))
    return file


def test_in_a_pipe_a_prompt_goes_in_and_text_comes_out(daphne_server: Server) -> None:
    first = respsite("chat", "--url", daphne_server.url, "--show-id", given="count to 3\n")
    assert (first.returncode, first.stdout) == (0, "1 2 3\n")
    (response_id,) = re.findall(r"^(resp_\w+)$", first.stderr, re.MULTILINE)
    second = respsite("chat", "Hello", "--url", daphne_server.base_url, "--resume", response_id)
    assert "user message 2" in second.stdout
    assert (second.returncode, second.stderr) == (0, "")


def test_a_command_answers_calls(daphne_server: Server, tools: Path) -> None:
    program = "import json, sys; call = json.load(sys.stdin); print('rain in', json.loads(call['arguments'])['city'])"
    asked = ("chat", "--url", daphne_server.url, "--tools", str(tools), "call get_weather for Paris")
    answered = respsite(*asked, "--run-tools", f'{sys.executable} -c "{program}"')
    assert "it returned: rain in Paris" in answered.stdout
    nobody = respsite(*asked)
    assert nobody.returncode == 1
    assert nobody.stderr == (
        'respsite: The model calls get_weather({"city": "Paris"}), and nobody here answers: give --run-tools COMMAND.\n'
    )


def test_at_a_terminal(daphne_server: Server, tools: Path) -> None:
    """A call answered by hand, another lane, an interruption that is continued, and the end."""
    with AtTerminal("chat", "--url", daphne_server.url, "--tools", str(tools)) as chat:
        chat.wait_for("main> ")
        chat.type("call get_weather for Paris\n")
        chat.wait_for("its output: ")
        chat.type("rain\n")
        assert "it returned: rain." in chat.wait_for("main> ")
        chat.type("@low count to 4\n")
        chat.wait_for("main> ")
        chat.type("/wait\n")
        assert "1 2 3 4" in chat.wait_for("main> ")
        chat.type("count to 9000\n")
        chat.wait_for(" 20 ")
        chat.type("\x03")
        assert "ended early: interrupted" in chat.wait_for("main> ")
        chat.type("Hello\n")
        assert "user message 3" in chat.wait_for("main> ")
        chat.type("/lane low\n")
        chat.wait_for("low> ")
        chat.type("Hello\n")
        shown = chat.wait_for("low> ")
        assert "user message 2" in shown
        assert "\x1b[" in shown, "reasoning is dimmed"
        chat.type("\x04")


def test_a_terminal_gets_no_escape_of_a_model(daphne_server: Server) -> None:
    """As OSC 52, which would write to the clipboard; a pipe has the text as it is."""
    said = "before\x1b]52;c;aGk=\x07 behind"
    asked = ("chat", "--url", daphne_server.url, f"repeat: {said}")
    assert respsite(*asked).stdout == f"{said}\n"
    with AtTerminal(*asked) as chat:
        assert chat.wait_for("behind").endswith("before]52;c;aGk= behind")


def test_an_approval_is_asked_for_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"type": "mcp_approval_request", "server_label": "bank", "name": "pay", "arguments": '{"to":\n"\u202eeve"}'}
    monkeypatch.setattr("builtins.input", lambda asked: "n")
    session = ChatSession(RemoteServer("http://127.0.0.1", ""), {})
    try:
        assert TerminalChat(session, run_tool=None, reasoning=False)._output(call) == "n"
    finally:
        session.close()
    assert capsys.readouterr().out == 'bank.pay({"to":\\u000a"\\u202eeve"})\n'


def test_a_problem_is_told_without_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "missing\x1b[2J"]) == 1
    assert "missing[2J cannot be read" in capsys.readouterr().err


def test_errors_say_what_to_do(daphne_server: Server) -> None:
    away = respsite("chat", "Hello", "--url", f"http://127.0.0.1:{free_port()}")
    assert away.returncode == 1
    assert "cannot be reached (Connection refused). Start one with `respsite serve`" in away.stderr
    unknown = respsite("chat", "Hello", "--url", daphne_server.url, "--model", "other")
    assert "'other' does not exist" in unknown.stderr
    wrong = respsite("chat", "Hello", "--server-tools", "magic")
    assert (wrong.returncode, "code_interpreter" in wrong.stderr) == (2, True)
    assert respsite("chat", "Hello", "--url", "ftp://x").returncode == 2
    assert "Traceback" not in away.stderr + unknown.stderr + wrong.stderr


def test_what_needs_no_database_imports_little_of_django() -> None:
    """Only what extensions are declared by, and nothing that an engine needs: help and a chat are there at once."""
    listed = "import sys, respsite.__main__, responses_app.extensions.terminal.chat; "
    listed += "import responses_app.command_line.parser as p; "
    listed += "p.build_parser().format_help(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listed], cwd=ROOT, env=clean_environ(), capture_output=True, text=True, check=True
    )
    late = {"django.conf", "django.db", "django.http", "mcp", "vllm", "channels", "daphne", "openai_harmony"}
    assert late & set(done.stdout.split()) == set()
