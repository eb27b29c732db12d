"""vLLM's answers, read without a server: however the bytes are cut, and whatever they say."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends import client
from engine.backends.client import Refusal, error_text, shown
from engine.backends.vllm.wire import COMPLETIONS, GENERATE, RankedPrompt, TokenStream, WholeAnswer, Wire, is_whole
from engine.errors import GenerationFailed
from engine.types import (
    FinishReason,
    GenerationRequest,
    PictureSource,
    RankedToken,
    SamplingOptions,
    TokenChunk,
    TokenLogprob,
)
from tests.kit.fake_vllm import completion_event, error, generate_event

TOKENS = st.lists(st.integers(0, 201_087), max_size=3)
LOGPROB = st.floats(-9999, 0)
WIRES = {GENERATE: generate_event, COMPLETIONS: completion_event}


def event(data: object) -> bytes:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def read(stream: TokenStream, *parts: bytes) -> list[TokenChunk]:
    return [*(chunk for part in parts for chunk in stream.feed(part)), stream.last()]


@st.composite
def whole_answers(draw: st.DrawFn) -> tuple[Wire, bytes, list[TokenChunk]]:
    wire = draw(st.sampled_from(list(WIRES)))
    bodies = draw(st.lists(st.tuples(TOKENS.filter(bool), LOGPROB), max_size=6))
    chunks = [TokenChunk(token_ids=tokens, logprobs=_logprobs(tokens, value)) for tokens, value in bodies]
    tokens, cached = draw(TOKENS), draw(st.none() | st.integers(0, 9))
    finish = draw(st.sampled_from(list(FinishReason)))
    logprobs = _logprobs(tokens, -1.0) if tokens else None
    chunks.append(TokenChunk(token_ids=tokens, finish_reason=finish, cached_tokens=cached, logprobs=logprobs))
    between = draw(st.sampled_from(["", ": keep-alive\n\n", "event: x\n", "\r\n"])).encode()
    said = [event(WIRES[wire](chunk, None, 1)) for chunk in chunks]
    if cached is not None:
        said.append(event({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": cached}}}))
    return wire, between.join([*said, event("[DONE]")]), chunks


def _logprobs(tokens: list[int], value: float) -> list[TokenLogprob]:
    return [TokenLogprob(token, value, ((token, value),)) for token in tokens]


def test_a_whole_answer_is_one_chunk() -> None:
    place = {"8": {"logprob": -2.5, "rank": 3, "decoded_token": "x"}, "9": {"logprob": -0.5, "rank": 1}}
    told = [None, place]
    usage = {"prompt_tokens_details": {"cached_tokens": 1}}
    choice = {"index": 0, "token_ids": [5, 6], "finish_reason": "length", "logprobs": None}
    transfer = {"remote_host": "h"}
    answered = {"usage": usage, "kv_transfer_params": transfer}
    for wire, body in (
        (GENERATE, {**answered, "choices": [choice], "prompt_logprobs": told}),
        (COMPLETIONS, {**answered, "choices": [{**choice, "prompt_logprobs": told}]}),
    ):
        content = json.dumps(body).encode()
        answer = WholeAnswer(wire, [7, 8])
        assert not list(answer.feed(content[:9]))
        assert not list(answer.feed(content[9:]))
        assert (answer.finished, answer.end(), answer.finished) == (False, True, True)
        assert answer.last() == TokenChunk(
            token_ids=[5, 6],
            finish_reason=FinishReason.LENGTH,
            cached_tokens=1,
            prompt_logprobs=[None, [RankedToken(8, -2.5, 3), RankedToken(9, -0.5, 1)]],
            kv_transfer_params=transfer,
        )


def test_a_prompt_is_ranked_where_it_is_read() -> None:
    """An engine in process has an object for each token: 20,000, with 20 others each, held the event loop for 4 s."""
    read: list[int] = []

    def entries(place: int) -> list[tuple[int, float, int]]:
        read.append(place)
        return [(place + 1, -0.5, 1), (place, -2.5, 3)]

    ranked = RankedPrompt([7, 8, 9], [None, 8, 9], entries)
    assert (len(ranked), ranked[0], read) == (3, None, [])
    assert ranked[1:2] == [[RankedToken(8, -2.5, 3), RankedToken(9, -0.5, 1)]]
    assert read == [8]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"choices": []}', b'{"choices": [{"token_ids": null}]}'])
def test_a_whole_answer_that_is_none(content: bytes) -> None:
    answer = WholeAnswer(GENERATE, [1])
    assert not list(answer.feed(content))
    with pytest.raises(GenerationFailed):
        answer.end()


def test_a_whole_answer_that_is_an_error() -> None:
    answer = WholeAnswer(GENERATE, [1])
    assert not list(answer.feed(json.dumps(error("full", 503)).encode()))
    with pytest.raises(Refusal) as refused:
        answer.end()
    assert refused.value.status == 503


@pytest.mark.parametrize(
    ("asked", "whole"),
    [
        ({}, False),
        ({"sampling": SamplingOptions(prompt_logprobs=0)}, True),
        ({"kv_transfer_params": {"do_remote_decode": True}}, True),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, False),
    ],
)
def test_what_no_stream_tells_is_asked_for_as_a_whole(asked: dict[str, Any], whole: bool) -> None:
    request = GenerationRequest(request_id="r", prompt_token_ids=[1], **asked)
    assert is_whole(request) == whole
    body = json.loads(GENERATE.body(request, model="m", max_tokens=1, priority=0))
    assert (body["stream"], "stream_options" in body) == (not whole, not whole)
    assert body.get("kv_transfer_params") == asked.get("kv_transfer_params")
    assert body["sampling_params"].get("prompt_logprobs") == (0 if "sampling" in asked else None)


async def _nothing() -> bytes:
    return b""


SOME_PICTURE = PictureSource("d0" * 32, _nothing)


@given(whole_answers(), st.lists(st.integers(0, 2000)))
def test_any_cutting_gives_the_same_chunks(answer: tuple[Wire, bytes, list[TokenChunk]], cuts: list[int]) -> None:
    wire, content, chunks = answer
    places = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    parts = [content[begin:end] for begin, end in pairwise(places)]
    assert read(TokenStream(wire, max_tokens=99, top_logprobs=1), *parts) == chunks
    assert read(TokenStream(wire, max_tokens=99, top_logprobs=1), content.replace(b"\n", b"\r\n")) == chunks


@given(st.lists(st.binary()))
def test_whatever_comes_ends_in_an_error_or_in_nothing(parts: list[bytes]) -> None:
    stream = TokenStream(GENERATE, max_tokens=99)
    try:
        for part in parts:
            assert not list(stream.feed(part))
    except (GenerationFailed, Refusal):
        pass
    assert not stream.finished


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["choices", "error", "usage", "token_ids", "logprobs"]) | st.text(), inner)
    ),
)


@given(JSON, st.sampled_from(list(WIRES)))
def test_whatever_is_said_is_read_or_refused(said: Any, wire: Wire) -> None:
    try:
        list(TokenStream(wire, max_tokens=99, top_logprobs=3).feed(event(said)))
    except (GenerationFailed, Refusal) as failed:
        assert len(str(failed)) < 500  # noqa: PT017


def test_chunks_before_an_error_are_kept() -> None:
    chunk = TokenChunk(token_ids=[1])
    feeding = TokenStream(GENERATE, max_tokens=99).feed(event(generate_event(chunk, None, None)) + event("{"))
    assert next(feeding) == chunk
    with pytest.raises(GenerationFailed, match="cannot be read"):
        next(feeding)


def test_an_error_in_the_stream_is_a_refusal() -> None:
    with pytest.raises(Refusal, match="503: busy") as refused:
        list(TokenStream(GENERATE, max_tokens=99).feed(event(error("busy", 503))))
    assert refused.value.status == 503
    for odd in ({"error": "x"}, {"error": {"message": "x", "code": "x"}}, {"error": {"code": 200}}, {"error": None}):
        with pytest.raises(Refusal) as refused:
            list(TokenStream(GENERATE, max_tokens=99).feed(event(odd)))
        assert refused.value.status == 500


def test_a_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_LINE", 1000)
    stream = TokenStream(GENERATE, max_tokens=99)
    assert not list(stream.feed(b"x" * 1000 + b"\n" + b"x" * 1000))
    with pytest.raises(GenerationFailed, match="more than 1000 bytes"):
        list(stream.feed(b"x"))


def test_more_tokens_than_were_asked_for_are_refused() -> None:
    stream = TokenStream(GENERATE, max_tokens=3)
    chunk = event(generate_event(TokenChunk(token_ids=[1, 2]), None, None))
    assert list(stream.feed(chunk))
    with pytest.raises(GenerationFailed, match="more tokens"):
        list(stream.feed(chunk))


def test_an_unlikely_token_is_not_an_alternative() -> None:
    """vLLM puts the sampled token first, whatever its rank, and cuts the list to as many as were asked for."""
    entry = {
        "token_id": 9,
        "logprob": -8.0,
        "rank": 40,
        "top_logprobs": [{"token_id": 9, "logprob": -8.0, "rank": 40}, {"token_id": 1, "logprob": -0.5, "rank": 1}],
    }
    choice = {"logprobs": {"content": [entry]}}
    assert GENERATE.logprobs(choice, 2) == [TokenLogprob(9, -8.0, ((1, -0.5),))]
    assert GENERATE.logprobs(choice, 0) == [TokenLogprob(9, -8.0, ())]


def test_a_completion_gives_one_alternative_too_many() -> None:
    given_ = {
        "tokens": ["token_id:9", "token_id:3"],
        "token_logprobs": [-8.0, None],
        "top_logprobs": [{"token_id:9": -8.0, "token_id:1": -0.5, "token_id:2": -0.75}, None],
    }
    assert COMPLETIONS.logprobs({"logprobs": given_}, 2) == [
        TokenLogprob(9, -8.0, ((1, -0.5), (2, -0.75))),
        TokenLogprob(3, -9999.0, ()),
    ]


def test_token_ids_of_older_servers_stand_in_the_token() -> None:
    old = {"token": "token_id:7", "logprob": -1.0, "top_logprobs": [{"token": "token_id:7", "logprob": -1.0}]}
    assert GENERATE.logprobs({"logprobs": {"content": [old]}}, 1) == [TokenLogprob(7, -1.0, ((7, -1.0),))]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"error": {"message": "No room.", "code": 503}}', "No room."),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"object": "error", "message": "Old."}', "Old."),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>\n  502\n</html>", "<html> 502 </html>"),
        (b"[1]", "[1]"),
        (b"", ""),
        (b"\xff\x00", "�"),
    ],
)
def test_the_text_of_an_error(content: bytes, text: str) -> None:
    assert error_text(content) == text


def test_what_is_shown_is_short() -> None:
    assert len(shown("word " * 1000)) <= 300


def test_the_tokens_of_a_prompt_with_pictures_are_those_that_the_engine_made_of_it() -> None:
    request = GenerationRequest(
        request_id="r", prompt_token_ids=[1, 7], sampling=SamplingOptions(prompt_logprobs=0), pictures=(SOME_PICTURE,)
    )
    part = {"type": "image_url", "url": None, "uuid": SOME_PICTURE.digest}
    for whole in (True, False):
        body = json.loads(
            GENERATE.body(
                request if whole else replace(request, sampling=SamplingOptions()),
                model="m",
                max_tokens=1,
                priority=0,
                content_parts=[part],
            )
        )
        assert body["content_parts"] == [part]
        assert body.get("return_token_ids", False) is whole
    answer = WholeAnswer(GENERATE, [1, 7], has_pictures=True)
    ranked = {"logprob": -1.0, "rank": 1}
    said = {
        "choices": [{"token_ids": [5], "finish_reason": "length"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1},
        "prompt_token_ids": [1, 7, 7, 7],
        "prompt_logprobs": [None, {"7": ranked}, {"7": ranked, "9": {"logprob": -0.5, "rank": 0}}, {"7": ranked}],
    }
    assert not list(answer.feed(json.dumps(said).encode()))
    assert answer.end()
    last = answer.last()
    assert last.prompt_tokens == 4
    assert last.prompt_logprobs is not None
    assert [place and place[0].token_id for place in last.prompt_logprobs] == [None, 7, 7, 7]
