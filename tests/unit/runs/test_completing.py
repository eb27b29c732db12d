"""Completions beside each other, and what is asked of a model for decisions."""

import asyncio
import math
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.base import Tokens
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from engine.types import GenerationRequest, TokenChunk, TokenLogprob
from responses_app.limits.memory import MemoryLedger
from responses_app.limits.rates import Rates
from responses_app.protocol.errors import ApiError
from responses_app.protocol.rate_limits import Limits, limited_by
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.stateless.completions import parse_completion
from responses_app.protocol.stateless.decisions import (
    DecisionsWanted,
    Question,
    answer,
    labels,
    parse_decisions,
    question_text,
)
from responses_app.runs.plan.plan import Origin
from responses_app.runs.stateless.completing import Completing
from responses_app.runs.stateless.completions import LONG_PROMPTS, CompletionService
from responses_app.runs.stateless.deciding import AT_ONCE, DecisionService, Prompts, prompts_of
from tests.kit.fakes import FakeEngine, Site, collect, run_settings
from tests.kit.waiting import eventually
from tests.system.fuzz import strategies
from tests.system.fuzz.driver import as_bytes
from tests.unit.protocol.refusals import refusal
from tests.unit.runs.readers import idle, refused

PROMPT = "a" * (LONG_PROMPTS - 1)
MANY = run_settings(responses_max_in_flight=128)
ORIGIN = Origin(transport="sse", project="p")


async def begin(service: CompletionService, **body: object) -> Completing:
    return await service.create(parse_completion(body), ORIGIN)


@pytest.mark.parametrize("count", [1, 128])
async def test_prompts_that_are_long_together_are_read_on_a_thread(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is long by itself, and the loop would stand still for as long as all take."""
    threads: list[int] = []
    read = HarmonyFormat.raw_prompt

    def noted(written: HarmonyFormat, text: str) -> object:
        threads.append(threading.get_ident())
        return read(written, text)

    monkeypatch.setattr(HarmonyFormat, "raw_prompt", noted)
    engine = FakeEngine([["<|channel|>final", asyncio.Event(), "<|return|>"]])
    completing = await begin(CompletionService(Site(engine, settings=MANY).service), prompt=[PROMPT] * count)
    await completing.aclose()
    assert len(threads) == count
    assert len(set(threads)) == 1
    assert (threading.get_ident() in threads) == (count == 1)


def hanging(room: int) -> CompletionService:
    """Return a service whose completions never end, with places for so many."""
    engine = FakeEngine([["<|channel|>final", asyncio.Event(), "<|return|>"]])
    return CompletionService(Site(engine, settings=run_settings(responses_max_in_flight=room)).service)


async def test_every_choice_takes_a_place() -> None:
    service = hanging(5)
    first = await begin(service, prompt=["a", "b"], n=2)
    assert (await refused(begin(service, prompt="a", n=2))).code == "server_is_overloaded"
    second = await begin(service, prompt="a")
    await first.aclose()
    third = await begin(service, prompt="a", n=4)
    for completing in (second, third):
        await completing.aclose()


async def test_completions_and_responses_take_places_from_each_other() -> None:
    service = hanging(3)
    site_service, origin = service.service, Origin(transport="test", project="default")
    completing = await begin(service, prompt="a", n=2)
    reader = await site_service.create(parse_create({"input": "hi"}), origin)
    with pytest.raises(ApiError, match="RESPONSES_MAX_IN_FLIGHT"):
        await begin(service, prompt="a")
    reader.leave()
    await idle(site_service)
    further = await begin(service, prompt="a")
    with pytest.raises(ApiError, match="RESPONSES_MAX_IN_FLIGHT"):
        await site_service.create(parse_create({"input": "hi"}), origin)
    await completing.aclose()
    (await site_service.create(parse_create({"input": "hi"}), origin)).leave()
    await further.aclose()


async def test_one_that_is_refused_has_taken_no_place() -> None:
    service = hanging(1)
    for _ in range(2):
        assert (await refused(begin(service, prompt="a", model="unknown"))).code == "model_not_found"
    await (await begin(service, prompt="a")).aclose()


async def test_what_has_no_room_in_the_context_is_not_reserved() -> None:
    engine = FakeEngine([["<|channel|>final", asyncio.Event(), "<|return|>"]], max_model_len=100)
    service = CompletionService(Site(engine, rates=Rates(MemoryLedger())).service)
    limited = limited_by("key_1", "p", Limits(output_tokens_per_minute=500), Limits())
    origin = Origin(transport="sse", project="p", limited=limited)
    asked = parse_completion({"prompt": "a", "max_tokens": 10**30, "n": 2})
    both = [await service.create(asked, origin) for _ in range(2)]
    assert (await refused(service.create(asked, origin))).status == 429
    for completing in both:
        await completing.aclose()


async def test_those_that_come_together_take_no_more_places_than_there_are() -> None:
    service = hanging(4)
    began = await asyncio.gather(*(begin(service, prompt=PROMPT, n=2) for _ in range(5)), return_exceptions=True)
    taken = [each for each in began if isinstance(each, Completing)]
    assert len(taken) == 2
    assert all(isinstance(each, Completing | ApiError) for each in began)
    for completing in taken:
        await completing.aclose()
    assert (await begin(service, prompt="a", n=4)).generating == 4
    service.stop()


async def test_a_reader_that_takes_nothing_does_not_keep_the_engine() -> None:
    engine = FakeEngine([["<|channel|>final<|message|>", *["word "] * 200, "<|return|>"]])
    service = CompletionService(Site(engine, settings=run_settings(stream_max_lag_bytes=5_000)).service)
    completing = await begin(service, prompt="a", n=3, max_tokens=10_000)
    assert len(await completing.take()) > 0
    await eventually(lambda: completing.generating == 0)
    assert engine.running == 0
    assert completing.usage.completion_tokens < 200
    assert (await refused(completing.take())).code == "reader_too_slow"
    await completing.aclose()
    assert not service.running


async def test_a_reader_is_as_fast_as_an_engine_that_never_waits() -> None:
    """A long text is whole though it comes faster than it is read, and an echo is no lag."""
    engine = Hasty([["<|channel|>final<|message|>", *["word "] * 1000, "<|return|>"]])
    service = CompletionService(Site(engine, settings=run_settings(stream_max_lag_bytes=50_000)).service)
    completing = await begin(service, prompt="a" * 60_000, max_tokens=10_000, echo=True)
    said = []
    while not completing.is_over:
        said += await completing.take()
    await completing.aclose()
    assert "".join(each.text for each in said) == "a" * 60_000 + "final" + "word " * 1000


class Hasty(FakeEngine):
    """Gives all chunks within one turn of the loop."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        chunks = await collect(FakeEngine(self.turns), request)
        for chunk in chunks:
            yield chunk


def test_what_the_engine_is_given_again_can_be_written() -> None:
    """What is nested more deeply than orjson writes was generated for, and then a 500."""
    nested: object = 1
    for _ in range(250):
        nested = [nested]
    error = refusal(parse_completion, {"prompt": "a", "kv_transfer_params": {"a": nested}}, engine_fields=True)
    assert (error.status, error.param) == (400, "kv_transfer_params.a")


NOW = datetime(2026, 11, 22, tzinfo=UTC)
INPUT = [
    {"role": "system", "content": "Be strict."},
    {"role": "user", "content": [{"type": "input_text", "text": "Look"}, {"type": "input_json", "data": {"a": [1]}}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "blue"},
]
OPTIONS = [{"value": str(number)} for number in range(255)]


def asked(*questions: dict[str, Any]) -> DecisionsWanted:
    return parse_decisions({"input": INPUT, "questions": list(questions)})


def whole(prompts: Prompts) -> list["Tokens[int]"]:
    made = [prompts.whole(number) for number in range(len(prompts.questions))]
    assert sum(map(len, made)) == prompts.tokens
    return made


def test_each_prompt_is_the_input_its_question_and_the_beginning_of_an_answer() -> None:
    wanted = asked(
        {"type": "predicate", "instructions": "it is blue"},
        {"type": "choice", "instructions": "which?", "choices": [{"value": "a", "description": "d"}, {"value": True}]},
    )
    first, second = map(decode_tokens, whole(prompts_of(wanted, HarmonyFormat(), NOW, 10_000)))
    shared = first[: first.index("Question about")]
    assert second.startswith(shared)
    for text in ("Be strict.", 'Look{"a":[1]}', "functions.look", "blue", "2026-11-22"):
        assert text in shared.replace("\n", "")
    assert "it is blue" in first
    assert '1: "a" - d\n2: true' in second
    assert first.endswith("<|start|>assistant<|channel|>final<|message|>")


class Labelled(FakeEngine):
    """Says yes, with its log probability, once it may."""

    supports_logprobs = True

    def __init__(self, *, max_model_len: int = 10_000) -> None:
        super().__init__(max_model_len=max_model_len)
        self.may = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append(request)
        await self.may.wait()
        yield TokenChunk(token_ids=[1], logprobs=[TokenLogprob(token_id=1, logprob=0.0)])


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the prompts that were built whole."""
    numbers: list[int] = []
    build = Prompts.whole

    def noted(prompts: Prompts, number: int) -> "Tokens[int]":
        numbers.append(number)
        return build(prompts, number)

    monkeypatch.setattr(Prompts, "whole", noted)
    return numbers


async def test_no_more_prompts_are_built_than_are_asked_at_once(built: list[int]) -> None:
    """Each is a copy of the input: four hundred of a long one are gigabytes."""
    engine = Labelled()
    asking = asyncio.create_task(
        DecisionService(Site(engine).service).decide(
            asked(*[{"type": "predicate", "instructions": "x"}] * 40), Origin(transport="json", project="p")
        )
    )
    await eventually(lambda: len(engine.requests) == AT_ONCE)
    assert len(built) == AT_ONCE
    engine.may.set()
    answers = (await asking)["answers"]
    assert isinstance(answers, list)
    assert (len(answers), len(built)) == (40, 40)


async def test_what_is_decided_at_once_takes_places(built: list[int]) -> None:
    engine = Labelled()
    site = Site(engine, settings=run_settings(responses_max_in_flight=AT_ONCE))
    service, origin = DecisionService(site.service), Origin(transport="json", project="p")
    question = {"type": "predicate", "instructions": "x"}
    asking = asyncio.create_task(service.decide(asked(*[question] * 40), origin))
    await eventually(lambda: len(engine.requests) == AT_ONCE)
    with pytest.raises(ApiError, match="RESPONSES_MAX_IN_FLIGHT"):
        await service.decide(asked(question), origin)
    engine.may.set()
    await asking
    await service.decide(asked(question), origin)


@pytest.mark.parametrize("room", [10, 200])
async def test_an_input_without_room_is_refused_before_a_prompt_is_built(built: list[int], room: int) -> None:
    questions = [{"type": "predicate", "instructions": "x " * 200}] * 400
    service = DecisionService(Site(Labelled(max_model_len=room)).service)
    error = await refused(service.decide(asked(*questions), Origin(transport="json", project="p")))
    assert error.code == "context_length_exceeded"
    assert not built


def test_every_label_is_one_token() -> None:
    wanted = asked(
        {"type": "predicate", "instructions": "x"}, {"type": "choice", "instructions": "x", "choices": OPTIONS}
    )
    found: set[int] = set()
    for question in wanted.questions:
        for form in (form for forms in labels(question, HarmonyFormat().is_one_token) or () for form in forms):
            (token,) = HarmonyFormat().raw_prompt(form)
            assert token not in found
            found.add(token)
    assert len(found) == 6 + 255


def test_options_have_letters_where_numbers_are_written_digit_by_digit() -> None:
    def is_one_token(text: str) -> bool:
        return len(text) == 1 or text in ("yes", "No")

    predicate, few, many, more = asked(
        {"type": "predicate", "instructions": "x"},
        *({"type": "choice", "instructions": "x", "choices": OPTIONS[:count]} for count in (9, 52, 53)),
    ).questions
    assert labels(predicate, is_one_token) == labels(predicate, HarmonyFormat().is_one_token)
    assert labels(predicate, str.isdecimal) is None
    assert labels(few, is_one_token) == [(str(number),) for number in range(1, 10)]
    lettered = labels(many, is_one_token)
    assert (lettered[0], lettered[-1]) == (("A",), ("z",))
    assert 'z: "51"\n\nAnswer with the letter' in question_text(many, lettered)
    assert labels(more, is_one_token) is None


@given(st.lists(st.floats(-30, 0) | st.just(-math.inf), min_size=2, max_size=2))
def test_probabilities_add_up_to_one_or_the_model_refuses(logprobs: list[float]) -> None:
    def to(**more: object) -> dict[str, Any]:
        (question,) = asked({"instructions": "x", **more}).questions
        return made(question, logprobs)

    predicate = to(type="predicate")
    choice = to(type="choice", choices=OPTIONS[:2])
    score = to(type="score", levels=[{"label": "low"}, {"label": "high"}])
    if not any(map(math.isfinite, logprobs)):
        assert {each["type"] for each in (predicate, choice, score)} == {"refusal"}
        return
    for each in (choice, score):
        assert math.isclose(math.fsum(option["probability"] for option in each["probabilities"]), 1.0)
        assert 0 <= each["confidence"] <= 1
    assert 0 <= score["score"] <= 1
    assert math.isclose(predicate["probability"], choice["probabilities"][0]["probability"])


def made(question: Question, logprobs: list[float]) -> dict[str, Any]:
    """Return an answer as a client reads it."""
    read: dict[str, Any] = orjson.loads(orjson.dumps(answer(question, logprobs)))
    return read


@settings(max_examples=60)
@given(strategies.mutated(strategies.decisions))
def test_hostile_questions_are_errors_that_help(body: Any) -> None:
    with suppress(ApiError):
        whole(prompts_of(parse_decisions(as_read(body)), HarmonyFormat(), NOW, 10_000))


def as_read(body: Any) -> dict[str, Any]:
    """Return a body as it arrives here; an empty one for what is not read as far as that."""
    try:
        read = orjson.loads(as_bytes(body))
    except orjson.JSONDecodeError:
        return {}
    return read if isinstance(read, dict) else {}
