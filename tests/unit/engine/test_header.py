"""Headers as the models write them, well-formed and bent."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.formats.harmony.parser import Header, is_cut_off, parse_header

WELL_FORMED = [
    ("assistant<|channel|>final", "final", None),
    ("<|channel|>final", "final", None),  # the prompt ends in `<|start|>assistant`
    ("<|channel|>analysis", "analysis", None),
    ("<|channel|>commentary", "commentary", None),
    ("<|channel|>commentary to=functions.f <|constrain|>json", "commentary", "functions.f"),
    ("<|channel|>commentary to=functions.f<|constrain|>json", "commentary", "functions.f"),
    ("<|channel|>commentary to=functions.f json", "commentary", "functions.f"),
    ("<|channel|>analysis to=browser.search code", "analysis", "browser.search"),
    (" to=functions.f<|channel|>commentary <|constrain|>json", "commentary", "functions.f"),
    ("assistant to=functions.f<|channel|>commentary", "commentary", "functions.f"),
    ("to=functions.f<|channel|>commentary json", "commentary", "functions.f"),
    ("assistantto=functions.f<|channel|>commentary", "commentary", "functions.f"),
    ("<|channel|>final <|constrain|>json", "final", None),  # the library reads a recipient here
    ("<|channel|>final<|constrain|>json", "final", None),
    ("<|channel|>final <|constrain|>WeatherReport", "final", None),
]
BENT = [
    ("", None, None, ""),
    ("assistant", None, None, ""),
    ("<|channel|>", None, None, ""),
    ("<|channel|>finale", None, None, ""),
    ("<|channel|>thoughts", None, None, ""),
    ("<|channel|>weird to=functions.f <|constrain|>json", None, "functions.f", ""),
    ("<|channel|>weird<|channel|>final", "final", None, ""),
    ("<|channel|>analysis<|channel|>final", "final", None, ""),
    ("<|channel|>We need", None, None, "We need"),
    ("<|channel|> Hello", None, None, "Hello"),
    ('<|channel|>{"a":1}', None, None, '{"a":1}'),
    ("Hello there", None, None, "Hello there"),
    ("final", None, None, "final"),
    ("<|channel|>final Hello", "final", None, "Hello"),
    ("<|channel|>analysis We need to think", "analysis", None, "We need to think"),
    ("Well<|channel|>final", "final", None, "Well"),
    ('<|channel|>commentary to=functions.f <|constrain|>json{"a": 1}', "commentary", "functions.f", '{"a": 1}'),
    ('<|channel|>commentary to=functions.f json {"a": 1}', "commentary", "functions.f", '{"a": 1}'),
    ('<|channel|>commentary to=functions.f{"a": 1}', "commentary", "functions.f", '{"a": 1}'),
    ("<|channel|>commentary to=functions.f[1, 2]", "commentary", "functions.f", "[1, 2]"),
    ("user", "analysis", None, ""),
    ("system<|channel|>final", "analysis", None, ""),
    ("user hello", "analysis", None, "hello"),
    ("functions.f to=assistant<|channel|>commentary", "analysis", None, ""),
]


@pytest.mark.parametrize(("text", "channel", "recipient", "loose"), [*((*each, None) for each in WELL_FORMED), *BENT])
def test_keeps_what_belongs_to_no_part_of_a_header(
    text: str, channel: str | None, recipient: str | None, loose: str | None
) -> None:
    assert parse_header(text) == Header(channel, recipient, loose or "", well_formed=loose is None)


@pytest.mark.parametrize("text", ["<|channel|>weird", "<|channel|>weird<|channel|>final"])
def test_what_may_be_an_unknown_channel_is_text_where_the_header_never_ended(text: str) -> None:
    assert parse_header(text, complete=False).loose == "weird"


@pytest.mark.parametrize(
    "text", [text for text, _, _ in WELL_FORMED if "Report" not in text and "assistantto" not in text]
)
def test_a_header_that_was_cut_after_any_token_holds_no_text(text: str) -> None:
    tokens = encode_harmony(text)
    beginnings = [decode_tokens(tokens[:end]) for end in range(len(tokens) + 1)]
    assert [each for each in beginnings if not is_cut_off(each) and parse_header(each).loose] == []


@pytest.mark.parametrize("text", ["Hello", "I", "<|channel|>final Hello", "a b c", "final json code to= assistant"])
def test_text_is_not_the_beginning_of_a_header(text: str) -> None:
    assert not is_cut_off(text)


parts = st.sampled_from(
    [" ", *"assistant user <|channel|> <|constrain|> <|start|> final to= functions.f json { é".split()]
)


@settings(deadline=None, max_examples=150)
@given(st.lists(parts, max_size=10).map("".join) | st.text(max_size=30))
def test_takes_any_text(text: str) -> None:
    header = parse_header(text)
    assert header.channel in ("analysis", "commentary", "final", None)
    assert header.recipient != ""
    assert header.well_formed is False or header.loose == ""
    assert is_cut_off(text) in (True, False)
