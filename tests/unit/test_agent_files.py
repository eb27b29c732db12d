"""`respsite configure AGENT --write`: files that are there already, hostile ones too, keep all that they hold."""

import codecs
import json
import os
import stat
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from responses_app.command_line import main
from responses_app.command_line.endpoint import CommandFailed
from responses_app.extensions.terminal import agent_files
from responses_app.extensions.terminal.agents import AGENTS, TargetServer
from tests.unit.test_configure import home_without_agents

FILES = {"codex": ".codex/config.toml", "claude": ".claude/settings.json", "opencode": ".config/opencode/opencode.json"}
FILES["qwen"] = ".qwen/settings.json"
OF_CODEX = """\
# mine
approval_policy = "never" # and why

[model_providers.mine]
name = "mine"

[projects."/srv/project"]
trust_level = "trusted"

[model_providers.respsite]
request_max_retries = 7
base_url = "http://old.example.com/v1"
"""
NOBODY = 65534


home = pytest.fixture(autouse=True)(home_without_agents)


def put(file: Path, text: str | bytes, mode: int = 0o644) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)
    return file


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write(agent: str, *words: str) -> None:
    assert main(["configure", agent, "--write", *words]) == 0


def refused(agent: str, home: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the sentence with which writing fails, which changes nothing."""
    before = files(home)
    assert main(["configure", agent, "--write"]) == 1
    assert files(home) == before
    return capsys.readouterr().err


@pytest.mark.parametrize("agent", FILES)
def test_a_new_file_is_what_is_printed_and_its_owners_alone(
    agent: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["configure", agent])
    text, told = capsys.readouterr()
    assert f"for ~/{FILES[agent]};" in told
    write(agent)
    file = home / FILES[agent]
    assert files(home) == {FILES[agent]: text.encode()}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "Wrote" in capsys.readouterr().out
    write(agent)
    assert files(home) == {FILES[agent]: text.encode()}
    assert "says all that already" in capsys.readouterr().out


def test_codexs_other_settings_and_comments_stay(home: Path) -> None:
    file = put(home / FILES["codex"], OF_CODEX, 0o640)
    write("codex")
    text = file.read_text()
    assert [line for line in OF_CODEX.splitlines() if line not in text.splitlines()] == [
        'base_url = "http://old.example.com/v1"'
    ]
    config = tomllib.loads(text)
    assert (config["model"], config["model_provider"], config["approval_policy"]) == ("demo", "respsite", "never")
    assert config["model_providers"]["mine"] == {"name": "mine"}
    assert config["model_providers"]["respsite"]["request_max_retries"] == 7
    assert config["model_providers"]["respsite"]["base_url"] == "http://127.0.0.1:8000/v1"
    (backup,) = home.glob(f"{FILES['codex']}.backup-*")
    assert backup.read_text() == OF_CODEX
    assert [stat.S_IMODE(each.stat().st_mode) for each in (file, backup)] == [0o640, 0o640]
    before = files(home)
    write("codex")
    assert files(home) == before
    write("codex", "--model", "other", "--key-variable", "MY_KEY")
    assert len(list(home.glob(f"{FILES['codex']}.backup-*"))) == 2
    assert tomllib.loads(file.read_text())["model"] == "other"


@pytest.mark.parametrize(
    "text",
    [
        "[a]\nb = 1\n",
        "model_providers = { mine = { name = 'mine' } }\n[z]\n",
        "model_providers.mine.name = 'mine'\nmodel = 'old' # why\n",
        "[[a]]\nb = 1\n[[a]]\nb = 2\n",
        "[model_providers.a]\nname = 'a'\n[x]\ny = 1\n[model_providers.b]\nname = 'b'\n[x.z]\n",
        "[model_providers.respsite.auth]\ncommand = 'old'\n[model_providers]\n",
        "d = 1979-05-27T07:32:00Z\r\n[profiles.p]\r\nmodel = 'x'\r\n",
        "[model_providers.respsite]\nauth.command = 'old'\n",
        "",
    ],
)
def test_however_a_config_of_codex_is_written_nothing_is_lost(
    text: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(home / FILES["codex"], text)
    status = main(["configure", "codex", "--write"])
    now = tomllib.loads(file.read_text())
    if status:  # what cannot be changed safely is left, and said
        assert file.read_text() == text.replace("\r\n", "\n")
        assert "without a loss" in capsys.readouterr().err
        return
    assert now["model_providers"]["respsite"]["auth"]["command"] == "sh"
    assert not _missing(tomllib.loads(text), now, ("model", "command"))


def _missing(old: object, new: object, replaced: Sequence[str]) -> list[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if old == new else [f"{old!r}"]
    return [
        found
        for name, value in old.items()
        if name not in replaced
        for found in ([name] if name not in new else _missing(value, new[name], replaced))
    ]


def test_jsons_order_indent_and_other_settings_stay(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {"permissions": {"allow": ["Bash"]}, "env": {"MINE": "é", "ANTHROPIC_MODEL": "opus"}, "hooks": {}}
    file = put(home / FILES["claude"], json.dumps(old, indent=4))
    write("claude")
    text = file.read_text()
    new = json.loads(text)
    assert list(new) == ["permissions", "env", "hooks", "apiKeyHelper"]
    assert '\n    "permissions"' in text
    assert (new["env"]["MINE"], new["env"]["ANTHROPIC_MODEL"]) == ("é", "demo")
    assert list(new["env"])[:2] == ["MINE", "ANTHROPIC_MODEL"]
    assert "Replaced: env.ANTHROPIC_MODEL; the backup" in capsys.readouterr().out


def test_headers_of_a_person_stay(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = put(home / FILES["claude"], '{"env": {"ANTHROPIC_CUSTOM_HEADERS": "X-Team: a\\nX-Mine: b"}}')
    for _ in range(2):
        write("claude")
        assert json.loads(file.read_text())["env"]["ANTHROPIC_CUSTOM_HEADERS"] == (
            "X-Team: a\nX-Mine: b\nRespsite-Foreign-Seals: note"
        )
    assert "Replaced" not in capsys.readouterr().out


def test_what_counts_more_is_said(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home / FILES["claude"], '{"env": {"ANTHROPIC_AUTH_TOKEN": "sk-ant-secret"}}')
    write("claude")
    assert "ANTHROPIC_AUTH_TOKEN is set in that file" in (said := capsys.readouterr().err)
    assert "secret" not in said
    (home / FILES["claude"]).unlink()
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "sk-ant-secret")
    write("claude")
    assert "ANTHROPIC_AUTH_TOKEN is set in the environment" in capsys.readouterr().err


def test_qwens_other_models_and_a_key_that_somebody_put_there_stay(home: Path) -> None:
    others = [{"id": "demo", "baseUrl": "http://other.example.com/v1"}, {"id": "x", "envKey": "X"}]
    ours = {"id": "demo", "baseUrl": "http://127.0.0.1:8000/v1", "generationConfig": {"timeout": 5}}
    old = {"modelProviders": {"openai": [*others, ours]}, "env": {"RESPSITE_API_KEY": "sk-mine"}, "$version": 3}
    file = put(home / FILES["qwen"], json.dumps(old))
    write("qwen", "--context", "4096")
    new = json.loads(file.read_text())
    first, *rest = new["modelProviders"]["openai"]
    assert rest == others
    assert first["generationConfig"] == {"timeout": 5, "contextWindowSize": 4096}
    assert first["envKey"] == "RESPSITE_API_KEY"
    assert new["env"] == {"RESPSITE_API_KEY": "sk-mine"}
    assert new["$version"] == 3


def test_opencodes_file_with_comments_counts_more_and_is_not_rewritten(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(home / ".config/opencode/opencode.jsonc", "{}")
    write("opencode")
    assert json.loads(file.read_text())["model"] == "respsite/demo"
    file.write_text("{ // mine\n}")
    capsys.readouterr()
    assert "JSON without comments" in refused("opencode", home, capsys)


@pytest.mark.parametrize(
    ("agent", "content", "sentence"),
    [
        ("claude", "{", "cannot be read as JSON"),
        ("claude", "[]", "does not hold a JSON object"),
        ("claude", '{"env": {}, "env": {"A": "b"}}', "'env' is there twice"),
        ("claude", '{"env": []}', "has a setting env that holds no others"),
        ("claude", '{"a": 1e999}', "without a loss"),
        ("claude", '{"a": "\\ud800"}', "without a loss"),
        ("claude", '{"a":' * 100_000, "cannot be read as JSON"),
        ("claude", b"\xff\xfe{}", "not text in UTF-8"),
        ("claude", " " * (agent_files.MAX_BYTES + 1), "is larger than"),
        ("qwen", '{"modelProviders": {"openai": {}}}', "has a setting modelProviders.openai that is not a list"),
        ("codex", "model = ", "cannot be read as TOML"),
        ("codex", "model_providers = 1", "has a setting model_providers that holds no others"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_file_that_cannot_be_merged_is_left_as_it_is(
    agent: str, content: str | bytes, sentence: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(home / FILES[agent], content)
    said = refused(agent, home, capsys)
    assert sentence in said
    assert f"`respsite configure {agent}` prints what belongs there" in said
    assert len(said) < 600


def test_a_link_stays_one_and_its_file_is_changed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = put(home / "dotfiles/claude.json", '{"theme": "dark"}')
    link = home / FILES["claude"]
    link.parent.mkdir()
    link.symlink_to("../dotfiles/claude.json")
    write("claude")
    assert link.is_symlink()
    assert json.loads(real.read_text())["theme"] == "dark"
    assert json.loads(real.read_text())["apiKeyHelper"]
    assert len(list(real.parent.glob("claude.json.backup-*"))) == 1
    real.unlink()
    capsys.readouterr()
    assert f"is a link to {real}, which is not there" in refused("claude", home, capsys)


def test_what_is_no_file_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / FILES["claude"]).mkdir(parents=True)
    assert "is not a file" in refused("claude", home, capsys)
    (home / ".codex").mkdir()
    os.mkfifo(home / FILES["codex"])
    assert "is not a file" in refused("codex", home, capsys)
    put(home / ".qwen", "")
    assert "cannot be written (Not a directory)" in refused("qwen", home, capsys)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_that_may_not_be_written(
    is_there: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As somebody who is not root, for whom there are no such folders."""
    with tempfile.TemporaryDirectory() as name:  # nobody else may look into `tmp_path`
        home = Path(name)
        home.chmod(0o755)
        monkeypatch.setenv("HOME", name)
        (home / ".claude").mkdir()
        if is_there:
            put(home / FILES["claude"], "{}", 0o666)
        (home / ".claude").chmod(0o555)
        user = os.geteuid()
        # Nobody may read Python's own files, perhaps, and an encoding that could not be imported once stays unknown.
        codecs.lookup("utf-8-sig")
        if user == 0:
            os.seteuid(NOBODY)
        try:
            said = refused("claude", home, capsys)
        finally:
            os.seteuid(user)
            (home / ".claude").chmod(0o755)
    assert "cannot be written (Permission denied)" in said


@pytest.mark.parametrize(("home", "sentence"), [("/nowhere/at/all", "is not a folder"), ("here", "no absolute path")])
def test_a_home_that_is_missing(
    home: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    assert main(["configure", "codex", "--write"]) == 1
    assert sentence in capsys.readouterr().err
    assert main(["configure", "codex"]) == 0
    assert "Codex CLI: for its file;" in capsys.readouterr().err
    assert main(["configure"]) == 0


def test_somebody_else_who_writes_meanwhile_wins(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(home / FILES["claude"], "{}")
    backup = agent_files._backup

    def and_somebody_writes(*given: object) -> Path:
        file.write_text('{"theme": "dark"}')
        return backup(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(agent_files, "_backup", and_somebody_writes)
    assert main(["configure", "claude", "--write"]) == 1
    assert "was changed by somebody else" in capsys.readouterr().err
    assert files(home) == {FILES["claude"]: b'{"theme": "dark"}'}


NAMES = st.sampled_from(["env", "modelProviders", "openai", "model", "security", "auth", "name", "é", "a b", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=40)  # each writes files
@given(old=st.dictionaries(NAMES, VALUES, max_size=5))
def test_whatever_json_is_there_stays_or_nothing_is_changed(old: dict[str, object]) -> None:
    """By its law: what was there is there afterwards, but for what was told to be replaced; and twice is as once."""
    agent = AGENTS["qwen"]
    target = TargetServer(base_url="http://127.0.0.1:8000/v1", models=("demo",), context=4096, key_variable="KEY")
    with tempfile.TemporaryDirectory() as name:
        file = put(Path(name) / "settings.json", json.dumps(old))
        try:
            done = agent_files.write(agent, file, agent.text(target))
        except CommandFailed:
            assert json.loads(file.read_text()) == old
            return
        once = file.read_bytes()
        assert not agent_files.write(agent, file, agent.text(target)).is_changed
        assert file.read_bytes() == once
    new = json.loads(once)
    assert not _missing(old, new, [path.rpartition(".")[2] for path in done.replaced] + ["openai"])
    if isinstance(providers := old.get("modelProviders"), dict):
        assert all(each in new["modelProviders"]["openai"] for each in providers.get("openai", ()))
