"""Chains: exactly the tokens that were sampled, old thoughts dropped by the rule, nothing rendered twice."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from engine.formats.harmony import prompt as harmony
from engine.formats.harmony.encoding import decode_tokens, encode_slices
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import (
    generation_start,
    render_assistant,
    render_call,
    render_text,
    render_tool_output,
)
from responses_app.protocol.errors import ApiError
from responses_app.protocol.prompt.chain import ChainLink, drop_oldest, new_link, rewritten, with_states
from responses_app.protocol.prompt.prompt import PromptWriter
from responses_app.protocol.prompt.rendering import render_items
from responses_app.protocol.requests.requests import CreateRequest, parse_create

DAY = "2026-11-21"
U, A, F, C, O = (  # noqa: E741 - as `MessageKind` abbreviates them
    MessageKind.USER,
    MessageKind.ANALYSIS,
    MessageKind.FINAL,
    MessageKind.COMMENTARY,
    MessageKind.OTHER,
)


def message(kind: MessageKind, *tokens: int) -> RenderedMessage:
    return RenderedMessage(kind, as_tokens(tokens))


def chain(*turns: Sequence[RenderedMessage], parent: ChainLink | None = None) -> ChainLink:
    link = parent
    for number, messages in enumerate(turns):
        link = new_link(link, response_id=f"resp_{number}", started_on=DAY, messages=messages)
    assert link is not None
    return link


def tokens_of(link: ChainLink) -> list[int]:
    return list(link.prompt_tokens())


def said(words: str) -> list[RenderedMessage]:
    """Return messages of a token each, which are written as their kinds and tokens."""
    return [message(MessageKind(word[0]), int(word[1:])) for word in words.split()]


LOOP = ("u1 a2 c3", "o4 a5 f6")


@pytest.mark.parametrize(
    ("turns", "tokens"),
    [
        (("u1 a2 c3", "o4 a5 c6", "o7"), [1, 2, 3, 4, 5, 6, 7]),
        (LOOP, [1, 2, 3, 4, 5, 6]),
        ((*LOOP, "u7"), [1, 3, 4, 6, 7]),
        ((*LOOP, "u7 a8 c9"), [1, 3, 4, 6, 7, 8, 9]),
        (("u1 a2 c3", "u4 o5"), [1, 2, 3, 4, 5]),
        (("u1 a2 f3", "o4"), [1, 2, 3, 4]),
        (("u1 a2 f3 u4 a5 c6 o7",), [1, 3, 4, 5, 6, 7]),
        (("u1 f2 a3 c4", "u5"), [1, 2, 3, 4, 5]),
    ],
    ids=[
        *("in a loop", "before a user goes on", "once a user goes on", "and in the next loop"),
        *("a user interrupts a loop", "a developer goes on", "a whole history at once", "thoughts after an answer"),
    ],
)
def test_thoughts_before_an_answer_are_dropped_once_a_user_goes_on(turns: Sequence[str], tokens: list[int]) -> None:
    assert tokens_of(chain(*map(said, turns))) == tokens


@pytest.mark.parametrize(
    ("turns", "limit", "tokens"),
    [
        (("u1 c2 o3 f4 u5 f6",), 4, [5, 6]),  # no output without its call
        (("u1 c2 o3 f4 u5 f6",), 1, [6]),
        (("u1 c2 o3 f4 u5 f6",), 6, [1, 2, 3, 4, 5, 6]),
        (("u1 c2 o3 c4 o5 f6",), 4, [4, 5, 6]),  # an output without its call is dropped too
        (("u1 c2 o3 c4 o5 f6 o7 o8",), 2, [8]),
        *((turns, limit, [last]) for turns, last in ((("u1", "f2 u3"), 3), (("u1",), 1)) for limit in (-1, 0)),
        ((*LOOP, "u7", "a8 c9"), 7, [1, 3, 4, 6, 7, 8, 9]),  # without thoughts that were settled
        ((*LOOP, "u7", "a8 c9"), 6, [7, 8, 9]),
    ],
)
def test_what_remains_begins_with_a_user_or_what_the_model_said_and_has_the_last_message(
    turns: Sequence[str], limit: int, tokens: list[int]
) -> None:
    assert list(drop_oldest(chain(*map(said, turns)), limit)) == tokens


def test_a_link_that_is_rewritten_weighs_what_its_tokens_weigh() -> None:
    first = chain([message(U, 1), message(A, 2), message(F, 3)])
    link = chain([message(U, *range(1000)), message(A, 4), message(F, 5)], parent=first)
    same = rewritten(link, parent=first, rewrite=lambda each: [each])
    assert (tokens_of(same), same.total_bytes) == (tokens_of(link), link.total_bytes)
    twice = rewritten(link, parent=first, rewrite=lambda each: [each, each] if each.kind is U else [each])
    assert twice.total_bytes == link.total_bytes + 2 * 4 * 1000, "as they are, and once its thoughts are dropped"


def test_calls_are_found_in_the_whole_chain_and_the_latest_wins() -> None:
    def call(call_id: str, name: str) -> dict[str, object]:
        return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}

    first = new_link(None, response_id="a", started_on=DAY, messages=[], items=[call("1", "f"), call("2", "g")])
    second = new_link(first, response_id="b", started_on=DAY, messages=[], items=[{"type": "message"}, call("1", "h")])
    assert [list(second.call_names(each)) for each in ("1", "2", "3")] == [["h"], ["g"], []]


def test_of_what_a_tool_left_in_a_chain_the_latest_counts() -> None:
    first = with_states(chain([message(U, 1)]), {"web": {"pages": 1}, "files": {"pages": 1}})
    second = with_states(chain([message(U, 2)], parent=first), {"web": {"pages": 2}})
    assert second.all_states() == {"web": {"pages": 2}, "files": {"pages": 1}}


def test_what_only_resembles_a_call_is_none() -> None:
    """An output has the id of its call, and may have its name; a custom tool's call may lack what a function's has."""
    items: list[dict[str, object]] = [
        {"type": "function_call_output", "call_id": "1", "name": "f", "output": "2"},
        {"type": "custom_tool_call", "call_id": "2", "input": "x"},
        {"type": "custom_tool_call", "call_id": "3", "name": "shell", "input": "x"},
    ]
    link = new_link(None, response_id="a", started_on=DAY, messages=[], items=items)
    assert link.calls == {"3": "shell"}


def test_messages_whose_lengths_are_missing_are_an_error_and_no_shorter_prompt() -> None:
    whole = chain([message(U, 1), message(A, 2)]).own
    broken = replace(whole, lengths=whole.lengths[:1])
    with pytest.raises(ValueError, match="argument"):
        list(broken.messages())
    with pytest.raises(ValueError, match="argument"):
        broken.settled()


def test_total_bytes_count_the_tokens_their_copy_without_thoughts_and_the_calls() -> None:
    empty = chain([]).total_bytes
    assert chain([message(U, *range(1000))]).total_bytes == empty + 4 * 1000
    assert chain([message(U, *range(1000)), message(A, 1)]).total_bytes == empty + 4 * 1001 + 4 * 1000
    call: dict[str, object] = {"type": "function_call", "call_id": "1", "name": "f"}
    with_call = new_link(None, response_id="a", started_on=DAY, messages=[], items=[call]).total_bytes
    assert empty + len("1f") < with_call < empty + 1000
    second = chain([message(U, *range(500))], parent=chain([message(U, *range(1000))]))
    assert second.total_bytes == 2 * empty + 4 * 1500, "and all before it"


random_messages = st.lists(
    st.tuples(st.sampled_from(list(MessageKind)), st.lists(st.integers(0, 9), max_size=3)), max_size=6
)


def naive(messages: Sequence[RenderedMessage]) -> list[int]:
    """Drop every thought that a user message after an answer follows; where the last of the assistant is the answer."""
    settled, ends_final = 0, False
    for index, each in enumerate(messages):
        if each.kind is U and ends_final:
            settled = index
        if each.kind in (A, F, C):
            ends_final = each.kind is F
    return [token for i, each in enumerate(messages) if i >= settled or each.kind is not A for token in each.tokens]


@settings(deadline=None, max_examples=150)
@given(st.lists(random_messages, min_size=1, max_size=6))
def test_a_chain_is_the_sum_of_its_messages(turns: list[list[tuple[MessageKind, list[int]]]]) -> None:
    rendered = [[message(kind, *tokens) for kind, tokens in turn] for turn in turns]
    link: ChainLink | None = None
    for number, turn in enumerate(rendered):
        link = new_link(link, response_id="r", started_on=DAY, messages=turn)
        so_far = [each for earlier in rendered[: number + 1] for each in earlier]
        assert tokens_of(link) == naive(so_far)


@settings(deadline=None, max_examples=200)
@given(st.lists(random_messages, min_size=1, max_size=5), st.integers(-5, 40))
def test_dropping_the_oldest_leaves_an_end_that_fits(
    turns: list[list[tuple[MessageKind, list[int]]]], limit: int
) -> None:
    link = chain(*([message(kind, *tokens) for kind, tokens in turn] for turn in turns))
    whole, rest = tokens_of(link), list(drop_oldest(link, limit))
    assert whole[len(whole) - len(rest) :] == rest
    if len(whole) <= limit:
        assert rest == whole
    lengths = [len(tokens) for part in link.lineage() for _, tokens in reversed(list(part.own.messages()))]
    assert len(rest) <= max(limit, 0, *lengths[:1])


def request(**fields: object) -> CreateRequest:
    return parse_create({"input": "hi", **fields})


def prompt_of(asked: CreateRequest, link: ChainLink, max_model_len: int = 10_000) -> list[int]:
    return list(PromptWriter(HarmonyFormat(), max_model_len).prompt(asked, link).tokens)


def test_a_prompt_begins_with_the_one_before_and_what_was_sampled() -> None:
    asked = request(instructions="Be brief.", tools=[{"type": "function", "name": "f"}])
    first = chain([render_text("user", "hi")])
    before = prompt_of(asked, first)
    said = [render_assistant("analysis", "Hm."), render_call("functions.f", "{}")]
    second = chain([render_text("user", "hi"), *said], [render_tool_output("functions.f", "42")])
    start = list(generation_start())
    assert before[-len(start) :] == start
    sampled = [token for each in said for token in each.tokens]
    assert prompt_of(asked, second)[: len(before) + len(sampled) - len(start)] == before[: -len(start)] + sampled


def test_a_continuation_encodes_its_new_items_only(monkeypatch: pytest.MonkeyPatch) -> None:
    link = chain([render_text("user", "a long history " * 1000)])
    prompt_of(request(instructions="x"), link)
    encoded: list[str] = []

    def counting(text: str) -> Iterator[list[int]]:
        encoded.append(text)
        return encode_slices(text)

    monkeypatch.setattr(harmony, "encode_slices", counting)
    asked = request(input="more", instructions="x")
    messages = render_items(HarmonyFormat(), asked.input, asked.input_json, parent=link, sampled={})
    prompt_of(asked, new_link(link, response_id="r", started_on=DAY, messages=messages))
    assert encoded == ["more"]


def test_the_context_is_for_input_and_output_together() -> None:
    link = chain([render_text("user", "hi")])
    size = len(prompt_of(request(), link))
    assert len(prompt_of(request(), link, max_model_len=size + 1)) == size
    with pytest.raises(ApiError, match=f"{size} tokens") as refused:
        prompt_of(request(), link, max_model_len=size)
    assert refused.value.code == "context_length_exceeded"


def test_auto_leaves_room_for_the_answer() -> None:
    turns = [[render_text("user", "word " * 50), render_assistant("final", "word " * 50)] for _ in range(10)]
    link = chain(*turns, [render_text("user", "last")])
    for asked in (request(truncation="auto"), request(truncation="auto", max_output_tokens=300)):
        tokens = prompt_of(asked, link, max_model_len=600)
        assert len(tokens) <= 600 - min(asked.max_output_tokens or 150, 300)
        assert decode_tokens(tokens).endswith("last<|end|><|start|>assistant")


def test_what_a_caller_does_with_a_prompt_does_not_touch_the_chain() -> None:
    link = chain([message(U, 1)])
    link.prompt_tokens().append(7)
    assert tokens_of(link) == [1]


def test_chains_may_be_very_long() -> None:
    """Nothing walks a chain by recursion: not its prompt, not its end, not its representation."""
    link = chain(*([message(U, 1), message(F, 2)] for _ in range(20_000)))
    assert len(link.prompt_tokens()) == 40_000
    assert list(drop_oldest(link, 4)) == [1, 2, 1, 2]
    assert len(repr(link)) < 1000
