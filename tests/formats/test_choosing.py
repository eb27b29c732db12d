"""Which format a model has: what an operator says, or what its files do."""

import pytest

from engine.backends.demo import DemoEngine
from engine.model_family import ModelFamily
from engine.model_formats import make_format
from responses_app.conf import ConfigurationError, from_environ


@pytest.mark.parametrize("name", ["harmony", "chat-template", "auto"])
def test_every_model_format_that_can_be_named_can_be_made(name: str) -> None:
    made = make_format(ModelFamily(format=name, model="openai/gpt-oss-20b"), DemoEngine(model="demo"))
    assert made.name == {"auto": "harmony"}.get(name, name)


@pytest.mark.parametrize(
    ("environ", "wrong"),
    [
        ({"MODEL_FORMAT": "chat-template"}, "ENGINE=demo speaks Harmony"),
        (
            {"MODEL_FORMAT": "chat-template", "ENGINE": "vllm-server", "ENGINE_URL": "http://a", "MODEL": "m"},
            "TOKENIZER",
        ),
        ({"MODELS": '{"a": {"format": "chat-template"}}'}, "speaks Harmony"),
        ({"MODELS": '{"a": {"engine": "vllm-server", "url": "http://a", "format": "chat-template"}}'}, "'tokenizer'"),
    ],
)
def test_a_model_that_is_not_harmony_needs_what_it_needs(environ: dict[str, str], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        from_environ(environ)
