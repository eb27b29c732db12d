"""A run that waits for what its client says of calls: here, on another worker, beside a stop, across a takeover."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from engine.errors import PromptTooLong
from engine.formats.harmony.encoding import decode_tokens
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import Ended, Input, OutputGiven, TimedOut, WaitBegan
from responses_app.protocol.session.tool_outputs import as_json
from responses_app.resources.webhooks.messages import WebhookMessage
from responses_app.runs.driving import tool_calls
from responses_app.stores.base import AcceptedResponse, Appended, Claim, LogAppend, WorkerState
from tests.kit.fakes import (
    ANSWER,
    CALL_F,
    NOW,
    THOUGHT,
    TOOL_F,
    FakeEngine,
    FakeOthers,
    FakeStore,
    Reading,
    Site,
    run_settings,
)
from tests.kit.laws import assert_laws
from tests.kit.waiting import eventually
from tests.unit.runs.readers import Held, id_of, idle, refused, response_of

CALL = CALL_F.removeprefix(THOUGHT)
FIRST_CALL = CALL_F.replace("<|call|>", "<|end|>")
TWO_CALLS = f"{FIRST_CALL}<|start|>assistant{CALL}"


@pytest.fixture
def site() -> Site:
    """A service whose model calls a function, and then answers."""
    return Site(FakeEngine([CALL_F, ANSWER]))


def given(call_id: str, text: str = "18 °C") -> OutputGiven:
    return OutputGiven(call_id, text, text)


async def waits(site: Site, *, calls: int = 1, **fields: object) -> tuple[Reading, list[str]]:
    """Begin a response, read it until it waits; return its reader and its calls."""
    options = {"input": "hi", "tools": [TOOL_F], "awaits_tools": True, "transport": "sse", **fields}
    reading = await site.begin(**options)  # type: ignore[arg-type]
    await eventually(lambda: is_waiting(reading))
    assert len(call_ids(reading)) == calls
    return reading, call_ids(reading)


def is_waiting(reading: Reading) -> bool:
    reading.take()
    return getattr(reading.run._machine.due, "until", None) is not None


def call_ids(reading: Reading) -> list[str]:
    """Return the calls that were said so far."""
    reading.take()
    done = [event["item"] for event in reading.events if event["type"] == "response.output_item.done"]
    return [str(item["call_id"]) for item in done if item["type"] == "function_call"]  # type: ignore[index]


async def give(site: Site, reading: Reading, call_id: str, text: str = "18 °C") -> None:
    """Say what came of a call."""
    await site.outputs.give("default", id_of(reading), given(call_id, text))


async def not_taken(site: Site, response_id: str, output: OutputGiven) -> tuple[int, str | None]:
    """Give an output that is not taken; return why: status and param."""
    error = await refused(site.outputs.give("default", response_id, output))
    return error.status, error.param


async def test_outputs_that_fill_the_context_end_it_as_incomplete() -> None:
    site = Site(FakeEngine([CALL_F, [PromptTooLong(prompt_tokens=9, max_model_len=8)]]))
    reading, [call_id] = await waits(site)
    await give(site, reading, call_id)
    response = (await reading.to_the_end())[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})  # type: ignore[index]
    assert [item["type"] for item in response["output"]][-1] == "function_call_output"  # type: ignore[index]


async def test_it_goes_on_in_the_same_stream(site: Site) -> None:
    reading, [call_id] = await waits(site)
    response_id = id_of(reading)
    assert site.engine.running == 0
    assert (await site.responses.response("default", response_id))["status"] == "in_progress"
    await site.outputs.give("default", response_id, given(call_id))
    response = await response_of(reading)
    kinds = [item["type"] for item in response["output"]]  # type: ignore[index]
    assert kinds == ["reasoning", "function_call", "function_call_output", "message"]
    first, second = site.engine.prompts
    assert second[: len(first)] == first
    assert "18 °C" in decode_tokens(second[len(first) :])


@pytest.mark.parametrize("store", [True, False])
async def test_a_response_whose_id_its_client_chose(store: bool, site: Site) -> None:
    reading, [call_id] = await waits(site, request_id="my-id", store=store)
    assert (await refused(site.outputs.give("other", "my-id", given(call_id)))).status == 404
    await site.outputs.give("default", "my-id", given(call_id))
    assert (await reading.to_the_end())[-1]["type"] == "response.completed"
    assert await not_taken(site, "my-id", given(call_id)) == ((409 if store else 404), "response_id")


@pytest.mark.parametrize("replays", [False, True])
async def test_what_follows_has_the_very_tokens(replays: bool) -> None:
    site = Site(FakeEngine([CALL, ANSWER, ANSWER]))
    reading, [call_id] = await waits(site)
    await give(site, reading, call_id)
    response = (await reading.to_the_end())[-1]["response"]
    said = [{"role": "user", "content": "hi"}, *response["output"]] if replays else []  # type: ignore[index]
    named = {} if replays else {"previous_response_id": id_of(reading)}
    await site.ask(input=[*said, {"role": "user", "content": "And?"}], tools=[TOOL_F], **named)
    _, second, third = site.engine.prompts
    assert third[: len(second)] == second


async def test_several_calls_and_each_mistake() -> None:
    site = Site(FakeEngine([TWO_CALLS, ANSWER]))
    reading, [first, second] = await waits(site, calls=2)
    response_id = id_of(reading)
    assert await not_taken(site, response_id, given("call_nobody")) == (404, "tool_call_id")
    assert await not_taken(site, "resp_nobody", given(first)) == (404, "response_id")
    await site.outputs.give("default", response_id, given(second, "b"))
    assert await not_taken(site, response_id, given(second, "again")) == (409, "tool_call_id")
    assert (await refused(site.outputs.give("other", response_id, given(first)))).status == 404
    await site.outputs.give("default", response_id, given(first, "a"))
    events = await reading.to_the_end()
    outputs = [item["output"] for item in events[-1]["response"]["output"] if "output" in item]  # type: ignore[index]
    assert outputs == ["a", "b"]
    assert await not_taken(site, response_id, given(first)) == (409, "response_id"), "it has ended"


async def test_one_that_does_not_wait_takes_nothing() -> None:
    waiting = asyncio.Event()
    site = Site(FakeEngine([[FIRST_CALL, waiting, f"<|start|>assistant{CALL}"]]))
    reading = await site.begin(input="hi", tools=[TOOL_F], transport="sse")
    await eventually(lambda: len(call_ids(reading)) == 1)
    assert await not_taken(site, id_of(reading), given(call_ids(reading)[0])) == (409, "response_id")
    waiting.set()
    assert (await reading.to_the_end())[-1]["type"] == "response.completed"


async def test_an_output_may_come_while_the_model_still_speaks() -> None:
    speaks = asyncio.Event()
    rest = f"<|start|>assistant{CALL}"
    site = Site(FakeEngine([[FIRST_CALL, speaks, rest], ANSWER]))
    reading = await site.begin(input="hi", tools=[TOOL_F], transport="sse", awaits_tools=True)
    await eventually(lambda: len(call_ids(reading)) == 1)
    await give(site, reading, call_ids(reading)[0], "early")
    speaks.set()
    await eventually(lambda: is_waiting(reading))
    await give(site, reading, call_ids(reading)[1], "late")
    events = await reading.to_the_end()
    outputs = [item["output"] for item in events[-1]["response"]["output"] if "output" in item]  # type: ignore[index]
    assert outputs == ["early", "late"]


async def test_time_runs_out() -> None:
    site = Site(FakeEngine([CALL_F, ANSWER]), settings=run_settings(responses_tool_timeout=0.05))
    reading, [call_id] = await waits(site)
    events = await reading.to_the_end()
    error = events[-1]["response"]["error"]  # type: ignore[index]
    assert (events[-1]["type"], "RESPONSES_TOOL_TIMEOUT" in error["message"]) == ("response.failed", True)
    assert await not_taken(site, id_of(reading), given(call_id)) == (409, "response_id")
    assert len(site.engine.requests) == 1


@pytest.mark.parametrize("order", ["output first", "cancel first"])
async def test_an_output_and_a_cancellation_at_once(order: str) -> None:
    """Whatever comes first: the response ends as cancelled, and nothing runs on."""
    site = Site(FakeEngine([CALL_F, [asyncio.Event(), ANSWER]]))
    reading, [call_id] = await waits(site)
    run = reading.run
    if order == "cancel first":
        site.registry.cancel(run, reason="test")
        await asyncio.sleep(0)
        run.take_outputs([given(call_id)])
    else:
        run.take_outputs([given(call_id)])
        site.registry.cancel(run, reason="test")
    events = await reading.to_the_end()
    assert events[-1]["response"]["status"] == "cancelled"  # type: ignore[index]
    await idle(site)
    assert site.engine.running == 0


async def test_a_reader_that_leaves_ends_it_as_any_other(site: Site) -> None:
    reading, [call_id] = await waits(site)
    response_id = id_of(reading)
    reading.leave()
    await idle(site)
    assert (await site.responses.response("default", response_id))["status"] == "cancelled"
    assert await not_taken(site, response_id, given(call_id)) == (409, "response_id")


async def test_with_a_reconnect_grace_it_goes_on_without_its_reader() -> None:
    limits = run_settings(responses_max_in_flight=10, reconnect_grace_seconds=30)
    site = Site(FakeEngine([CALL_F, ANSWER]), settings=limits)
    reading, [call_id] = await waits(site)
    response_id, last = id_of(reading), len(reading.events) - 1
    reading.leave()
    await site.outputs.give("default", response_id, given(call_id))
    again = await site.follow(response_id, starting_after=last)
    assert_laws([*reading.events, *await again.to_the_end()])


async def test_it_is_deleted_while_it_waits(site: Site) -> None:
    reading, [call_id] = await waits(site)
    await site.responses.delete("default", id_of(reading))
    assert await not_taken(site, id_of(reading), given(call_id)) == (404, "response_id")
    await idle(site)


async def test_a_server_that_stops_ends_it(site: Site) -> None:
    reading, _ = await waits(site)
    await site.registry.aclose()
    assert (await reading.to_the_end())[-1]["type"] == "response.failed"


class TestLog:
    async def test_it_is_kept_before_it_is_acknowledged(self) -> None:
        site = Site(FakeEngine([CALL_F, [asyncio.Event(), ANSWER]]))
        reading, [call_id] = await waits(site, background=True)
        await give(site, reading, call_id)
        stored = await site.store.log("default", id_of(reading))
        assert given(call_id) in list(decode(stored.data))

    async def test_where_it_cannot_be_kept_that_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("responses_app.runs.log.run_log.KEEP_SECONDS", 0.05)
        site = Site(FakeEngine([CALL_F, [asyncio.Event(), ANSWER]]))
        reading, [call_id] = await waits(site, background=True)
        site.store.failure = StoreError("away")
        error = await refused(site.outputs.give("default", id_of(reading), given(call_id)))
        assert error.status == 503
        assert await not_taken(site, id_of(reading), given(call_id)) == (503, None), "it is not there for sure"
        site.store.failure = None
        monkeypatch.undo()
        assert await not_taken(site, id_of(reading), given(call_id)) == (409, "tool_call_id")
        stored = await site.store.log("default", id_of(reading))
        assert given(call_id) in list(decode(stored.data))

    async def test_where_another_worker_has_it_by_now_that_is_said_at_once(self) -> None:
        site = Site(FakeEngine([CALL_F, [asyncio.Event(), ANSWER]]), worker="sleeps")
        reading, [call_id] = await waits(site, background=True)
        await site.store.beat(WorkerState(id="heir", started_at=0.0))
        assert (await site.store.reclaim("heir", dead_before=10**11)).claimed
        async with asyncio.timeout(1):
            assert await not_taken(site, id_of(reading), given(call_id)) == (503, None)
        assert reading.run.lost


async def left(inputs: Sequence[Input], accepted: AcceptedResponse) -> tuple[Site, AcceptedResponse]:
    """Leave a response as a worker did that died behind these inputs; return a site that has claimed it."""
    store = FakeStore()
    await store.accept(replace(accepted, claim=Claim("dead", 1), again=False))
    site = Site(FakeEngine([ANSWER]), store, worker="heir")
    log = encode(inputs)
    response_id = accepted.response["id"]
    await store.append([LogAppend(response_id=response_id, claim=Claim("dead", 1), position=0, data=log)])
    await store.beat(WorkerState(id="heir", started_at=0.0))
    [claimed] = (await store.reclaim("heir", dead_before=10**11)).claimed
    return site, claimed


async def undisturbed() -> tuple[AcceptedResponse, list[Input], list[JsonObject]]:
    """Run a background response with two calls to its end; return it as it was accepted, its inputs and events."""
    site = Site(FakeEngine([TWO_CALLS, ANSWER]))
    accepted: list[AcceptedResponse] = []
    accept = site.store.accept

    async def noted(each: AcceptedResponse) -> None:
        accepted.append(each)
        await accept(each)

    site.store.accept = noted  # type: ignore[method-assign]
    reading, calls = await waits(site, calls=2, background=True)
    for call_id in reversed(calls):
        await give(site, reading, call_id, f"of {call_id}")
    events = await reading.to_the_end()
    stored = await site.store.log("default", id_of(reading))
    return accepted[0], list(decode(stored.data)), events


def told_of(site: Site) -> list[WebhookMessage]:
    """Return what webhooks are told with the logs of a site, as it comes."""
    messages: list[WebhookMessage] = []
    append = site.store.append

    async def noted(appends: Collection[LogAppend]) -> Appended:
        messages.extend(message for each in appends for message in each.messages)
        return await append(appends)

    site.store.append = noted  # type: ignore[method-assign]
    return messages


async def test_webhooks_are_told_of_a_wait_once_and_by_whoever_takes_it_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "TAKEOVER_SECONDS", 30.0)
    site = Site(FakeEngine([TWO_CALLS, CALL_F, ANSWER]))
    messages = told_of(site)
    reading, calls = await waits(site, calls=2, background=True)
    await eventually(lambda: len(messages) == 1)
    response_id = id_of(reading)
    assert messages[0].type == "response.action_required"
    assert messages[0].data == {"id": response_id, "required_action": {"type": "function_call"}}
    await site.outputs.give("default", response_id, given(calls[0]))  # the same wait goes on, for the other one
    await site.outputs.give("default", response_id, given(calls[1]))
    await eventually(lambda: len(messages) == 2)  # the next turn's
    assert messages[1].id != messages[0].id
    await site.outputs.give("default", response_id, given(call_ids(reading)[-1]))
    await reading.to_the_end()
    assert len(messages) == 2
    # Behind any input of its wait, another worker tells the same.
    accepted, inputs, _ = await undisturbed()
    ids = set()
    began = next(index for index, each in enumerate(inputs) if isinstance(each, WaitBegan))
    answered = [index for index, each in enumerate(inputs) if isinstance(each, OutputGiven)]
    for cut in (began, began + 1, answered[0] + 1):
        heir, claimed = await left(inputs[:cut], accepted)
        messages = told_of(heir)
        await heir.service.run_again(claimed)
        await eventually(lambda messages=messages: bool(messages))  # type: ignore[misc]
        ids |= {message.id for message in messages}
    assert len(ids) == 1


async def test_one_in_the_foreground_tells_webhooks_nothing(site: Site) -> None:
    messages = told_of(site)
    reading, [call_id] = await waits(site)
    await give(site, reading, call_id)
    await reading.to_the_end()
    assert not messages


@pytest.mark.parametrize("mercy", [0.02, 30.0])
async def test_the_deadline_survives_a_takeover(monkeypatch: pytest.MonkeyPatch, mercy: float) -> None:
    """It passed while nobody ran the response; there is a little time left for what could not be given meanwhile."""
    monkeypatch.setattr(tool_calls, "TAKEOVER_SECONDS", mercy)
    accepted, inputs, _ = await undisturbed()
    began = next(index for index, each in enumerate(inputs) if isinstance(each, WaitBegan))
    site, claimed = await left([*inputs[:began], WaitBegan(NOW - 1)], accepted)
    await site.service.run_again(claimed)
    heir = await site.follow(accepted.response["id"])
    if mercy > 1:
        for output in inputs:
            if isinstance(output, OutputGiven):
                await site.outputs.give("default", accepted.response["id"], output)
    last = (await heir.to_the_end())[-1]
    assert last["type"] == ("response.failed" if mercy < 1 else "response.completed")
    stored = await site.store.log("default", accepted.response["id"])
    kinds = {type(each) for each in decode(stored.data)}
    assert (TimedOut in kinds, Ended in kinds) == (mercy < 1, True)


async def test_in_the_background_it_goes_to_another_worker_at_once() -> None:
    store = FakeStore()
    site = Site(FakeEngine([CALL_F, ANSWER]), store, worker="stops")
    reading, [call_id] = await waits(site, background=True)
    response_id = id_of(reading)
    await asyncio.wait_for(site.registry.aclose(grace=60), 5)
    heir = Site(FakeEngine([ANSWER]), store, worker="heir")
    await store.beat(WorkerState(id="heir", started_at=0.0))
    [claimed] = (await store.reclaim("heir", dead_before=0.0)).claimed
    await heir.service.run_again(claimed)
    await heir.outputs.give("default", response_id, given(call_id))
    again = await heir.follow(response_id)
    events = await again.to_the_end()
    assert_laws(events)
    assert events[: len(reading.events)] == reading.events


async def test_while_it_goes_to_another_worker_its_client_is_to_try_again(site: Site) -> None:
    """And is not told that nobody waits for the output: then it would never come."""
    reading, [call_id] = await waits(site, background=True)
    going = Held(site.store, "give_back")
    stopping = asyncio.create_task(site.registry.aclose())
    await going.waits.wait()
    try:
        assert await not_taken(site, id_of(reading), given(call_id)) == (503, None)
    finally:
        going.go_on.set()
        await stopping
    assert await not_taken(site, id_of(reading), given(call_id)) == (503, None)


class TestOtherWorkers:
    async def test_the_one_that_ran_it_says_that_it_has_ended(self) -> None:
        """It may end between the look into the store and the question: else nobody answers, and a client waits."""
        store, others = FakeStore(), FakeOthers()
        owner = Site(FakeEngine([CALL_F, ANSWER]), store, others=others, worker="owner")
        reading, [call_id] = await waits(owner)
        told = {"project": "default", "response_id": id_of(reading), **as_json(given(call_id))}
        await give(owner, reading, call_id)
        await reading.to_the_end()
        answer = await owner.outputs.take_here(told)
        assert answer["error"]["status"] == 409  # type: ignore[index]

    async def test_the_one_that_runs_it_takes_it(self) -> None:
        store, others = FakeStore(), FakeOthers()
        owner = Site(FakeEngine([CALL_F, ANSWER]), store, others=others, worker="owner")
        other = Site(FakeEngine(), store, others=others, worker="other")
        reading, [call_id] = await waits(owner)
        response_id = id_of(reading)
        assert await not_taken(other, response_id, given("call_nobody")) == (404, "tool_call_id")
        await reading.run.keep_inputs()
        seen = await other.responses.response("default", response_id)
        assert seen == await owner.responses.response("default", response_id)
        assert seen["output"][-1]["call_id"] == call_id, "who polls it there knows what to answer"
        await other.outputs.give("default", response_id, given(call_id))
        assert await not_taken(other, response_id, given(call_id)) in [(409, "tool_call_id"), (409, "response_id")]
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"

    async def test_one_that_is_not_stored_is_found_by_asking(self) -> None:
        others = FakeOthers()
        owner = Site(FakeEngine([CALL_F, ANSWER]), others=others)
        other = Site(FakeEngine(), others=others)
        reading, [call_id] = await waits(owner, store=False)
        assert await not_taken(other, "resp_nobody", given(call_id)) == (404, "response_id")
        await give(other, reading, call_id)
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"

    async def test_without_redis_it_is_refused_and_goes_on(self) -> None:
        store, others = FakeStore(), FakeOthers(reaches_others=False)
        owner = Site(FakeEngine([CALL_F, ANSWER]), store, others=others, worker="owner")
        other = Site(FakeEngine(), store, others=others, worker="other")
        reading, [call_id] = await waits(owner)
        error = await refused(other.outputs.give("default", id_of(reading), given(call_id)))
        assert error.status == 503
        assert "REDIS_URL" in error.message
        await give(owner, reading, call_id)
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"
