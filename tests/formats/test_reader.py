"""The reader of open models' turns: any chunking gives the same items, and no text is ever lost."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.formats.chat_template.reader import CallStyle, Ended, Kind, Reader, Said, Started

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


def reader(style: CallStyle = CallStyle.HERMES, *, is_open: bool = False, thinks: bool = True) -> Reader:
    return Reader(style=style, thinks=thinks, is_open=is_open)


def read(parts: list[str], made: Reader, *, stopped: bool = True) -> list[Item]:
    """Return each item's kind, name and text, and whether it was cut."""
    events = [event for part in parts for event in made.feed(part)] + made.end(stopped=stopped)
    items: list[Item] = []
    is_open = False
    for event in events:
        match event:
            case Started(kind, name):
                assert not is_open, "an item begins in another one"
                is_open = True
                items.append((kind.value, name, "", False))
            case Said(text):
                assert is_open, "text of no item"
                assert text, "an empty delta"
                items[-1] = (*items[-1][:2], items[-1][2] + text, False)
            case Ended(truncated):
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


def test_a_thought_and_an_answer() -> None:
    assert one("<think>\nHm.\n</think>\n\nHello.") == [("reasoning", "", "Hm."), ("answer", "", "Hello.")]
    assert one("Hm.\n</think>\n\nHello.", is_open=True) == [("reasoning", "", "Hm."), ("answer", "", "Hello.")]
    assert one("<think>Hm.</think>Hello.", is_open=True) == [("reasoning", "", "Hm."), ("answer", "", "Hello.")]
    assert one("<think>\n\n</think>\n\nHello.") == [("answer", "", "Hello.")]
    assert one("<think>Hm.</think>Hello.", thinks=False) == [("answer", "", "<think>Hm.</think>Hello.")]


def test_calls_as_hermes_writes_them() -> None:
    first = '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>'
    two = f'First.\n{first}\n<tool_call>{{"name":"g","arguments":{{}}}}</tool_call>'
    assert one(two) == [("answer", "", "First."), ("call", "f", '{"a": "}"}'), ("call", "g", "{}")]
    assert one('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>') == [("call", "f", '{"a":1}')]
    assert one('<tool_call>{"name": "f"}</tool_call>') == [("call", "f", "{}")]
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
    nobody = Reader(style=CallStyle.JSON, thinks=False, is_call=lambda _: False)
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
    for text, kind in (("Hel", Kind.ANSWER), ("<think>Hm", Kind.REASONING)):
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
