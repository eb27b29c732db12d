"""Turns whose replica goes away in their middle: they go on behind what was sampled, and readers see nothing of it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import pytest

from engine.errors import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    GrammarCut,
    PromptTooLong,
)
from engine.formats.harmony.encoding import encode_harmony
from engine.types import GenerationRequest, TokenChunk, TokenLogprob
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.response.input_codec import decode
from responses_app.protocol.response.steps import Sampled, StopReason
from responses_app.runs.driving import generating
from responses_app.runs.driving.generating import MAX_CUTS
from responses_app.runs.plan.failures import BROKEN
from responses_app.runs.plan.plan import Origin
from tests.kit.fakes import Reading, Site
from tests.kit.waiting import eventually
from tests.unit.runs.readers import id_of, idle, response_of
from tests.unit.runs.test_takeover import ANSWER, CASES, TokenEngine, gone_on, undisturbed, unsealed

ERROR = GenerationCut("replica 1 died: /secret")


class CutEngine(TokenEngine):
    """Cuts what it samples behind as many tokens, in all its generations together, as `at` says; then goes on."""

    def __init__(self, turns: Sequence[str], at: Sequence[int] = (), *, error: EngineError = ERROR) -> None:
        super().__init__(turns)
        self.at = set(at)
        self.error = error
        self.refusals: list[EngineError] = []  # of the next requests
        self.supports_logprobs = True
        self.sampled = 0
        self.away = 0  # how often it says so, once it has sampled something, when it is asked how it is
        self.when_cut: Callable[[], object] = lambda: None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        if self.refusals and self.sampled:
            self.requests.append(request)
            raise self.refusals.pop()
        async with aclosing(super().generate(request)) as chunks:
            async for chunk in chunks:
                if self.sampled in self.at:
                    self.at.discard(self.sampled)
                    self.when_cut()
                    raise self.error
                self.sampled += 1
                if request.sampling.top_logprobs is not None:
                    chunk.logprobs = [TokenLogprob(token, -0.1) for token in chunk.token_ids]
                yield chunk

    async def health(self) -> None:
        if self.sampled and self.away:
            self.away -= 1
            raise EngineUnavailable("all away")


async def events_of(engine: TokenEngine, **fields: object) -> list[JsonObject]:
    """Let a response run to its end."""
    site = Site(engine)
    events = await site.events(**{"input": "hi", **fields})
    assert engine.running == 0
    return events


@pytest.mark.parametrize("case", CASES)
async def test_cut_anywhere_the_stream_is_the_one_of_an_undisturbed_run(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("responses_app.protocol.response.turns.MIN_THOUGHT", 8)
    turns, fields = CASES[case]
    whole = CutEngine(turns)
    expected = await events_of(whole, **fields)
    for place in range(1, whole.sampled):
        told = await events_of(CutEngine(turns, [place]), **fields)
        both = map(unsealed, (told, expected)) if case == "a compaction" else map(str, (told, expected))
        assert len(set(both)) == 1, f"cut behind {place} of {whole.sampled} tokens"


async def test_the_engine_is_asked_for_the_rest() -> None:
    engine = CutEngine([ANSWER], [7, 20])
    events = await events_of(engine, max_output_tokens=60, include=["message.output_text.logprobs"], top_logprobs=0)
    said = encode_harmony(ANSWER)
    first, second, third = engine.requests
    for request, behind in ((first, 0), (second, 7), (third, 20)):
        assert list(request.prompt_token_ids) == [*first.prompt_token_ids, *said[:behind]]
        assert request.sampling.max_output_tokens == 60 - behind
        assert request.session == first.session
    assert len({request.request_id for request in engine.requests}) == 3, "what was cut may still run"
    usage = events[-1]["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (len(first.prompt_token_ids), len(said))
    assert usage["input_tokens_details"]["cached_tokens"] == 3
    whole = await events_of(CutEngine([ANSWER]), include=["message.output_text.logprobs"], top_logprobs=0)
    assert events[-1]["response"]["output"] == whole[-1]["response"]["output"], "with its log probabilities"


async def test_what_its_client_wants_to_know_of_the_engine_has_no_gap() -> None:
    engine = CutEngine([ANSWER], [7, 20])
    engine.supports_prompt_logprobs = engine.supports_kv_transfer = True
    details = EngineDetails(wanted_logprobs=2, given_transfer={"to": "b"})
    site = Site(engine)
    origin = Origin(transport="chat", project="default")
    reader = await site.service.create(parse_create({"input": "hi"}), origin, details=details)
    await Reading(site, reader).to_the_end()
    first, *others = engine.requests
    assert list(details.prompt_token_ids) == list(first.prompt_token_ids)
    assert details.token_ids == encode_harmony(ANSWER)
    assert (first.sampling.prompt_logprobs, first.kv_transfer_params) == (2, {"to": "b"})
    assert [(each.sampling.prompt_logprobs, each.kv_transfer_params) for each in others] == [(None, None)] * 2


async def test_it_is_counted_and_no_cut_reaches_a_client() -> None:
    site = Site(CutEngine([ANSWER], [3, 9]))
    events = await (await site.begin(input="hi")).to_the_end()
    assert "secret" not in str(events)
    assert site.metrics.turns_continued.at("fake").value == 2


async def test_a_request_that_kills_whatever_gets_it_ends() -> None:
    engine = CutEngine([ANSWER], range(1, 30))
    events = await events_of(engine)
    assert len(engine.requests) == MAX_CUTS + 1
    response = events[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")


@pytest.mark.parametrize("refusal", [EngineOverloaded("full"), EngineUnavailable("all away")])
async def test_those_that_are_left_may_be_full_for_a_moment(
    refusal: EngineError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generating, "RETRY_SECONDS", 0.01)
    engine = CutEngine([ANSWER], [5])
    engine.refusals = [refusal] * 5
    assert await events_of(engine) == await events_of(CutEngine([ANSWER]))
    assert len(engine.requests) == 7


async def test_who_takes_a_turn_over_waits_for_its_engine_as_who_began_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once failed at once where the engine of the worker that took over went away at that moment."""
    monkeypatch.setattr(generating, "RETRY_SECONDS", 0.01)
    accepted, events = await undisturbed([ANSWER], {})
    inputs = list(decode(accepted.log))
    place = next(place for place, each in enumerate(inputs) if isinstance(each, Sampled)) + 3
    engine = CutEngine([ANSWER])
    engine.sampled, engine.refusals = 1, [EngineUnavailable("all away") for _ in range(3)]
    _, reading = await gone_on(accepted, inputs[:place], engine)
    assert (await reading.to_the_end())[-1]["type"] == events[-1]["type"] == "response.completed"
    assert len(engine.requests) == 4


async def test_nothing_is_planned_while_no_replica_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "RETRY_SECONDS", 0.01)
    engine = CutEngine([ANSWER], [5])
    engine.away = 20
    assert await events_of(engine) == await events_of(CutEngine([ANSWER]))
    assert (len(engine.requests), engine.away) == (2, 0)


@pytest.mark.parametrize("full", [False, True], ids=["away", "full"])
async def test_nor_is_it_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    monkeypatch.setattr(generating, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(generating, "GO_ON_SECONDS", 0.1)
    engine = CutEngine([ANSWER], [5])
    engine.away, engine.refusals = (0, [EngineOverloaded("full")] * 1000) if full else (10**6, [])
    response = (await events_of(engine))[-1]["response"]
    assert (response["status"], response["error"]["code"]) == (
        "failed",
        "rate_limit_exceeded" if full else "server_error",
    )
    assert (len(engine.requests) > 1) is full


async def test_what_breaks_under_a_grammar_is_tried_once_more_elsewhere() -> None:
    cut = GrammarCut("Internal server error", at="http://replica-1")
    engine = CutEngine([ANSWER], [5], error=cut)
    assert await events_of(engine) == await events_of(CutEngine([ANSWER]))
    assert [request.avoid for request in engine.requests] == ["", "http://replica-1"]
    for again in (cut, GenerationFailed("before its first token")):
        engine = CutEngine([ANSWER], [5, 9] if again is cut else [5], error=cut)
        engine.refusals = [] if again is cut else [again]
        error = (await events_of(engine))[-1]["response"]["error"]
        assert (error["message"], len(engine.requests)) == (BROKEN, 2)


async def test_what_breaks_on_every_replica_is_not_tried_again() -> None:
    engine = CutEngine([ANSWER], [5], error=GenerationFailed("a bug"))
    assert (await events_of(engine))[-1]["response"]["status"] == "failed"
    assert len(engine.requests) == 1


async def test_a_context_that_is_full_where_the_turn_was_cut_ends_it() -> None:
    engine = CutEngine([ANSWER], [5])
    engine.refusals = [PromptTooLong(prompt_tokens=10_000, max_model_len=10_000)]
    response = (await events_of(engine))[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


@pytest.mark.parametrize("end", ["cancel", "interrupt"])
async def test_what_ends_a_response_ends_it_while_nobody_is_there_to_go_on(end: str) -> None:
    engine = CutEngine([ANSWER], [5])
    engine.refusals = [EngineUnavailable("all away")] * 1000
    site = Site(engine)
    reading = await site.begin(input="hi", store=True, background=end == "cancel")
    await eventually(lambda: len(engine.requests) > 1)
    async with asyncio.timeout(1):
        if end == "cancel":
            await site.responses.cancel("default", id_of(reading))
        else:
            reading.leave()
        await idle(site)
    (stored,) = site.store.saved
    assert stored.response["status"] == "cancelled"
    assert engine.running == 0


async def test_an_end_that_comes_with_the_cut_itself() -> None:
    """The run is told to stop in the very turn of the loop in which its replica goes away."""
    engine = CutEngine([ANSWER], [12])
    site = Site(engine)
    reading = await site.begin(input="hi")
    run = reading.run
    engine.when_cut = lambda: run.stop(StopReason.INTERRUPTED)
    response = await response_of(reading)
    assert response["incomplete_details"] == {"reason": "interrupted"}
    assert len(engine.requests) == 1
