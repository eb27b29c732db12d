"""vLLM's own parsers as readers of turns: the items of ours, and no text lost where one of them fails."""

from pathlib import Path

import pytest

from engine.backends.demo.engine import DemoEngine
from engine.backends.model_folder import ModelFamily
from engine.backends.vllm.chat import vllm_parsers
from engine.errors import EngineConfigurationError
from engine.formats.base import ItemEnded, ItemKind, ItemStarted, Text, TurnParser
from engine.models import make_format
from tests.unit.formats.families import LLAMA, QWEN, Family
from tests.unit.formats.rendering import Renderer

THOUGHT = "<think>\nHm.\n</think>\n\n"
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
JSON = '{"name": "f", "parameters": {"a": 1}}'
SH = '<tool_call>\n{"name": "sh", "arguments": {"freeform_text": "ls\\n-l"}}\n</tool_call>'


class Broken:
    """A parser that takes nothing."""

    def parse_delta(self, *_: object, finished: bool) -> None:
        raise IndexError("list index out of range")


Item = tuple[ItemKind, str | None, str]


def parser(family: Family, folder: Path, *, reasoning: str = "auto", tool: str = "auto") -> TurnParser:
    family.write(folder)
    known = ModelFamily(format="chat-template", tokenizer=str(folder), reasoning_parser=reasoning, tool_parser=tool)
    return make_format(known, DemoEngine(model="demo")).parser(["f", "sh"])


def read(made: TurnParser, tokens: list[int]) -> list[Item]:
    items: list[Item] = []
    for event in made.feed(tokens) + made.close():
        match event:
            case ItemStarted(kind, name):
                items.append((kind, name, ""))
            case Text(text):
                items[-1] = (*items[-1][:2], items[-1][2] + text)
            case ItemEnded(truncated=truncated):
                assert not truncated
    return [(kind, name, text.replace(" ", "").rstrip()) for kind, name, text in items]


@pytest.mark.parametrize(
    ("family", "names", "text"),
    [
        (QWEN, ("vllm:qwen3", "vllm:hermes"), f"{THOUGHT}Hello world"),
        (QWEN, ("vllm:qwen3", "vllm:hermes"), f"{THOUGHT}{HERMES}\n{HERMES}"),
        (QWEN, ("vllm:qwen3", "vllm:hermes"), f"{THOUGHT}{SH}"),
        (LLAMA, ("none", "vllm:llama3_json"), "Hello world"),
        (LLAMA, ("none", "vllm:llama3_json"), JSON),
    ],
    ids=["answer", "calls", "freeform", "llama-answer", "llama-call"],
)
def test_they_read_what_ours_reads(family: Family, names: tuple[str, str], text: str, tmp_path: Path) -> None:
    tokens = Renderer(family).encode(text + family.end)
    ours = read(parser(family, tmp_path), tokens)
    assert read(parser(family, tmp_path, reasoning=names[0], tool=names[1]), tokens) == ours


def test_what_breaks_a_parser_is_text(tmp_path: Path) -> None:
    QWEN.write(tmp_path)
    reader = vllm_parsers(str(tmp_path), "qwen3", "hermes")(["f"])
    said = reader.feed("<think>Hm.")
    reader._parser = Broken()
    said += reader.feed("Hello") + reader.feed(" world") + reader.end(stopped=True)
    assert [each.text for each in said if isinstance(each, Text)] == ["Hm.", "Hello", " world"]
    assert reader.repairs == 1


def test_a_parser_that_vllm_does_not_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineConfigurationError, match="vLLM's parsers nothing"):
        parser(QWEN, tmp_path, tool="vllm:nothing")
