"""`ResponseStream`: its laws, whatever a model samples and however it is cut; and what may come when."""

import copy
import re
from collections.abc import Callable

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.base import ItemEnded, ItemKind, ItemStarted, MessageKind, RenderedMessage, Text, as_tokens
from engine.formats.harmony.encoding import CONSTRAIN, END, MESSAGE, RETURN, decode_tokens, encode_harmony, encode_text
from engine.formats.harmony.prompt import generation_start
from responses_app.protocol.events.events import Delta, Event
from responses_app.protocol.output.stream import LocalProtocolError, ResponseStream
from responses_app.protocol.requests.resources import Ending, Status
from responses_app.protocol.usage import as_read
from tests.kit.laws import (
    SPECIAL_TOKENS,
    STRANGE_TOKENS,
    WORDS,
    Played,
    Transcript,
    assert_laws,
    chunked,
    cut_sizes,
    is_subsequence,
    mangled,
    new_stream,
    play,
    transcripts,
    what_it_became,
    word_texts,
)
from tests.kit.oracle import validate_event, validate_response
from tests.kit.plain_format import FORMAT as PLAIN
from tests.unit.protocol.machines import machine

any_tokens = st.lists(
    st.integers(0, 201_100) | st.sampled_from(SPECIAL_TOKENS) | st.sampled_from(STRANGE_TOKENS), max_size=25
)


def said(played: Played) -> list[tuple[object, ...]]:
    return [(event.type, event.sequence_number, event.fields) for event in played.events]


@settings(deadline=None, max_examples=150)
@given(transcripts(), cut_sizes)
def test_well_formed_messages_become_the_items_they_are(transcript: Transcript, sizes: list[int]) -> None:
    played = play(chunked(transcript.tokens, sizes))
    assert [what_it_became(item) for item in played.items] == [message.expected for message in transcript.messages]
    assert {item["status"] for item in played.items} == {"completed"}
    assert_laws(played.seen)


@settings(deadline=None, max_examples=100)
@given(transcripts(), cut_sizes)
def test_the_cut_into_chunks_changes_nothing(transcript: Transcript, sizes: list[int]) -> None:
    whole = said(play([transcript.tokens]))
    assert said(play([[token] for token in transcript.tokens])) == whole
    assert said(play(chunked(transcript.tokens, sizes))) == whole


@settings(deadline=None, max_examples=100)
@given(st.data(), transcripts(), cut_sizes)
def test_mangled_tokens_cut_anywhere_give_the_same_events(
    data: st.DataObject, transcript: Transcript, sizes: list[int]
) -> None:
    tokens = data.draw(mangled(transcript.tokens))
    assert said(play([tokens])) == said(play(chunked(tokens, sizes)))


@settings(deadline=None, max_examples=150)
@given(st.data(), transcripts(), st.sampled_from(list(Status)[2:]), st.booleans())
def test_a_generation_that_ends_anywhere_keeps_the_laws(
    data: st.DataObject, transcript: Transcript, status: Status, close: bool
) -> None:
    tokens = transcript.tokens[: data.draw(st.integers(0, len(transcript.tokens)))]
    played = play([tokens], status=status, close=close)
    assert_laws(played.seen)
    finished = sum(token in (END, RETURN, 200012) for token in tokens)
    assert [item["status"] for item in played.items[:finished]] == ["completed"] * finished
    assert [item["status"] for item in played.items[finished:]] in ([], ["incomplete"])


@settings(deadline=None, max_examples=150)
@given(st.data(), transcripts())
def test_mangled_output_keeps_the_laws(data: st.DataObject, transcript: Transcript) -> None:
    assert_laws(play([data.draw(mangled(transcript.tokens))]).seen)


@settings(deadline=None, max_examples=150)
@given(any_tokens, st.booleans())
def test_any_tokens_at_all_keep_the_laws(tokens: list[int], close: bool) -> None:
    assert_laws(play([tokens], close=close).seen)


@settings(deadline=None, max_examples=200)
@given(st.data(), transcripts(word_texts))
def test_no_text_is_lost_under_mangling(data: st.DataObject, transcript: Transcript) -> None:
    tokens = data.draw(mangled(transcript.tokens, strange=(*SPECIAL_TOKENS, *STRANGE_TOKENS)))
    words = {encode_text(word)[0] for word in WORDS}
    wanted = [  # a word behind <|constrain|> is a content type
        decode_tokens([token]).strip()
        for before, token in zip([0, *tokens], tokens, strict=False)
        if token in words and before != CONSTRAIN
    ]
    visible = re.findall("|".join(word.strip() for word in WORDS), " ".join(play([tokens]).texts))
    assert is_subsequence(wanted, visible), decode_tokens(tokens)


@settings(deadline=None, max_examples=60)
@given(st.data(), transcripts(), st.sampled_from(list(Status)[2:]))
def test_every_event_is_what_the_sdk_calls_one(data: st.DataObject, transcript: Transcript, status: Status) -> None:
    tokens = data.draw(st.just(transcript.tokens) | mangled(transcript.tokens))
    for event in play([tokens], status=status).seen:
        validate_event(event)


@settings(deadline=None, max_examples=60)
@given(transcripts(), st.sampled_from(list(Status)[2:]))
def test_the_snapshot_is_the_response_of_the_terminal_event(transcript: Transcript, status: Status) -> None:
    played = play([transcript.tokens], status=status)
    last = played.events[-1].fields["response"]
    assert played.stream.snapshot() == last
    assert played.stream.status is status
    assert last["status"] == status.value
    validate_response(as_read(last, usage_per_turn=False))


@settings(deadline=None, max_examples=100)
@given(transcripts())
def test_what_is_fed_back_is_what_was_sampled(transcript: Transcript) -> None:
    """`<|return|>` becomes `<|end|>`, as the model was trained; every other token is the sampled one."""
    messages = play([transcript.tokens]).stream.messages
    fed_back = sum((message.tokens for message in messages), as_tokens())
    sampled = [*generation_start(), *(END if token == RETURN else token for token in transcript.tokens)]
    assert list(fed_back) == sampled


@settings(deadline=None, max_examples=50)
@given(transcripts(), cut_sizes)
def test_a_delta_is_written_as_any_other_event(transcript: Transcript, sizes: list[int]) -> None:
    events = play(chunked(transcript.tokens, sizes)).events
    assert all(isinstance(event, Delta) for event in events if event.type.endswith(".delta"))
    for event in events:
        assert event.as_json() == Event(event.type, event.sequence_number, event.fields).as_json()


def test_events_do_not_change_after_they_were_made() -> None:
    played = play(
        [encode_harmony("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b")]
    )
    created = played.seen[0]
    assert created["response"]["output"] == []
    assert created["response"]["status"] == "in_progress"
    assert played.seen[2]["item"].get("content") is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda event: event.pop("sequence_number"),
        lambda event: event.update(sequence_number="1"),
        lambda event: event.update(type="response.cancelled"),
        lambda event: event["response"].pop("created_at"),
        lambda event: event["response"].update(tools=None),
        lambda event: event["response"]["output"][0].update(status="done"),
        lambda event: event["response"]["output"][0].pop("summary"),
        lambda event: event["response"]["output"][0].update(sumary=[]),
        lambda event: event["response"]["usage"].update(output_tokens=1.5),
        lambda event: event["response"]["usage"].pop("input_tokens_details"),
    ],
)
def test_the_oracle_finds_what_is_wrong(spoil: object) -> None:
    event = play([[*encode_harmony("<|channel|>analysis"), MESSAGE, *encode_text("hm"), END]]).seen[-1]
    validate_event(event)
    broken = copy.deepcopy(event)
    spoil(broken)  # type: ignore[operator]
    with pytest.raises((AssertionError, pydantic.ValidationError)):
        validate_event(broken)


ENDED = ItemEnded(RenderedMessage(MessageKind.COMMENTARY, as_tokens([1, 2])))
ANSWER = ItemStarted(ItemKind.ANSWER)
PYTHON = ItemStarted(ItemKind.HOSTED_CALL, "python")
DONE = Ending(status=Status.COMPLETED, completed_at=1)


def started(hosted: bool = False) -> ResponseStream:
    stream = machine(PLAIN, hosted=hosted).stream
    stream.start()
    return stream


BEFORE_THE_START: list[Callable[[ResponseStream], object]] = [
    lambda stream: stream.receive(ANSWER),
    lambda stream: stream.begin_compaction(),
    lambda stream: stream.finish(DONE),
]
WHILE_NOTHING_IS_OPEN: list[Callable[[ResponseStream], object]] = [
    lambda stream: stream.start(),
    lambda stream: stream.leave_queue(),
    lambda stream: stream.receive(Text("a")),
    lambda stream: stream.receive(ENDED),
    lambda stream: stream.receive("no event"),  # type: ignore[arg-type]
    lambda stream: stream.end_compaction("sealed"),
    lambda stream: stream.end_call("2", failed=False),
]
INSIDE_AN_ITEM: list[Callable[[ResponseStream], object]] = [
    lambda stream: stream.receive(ANSWER),
    lambda stream: stream.begin_compaction(),
    lambda stream: stream.end_compaction("sealed"),
    lambda stream: stream.end_call("2", failed=False),
]


class TestOrder:
    """What cannot be is a bug of this server, and is told at once."""

    @pytest.mark.parametrize(
        ("place", "wrong"),
        [
            *(("before the start", wrong) for wrong in BEFORE_THE_START),
            *(("while nothing is open", wrong) for wrong in WHILE_NOTHING_IS_OPEN),
            *(("inside an item", wrong) for wrong in INSIDE_AN_ITEM),
        ],
    )
    def test_what_cannot_come_there(self, place: str, wrong: Callable[[ResponseStream], object]) -> None:
        stream = new_stream() if place == "before the start" else started(hosted=True)
        if place == "inside an item":
            stream.receive(ANSWER)
        with pytest.raises(LocalProtocolError):
            wrong(stream)

    def test_a_call_returns_only_after_it_was_called(self) -> None:
        stream = started(hosted=True)
        stream.receive(PYTHON)
        with pytest.raises(LocalProtocolError):
            stream.end_call("2", failed=False)
        stream.receive(ENDED)
        stream.end_call("2", failed=False)
        with pytest.raises(LocalProtocolError):
            stream.end_call("2", failed=False)

    def test_after_the_end(self) -> None:
        stream = started()
        stream.finish(DONE)
        for wrong in (*WHILE_NOTHING_IS_OPEN, lambda stream: stream.finish(DONE), BEFORE_THE_START[0]):
            with pytest.raises(LocalProtocolError):
                wrong(stream)
