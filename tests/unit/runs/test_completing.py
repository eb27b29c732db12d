"""Completions beside each other: how their prompts are read, how many there may be, and who reads them too slowly."""

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from engine.formats.harmony.format import HarmonyFormat
from engine.types import GenerationRequest, TokenChunk
from responses_app.limits.memory import MemoryLedger
from responses_app.limits.rates import Rates
from responses_app.protocol.errors import ApiError
from responses_app.protocol.rate_limits import Limits, limited_by
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.stateless.completions import parse_completion
from responses_app.runs.plan.plan import Origin
from responses_app.runs.stateless.completing import Completing
from responses_app.runs.stateless.completions import LONG_PROMPTS, CompletionService
from tests.kit.fakes import FakeEngine, Site, collect, run_settings
from tests.kit.waiting import eventually
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
