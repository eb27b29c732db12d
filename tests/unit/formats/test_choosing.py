"""Which format a model has: what an operator says, or what its files do."""

import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.backends.demo.engine import DemoEngine
from engine.errors import EngineConfigurationError
from engine.formats.base import ItemEnded
from engine.formats.chat_template.format import ChatTemplateFormat, Manners
from engine.formats.chat_template.vocabulary import Vocabulary, vocabulary_of
from engine.models.family import ModelFamily
from engine.models.formats import make_format
from responses_app.observing.metrics import Metrics
from responses_app.runs.plan.served import ServedModel
from responses_app.settings.conf import ConfigurationError, from_environ
from responses_app.wiring.engines import Engines
from tests.kit.fakes import FakeEngine
from tests.unit.formats.families import QWEN
from tests.unit.formats.rendering import Renderer


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


def test_a_folder_without_a_tokenizer_is_told_at_the_start(tmp_path: Path) -> None:
    environ = {"MODEL_FORMAT": "chat-template", "ENGINE": "vllm-server", "ENGINE_URL": "http://a", "MODEL": "m"}
    settings, _ = from_environ({**environ, "TOKENIZER": str(tmp_path)})
    with pytest.raises(EngineConfigurationError, match=r"TOKENIZER=.* a tokenizer\.json"):
        Engines(settings).check()
    QWEN.write(tmp_path)
    Engines(settings).check()
    settings, _ = from_environ({**environ, "TOKENIZER": str(tmp_path), "TOOL_PARSER": "vllm:mistral"})
    if find_spec("vllm") is None:
        with pytest.raises(EngineConfigurationError, match="vLLM, which is not installed"):
            Engines(settings).check()


def test_a_model_is_known_by_its_files(tmp_path: Path) -> None:
    QWEN.write(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    made = make_format(ModelFamily(format="auto", model=str(tmp_path)), DemoEngine(model="demo"))
    assert (made.name, made.stop_tokens) == ("chat-template", (QWEN.ids["<|im_end|>"],))
    *_, ended = made.parser(["f"]).feed([*b"Hi", *made.stop_tokens])
    assert isinstance(ended, ItemEnded)
    assert made.token_bytes(QWEN.ids["<think>"]) == b"<think>"
    assert made.token_bytes(10**6) == "\N{REPLACEMENT CHARACTER}".encode()
    assert [made.is_token(token) for token in (0, QWEN.size - 1, QWEN.size)] == [True, True, False]
    assert made.is_special(QWEN.ids["<|im_end|>"])
    assert not made.is_special(QWEN.ids["<think>"])


async def test_a_vocabulary_is_read_beside_the_loop_before_anybody_asks_for_it() -> None:
    threads: list[threading.Thread] = []

    def vocabulary() -> Vocabulary:
        threads.append(threading.current_thread())
        return vocabulary_of(QWEN.tokenizer(), [{"eos_token": QWEN.end}])

    made = ChatTemplateFormat(vocabulary, Renderer(QWEN), lambda _: Manners())
    engine = FakeEngine()
    model = ServedModel("fake", engine, lambda: engine.info, 0, made, Metrics().model("fake"))
    assert not made.is_loaded
    for _ in range(2):
        await model.ready()
    assert made.is_loaded
    [thread] = threads
    assert thread is not threading.current_thread()
