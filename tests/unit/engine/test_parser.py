"""`HarmonyStream` reads what the library reads, and repairs what the library refuses."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_harmony import Role, StreamableParser

from engine.formats.base import Text
from engine.formats.harmony.encoding import (
    CALL,
    CHANNEL,
    END,
    ENDOFTEXT,
    MESSAGE,
    RETURN,
    decode_tokens,
    encode_harmony,
    encode_text,
    token_bytes,
)
from engine.formats.harmony.parser import Header, MessageCompleted, is_cut_off, parse_header
from tests.kit.harmony import HarmonyEvent, HarmonyStream, harmony_encoding
from tests.kit.laws import Transcript, transcripts

Read = tuple[str | None, str | None, str]  # channel, recipient, text


def read(said: str | Iterable[int]) -> tuple[list[Read], list[MessageCompleted]]:
    """Return each message, and how each was completed."""
    stream = HarmonyStream()
    tokens = encode_harmony(said) if isinstance(said, str) else said
    return messages_of([*stream.feed(tokens), *stream.close()])


def messages_of(events: Iterable[HarmonyEvent]) -> tuple[list[Read], list[MessageCompleted]]:
    messages: list[Read] = []
    completed: list[MessageCompleted] = []
    for event in events:
        match event:
            case Header():
                messages.append((event.channel, event.recipient, ""))
            case Text():
                channel, recipient, text = messages.pop()
                messages.append((channel, recipient, text + event.text))
            case MessageCompleted():
                completed.append(event)
    assert len(messages) == len(completed)
    return messages, completed


@settings(deadline=None, max_examples=150)
@given(transcripts())
def test_reads_well_formed_messages_as_the_library_does(transcript: Transcript) -> None:
    library = StreamableParser(harmony_encoding(), Role.ASSISTANT)
    for token in transcript.tokens:
        library.process(token)
    theirs = [(m.channel, m.recipient, "".join(part.text for part in m.content)) for m in library.messages]
    ours, completed = read(transcript.tokens)
    assert ours == theirs
    assert not any(event.repaired or event.truncated for event in completed)


def test_final_with_a_constrain_is_not_a_recipient_as_it_is_for_the_library() -> None:
    said = encode_harmony("<|channel|>final <|constrain|>json<|message|>{}<|return|>")
    library = StreamableParser(harmony_encoding(), Role.ASSISTANT)
    for token in said:
        library.process(token)
    assert library.messages[0].recipient == "<|constrain|>json", "fixed there? then this reader may say so"
    assert read(said)[0] == [("final", None, "{}")]


REPAIRS = {
    "no <|message|>": ("<|channel|>final Hello there<|return|>", [("final", None, "Hello there")]),
    "no header": ("Hello there<|return|>", [(None, None, "Hello there")]),
    "no <|message|> in a call": (
        '<|channel|>commentary to=functions.f <|constrain|>json{"a": 1}<|call|>',
        [("commentary", "functions.f", '{"a": 1}')],
    ),
    "no content type and no <|message|>": (
        '<|channel|>commentary to=functions.f{"a": 1}<|call|>',
        [("commentary", "functions.f", '{"a": 1}')],
    ),
    "leftover words": ("<|channel|>analysis We need<|message|> more<|end|>", [("analysis", None, "We need more")]),
    "words before the channel": ("Well<|channel|>final<|message|>, yes<|return|>", [("final", None, "Well, yes")]),
    "no <|end|> before <|channel|>": (
        "<|channel|>analysis<|message|>hm<|channel|>final<|message|>Yes<|return|>",
        [("analysis", None, "hm"), ("final", None, "Yes")],
    ),
    "no <|end|> before <|start|>": (
        "<|channel|>analysis<|message|>hm<|start|>assistant<|channel|>final<|message|>Yes<|return|>",
        [("analysis", None, "hm"), ("final", None, "Yes")],
    ),
    "a <|start|> instead of a <|message|>": (
        "<|channel|>final lost<|start|>assistant<|channel|>final<|message|>Yes<|return|>",
        [("final", None, "lost"), ("final", None, "Yes")],
    ),
    "a hallucinated user": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>user<|message|>And?<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes<|return|>",
        [("analysis", None, "hm"), ("analysis", None, "And?"), ("final", None, "Yes")],
    ),
    "a hallucinated tool": (
        "<|channel|>commentary to=functions.f<|message|>{}<|end|>"
        "<|start|>functions.f to=assistant<|channel|>commentary<|message|>42<|end|>",
        [("commentary", "functions.f", "{}"), ("analysis", None, "42")],
    ),
    "no channel": ("<|message|>Hello<|return|>", [(None, None, "Hello")]),
    "an unknown channel": ("<|channel|>weird<|message|>text here<|return|>", [(None, None, "text here")]),
    "an unknown channel of a call": (
        '<|channel|>tool to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        [(None, "functions.f", '{"a": 1}')],
    ),
    "an unknown channel, and no <|message|>": ("<|channel|>Hello there<|return|>", [(None, None, "Hello there")]),
    "one word, and no <|message|>": ("<|channel|>Hello<|return|>", [(None, None, "Hello")]),
    "an <|endoftext|> in a header": ("<|channel|>final Hello<|endoftext|>", [("final", None, "Hello")]),
}


@pytest.mark.parametrize(("said", "messages"), REPAIRS.values(), ids=REPAIRS)
def test_repairs_and_says_so(said: str, messages: list[Read]) -> None:
    found, completed = read(said)
    assert found == messages
    assert any(event.repaired for event in completed)


def test_no_start_between_messages_is_not_a_repair() -> None:
    """The tokens are fit to be fed back: `sampled_message` puts the `<|start|>` where it is missing."""
    found, completed = read(
        "<|channel|>analysis<|message|>hm<|end|><|channel|>final<|message|>a<|end|>assistant<|channel|>final<|message|>b"
    )
    assert found == [("analysis", None, "hm"), ("final", None, "a"), ("final", None, "b")]
    assert [event.truncated for event in completed] == [False, False, True]


def test_counts_repairs() -> None:
    stream = HarmonyStream()
    stream.feed(encode_harmony("<|channel|>final<|message|>fine<|end|><|start|>user<|message|>a<|end|>loose<|end|>"))
    assert stream.repairs == 2


@pytest.mark.parametrize("cut", ["", "<|channel|>", "<|channel|>fin", "<|channel|>commentary to=", " to=functions.f"])
def test_a_header_that_was_cut_off_is_not_a_message(cut: str) -> None:
    assert read(cut) == ([], [])
    assert read(f"<|channel|>final<|message|>a<|end|><|start|>assistant{cut}")[0] == [("final", None, "a")]


def test_loose_text_that_was_cut_off_is_a_truncated_message() -> None:
    found, [completed] = read("Hello, I am")
    assert found == [(None, None, "Hello, I am")]
    assert completed.truncated
    assert completed.repaired


@pytest.mark.parametrize("end", [END, RETURN, CALL, ENDOFTEXT])
def test_every_end_token_ends_a_message(end: int) -> None:
    assert read([*encode_harmony("<|channel|>final<|message|>a"), end, end])[0] == [("final", None, "a")]


@pytest.mark.parametrize("cut", ["", "<|channel|>", "<|channel|>final", " to=functions.f<|channel|>commentary"])
def test_an_end_of_text_that_ends_no_message_is_nothing(cut: str) -> None:
    assert read(f"{cut}<|endoftext|>") == ([], [])
    whole = "<|channel|>final<|message|>a"
    assert read(f"{whole}<|end|><|endoftext|><|start|>assistant{cut}<|endoftext|>")[0] == [("final", None, "a")]


@settings(deadline=None, max_examples=60)
@given(transcripts())
def test_an_end_of_text_ends_a_message_as_its_own_end_token_does(transcript: Transcript) -> None:
    ends = (END, RETURN, CALL)
    found, completed = read([ENDOFTEXT if token in ends else token for token in transcript.tokens])
    as_usual, ended = read(transcript.tokens)
    assert found == as_usual
    assert [event.content_tokens for event in completed] == [event.content_tokens for event in ended]
    assert not any(event.repaired or event.truncated for event in completed)


@pytest.mark.parametrize("strange", [201_089, 300_000, 2**32 - 1, 2**40, -1])
def test_an_id_outside_the_vocabulary_is_one_replacement_character(strange: int) -> None:
    said = [*encode_harmony("<|channel|>final<|message|>a"), strange, *encode_text("b"), RETURN]
    assert read(said)[0] == [("final", None, "a\ufffdb")]
    assert read([strange, *said])[0] == [("final", None, "\ufffda\ufffdb")]


def test_special_tokens_without_a_meaning_in_a_text_are_kept_as_text() -> None:
    found, _ = read("<|channel|>final<|message|>a<|message|>b<|constrain|>c<|return|>")
    assert found == [("final", None, "a<|message|>b<|constrain|>c")]


def test_characters_that_lie_over_several_tokens_come_whole() -> None:
    family = "👨‍👩‍👧‍👦👍🏽"
    tokens = encode_text(family)
    assert len(tokens) > len(family)
    stream = HarmonyStream()
    stream.feed([CHANNEL, *encode_text("final"), MESSAGE])
    deltas = [event for token in tokens for event in stream.feed([token])]
    assert "".join(event.text for event in deltas if isinstance(event, Text)) == family
    assert not any("\ufffd" in event.text for event in deltas if isinstance(event, Text))


def test_bytes_that_are_not_utf8_are_replaced_where_they_stand_and_not_carried_over() -> None:
    half = encode_text("﷽")[:1]
    with pytest.raises(UnicodeDecodeError):
        token_bytes(half[0]).decode()
    head = encode_harmony("<|channel|>final<|message|>a")
    assert read([*head, *half, *encode_text("b"), RETURN])[0] == [("final", None, "a\ufffdb")]
    assert read([*head, *half, END, *encode_harmony("<|start|>assistant"), *head, RETURN])[0] == [
        ("final", None, "a\ufffd"),
        ("final", None, "a"),
    ]
    assert read([*head, *half])[0] == [("final", None, "a\ufffd")]


def test_counts_content_as_vllm_does() -> None:
    """`<|message|>` counts, the header and the end token do not."""
    _, [ended, truncated] = read(
        "<|channel|>analysis<|message|>a b c<|end|><|start|>assistant<|channel|>final<|message|>d"
    )
    assert ended.content_tokens == 1 + len(encode_text("a b c"))
    assert truncated.content_tokens == 2


@settings(deadline=None, max_examples=50)
@given(transcripts())
def test_a_message_holds_its_tokens_as_sampled(transcript: Transcript) -> None:
    _, completed = read(transcript.tokens)
    assert [token for event in completed for token in event.tokens] == transcript.tokens


def test_each_token_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """O(1) a token: in a text every token is decoded once, whatever came before it."""
    looked_up: list[int] = []

    def counting(token: int) -> bytes:
        looked_up.append(token)
        return token_bytes(token)

    monkeypatch.setattr("engine.formats.harmony.parser.token_bytes", counting)
    stream = HarmonyStream()
    header = encode_harmony("<|channel|>final<|message|>")
    text = encode_text("one two three four five")
    for token in iter([*header, *text, *text, *text]):  # nothing can look back
        stream.feed([token])
    assert looked_up == [*header[:-1], *text, *text, *text]


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
