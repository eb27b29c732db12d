"""The vocabulary of a tokenizer's files, and records of what was said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.base import as_tokens
from engine.formats.chat_template.prompt import is_record, record, records, spliced
from engine.formats.chat_template.vocabulary import vocabulary_of
from tests.unit.formats.families import LLAMA, QWEN

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
