"""MODELS: what an entry takes and leaves to the settings for all; and which settings the flags of `serve` stand for."""

import json
from pathlib import Path

import pytest

from responses_app.command_line.parser import build_parser
from responses_app.management.flags import FLAGS, REFUSED, given_settings
from responses_app.protocol.events.dialects import OPENAI, PRESETS, Switch, parse_dialect
from responses_app.protocol.tiers import QueueBounds
from responses_app.settings.conf import from_environ, table
from responses_app.settings.models import MAX_MODELS, ModelSettings
from tests.unit.test_conf import assert_is_one_sentence, refusal

URL = "http://127.0.0.1:8001"
WHOLE = {
    "engine": "vllm-server",
    "model": "openai/gpt-oss-20b",
    "aliases": ["gpt-4o", "large"],
    "format": "harmony",
    "url": [f"{URL}/v1", "http://b"],
    "api_key": "hidden",
    "options": {"health_seconds": 1},
    "max_running": 4,
    "max_queued": "10,flex=20",
}


def served(models: object, **environ: str) -> tuple[ModelSettings, ...]:
    settings, warnings = from_environ({"MODELS": json.dumps(models), **environ})
    assert warnings == []
    return settings.served


def test_an_entry_says_all_of_its_model() -> None:
    [model] = served({"small": WHOLE}, ENGINE_MAX_RUNNING="9")
    assert model == ModelSettings(
        name="small",
        engine="vllm-server",
        model="openai/gpt-oss-20b",
        aliases=("gpt-4o", "large"),
        url=(URL, "http://b"),
        api_key="hidden",
        options={"health_seconds": 1},
        max_running=4,
        max_queued=QueueBounds(10, {"flex": 20}),
    )
    assert "hidden" not in repr(model)


def test_what_it_leaves_out_is_as_the_settings_for_all_say() -> None:
    environ = {"ENGINE": "vllm-server", "ENGINE_API_KEY": "k", "ENGINE_MAX_RUNNING": "3", "ENGINE_MAX_QUEUED": "5"}
    first, second = served({"a": {"url": URL}, "b": {"engine": "demo", "max_running": 0}}, **environ)
    common = {"api_key": "k", "max_queued": QueueBounds(5)}
    assert first == ModelSettings(name="a", engine="vllm-server", model="a", url=(URL,), max_running=3, **common)
    assert second == ModelSettings(name="b", engine="demo", model="b", **common)


def test_it_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"small": WHOLE}))
    for variable in ("MODELS", "MODELS_FILE"):
        settings, _ = from_environ({variable: str(file)})
        assert settings.served == served({"small": WHOLE})
        assert "hidden" not in repr(settings)
    for wrong in (tmp_path, tmp_path / "none.json"):
        assert "or a file with one" in refusal({"MODELS": str(wrong)})


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"a": []}, "a JSON object as 'a'"),
        ({"a": {"urls": URL}}, "of 'a' the fields aliases, api_key, chat_template_kwargs"),
        ({"a": {"engine": "other"}}, "as 'engine' of 'a' one of demo, vllm"),
        ({"a": {"engine": 1}}, "as 'engine' of 'a' a text that is not empty"),
        ({"a": {"url": "hidden"}}, "as 'url' of 'a' URLs of vLLM servers"),
        ({"a": {"url": [1]}}, "as 'url' of 'a' a URL, or a list of URLs"),
        ({"a": {"options": []}}, "as 'options' of 'a' a JSON object"),
        ({"a": {"max_running": -1}}, "as 'max_running' of 'a' a whole number of at least 0"),
        ({"a": {"max_running": True}}, "as 'max_running' of 'a' a whole number of at least 0"),
        ({"a": {"max_queued": "hidden"}}, "as 'max_queued' of 'a' a whole number of at least 0, and others"),
        ({"a": {"format": "chatml"}}, "as 'format' of 'a' one of harmony"),
        ({"a": {"aliases": "b"}}, "as 'aliases' of 'a' a list of names"),
        ({"a": {"aliases": [" "]}}, "as 'aliases' of 'a' names of 1 to 200 characters"),
        ({"": {}}, "names of 1 to 200 characters"),
        ({"a": {"aliases": ["b"]}, "b": {}}, "each name once, as a name or among the aliases, and 'b' is there twice"),
        ({str(number): {} for number in range(MAX_MODELS + 1)}, "a JSON object of at most 32 models"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence_that_shows_no_value(models: object, said: str) -> None:
    sentence = refusal({"MODELS": json.dumps(models)})
    assert sentence.startswith(f"MODELS is not valid: it takes {said}")
    assert_is_one_sentence(sentence)
    assert "hidden" not in sentence


@pytest.mark.parametrize(
    ("models", "environ", "said"),
    [
        ({"a": {"engine": "vllm-server"}}, {}, "MODELS is not valid: of 'a', its engine is vllm-server"),
        ({"a": {"engine": "scripted"}}, {}, "MODELS is not valid: of 'a', its engine is scripted"),
        ({"a": {"engine": "vllm"}, "b": {"engine": "vllm"}}, {}, "A process loads one model with vLLM"),
        *(
            ({"a": {"engine": "demo"}}, {name: value}, f"{name} is for one model")
            for name, value in [("MODEL", "m"), ("MODEL_NAME", "m"), ("ENGINE_URL", URL), ("ENGINE_SCRIPT", "s")]
        ),
    ],
)
def test_what_does_not_fit_together(models: object, environ: dict[str, str], said: str) -> None:
    sentence = refusal({"MODELS": json.dumps(models), **environ})
    assert sentence.startswith(said)
    assert_is_one_sentence(sentence)


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
