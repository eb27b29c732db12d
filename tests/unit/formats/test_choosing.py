"""Which format a model has, by its operator or its files; its vocabulary, and records of what was said."""

import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.demo.engine import DemoEngine
from engine.backends.model_folder import ModelFamily
from engine.errors import EngineConfigurationError
from engine.formats.base import ItemEnded, as_tokens
from engine.formats.chat_template.format import ChatTemplateFormat, FamilyTraits
from engine.formats.chat_template.prompt import is_record, record, records, spliced
from engine.formats.chat_template.vocabulary import Vocabulary, vocabulary_of
from engine.models import make_format
from responses_app.observing.metrics import Metrics
from responses_app.runs.plan.served import ServedModel
from responses_app.settings.conf import ConfigurationError, from_environ
from responses_app.wiring.engines import Engines
from tests.kit.fakes import FakeEngine
from tests.unit.formats.families import LLAMA, QWEN
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

    made = ChatTemplateFormat(vocabulary, Renderer(QWEN), lambda _: FamilyTraits())
    engine = FakeEngine()
    model = ServedModel("fake", engine, lambda: engine.info, 0, made, Metrics().model("fake"))
    assert not made.is_loaded
    for _ in range(2):
        await model.ready()
    assert made.is_loaded
    [thread] = threads
    assert thread is not threading.current_thread()


TEXTS = st.text(max_size=40)
TOKENS = st.lists(st.integers(0, 2**31), max_size=20)


@given(st.lists(st.tuples(TEXTS, TOKENS), max_size=5))
def test_records_come_back_as_they_were(said: list[tuple[str, list[int]]]) -> None:
    draft = as_tokens()
    for text, tokens in said:
        draft.extend(record({"is": "user", "text": text}, tokens))
    assert [(each.said["text"], list(each.sampled)) for each in records(draft)] == said
    assert is_record(draft) == bool(said)


def test_what_is_not_a_record_is_not_read_as_one() -> None:
    with pytest.raises(ValueError, match="not a record"):
        list(records(as_tokens([200006, 1, 2, 3])))


@given(st.text(max_size=60))
def test_every_text_is_spelled_by_its_bytes(text: str) -> None:
    vocabulary = vocabulary_of(QWEN.tokenizer(), [])
    assert b"".join(map(vocabulary.token_bytes, text.encode())) == text.encode()


def test_a_sentencepiece_vocabulary() -> None:
    pieces = [["<unk>", 0.0], ["▁Hello", -1.0], ["<0x0A>", -2.0], ["é", -3.0]]
    added = [{"id": 4, "content": "</s>", "special": True}]
    made = vocabulary_of({"model": {"vocab": pieces}, "added_tokens": added, "decoder": {"type": "Replace"}}, [])
    assert [made.token_bytes(token) for token in (1, 2, 3)] == [b" Hello", b"\n", "é".encode()]
    assert made.ends == (4,)


def test_all_that_ends_a_turn_is_known() -> None:
    others = [{"eos_token_id": [7, 8]}, {"eos_token": {"content": "<|python_tag|>"}}]
    made = vocabulary_of(LLAMA.tokenizer(), others)
    assert set(made.ends) == {7, 8, LLAMA.ids["<|eot_id|>"], LLAMA.ids["<|python_tag|>"]}
    with pytest.raises(ValueError, match=r"ends? a turn"):
        vocabulary_of({"model": {"vocab": {"a": 0}}}, [])


PIECES = [b"a", b"b", b"ab", b"\xff<end>\xff", b"ba"]


@given(
    st.lists(st.integers(0, 4), max_size=30), st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), max_size=4)
)
def test_splicing_never_changes_the_text(rendered: list[int], turns: list[list[int]]) -> None:
    prompt = spliced(rendered, turns, PIECES)
    assert b"".join(PIECES[token] for token in prompt) == b"".join(PIECES[token] for token in rendered)


def test_sampled_tokens_take_the_place_of_what_says_the_same() -> None:
    assert list(spliced([3, 2, 3, 0], [[0, 1, 3]], PIECES)) == [3, 0, 1, 3, 0]
    assert list(spliced([3, 2, 3, 0], [[0, 0, 3]], PIECES)) == [3, 2, 3, 0]
    assert list(spliced([4, 2], [[0]], PIECES)) == [4, 2], "not within a token"
    assert list(spliced([2, 2], [[9]], PIECES)) == [2, 2], "a token of another vocabulary"
