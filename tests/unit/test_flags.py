"""The flags of `serve`: which settings they stand for, and what its help says of them."""

import json

import pytest

from responses_app.command_line.parser import build_parser
from responses_app.management.flags import FLAGS, REFUSED, given_settings
from responses_app.protocol.events.dialects import OPENAI, PRESETS, Switch, parse_dialect
from responses_app.settings.conf import table


def settings_of(*flags: str, **environ: str) -> dict[str, str]:
    return given_settings(vars(build_parser().parse_args(["serve", *flags])), environ)


def test_a_model_that_is_named_is_loaded_by_vllm_unless_something_else_is_said() -> None:
    here = {"MODEL": "openai/gpt-oss-20b", "ENGINE": "vllm", "MODEL_FORMAT": "auto"}
    assert settings_of("openai/gpt-oss-20b") == settings_of("--model", "openai/gpt-oss-20b") == here
    assert settings_of("m", ENGINE_URL="http://gpu:8001")["ENGINE"] == "vllm-server"
    assert settings_of("m", "--engine-url", "http://gpu:8001")["ENGINE"] == "vllm-server"
    assert settings_of("m", MODEL_FORMAT="harmony")["MODEL_FORMAT"] == "harmony"
    assert settings_of("m", ENGINE="demo") == {"MODEL": "m"}
    assert settings_of("m", "--engine", "demo") == {"MODEL": "m", "ENGINE": "demo"}
    assert settings_of("m", MODELS="{}") == {"MODEL": "m"}, "which the settings refuse with a sentence"
    assert settings_of() == {}


def test_options_of_vllm_are_added_to_those_of_the_engine() -> None:
    flags = ("--max-model-len", "8192", "--gpu-memory-utilization", "0.8", "--no-enable-prefix-caching")
    given = settings_of(*flags, ENGINE_OPTIONS='{"seed": 7, "max_model_len": 1}')
    assert json.loads(given["ENGINE_OPTIONS"]) == {
        "seed": 7, "max_model_len": 8192, "gpu_memory_utilization": 0.8, "enable_prefix_caching": False
    }  # fmt: skip
    assert json.loads(settings_of("--enable-prefix-caching")["ENGINE_OPTIONS"]) == {"enable_prefix_caching": True}
    for wrong in ("nonsense", "[1]"):
        assert settings_of("--enforce-eager", ENGINE_OPTIONS=wrong)["ENGINE_OPTIONS"] == wrong


def test_legacy_reasoning_events_are_those_of_today_and_nothing_else() -> None:
    alone = settings_of("--legacy-reasoning-events", RESPONSES_DIALECT="legacy-events")["RESPONSES_DIALECT"]
    assert parse_dialect(alone) == OPENAI
    both = settings_of("--legacy-reasoning-events", "--compatibility-mode")["RESPONSES_DIALECT"]
    assert parse_dialect(both).switches == PRESETS["codex-turn"] - {Switch.REASONING_NAMES}
    turns = settings_of("--compatibility-mode")["RESPONSES_DIALECT"]
    assert parse_dialect(turns).switches == PRESETS["codex-turn"]


@pytest.mark.parametrize("flag", REFUSED)
def test_what_cannot_be_carried_out_is_refused_with_what_to_do(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings_of(flag, "value")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"{flag} is not a flag of this server: {REFUSED[flag]}." in said


def test_a_model_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings_of("one", "--model", "two")
    assert "not allowed with argument" in capsys.readouterr().err


def test_the_help_says_of_each_flag_what_its_setting_does_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings_of("--help")
    said = " ".join(capsys.readouterr().out.split())
    for row in table():
        if row.name in FLAGS.values():
            assert _unbroken(f"{row.name}: {row.about} (default: {row.default})") in _unbroken(said)
    assert "same as" not in said


def _unbroken(text: str) -> str:
    """Return a text without the places where help may break its lines."""
    return text.replace(" ", "").replace("-", "")
