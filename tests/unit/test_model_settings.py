"""MODELS: what an entry takes, what it leaves to the settings for all, and what is said where it is wrong."""

import json
from pathlib import Path

import pytest

from responses_app.protocol.tiers import QueueBounds
from responses_app.settings.conf import from_environ
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
    entries = {"small": {"engine": "demo"}}
    file = tmp_path / "models.json"
    file.write_text(json.dumps(entries))
    settings, _ = from_environ({"MODELS": str(file)})
    assert settings.served == served(entries)
    for wrong in (tmp_path, tmp_path / "none.json"):
        assert "or a file with one" in refusal({"MODELS": str(wrong)})


def test_its_file_may_be_named_instead(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"small": WHOLE}))
    settings, _ = from_environ({"MODELS_FILE": str(file)})
    assert [model.name for model in settings.served] == ["small"]
    assert "hidden" not in repr(settings)


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
