"""A run from its first event to its terminal one, what may go wrong between, and who stops it from outside."""

import asyncio
from collections import Counter

import pytest

from engine.errors import EngineError, EngineOverloaded, EngineUnavailable, GenerationFailed, PromptTooLong
from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.formats.harmony.prompt import generation_start, render_tool_output
from engine.types import FinishReason
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.steps import StopReason
from responses_app.protocol.usage import as_read
from tests.kit.fakes import ANSWER, CALL_F, THOUGHT, TOOL_F, FakeEngine, Reading, Site
from tests.kit.laws import assert_laws, is_subsequence, text_of
from tests.kit.mangling import KINDS, WORD, Mangled, mangled_transcripts, told
from tests.kit.oracle import validate_event
from tests.unit.runs.readers import HALF, id_of, idle, response_of

CALL_UNKNOWN = "<|channel|>commentary to=browser.search <|constrain|>json<|message|>{}<|call|>"


async def test_the_terminal_event_comes_after_the_commit(site: Site) -> None:
    site.store.gate = asyncio.Event()
    reading = await site.begin(input="hi")
    await site.store.saving.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    reading.take()
    assert reading.events[-1]["type"] == "response.output_item.done"
    assert reading.run.status is Status.IN_PROGRESS
    assert reading.run.link is None
    site.store.gate.set()
    events = await reading.to_the_end()
    assert events[-1]["type"] == "response.completed"
    assert site.store.saved[0].response == reading.run.response()
    assert as_read(site.store.saved[0].response, usage_per_turn=False) == events[-1]["response"]
    assert await site.store.chain("default", reading.run.response_id) is reading.run.link


@pytest.mark.parametrize(
    ("problem", "said", "status"),
    [
        (StoreError("disk full: /secret"), "The response store cannot be reached", 503),
        (RuntimeError("bug: /secret"), "req_1", 500),
    ],
)
async def test_a_response_that_could_not_be_stored_failed(
    problem: Exception, said: str, status: int, site: Site
) -> None:
    reading = await site.begin(input="hi")
    site.store.failure = problem
    events = await reading.to_the_end()
    assert_laws(events)
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert response["error"]["code"] == "server_error"
    assert said in response["error"]["message"]
    assert reading.run.problem is not None
    assert (reading.run.problem.status, reading.run.problem.message) == (status, response["error"]["message"])
    assert "secret" not in str(events)
    assert response["completed_at"] is None
    assert reading.run.link is None, "cannot be continued"
    for event in events:
        validate_event(event)


ENGINE_ERRORS = [  # the error in the stream, and that of a transport that has said nothing yet
    (GenerationFailed("cuda: /secret"), "server_error", "req_1", (500, "server_error", None)),
    (EngineUnavailable("died: /secret", retry_after=7), "server_error", "7 s", (503, "server_is_overloaded", 7)),
    (
        EngineOverloaded("full: /secret", retry_after=3),
        *("rate_limit_exceeded", "try again in 3s", (429, "rate_limit_exceeded", 3)),
    ),
    (
        PromptTooLong(prompt_tokens=9, max_model_len=8),
        *("invalid_prompt", "there are 9", (400, "context_length_exceeded", None)),
    ),
    (RuntimeError("bug: /secret"), "server_error", "req_1", (500, "server_error", None)),
]


@pytest.mark.parametrize("said", [HALF, THOUGHT, ""])
@pytest.mark.parametrize(("trouble", "code", "hint", "answer"), ENGINE_ERRORS)
async def test_an_engine_that_breaks_fails_the_response(
    said: str, trouble: Exception, code: str, hint: str, answer: tuple[object, ...]
) -> None:
    site = Site(FakeEngine([[said, trouble] if said else [trouble]]))
    reading = await site.begin(input="hi")
    events = await reading.to_the_end()
    assert_laws(events)
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"]["code"] == code
    assert hint in response["error"]["message"]
    assert "secret" not in str(events), "no exception text reaches a client"
    assert [item["status"] for item in response["output"]] == (["completed"] if said == THOUGHT else []), "none is cut"
    assert reading.run.link is None
    assert site.engine.running == 0
    for event in events:
        validate_event(event)
    assert [stored.response["status"] for stored in site.store.saved] == ["failed"]
    problem = reading.run.problem
    assert (problem.status, problem.code, problem.retry_after) == answer
    assert "secret" not in problem.message
    assert reading.run.has_spoken == bool(said)


async def test_an_engine_that_stops_without_a_reason_completes() -> None:
    site = Site(FakeEngine([[HALF, asyncio.Event()]]))
    for step in site.engine.turns[0]:
        if isinstance(step, asyncio.Event):
            step.set()
    response = await response_of(await site.begin(input="hi"))
    assert response["output"][0]["content"][0]["text"] == "Half of it"


class TestUnknownTools:
    async def test_the_model_is_told_once(self) -> None:
        site = Site(FakeEngine([CALL_UNKNOWN, ANSWER]))
        response = await response_of(await site.begin(input="hi", tools=[TOOL_F]))
        assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
        told = render_tool_output("browser.search", "Error: this tool does not exist. Available tools: functions.f.")
        first, second = site.engine.prompts
        assert second == [*first, *encode_harmony(CALL_UNKNOWN), *told.tokens, *generation_start()]
        usage = site.store.saved[0].response["usage"]
        details = usage["output_tokens_details"]  # type: ignore[index]
        assert details["tool_output_tokens_per_turn"] == [0, len(told.tokens) + len(generation_start())]
        assert usage["input_tokens_details"]["input_tokens_per_turn"] == [len(first), len(second)]

    async def test_tools_are_not_there_when_calls_are_forbidden(self) -> None:
        site = Site(FakeEngine([CALL_F, ANSWER]))
        response = await site.ask(input="hi", tools=[TOOL_F], tool_choice="none")
        assert [item["type"] for item in response["output"]] == ["reasoning", "reasoning", "message"]
        assert "Available tools: none." in decode_tokens(site.engine.prompts[1])

    @pytest.mark.parametrize("name", ["", "a:b", "a" * 257])
    async def test_a_function_whose_name_no_client_could_give_back(self, name: str) -> None:
        site = Site(FakeEngine([f"<|channel|>commentary<|message|>Hm.<|end|>{_call(name)}<|call|>", ANSWER]))
        response = await site.ask(input="hi", tools=[TOOL_F])
        assert "function_call" not in [item["type"] for item in response["output"]]


async def test_a_function_that_was_not_declared_is_called_all_the_same() -> None:
    """Clients declare functions in ways that a server does not see."""
    site = Site(FakeEngine([f"{THOUGHT}{_call('somewhere.else')}<|call|>", ANSWER]))
    first = await site.ask(input="hi")
    assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
    call = first["output"][1]
    assert (call["name"], call["arguments"], call["status"]) == ("somewhere.else", "{}", "completed")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
    await site.ask(input=[output], previous_response_id=first["id"])
    assert len(site.engine.prompts) == 2, "the model was not told that it does not exist"
    told = encode_harmony("<|call|><|start|>functions.somewhere.else to=assistant<|channel|>commentary<|message|>42")
    prompt = site.engine.prompts[1]
    assert any(prompt[at : at + len(told)] == told for at in range(len(prompt)))


async def test_every_generation_has_an_id_of_its_own() -> None:
    site = Site(FakeEngine([CALL_UNKNOWN, ANSWER]))
    await site.ask(input="hi")
    await site.ask(input="hi")
    ids = [request.request_id for request in site.engine.requests]
    assert len(set(ids)) == len(ids) == 3


async def test_a_run_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="respsite.runs")
    response = await Site().ask(input="top secret")
    [record] = [record for record in caplog.records if record.name == "respsite.runs"]
    assert str(response["id"]) in record.getMessage()
    assert "completed" in record.getMessage()
    assert "secret" not in record.getMessage(), "texts of users are not logged"


def _call(name: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{{}}"


async def test_its_first_events_are_there_with_its_reader() -> None:
    """So a transport writes them at once, before the run's own task has its turn."""
    reading = await Site().begin(input="hi")
    assert [event["type"] for event in reading.take()] == ["response.created", "response.in_progress"]
    assert_laws(await reading.to_the_end())


COUNT = 300


class _Mangling(FakeEngine):
    """Says one mangled transcript, and then answers properly: a model that was corrected is asked again."""

    def __init__(self, mangled: Mangled) -> None:
        finish = FinishReason.STOP if mangled.is_whole else FinishReason.LENGTH
        super().__init__([["it", finish], ANSWER])
        self._mangled = mangled

    def encode(self, said: str) -> list[int]:
        return list(self._mangled.tokens) if said == "it" else super().encode(said)


async def answer(mangled: Mangled) -> list[JsonObject]:
    """Return the events of a response whose model says this."""
    site = Site(_Mangling(mangled))
    return await (await site.begin(input="hi", tools=[TOOL_F])).to_the_end()


async def whole_response(mangled: Mangled) -> JsonObject:
    """Have a model say this, and return the response, which has ended as it should and lacks no word."""
    events = await answer(mangled)
    assert_laws(events)
    response = events[-1]["response"]
    assert response["error"] is None, told(mangled)
    items: list[JsonObject] = response["output"]  # type: ignore[assignment]
    found = [word for item in items for word in WORD.findall(text_of(item))]
    assert is_subsequence(mangled.words, found), told(mangled)
    return response


async def test_no_error_no_lost_word_and_one_end_each() -> None:
    ends: Counter[str] = Counter()
    for mangled in mangled_transcripts(COUNT, seed=10):
        response = await whole_response(mangled)
        ends[f"{mangled.kind}: {response['status']}"] += 1
    whole = {kind for kind in KINDS if kind != "cut"}
    assert {kind for kind in whole if ends[f"{kind}: completed"] == COUNT // len(KINDS)} == whole
    assert ends["cut: incomplete"] + ends["cut: completed"] == COUNT // len(KINDS)


HALF_SAID = "<|channel|>final<|message|>Half"
REST = " of it.<|end|><|start|>assistant<|channel|>final<|message|>More.<|return|>"


async def speaking(said: str, then: str = REST) -> tuple[Site, Reading, asyncio.Event]:
    """Begin a response whose model has said this, and hangs before the rest."""
    go_on = asyncio.Event()
    site = Site(FakeEngine([[said, go_on, then], ANSWER]))
    reading = await site.begin(input="hi", tools=[TOOL_F], transport="websocket")
    await asyncio.wait_for(site.engine.waits.wait(), 5)
    return site, reading, go_on


def last(reading: Reading) -> tuple[object, object]:
    assert_laws(reading.events)
    response = reading.events[-1]["response"]
    details = response["incomplete_details"]  # type: ignore[index]
    return response["status"], details and details["reason"]  # type: ignore[index]


async def test_inside_an_item_that_comes_to_its_end_first() -> None:
    site, reading, go_on = await speaking(HALF_SAID)
    assert reading.run.stop(StopReason.STEERED)
    assert reading.run.stop(StopReason.STEERED), "twice is once"
    await asyncio.sleep(0)
    assert site.engine.running == 1
    go_on.set()
    await reading.to_the_end()
    assert last(reading) == ("incomplete", "steered")
    [item] = reading.events[-1]["response"]["output"]  # type: ignore[index]
    assert item["content"][0]["text"] == "Half of it."


@pytest.mark.parametrize("reason", [StopReason.INTERRUPTED, StopReason.DISCARDED])
async def test_what_was_said_is_continued_with_its_very_tokens(reason: StopReason) -> None:
    site, reading, _ = await speaking("<|channel|>commentary<|message|>So.<|end|><|start|>assistant" + HALF_SAID)
    assert reading.run.stop(reason)
    await reading.to_the_end()
    assert last(reading) == ("incomplete", "interrupted")
    response_id = id_of(reading)
    await site.ask(input="Go on", previous_response_id=response_id, tools=[TOOL_F])
    first, second = site.engine.prompts
    said = site.engine.encode("<|channel|>commentary<|message|>So.<|end|>")
    assert second[: len(first) + len(said)] == [*first, *said]
    half = site.engine.encode("Half")[0]
    assert (half in second[len(first) + len(said) :]) == (reason is StopReason.INTERRUPTED)


async def test_before_its_first_step(site: Site) -> None:
    reading = await site.begin(input="hi")
    assert reading.run.stop(StopReason.INTERRUPTED)
    await reading.to_the_end()
    assert last(reading) == ("incomplete", "interrupted")
    assert site.engine.requests == []


@pytest.mark.parametrize("stop", [StopReason.STEERED, StopReason.INTERRUPTED, StopReason.DISCARDED])
@pytest.mark.parametrize("order", ["stop first", "cancel first"])
async def test_beside_a_cancellation_it_ends_once(stop: StopReason, order: str) -> None:
    site, reading, _ = await speaking(THOUGHT)
    run = reading.run
    if order == "cancel first":
        site.registry.cancel(run, reason="test")
        await asyncio.sleep(0)
        run.stop(stop)
    else:
        run.stop(stop)
        site.registry.cancel(run, reason="test")
    await reading.to_the_end()
    assert last(reading)[0] in ("incomplete", "cancelled")
    await idle(site)
    assert site.engine.running == 0


class Failing(FakeEngine):
    """Fails when it is told to stop."""

    async def generate(self, request):  # type: ignore[no-untyped-def, override]
        try:
            async for chunk in super().generate(request):
                yield chunk
        except asyncio.CancelledError:
            raise EngineError("it broke as it was stopped") from None


async def test_an_engine_that_breaks_as_it_is_stopped_changes_nothing() -> None:
    site = Site(Failing([[THOUGHT, asyncio.Event(), ANSWER]]))
    reading = await site.begin(input="hi")
    await asyncio.wait_for(site.engine.waits.wait(), 5)
    assert reading.run.stop(StopReason.INTERRUPTED)
    await reading.to_the_end()
    assert last(reading) == ("incomplete", "interrupted")


async def test_once_its_end_is_decided_nothing_stops_it(site: Site) -> None:
    site.store.gate = asyncio.Event()
    reading = await site.begin(input="hi")
    await asyncio.wait_for(site.store.saving.wait(), 5)
    assert not any(reading.run.stop(reason) for reason in StopReason)
    site.store.gate.set()
    await reading.to_the_end()
    assert last(reading) == ("completed", None)
    assert not reading.reader.source.stop(StopReason.INTERRUPTED)
