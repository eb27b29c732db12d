"""Text fit for a page, and items as blocks."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from responses_app.extensions.console.watch.text import CUT_BACK, PageRoom, pretty, visible
from responses_app.extensions.console.watch.transcript import READERS, PageTranscript
from tests.inprocess.admin.samples import answered, called, gave, said, thought

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
item_like = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "reasoning", "function_call", "function_call_output", "mcp_call", "x_output"]
        )
        | json_values,
        **dict.fromkeys(("role", "content", "summary", "call_id", "name", "arguments", "output", "id"), json_values),
    },
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x00\x1b[31m", "\\u0000\\u001b[31m"),
        ("\ud800", "\\ud800"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("hidden\U000e0041", "hidden\\U000e0041"),
        ("שלום\u200f عالم", "שלום\u200f عالم"),
        ("👩\u200d💻", "👩\u200d💻"),
    ],
)
def test_what_cannot_be_seen_is_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(alphabet=st.characters()) | st.text(alphabet=st.sampled_from("\ud800\udfff\x00a")))
def test_what_is_shown_can_always_be_encoded(text: str) -> None:
    visible(text).encode()


def test_a_long_text_is_folded_at_a_line_and_then_cut() -> None:
    text = "\n".join(f"line {number}" for number in range(1_000))
    clipped = PageRoom().clip(text, shown=100, folded=1_000)
    assert clipped.shown.endswith("\n")
    assert len(clipped.shown) <= 100
    assert (clipped.shown + clipped.folded) == text[:1_100]
    assert clipped.lost == len(text) - 1_100


def test_a_text_is_not_folded_for_a_few_characters() -> None:
    text = "x" * (100 + CUT_BACK)
    assert PageRoom().clip(text, shown=100).shown == text


def test_a_full_page_shows_beginnings_only() -> None:
    room = PageRoom(characters=5_000)
    clipped = [room.clip("y" * 4_000, folded=10_000) for _ in range(3)]
    assert [text.lost for text in clipped] == [0, 2_500, 2_500]


def test_json_nested_deeply_is_written_nevertheless() -> None:
    value: object = "end"
    for _ in range(400):
        value = [value]
    assert json.loads(pretty(value)) == value


def test_an_output_stands_with_its_call() -> None:
    transcript = PageTranscript()
    asked = transcript.read([said("Which?"), called("call_0", "old", "{}")])
    blocks = transcript.read(
        [gave("call_0", "earlier"), thought("Hm."), called("call_1", "look", '{"a":1}'), answered("So.")]
    )
    assert [block.kind for block in asked + blocks] == ["message", "call", "reasoning", "call", "message"]
    assert asked[1].answer.code.shown == "earlier"
    assert blocks[1].code.shown == '{"a": 1}'
    assert transcript.unanswered() == ["call_1"]
    transcript.read_answers([gave("call_1", [{"type": "input_text", "text": "later"}])], "resp_9")
    assert (blocks[1].answer_in, blocks[1].answer.texts[0].shown) == ("resp_9", "later")


def test_calls_of_tools_without_a_name_show_what_was_asked_for() -> None:
    calls = [
        {"type": "custom_tool_call", "call_id": "c0", "namespace": "crm", "name": "note", "input": "Hm"},
        {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
        {"type": "apply_patch_call", "call_id": "c2", "operation": {"type": "delete_file", "path": "a"}},
    ]
    outputs = [{"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "done"} for call in calls]
    blocks = PageTranscript().read([*calls, *outputs])
    assert [(block.kind, block.title, block.code.shown) for block in blocks if block.code] == [
        ("call", "crm.note", "Hm"),
        ("call", "shell", pretty({"commands": ["ls"]})),
        ("call", "apply_patch", pretty({"type": "delete_file", "path": "a"})),
    ]
    assert [block.answer.code.shown for block in blocks if block.answer and block.answer.code] == ["done"] * 3


def test_calls_of_a_servers_tools_stand_with_what_they_gave() -> None:
    found = {"type": "search", "query": "turtles", "sources": [{"type": "url", "url": "https://a.example/"}]}
    items = [
        {"type": "web_search_call", "status": "completed", "action": found},
        {
            "type": "web_search_call",
            "action": {"type": "find_in_page", "pattern": "shell", "url": "https://a.example/"},
        },
        {"type": "web_search_call", "status": "failed", "action": {"type": "open_page", "url": None}, "error": "gone"},
        {"type": "mcp_call", "server_label": "wiki", "name": "read", "arguments": '{"a":1}', "output": "text"},
        {"type": "code_interpreter_call", "code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]},
        {"type": "code_interpreter_call", "code": "plot()", "outputs": [{"type": "image", "url": "data:"}]},
        {"type": "code_interpreter_call", "outputs": None},
        {"type": "image_generation_call", "revised_prompt": "a cat", "result": "iVBO", "action": "edit"},
    ]
    blocks = PageTranscript().read(items)
    assert {block.kind for block in blocks} == {"call"}
    asked = [(block.title, block.code.shown) for block in blocks if block.code]
    gave = [block.answer.code.shown if block.answer and block.answer.code else None for block in blocks]
    assert asked[:5] == [
        ("web search: search", "turtles"),
        ("web search: find in page", "shell\nhttps://a.example/"),
        ("web search: open page", ""),
        ("wiki.read", '{"a": 1}'),
        ("python", "1+1"),
    ]
    assert gave[1:5] == [None, "gone", "text", "2"]
    assert "https://a.example/" in str(gave[0])
    assert gave[5:] == [None, None, None]
    assert asked[-1] == ("image: edit", "a cat")


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=30)
@given(
    st.dictionaries(
        st.sampled_from("action error output outputs code arguments name result revised_prompt".split()), json_values
    )
)
def test_nothing_is_taken_for_granted_of_a_servers_call(kind: str, fields: dict[str, object]) -> None:
    (block,) = PageTranscript().read([{"type": kind, **fields}])
    assert block.kind == "call"


def test_an_output_without_its_call_stands_alone() -> None:
    (block,) = PageTranscript().read([gave("call_1", "alone")])
    assert (block.kind, block.title) == ("output", "Output of call_1")


def test_other_items_are_named_and_folded() -> None:
    blocks = PageTranscript().read([{"type": "file_search_call", "id": "fs_1", "status": "failed"}, {"x": 1}, 7])
    assert [(block.kind, block.title, block.status) for block in blocks] == [
        ("other", "file_search_call", "failed"),
        ("other", "An item without a type", ""),
        ("other", "An item without a type", ""),
    ]


def test_parts_that_are_not_text_are_named() -> None:
    content = [{"type": "input_audio", "input_audio": {}}, {"type": "refusal", "refusal": "No."}, "bare", None]
    (block,) = PageTranscript().read([{"role": "user", "content": content}])
    assert block.chips == ["input_audio", "part", "part"]
    assert [text.shown for text in block.texts] == ["No."]
    assert block.note == "refusal"


@settings(max_examples=50)
@given(st.lists(item_like | json_values, max_size=8))
def test_no_item_breaks_the_page(items: list[object]) -> None:
    transcript = PageTranscript()
    transcript.read(items)
    transcript.read_answers(items, "resp_1")
