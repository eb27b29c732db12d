"""What is said to a llama-server and read of it, without one; and what becomes of answers that are not llama.cpp's."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.client import Refusal
from engine.backends.llama.server import LlamaServerEngine
from engine.backends.llama.wire import (
    CompletionAnswer,
    CompletionStream,
    LlamaTurn,
    Pieces,
    TokensLeftOut,
    completion,
    ends_within,
    ranked,
)
from engine.errors import EngineUnavailable, GenerationFailed
from engine.formats.harmony.encoding import SPECIAL_TOKENS, token_bytes
from engine.types import FinishReason, GenerationRequest, SamplingOptions, TokenChunk

WORDS = [b"a", b" \xf0\x9f", b"\xa6", b"\x99", b"\xa6\x99", b"\xe5\x96", b"\xb5", b"\xf0\x9f\xa6", b" ", b"<|end|>"]
PIECES = Pieces.of(range(9), WORDS.__getitem__)
A, SPACE_F0_9F, A6, X99, A6_99, E5_96, B5, F0_9F_A6, SPACE, END = range(10)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["tokens", "stop", "content"]) | st.text(), inner),
)


def request(**sampling: Any) -> GenerationRequest:
    return GenerationRequest(request_id="r", prompt_token_ids=[1, 2], sampling=SamplingOptions(**sampling))


def body(behind: tuple[int, ...] = (), *, again: int = 0, **sampling: Any) -> dict[str, Any]:
    written = completion(request(**sampling), behind, max_tokens=9, streamed=True, ping_seconds=3, again=again)
    said: dict[str, Any] = orjson.loads(written)
    return said


def event(tokens: list[int], number: int, content: str = "", **more: object) -> bytes:
    said = {"tokens": tokens, "tokens_predicted": number, "content": content, "stop": False, **more}
    return b"data: " + orjson.dumps(said) + b"\n\n"


def last(number: int, stop_type: str = "eos") -> bytes:
    return event([], number, stop=True, stop_type=stop_type, timings={"cache_n": 7})


def stream(**options: Any) -> CompletionStream:
    return CompletionStream(PIECES, **{"max_tokens": 99, "vocabulary": 10, **options})


def told(reader: CompletionStream, data: bytes) -> list[int]:
    return [token for chunk in reader.feed(data) for token in chunk.token_ids]


def test_tokens_are_sent_and_asked_for() -> None:
    said = body((3, 4))
    assert (said["prompt"], said["n_predict"], said["stream"]) == ([1, 2, 3, 4], 9, True)
    assert said["return_tokens"] is said["cache_prompt"] is True
    assert said["sse_ping_interval"] == 3
    assert not {"temperature", "top_k", "seed", "n_probs", "logit_bias", "grammar", "ignore_eos"} & said.keys()


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "min_p": 0.1}, {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"repetition_penalty": 1.1, "presence_penalty": 0.0}, {"repeat_penalty": 1.1, "presence_penalty": 0.0}),
        ({"logit_bias": {"5": -1.5}}, {"logit_bias": [[5, -1.5]]}),
        ({"top_logprobs": 0}, {"n_probs": 1}),
        ({"top_logprobs": 4}, {"n_probs": 4}),
        ({"seed": 2**40 + 5}, {"seed": (2**40 + 5) % (2**32 - 1)}),
        ({"seed": -1}, {"seed": 2**32 - 2}),
    ],
)
def test_options_in_llama_cpps_words(given: dict[str, Any], sent: dict[str, Any]) -> None:
    said = body(**given)
    assert {name: said[name] for name in sent} == sent


def test_each_request_of_a_generation_has_a_seed_of_its_own() -> None:
    assert (body(seed=7)["seed"], body(seed=7, again=2)["seed"]) == (7, 9)


@given(st.integers(1, 40))
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    progress = event([0], 0, prompt_progress={"cache": 5})
    whole = progress + b":\n\n" + event([A], 1, "a") + event([END], 2) + last(2)
    reader, chunks = stream(), []
    for begin in range(0, len(whole), size):
        chunks += list(reader.feed(whole[begin : begin + size]))
    assert [chunk.token_ids for chunk in chunks] == [[A], [END]]
    assert [chunk.cached_tokens for chunk in chunks] == [5, 5]
    assert reader.finished
    assert (reader.last().finish_reason, reader.last().cached_tokens) == (FinishReason.STOP, 7)


def test_what_was_left_out_is_found_by_its_text() -> None:
    reader = stream()
    assert told(reader, event([A], 1, "a")) == [A]
    assert told(reader, event([B5], 3, "喵")) == [E5_96, B5]
    assert told(reader, event([A6_99], 5, " 🦙")) == [SPACE_F0_9F, A6_99]
    assert told(reader, event([X99], 8, " 🦙")) == [SPACE_F0_9F, A6, X99]


def test_where_it_may_have_been_several_it_goes_on_behind_the_first() -> None:
    pieces = Pieces.of(range(4), [b"\xf0", b"\x9f\xa6", b"\xf0\x9f", b"\xa6"].__getitem__)
    reader = CompletionStream(Pieces(pieces._tokens, {9: b"\x99"}.__getitem__), max_tokens=9, vocabulary=10)
    with pytest.raises(TokensLeftOut) as left_out:
        told(reader, event([9], 3, "🦙"))
    assert left_out.value.tokens == [0, 1, 9]


@pytest.mark.parametrize("said", [event([A], 2, "\ufffda"), event([A], 40, "🦙a"), last(1), last(1, "limit")])
def test_where_its_text_says_nothing_it_is_asked_again(said: bytes) -> None:
    with pytest.raises(TokensLeftOut) as left_out:
        told(stream(), said)
    assert left_out.value.tokens == ()


def test_log_probabilities() -> None:
    place = {"id": A, "logprob": -0.5, "top_logprobs": [{"id": A, "logprob": -0.5}, {"id": B5, "logprob": -3.4e38}]}
    (chunk,) = stream(top_logprobs=2).feed(event([A], 1, "a", completion_probabilities=[place]))
    assert chunk.logprobs is not None
    assert (chunk.logprobs[0].logprob, chunk.logprobs[0].top) == (-0.5, ((A, -0.5), (B5, -9999.0)))
    with pytest.raises(GenerationFailed, match="drafts tokens"):
        told(stream(top_logprobs=2), event([A], 1, "a"))
    # What was left out has none, so it is asked for.
    with pytest.raises(TokensLeftOut) as left_out:
        told(stream(top_logprobs=2), event([B5], 2, "喵"))
    assert left_out.value.tokens == [E5_96, B5]
    answer = orjson.dumps({"completion_probabilities": [place]})
    assert (ranked(answer, B5, 1).logprob, ranked(answer, B5, 1).top) == (-9999.0, ((A, -0.5),))
    with pytest.raises(GenerationFailed, match="does not say how likely"):
        ranked(answer, SPACE, 1)


def test_an_answer_that_is_not_streamed() -> None:
    reader = CompletionAnswer(max_tokens=8, vocabulary=10)
    content = orjson.dumps({"tokens": [F0_9F_A6], "stop_type": "limit", "tokens_predicted": 1})
    for begin in range(0, len(content), 7):
        assert not list(reader.feed(content[begin : begin + 7]))
    assert reader.end()
    assert (reader.last().token_ids, reader.last().finish_reason) == ([F0_9F_A6], FinishReason.LENGTH)


def test_an_error_within_a_stream() -> None:
    with pytest.raises(Refusal, match="503: Loading model"):
        told(stream(), b'data: {"error": {"code": 503, "message": "Loading model"}}\n')


@pytest.mark.parametrize("tokens", [["a"], "abc", [-1], [10], [1.0], [True], [[1]], {"1": 1}])
def test_what_is_no_token_of_the_model_is_refused(tokens: Any) -> None:
    number = len(tokens)
    for data in (event(tokens, number), event(tokens, number, stop=True, stop_type="eos")):
        with pytest.raises(GenerationFailed, match="cannot be read"):
            told(stream(), data)
    reader = answered(tokens)
    with pytest.raises(GenerationFailed, match="cannot be read"):
        reader.end()


def answered(tokens: Any) -> CompletionAnswer:
    reader = CompletionAnswer(max_tokens=8, vocabulary=10)
    list(reader.feed(orjson.dumps({"tokens": tokens, "stop_type": "limit"})))
    return reader


@pytest.mark.parametrize(
    ("most", "data"),
    [
        (1, event([A], 1, "a") + event([A], 2, "a")),
        (1, event([A, A], 2, stop=True, stop_type="eos")),
        (2, event([X99], 3, " 🦙")),
    ],
    ids=["one after the other", "at the end", "left out"],
)
def test_more_tokens_than_were_asked_for_are_refused(most: int, data: bytes) -> None:
    with pytest.raises(GenerationFailed, match="more tokens"):
        told(stream(max_tokens=most), data)
    with pytest.raises(GenerationFailed, match="more tokens"):
        answered([A] * 9).end()


@pytest.mark.parametrize("more", [{"tokens_predicted": "x"}, {"prompt_progress": {"cache": "x"}}])
def test_counts_are_numbers(more: dict[str, Any]) -> None:
    with pytest.raises(GenerationFailed, match="cannot be read"):
        told(stream(), event([A], 1, **more))
    with pytest.raises(GenerationFailed, match="cannot be read"):
        told(stream(), event([], 0, stop=True, stop_type="eos", timings={"cache_n": "x"}))


def test_as_many_log_probabilities_as_tokens() -> None:
    place = {"id": A, "logprob": -0.5, "top_logprobs": []}
    with pytest.raises(GenerationFailed, match="cannot be read"):
        told(stream(top_logprobs=2), event([A], 1, "a", completion_probabilities=[place, place]))


def test_a_long_text_is_not_searched_for_tokens() -> None:
    looked: list[bytes] = []

    class Noting(dict[bytes, int]):
        def __contains__(self, piece: object) -> bool:
            looked.append(bytes(piece))  # type: ignore[arg-type]
            return super().__contains__(piece)

    pieces = Pieces(Noting({piece: token for token, piece in enumerate(WORDS[:9])}), WORDS.__getitem__)
    for number in (1, 2, 16):
        assert pieces.left_out(f"{'a' * 100_000}🦙", X99, number) == []
    assert pieces.left_out(f"{'a' * 20}🦙", X99, 16) == []
    assert sum(map(len, looked)) < 1000


@given(JSON)
def test_whatever_is_said_is_read_or_refused(said: Any) -> None:
    for reader, data in (
        (stream(), b"data: " + json.dumps(said).encode() + b"\n"),
        (CompletionAnswer(max_tokens=8, vocabulary=10), b""),
    ):
        try:
            list(reader.feed(data or json.dumps(said).encode()))
            reader.end()
        except (GenerationFailed, Refusal, TokensLeftOut) as failed:
            assert len(str(failed)) < 500  # noqa: PT017


@given(st.text(min_size=1))
def test_bytes_end_within_a_character_as_they_are_cut(text: str) -> None:
    content = text.encode()
    for end in range(len(content) + 1):
        is_whole = content[:end].decode(errors="ignore").encode() == content[:end]
        assert ends_within(content[:end]) is not is_whole


CHUNK_STOP = TokenChunk(token_ids=[], finish_reason=FinishReason.STOP, cached_tokens=3)
CHUNK_LIMIT = TokenChunk(token_ids=[], finish_reason=FinishReason.LENGTH)


def taken(turn: LlamaTurn, *chunks: TokenChunk) -> list[tuple[list[int], FinishReason | None]]:
    found = [turn.take(chunk) for chunk in chunks]
    return [(list(each.token_ids), each.finish_reason) for each in found if each is not None]


def test_a_turn_ends_where_the_request_or_the_server_says() -> None:
    turn = LlamaTurn(request(stop_token_ids=(END,)), 9)
    assert taken(turn, TokenChunk(token_ids=[A, END, B5])) == [([A, END], FinishReason.STOP)]
    assert turn.is_over()
    assert taken(LlamaTurn(request(), 9), TokenChunk(token_ids=[A]), CHUNK_STOP) == [
        ([A], None),
        ([], FinishReason.STOP),
    ]
    assert taken(LlamaTurn(request(), 1), TokenChunk(token_ids=[A]), CHUNK_LIMIT) == [
        ([A], None),
        ([], FinishReason.LENGTH),
    ]


def test_an_end_that_is_not_to_count_is_gone_past() -> None:
    turn = LlamaTurn(request(ignore_eos=True), 2)
    assert taken(turn, TokenChunk(token_ids=[END]), CHUNK_STOP) == [([END], None)]
    assert not turn.is_over()
    assert taken(turn, TokenChunk(token_ids=[END]), CHUNK_STOP) == [([END], None), ([], FinishReason.LENGTH)]


def test_a_few_tokens_in_one_answer_are_not_the_end() -> None:
    turn = LlamaTurn(request(), 9, is_blind=True)
    assert taken(turn, TokenChunk(token_ids=[A, A], finish_reason=FinishReason.LENGTH)) == [([A, A], None)]
    assert (turn.is_blind, turn.is_over(), turn.left) == (False, False, 7)


def test_a_server_that_says_nothing_is_not_asked_for_ever() -> None:
    turn = LlamaTurn(request(ignore_eos=True), 9)
    for _ in range(2):
        turn.ask()
        assert taken(turn, CHUNK_STOP) == []
    with pytest.raises(GenerationFailed, match="without a token"):
        turn.ask()
    lively = LlamaTurn(request(ignore_eos=True), 9)
    for _ in range(8):
        lively.ask()
        taken(lively, TokenChunk(token_ids=[END]), CHUNK_STOP)
    assert lively.asked == 8


IDS = {token_bytes(token).decode(): token for token in SPECIAL_TOKENS}
CARD = {"data": [{"id": "gpt-oss", "meta": {"n_vocab": 201_088}}]}
PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1}
UNLIKE = ["[]", "null", '"x"', "{", '{"tokens": null}', '{"tokens": ["x"]}', '{"tokens": {}}']


class Broken:
    """A server that tells the right tokens until it is told to say something else."""

    said: str | None = None
    status = 200

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/props", self._props)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokens)
        return app

    async def _props(self, _: web.Request) -> web.Response:
        return await self._json(PROPS)

    async def _models(self, _: web.Request) -> web.Response:
        return await self._json(CARD)

    async def _json(self, value: object) -> web.Response:
        return web.Response(body=orjson.dumps(value), content_type="application/json")

    async def _tokens(self, request: web.Request) -> web.Response:
        if self.said is not None:
            return web.Response(text=self.said, status=self.status)
        name = (await request.json())["content"]
        return await self._json({"tokens": [IDS.get(name, 1)]})


@pytest.fixture
async def broken() -> AsyncIterator[tuple[Broken, LlamaServerEngine]]:
    said = Broken()
    async with TestServer(said.app()) as server:
        engine = LlamaServerEngine(model="", options={"urls": [f"http://127.0.0.1:{server.port}"]})
        yield said, engine
        await engine.aclose()


@pytest.mark.parametrize(("status", "said"), [(500, "no"), (200, "[]"), (200, "null"), (200, "{")])
async def test_a_start_that_cannot_compare_tokens(broken: Any, status: int, said: str) -> None:
    server, engine = broken
    server.said, server.status = said, status
    with pytest.raises(EngineUnavailable):
        await engine.start()
    server.said = None
    assert (await engine.start()).model == "gpt-oss"


@pytest.mark.parametrize("said", UNLIKE)
async def test_a_text_that_is_not_tokenized(broken: Any, said: str) -> None:
    server, engine = broken
    await engine.start()
    assert await asyncio.to_thread(engine.tokenize, "hello") == [1]
    server.said = said
    with pytest.raises(EngineUnavailable, match="not like llama"):
        await asyncio.to_thread(engine.tokenize, "hello")
