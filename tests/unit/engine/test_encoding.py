"""Our tokens are the library's, whatever the text; and they come in time, however long it is."""

import asyncio
import weakref

import openai_harmony
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.base import load_vocabulary
from engine.formats.harmony import encoding
from engine.formats.harmony.encoding import (
    MAX_SLICE,
    REPLACEMENT,
    decode_tokens,
    encode_harmony,
    encode_slices,
    encode_text,
    token_bytes,
)
from tests.kit.harmony import harmony_encoding
from tests.kit.hostile import RUNS, hostile_text

SCRIPTS = {
    "latin": "naïve Straße, it's WE'LL DON'T ǅ",
    "cyrillic": "Съешь же ещё этих мягких",
    "greek": "Ξεσκεπάζω τὴν ψυχοφθόρα",
    "arabic": "نص حكيم له سر قاطع ﷽ ١٢٣",
    "hebrew": "דג סקרן שט בים",
    "devanagari": "ऋषियों को सताने वाले दुष्ट १२३",
    "thai": "เป็นมนุษย์สุดประเสริฐ ๑๒๓",
    "han": "视野无限广，窗外有蓝天。",
    "kana": "いろはにほへと ヴｶﾞ ちりぬるを",
    "hangul": "키스의 고유조건은 입술끼리",
    "ethiopic": "ሰማይ አይታረስ ንጉሥ አይከሰስ፡፡",
    "emoji": "👨‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪",
    "combining": "Z̵̢͎a̸̱͝l̷̺̕g̴̣͘o̶ e\u0301\u0327",
    "numbers": "1234567 ½ Ⅷ ²³ 一二三",
    "spaces": " \u00a0\u2003\u3000\t\x0b\x1c\x85\u2028 x  \r\n \n\n /\n/ ",
    "controls": "\x00\x01\x7f\u200b\ufeff\u202e",
}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200) | st.lists(
    st.sampled_from(
        [*SCRIPTS.values(), "<|start|>", "<|end|>", "'s", "'", " ", "\n", "a", "A", "1", "!", "/", "<|", "\u0301"]
    ),
    max_size=30,
).map("".join)


def library(text: str) -> list[int]:
    tokens: list[int] = harmony_encoding().encode(text, disallowed_special=())
    return tokens


@settings(deadline=None, max_examples=300)
@given(texts)
def test_the_tokens_are_the_librarys(text: str) -> None:
    tokens = encode_text(text)
    assert tokens == library(text)
    assert decode_tokens(tokens) == text


@settings(deadline=None, max_examples=300)
@given(texts)
def test_slices_change_no_token(text: str) -> None:
    """Where a text can be divided at all: a slice of full length was cut where it had to be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "MAX_SLICE", 24)
        if all(len(part) < 24 for part in encoding._slices(text)):
            assert encode_text(text) == library(text)


@pytest.mark.parametrize("name", ["words", "prose", "json", "urls", "special-tokens", "base64", "hex", "space-letter"])
def test_what_people_write_can_be_divided(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_SLICE", 64)
    text = hostile_text(name, 5000)
    parts = list(encoding._slices(text))
    assert len(parts) > 50 or name == "prose"
    assert all(len(part) < 64 for part in parts)
    assert encode_text(text) == library(text)


@settings(deadline=None, max_examples=100)
@given(texts)
def test_special_tokens_are_where_a_transcript_has_them(text: str) -> None:
    transcript = f"<|start|>user<|message|>{text}<|end|>"
    assert encode_harmony(transcript) == harmony_encoding().encode(transcript, allowed_special="all")


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script(script: str) -> None:
    text = SCRIPTS[script] * 50
    assert encode_text(text) == library(text)


@pytest.mark.parametrize("special", sorted(harmony_encoding().special_tokens_set)[:20])
def test_a_special_token_that_somebody_wrote_is_text(special: str) -> None:
    for text in (special, f"a{special}b", f" {special} ", special * 3):
        tokens = encode_text(text)
        assert tokens == library(text)
        assert max(tokens) < min(encode_harmony(special))


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ude00\ud83d"])
def test_surrogates(text: str) -> None:
    assert encode_text(text) == library(text)


def test_the_vocabulary_is_the_librarys() -> None:
    for token in (0, 255, 1000, 199_997, 199_998, 200_012, 201_087):
        alone: str = harmony_encoding().decode([token], errors="surrogateescape")
        assert token_bytes(token) == alone.encode(errors="surrogateescape")
    for token in (-1, 300_000, 2**32 - 1, 2**70):
        assert token_bytes(token) == REPLACEMENT


def test_every_token_is_told_by_its_bytes() -> None:
    every = range(encoding.MAX_TOKEN + 1)
    assert len({token_bytes(token) for token in every}) == len(every)
    assert max(map(len, map(token_bytes, every))) == encoding.longest_token()


def test_the_librarys_vocabulary_does_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 50 MiB in each process, and tiktoken has one of its own."""
    loaded = []

    def load(name: str) -> openai_harmony.HarmonyEncoding:
        library = openai_harmony.HarmonyEncoding(harmony_encoding()._inner)
        loaded.append(weakref.ref(library))
        return library

    monkeypatch.setattr(openai_harmony, "load_harmony_encoding", load)
    tokenizer = encoding._tokenizer.__wrapped__()
    assert [reference() for reference in loaded] == [None]
    assert tokenizer.encode_ordinary("one two") == encode_text("one two")


def test_long_runs_come_in_slices_and_lose_nothing() -> None:
    for name in RUNS:
        text = hostile_text(name, 3 * MAX_SLICE)
        parts = list(encode_slices(text))
        assert all(len(part) <= MAX_SLICE for part in encoding._slices(text))
        assert decode_tokens(token for part in parts for token in part) == text


def test_a_million_spaces() -> None:
    """They overflowed a stack, in the library and in tiktoken: a panic that is not an `Exception`."""
    tokens = encode_text(" " * 1_200_000)
    assert set(map(token_bytes, tokens[:-1])) == {b" " * 128}


@pytest.mark.parametrize("character", ["-", "=", "x", "A", " ", "中"])
def test_a_run_within_a_slice_is_encoded_as_by_the_library(character: str) -> None:
    text = f"see {character * 5000}\nand on"
    assert encode_text(text) == library(text)


async def test_engines_that_start_at_once_load_the_vocabulary_once() -> None:
    encoding._tokenizer.cache_clear()
    await asyncio.gather(*(load_vocabulary() for _ in range(3)))
    assert encoding._tokenizer.cache_info().misses == 1
