"""The readers of turns: any chunking gives the same items, and no text is ever lost."""

import re
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.backends.vllm.chat import VllmTurnReader
from engine.formats.base import Text
from engine.formats.chat_template import reader as reader_module
from engine.formats.chat_template.reader import (
    SPACE,
    BaseReader,
    CallStyle,
    ObjectScan,
    ReadEnded,
    ReadKind,
    ReadStarted,
    TagReader,
)

PIECES = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "<", "<tool", "think>", "</tool_", ">"),
    *(
        '{"name": "f", "arguments": {"a": 1}}',
        '{"name": "f", "parameters": {"a": "}<tool_call>"}}',
        '{"a": ["\\"", 2]}',
    ),
    *(
        '{"name": "f", "arguments": {',
        '"arguments"',
        '{"name": "',
        '{"freeform_text": "x\\ny"}',
        "{",
        "}",
        '"',
        "\\",
        ";",
    ),
    *('{"arguments": {}, "name": "g"}', '{"name": "g", "arguments": {"freeform_text": "as it is"}}', '{"answer": 42}'),
    *("Hello", " ", "\n", "\n\n", "Grüße 👋", "a.b", "0"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=30)
STYLES = st.sampled_from(CallStyle)
Item = tuple[str, str, str, bool]


def reader(style: CallStyle = CallStyle.HERMES, *, is_open: bool = False, thinks: bool = True) -> TagReader:
    return TagReader(style=style, thinks=thinks, is_open=is_open)


def read(parts: list[str], made: BaseReader, *, stopped: bool = True) -> list[Item]:
    """Return each item's kind, name and text, and whether it was cut."""
    events = [event for part in parts for event in made.feed(part)] + made.end(stopped=stopped)
    items: list[Item] = []
    is_open = False
    for event in events:
        match event:
            case ReadStarted(kind, name):
                assert not is_open, "an item begins in another one"
                is_open = True
                items.append((kind.value, name, "", False))
            case Text(text):
                assert is_open, "text of no item"
                assert text, "an empty delta"
                items[-1] = (*items[-1][:2], items[-1][2] + text, False)
            case ReadEnded(truncated):
                assert is_open
                is_open = False
                items[-1] = (*items[-1][:3], truncated)
    assert not is_open, "an item never ends"
    return items


def one(text: str, style: CallStyle = CallStyle.HERMES, **options: bool) -> list[tuple[str, str, str]]:
    return [item[:3] for item in read([text], reader(style, **options))]


@given(TEXTS, STYLES, st.booleans(), st.booleans(), st.lists(st.integers(0, 200), max_size=8))
@example('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', CallStyle.HERMES, False, True, [3, 9])
def test_any_chunking_gives_the_same_items(
    text: str, style: CallStyle, is_open: bool, stopped: bool, cuts: list[int]
) -> None:
    whole = read([text], reader(style, is_open=is_open), stopped=stopped)
    assert read(list(text), reader(style, is_open=is_open), stopped=stopped) == whole
    places = [0, *sorted(cuts), len(text)]
    parts = [text[begin:end] for begin, end in pairwise(places)]
    assert read(parts, reader(style, is_open=is_open), stopped=stopped) == whole


@given(TEXTS, STYLES, st.booleans())
def test_no_word_is_lost(text: str, style: CallStyle, is_open: bool) -> None:
    """Words, not punctuation: what frames a call is told by the call."""
    said = "".join(f"{name} {text}" for _, name, text, _ in read([text], reader(style, is_open=is_open)))
    kept = re.sub(r"[^\w]", "", said)
    for word in re.findall(r"Hello|Grüße|answer|42", text):
        assert word in kept
    if text.strip(SPACE):
        assert one(text, CallStyle.NONE, thinks=False) == [("answer", "", text)]


def test_a_thought_and_an_answer() -> None:
    assert one("<think>\nHm.\n</think>\n\nHello.") == [("reasoning", "", "Hm."), ("answer", "", "Hello.")]
    assert one("Hm.\n</think>\n\nHello.", is_open=True) == [("reasoning", "", "Hm."), ("answer", "", "Hello.")]
    assert one("<think>Hm.</think>Hello.", is_open=True) == [("reasoning", "", "Hm."), ("answer", "", "Hello.")]
    assert one("<think>\n\n</think>\n\nHello.") == [("answer", "", "Hello.")]
    assert one("<think>Hm.</think>Hello.", thinks=False) == [("answer", "", "<think>Hm.</think>Hello.")]


def test_white_space_that_is_not_the_templates_is_kept() -> None:
    assert one("\n Hello \n") == [("answer", "", "\n Hello \n")]
    assert one("<think>\n\n Hm.\n\n</think>\n\n\n Hello.") == [
        ("reasoning", "", "\n Hm.\n"),
        ("answer", "", "\n Hello."),
    ]
    assert one("\n Hm.\n</think>\nHello.", is_open=True) == [("reasoning", "", " Hm."), ("answer", "", "Hello.")]
    assert one(" <tool_call>no</tool_call>") == [("answer", "", " <tool_call>no</tool_call>")]
    assert one("a\n\n<tool_call>no</tool_call>") == [
        ("answer", "", "a\n"),
        ("answer", "", "\n<tool_call>no</tool_call>"),
    ]
    assert one('\n{"a": 1}\n', CallStyle.JSON) == [("answer", "", '\n{"a": 1}\n')]
    for nothing in (" \n\t", "<think> \n</think>\n\n \n", "\n<think>\n"):
        assert one(nothing) == []


def test_calls_as_hermes_writes_them() -> None:
    first = '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>'
    two = f'First.\n{first}\n<tool_call>{{"name":"g","arguments":{{}}}}</tool_call>'
    assert one(two) == [("answer", "", "First."), ("call", "f", '{"a": "}"}'), ("call", "g", "{}")]
    assert one('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>') == [("call", "f", '{"a":1}')]
    assert one('<tool_call>{"name": "f"}</tool_call>') == [("call", "f", "{}")]
    tag = '{"a": "</tool_call>"}'
    assert one(f'<tool_call>{{"name": "f", "arguments": {tag}}}</tool_call>') == [("call", "f", tag)]
    assert one('<tool_call>{"name": "sh", "arguments": {"freeform_text": "ls\\n"}}</tool_call>') == [
        ("call", "sh", "ls\n")
    ]


def test_calls_as_llama_writes_them() -> None:
    call = '{"name": "f", "parameters": {"a": 1}}'
    for text in (
        call,
        f"<|python_tag|>{call}",
        f"\n{call}\n",
        '{"type": "function", "name": "f", "parameters": {"a": 1}}',
    ):
        assert one(text, CallStyle.JSON) == [("call", "f", '{"a": 1}')]
    assert one(f"{call}; {call}", CallStyle.JSON) == [("call", "f", '{"a": 1}')] * 2
    assert one(f"See: {call}", CallStyle.JSON) == [("answer", "", f"See: {call}")]
    assert one('{"a": 1}', CallStyle.JSON) == [("answer", "", '{"a": 1}')]
    assert one("<|python_tag|>print(1)", CallStyle.JSON) == [("answer", "", "print(1)")]
    nobody = TagReader(style=CallStyle.JSON, thinks=False, is_call=lambda _: False)
    assert read([call], nobody) == [("answer", "", call, False)]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not JSON</tool_call>",
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments"',
        "<tool_call>",
        "a < b and <tool",
    ],
)
def test_what_only_looks_like_a_call_is_text(text: str) -> None:
    assert one(text) == [("answer", "", text)]


def test_what_is_cut_is_told() -> None:
    for text, kind in (("Hel", ReadKind.ANSWER), ("<think>Hm", ReadKind.REASONING)):
        [item] = read([text], reader(), stopped=False)
        assert (item[0], item[3]) == (kind.value, True)
    [call] = read(['<tool_call>{"name": "f", "arguments": {"a"'], reader(), stopped=True)
    assert call == ("call", "f", '{"a"', True)
    [call] = read(['<tool_call>{"name": "f", "arguments": {"a": 1}'], reader(), stopped=False)
    assert call == ("call", "f", '{"a": 1}', False)
    broken = reader()
    assert read(['<tool_call>{"name": "f", "arguments": {"a": </tool_call>Oh.'], broken) == [
        ("call", "f", '{"a": ', False),
        ("answer", "", "Oh.", False),
    ]
    assert broken.repairs == 1


@pytest.mark.parametrize("style", [CallStyle.HERMES, CallStyle.JSON])
def test_a_list_that_stays_open_swallows_nothing_behind_the_arguments(style: CallStyle) -> None:
    call = '{"name": "f", "arguments": {"a": [1}}'
    text = f"<tool_call>{call}</tool_call>Oh." if style is CallStyle.HERMES else f"{call}Oh."
    assert one(text, style) == [("call", "f", '{"a": [1}'), ("answer", "", "Oh.")]


@pytest.fixture
def longest_head(monkeypatch: pytest.MonkeyPatch) -> int:
    """How long a head may be: less than else, so that a test need not write so much."""
    monkeypatch.setattr(reader_module, "MAX_HEAD", 64)
    return reader_module.MAX_HEAD


@pytest.mark.parametrize("style", [CallStyle.HERMES, CallStyle.JSON])
@pytest.mark.parametrize("more", [-1, 0, 1, 50])
@pytest.mark.parametrize(
    "text",
    [
        '{"name": %s"f", "arguments": {"a": 1}}',
        '{"name": "f", "arguments": {%s"a": 1}}',
        '{"name": "f", "arguments": {"a": 1}%s}',
        '{"name": "f", "arguments": {"a": 1}}%s',
        '{"name": "f", "arguments": {%s"freeform_text": "x"}}',
    ],
)
def test_any_chunking_gives_the_same_items_where_there_is_much_white_space(
    longest_head: int, text: str, more: int, style: CallStyle
) -> None:
    before, _, behind = text.partition("%s")
    for size in (longest_head, longest_head - len(before), longest_head - len(before + behind)):
        said = text % (" " * (size + more))
        said = f"<tool_call>{said}</tool_call>" if style is CallStyle.HERMES else said
        for whole in (said, said[: len(before) + size]):
            expected = read([whole], reader(style))
            assert read(list(whole), reader(style)) == expected
            assert read([whole[i : i + 7] for i in range(0, len(whole), 7)], reader(style)) == expected


class Counted:
    """A pattern that counts how much text it is given."""

    def __init__(self, pattern: Any) -> None:
        self.pattern, self.read = pattern, 0

    def match(self, text: str, **options: bool) -> Any:
        self.read += len(text)
        return self.pattern.match(text, **options)


@pytest.mark.parametrize(
    ("style", "name", "begin"),
    [
        (CallStyle.HERMES, "HERMES_HEAD", '<tool_call>{"name": "'),
        (CallStyle.JSON, "JSON_HEAD", '{"name": "'),
        (CallStyle.JSON, "FREEFORM_ARGUMENTS", '{"name": "f", "arguments": {'),
        (CallStyle.JSON, "JSON_TAIL", '{"name": "f", "arguments": {}'),
    ],
)
def test_a_head_without_end_is_read_to_its_bound_only(
    monkeypatch: pytest.MonkeyPatch, longest_head: int, style: CallStyle, name: str, begin: str
) -> None:
    pattern = Counted(getattr(reader_module, name))
    monkeypatch.setattr(reader_module, name, pattern)
    more = "x" if name.endswith("HEAD") else " "
    read([begin, *[more] * (4 * longest_head)], reader(style))
    assert 0 < pattern.read <= longest_head**2


class CountedText(str):
    """A text that counts how much of it is read."""

    read = 0

    def __getitem__(self, place: Any) -> str:
        part = super().__getitem__(place)
        CountedText.read += len(part)
        return part

    def __iter__(self) -> Iterator[str]:
        CountedText.read += len(self)
        return super().__iter__()


def test_a_call_that_is_read_as_a_whole_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scan(ObjectScan):
        def size(self, text: str) -> int | None:
            return super().size(CountedText(text))

    monkeypatch.setattr(reader_module, "ObjectScan", Scan)
    monkeypatch.setattr(CountedText, "read", 0)
    text = '{"name": "f", "parameters": {"freeform_text": "' + "x{" * 500 + '"}}'
    [call] = read(list(text), reader(CallStyle.JSON))
    assert call == ("call", "f", "x{" * 500, False)
    assert len(text) <= CountedText.read <= 2 * len(text)


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
    items: list[Item] = read(told, VllmTurnReader(ToldParser(), None))
    assert items == read([ours], TagReader(style=CallStyle.HERMES, thinks=True))
