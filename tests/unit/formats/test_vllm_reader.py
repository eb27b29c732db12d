"""What is made of what vLLM's parsers tell, which keep white space as it comes: here by a parser that a test writes."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.vllm.chat import VllmReader
from engine.formats.chat_template.reader import CallStyle, Reader
from tests.unit.formats.test_reader import Item, read

THOUGHT = "<think>\n Hm.\n\n</think>\n\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


class ToldParser:
    """Takes `reasoning>TEXT`, `content>TEXT` and `call>NAME>ARGUMENTS` for what was read."""

    def __init__(self) -> None:
        self.calls = 0

    def parse_delta(self, text: str, *_: object, finished: bool) -> Any:
        kind, _, said = text.partition(">")
        delta = SimpleNamespace(reasoning=None, content=None, tool_calls=None)
        if kind == "call":
            name, _, arguments = said.partition(">")
            function = SimpleNamespace(name=name, arguments=arguments)
            delta.tool_calls = [SimpleNamespace(index=self.calls, function=function)]
            self.calls += 1
        elif kind:
            setattr(delta, kind, said)
        return delta


@pytest.mark.parametrize(
    ("told", "ours"),
    [
        (["content>\n", "content> Hello", "content> \n"], "\n Hello \n"),
        (["reasoning>\n", "reasoning> Hm.\n", "reasoning>\n", "content>\n\n", "content> Hello"], THOUGHT + " Hello"),
        (["reasoning>\n", "content>\n\n", "content>Hello"], "<think>\n</think>\n\nHello"),
        (["content>I look.", "content> \n", "content>\n", 'call>f>{"a": 1}', "content>\n"], f"I look. \n\n{CALL}\n"),
        (["content>\n", 'call>f>{"a": 1}', "content>\n", "content> Oh.\n"], f"\n{CALL}\n Oh.\n"),
        (["content>\n ", "content>\n"], "\n \n"),
    ],
)
def test_it_keeps_the_white_space_that_ours_keeps(told: list[str], ours: str) -> None:
    items: list[Item] = read(told, VllmReader(ToldParser(), None))
    assert items == read([ours], Reader(style=CallStyle.HERMES, thinks=True))
