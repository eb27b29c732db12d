"""`respsite configure`: what it prints of each agent, of the server of the settings and of another one."""

import asyncio
import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from responses_app.command_line import main
from responses_app.extensions.terminal.agents import AGENTS, Format
from responses_app.extensions.terminal.commands import AGENTS as NAMES
from tests.kit.web_server import answer, web_server

HERE = "http://127.0.0.1:8000/v1"
OWN = ("COPILOT_", "AIDER_", "OPENAI_API_", "ENABLE_", "DEFAULT_MODEL_", "CONTEXT_")  # of those told by variables
PLACES = ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME", "QWEN_HOME", "ANTHROPIC_AUTH_TOKEN", "OPENAI_BASE_URL")


def home_without_agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a person's home, and have the environment name no other place."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ENGINE", "demo")
    return tmp_path


_home = pytest.fixture(autouse=True)(home_without_agents)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert main(["configure", *words]) == 0
    return capsys.readouterr()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the sentence with which a call fails that prints nothing else."""
    assert main(["configure", *words]) in (1, 2)
    output, complaint = capsys.readouterr()
    assert output == ""
    return complaint


def read(agent: str, text: str, **variables: str) -> object:
    """Return a configuration as its own library reads it; of a shell, the variables that it has then."""
    match AGENTS[agent].format:
        case Format.TOML:
            return tomllib.loads(text)
        case Format.JSON:
            return json.loads(text)
    done = subprocess.run(
        ["sh", "-euc", f"{text}\nenv"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], **variables},
    )
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    told = {name: value for name, value in told.items() if name.startswith(OWN)}
    return {name: json.loads(value) if value.startswith("{") else value for name, value in told.items()}


def test_the_parser_knows_all_agents() -> None:
    assert tuple(AGENTS) == NAMES


def test_without_an_agent_it_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    table, hint = printed(capsys)
    rows = [line for line in table.splitlines()[1:] if not line.startswith(" ")]  # a long path is folded
    assert [line.split()[0] for line in rows] == list(AGENTS)
    assert "~/.codex/config.toml" in table
    assert "--write" in hint


@pytest.mark.parametrize("agent", AGENTS)
def test_it_names_the_server_of_the_settings_and_no_key(
    agent: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPSITE_API_KEY", "sk-secret")
    monkeypatch.setenv("PORT", "8123")
    monkeypatch.setenv("MODEL_NAME", 'odd "name"')
    text, told = printed(capsys, agent)
    assert "sk-secret" not in text + told
    assert "RESPSITE_API_KEY" in text
    assert "RESPSITE_API_KEY" in told
    shown = json.dumps(read(agent, text))
    assert "http://127.0.0.1:8123" in shown
    assert json.dumps('odd "name"').strip('"') in shown


@pytest.mark.parametrize("agent", AGENTS)
def test_it_names_a_server_elsewhere_without_asking_it(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--url", "https://models.example.com/v1/", "--model", "gpt-oss-120b", "--key-variable", "MY_KEY")
    text, told = printed(capsys, agent, *given, "--context", "65536")
    shown = json.dumps(read(agent, text))
    assert "https://models.example.com" in shown
    assert "gpt-oss-120b" in shown
    assert "MY_KEY" in text
    assert "RESPSITE_API_KEY" not in text + told
    again = f"respsite configure {agent} {' '.join((*given[:4], '--context', '65536', *given[4:]))}"
    if AGENTS[agent].place is None:
        assert f'eval "$({again})"' in told
        assert f"`{again}`" in refused(capsys, agent, *given, "--context", "65536", "--write")
    told_length = "49152" if agent == "open-webui" else "65536"  # three quarters: where it summarizes
    assert (told_length in shown) == (agent not in ("codex", "aider"))  # Codex asks the server; Aider has no variable


@pytest.mark.parametrize(
    ("agent", "variable"),
    [
        ("copilot", "COPILOT_PROVIDER_API_KEY"),
        ("aider", "AIDER_OPENAI_API_KEY"),
        ("open-webui", "OPENAI_API_KEYS"),
    ],
)
def test_a_shell_takes_the_key_from_its_variable(agent: str, variable: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = printed(capsys, agent)
    assert read(agent, text, RESPSITE_API_KEY="sk-$x y")[variable] == "sk-$x y"  # type: ignore[index]
    assert read(agent, text)[variable] == "none"  # type: ignore[index]


def test_the_first_of_several_models_is_taken_and_the_others_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = {"small": {"engine": "demo"}, "large": {"engine": "demo", "options": {"max_model_len": 4096}}}
    served["vectors"] = {"engine": "hashing"}
    monkeypatch.delenv("ENGINE")
    monkeypatch.setenv("MODELS", json.dumps(served))
    text, told = printed(capsys, "opencode")
    assert "Model: small, the first of 2; --model takes another: large." in told
    config = json.loads(text)
    assert config["model"] == "respsite/small"
    assert config["provider"]["respsite"]["models"] == {
        name: {"name": name, "reasoning": True} for name in ("small", "large")
    }
    text, told = printed(capsys, "opencode", "--model", "large")
    assert "Model:" not in told
    large = {"name": "large", "reasoning": True, "limit": {"context": 4096, "output": 1024}}
    assert json.loads(text)["provider"]["respsite"]["models"] == {"large": large}
    text, _ = printed(capsys, "open-webui")
    variables = read("open-webui", text)
    assert variables["OPENAI_API_CONFIGS"] == {"0": {"model_ids": ["small", "large"]}}  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("codex", "--key-variable", "KEY; rm -r /"), "not the name of an environment variable"),
        (("codex", "--url", "http://127.0.0.1:9/v1"), "With --model nobody is asked."),
        (("codex", "--url", "ftp://127.0.0.1", "--model", "a"), "is not a base URL"),
        (("codex", "--url", "https://me:secret@example.com/v1", "--model", "a"), "a name or a password"),
        (("claude", "--url", "https://example.com/api", "--model", "a"), "has to end with /v1"),
        (("opencode", "--model", "{file:~/.ssh/id_rsa}"), "without $ and braces"),
        (("qwen", "--model", "$AWS_SECRET_ACCESS_KEY"), "without $ and braces"),
        (("copilot", "--model", "a\x1b[2Jb"), "without $ and braces"),
        (("copilot", "--write"), "put what `respsite configure copilot` prints into your shell's profile"),
        (("--write",), "needs the name of an agent"),
    ],
)
def test_what_it_refuses(words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    complaint = refused(capsys, *words)
    assert sentence in complaint
    assert "secret@" not in complaint
    assert "\x1b" not in complaint


def test_a_wrong_setting_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "many")
    assert "PORT='many' is not valid" in refused(capsys, "codex")
    assert printed(capsys, "codex", "--url", HERE, "--model", "demo")[0]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"<html>", "did not answer with a JSON object"),
        (b"[]", "did not answer with a JSON object"),
        (b'{"a":' * 100_000, "did not answer with a JSON object"),
        (b"{}", "names no model that answers"),
        (b'{"data": {"id": "x"}}', "names no model that answers"),
        (b'{"data": [1, {"id": "x", "capabilities": ["embed"]}]}', "names no model that answers"),
        (b'{"data": [{}, {"id": 7}]}', "names no model that answers"),
        (b'{"data": [{"id": ""}]}', "cannot be told to an agent"),
        (b'{"data": [{"id": "{file:~/.ssh/id_rsa}"}]}', "cannot be told to an agent"),
        (b'{"data": [{"id": "$HOME", "capabilities": 7}]}', "cannot be told to an agent"),
        (b'{"data": [{"id": "good"}, {"id": "a\\u001b[2J\\u202eb"}]}', "cannot be told to an agent"),
        (b'{"data": [{"id": "' + b"x" * 5000 + b'"}]}', "cannot be told to an agent"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_what_a_server_elsewhere_may_answer(
    body: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with web_server() as web:
        web.pages["/v1/models"] = answer(body, kind="application/json")
        assert await asyncio.to_thread(main, ["configure", "opencode", "--url", web.url("")]) in (1, 2)
    output, complaint = capsys.readouterr()
    assert output == ""
    assert sentence in complaint
    assert len(complaint) < 600
    assert "\x1b" not in complaint


async def test_a_length_that_is_none_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    async with web_server() as web:
        for length in ("true", "-1", "0", "1e999", '"128k"', "9" * 30):
            page = f'{{"data": [{{"id": "m", "max_model_len": {length}}}]}}'
            web.pages["/v1/models"] = answer(page.encode(), kind="application/json")
            assert await asyncio.to_thread(main, ["configure", "qwen", "--url", web.url("/v1")]) == 0
            assert "generationConfig" not in capsys.readouterr().out
