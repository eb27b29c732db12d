"""What a run records for its roll-out is what its engine got and gave, wherever it is cut, taken over or stopped."""

import math
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from engine.formats.base import as_tokens
from engine.types import GenerationRequest, WeightsSpan
from responses_app.protocol.errors import ApiError
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import Sampled, StopReason
from responses_app.protocol.rollouts.generations import EngineCall, Generation, Recorded
from responses_app.protocol.rollouts.recording import behind
from responses_app.protocol.rollouts.requests import parse_reward
from responses_app.protocol.rollouts.tree import tree_of
from responses_app.resources.rollouts.rows import generation_row
from responses_app.stores.base import AcceptedResponse, StoredResponse
from tests.kit.fakes import Site
from tests.kit.waiting import eventually
from tests.unit.runs.readers import id_of, refused
from tests.unit.runs.test_cut_turns import CutEngine
from tests.unit.runs.test_takeover import ANSWER, CASES, LONG_ANSWER, UNKNOWN, gone_on, left_at
from tests.unit.runs.upkeep import looked_after

pytestmark = pytest.mark.usefixtures("rollout_store")
IN_ROLLOUT = {"metadata": {"rollout_id": "task-1"}}
LOGPROB = -0.1  # of every token of `CutEngine`


def recorded(stored: StoredResponse) -> Sequence[Recorded]:
    assert stored.recorded.rollout.name == "task-1"
    return stored.recorded.calls


def shown(calls: Sequence[Recorded]) -> list[Any]:
    """Return what does not depend on time."""
    return [
        (each.call.turn, each.prompt.tolist(), each.call.sampled.tolist(), list(each.call.logprobs or ()),
         each.call.finish, list(each.call.weights), each.call.summary)
        for each in calls
    ]  # fmt: skip


async def undisturbed(case: str, **fields: object) -> tuple[CutEngine, StoredResponse, AcceptedResponse]:
    """Let a response of a case run to its end."""
    turns, asked = CASES[case]
    site = Site(CutEngine(turns))
    reading = await site.begin(**{"input": "hi", **asked, **IN_ROLLOUT, **fields})
    kept = site.store._responses["default", id_of(reading)].of
    assert isinstance(kept, AcceptedResponse)
    events = await reading.to_the_end()
    assert "'logprob'" not in str(events), "what is recorded is shown to nobody"
    engine = site.engine
    assert isinstance(engine, CutEngine)
    return engine, site.store.saved[0], kept


def asked_of(requests: Sequence[GenerationRequest]) -> list[list[int]]:
    return [list(request.prompt_token_ids) for request in requests]


@pytest.mark.parametrize("case", CASES)
async def test_all_turns_are_as_the_engine_had_them(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.protocol.response.turns.MIN_THOUGHT", 8)
    engine, stored, _ = await undisturbed(case)
    calls = recorded(stored)
    assert [each.prompt.tolist() for each in calls] == asked_of(engine.requests)
    assert sum(len(each.call.sampled) + each.call.dropped for each in calls) == engine.sampled
    usage = stored.response["usage"]
    assert sum(len(each.call.sampled) for each in calls) == usage["output_tokens"]
    for each in calls:
        assert list(each.call.logprobs or ()) == [LOGPROB] * len(each.call.sampled)
        assert each.call.weights == [WeightsSpan(None, len(each.call.sampled))]


@pytest.mark.parametrize("case", CASES)
async def test_a_turn_that_is_cut_anywhere_is_one_call(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.protocol.response.turns.MIN_THOUGHT", 8)
    turns, asked = CASES[case]
    engine, stored, _ = await undisturbed(case)
    whole = shown(recorded(stored))
    for place in range(1, engine.sampled, 1 if engine.sampled < 60 else 7):
        site = Site(CutEngine(turns, [place]))
        await (await site.begin(**{"input": "hi", **asked, **IN_ROLLOUT})).to_the_end()
        assert shown(recorded(site.store.saved[0])) == whole, f"cut behind {place} tokens"


@pytest.mark.parametrize("case", CASES)
async def test_another_worker_records_what_was_sampled_before(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.protocol.response.turns.MIN_THOUGHT", 8)
    turns, _ = CASES[case]
    _, stored, accepted = await undisturbed(case, background=True)
    inputs, whole = list(decode(stored.log)), shown(recorded(stored))
    for count in range(0, len(inputs), 1 if len(inputs) < 60 else 5):
        site, reading = await gone_on(accepted, inputs[:count], CutEngine(turns))
        await reading.to_the_end()
        again = recorded(site.store.saved[0])
        assert shown(again) == whole, f"cut behind {count} of {len(inputs)} inputs"


@pytest.mark.parametrize("case", ["an answer", "a tool that is not there"])
async def test_what_no_worker_can_go_on_with_is_recorded_as_far_as_it_came(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, _ = CASES[case]
    _, stored, accepted = await undisturbed(case, background=True)
    inputs, whole = list(decode(stored.log)), recorded(stored)

    async def deleted(*_: object) -> None:
        raise ApiError("The API key of this response was deleted.", status=401, code="invalid_api_key")

    for count in (0, len(inputs) // 3, len(inputs) * 2 // 3, len(inputs) - 2):
        store = await left_at(accepted, encode(inputs[:count]))
        site = Site(CutEngine(turns), store, worker="heir")
        monkeypatch.setattr(type(site.service), "_check_key", deleted)
        async with looked_after(site, worker="heir"):
            await eventually(lambda store=store: store.saved)  # type: ignore[misc]
        [failed] = store.saved
        assert failed.response["status"] == "failed"
        logged = [token for each in inputs[:count] if isinstance(each, Sampled) for token in each.token_ids]
        calls = recorded(failed)
        assert [token for each in calls for token in each.call.sampled] == logged
        assert [each.prompt for each in calls] == [each.prompt for each in whole[: len(calls)]]
        assert all(list(each.call.logprobs or ()) == [LOGPROB] * len(each.call.sampled) for each in calls)


def test_turns_of_a_response_take_memory_for_what_is_new_of_their_prompts_alone() -> None:
    prompt, calls = as_tokens(range(10_000)), list[Recorded]()
    for turn in range(50):
        call = EngineCall(response_id="resp_1", turn=turn, sampled=as_tokens([turn] * 10))
        calls.append(behind(calls[-1] if calls else None, call, prompt))
        assert calls[-1].prompt == prompt
        prompt = calls[-1].whole() + as_tokens([turn + 1])
    assert calls[0].tail.itemsize * sum(len(each.tail) for each in calls) < 45_000
    # One whose history was changed shares what is the same, and a long chain can be read all the same.
    other = as_tokens([*prompt[:10_005], 7, 7])
    changed = behind(calls[-1], EngineCall(response_id="resp_1", sampled=as_tokens()), other)
    assert (changed.shared, changed.prompt) == (10_005, other)


async def test_a_tool_of_the_server_and_what_follows_is_one_sequence() -> None:
    turns = ['<|channel|>commentary to=container.exec<|message|>{"cmd":["ls"]}<|call|>', ANSWER]
    site = Site(CutEngine(turns))
    await site.ask(input="hi", **IN_ROLLOUT)
    [stored] = site.store.saved
    assert stored.recorded is not None
    await site.service.rollouts.keep(stored.recorded)
    record = await site.service.rollouts.get("default", "task-1")
    generations = await site.service.rollouts.generations(record)
    tree = tree_of(record.as_json(), generations)
    assert [each.cut for each in generations] == [""] * len(generations)
    assert len(tree.sequences) == 1


@pytest.mark.parametrize("reason", [StopReason.INTERRUPTED, StopReason.DISCARDED, StopReason.STEERED])
async def test_a_turn_that_somebody_ends_has_what_was_read_of_it(reason: StopReason) -> None:
    engine = CutEngine([LONG_ANSWER])
    site = Site(engine)
    reading = await site.begin(input="hi", **IN_ROLLOUT)
    await reading.until("response.output_text.delta")
    reading.run.stop(reason)
    await reading.to_the_end()
    [call] = recorded(site.store.saved[0])
    usage = site.store.saved[0].response["usage"]
    assert len(call.call.sampled) == usage["output_tokens"]
    assert call.call.finish in (("stop",) if reason is StopReason.STEERED else ("abort",))


async def test_a_response_that_is_not_stored_is_recorded_before_its_end() -> None:
    site = Site(CutEngine([UNKNOWN, ANSWER]))
    reading = await site.begin(input="hi", store=False, **IN_ROLLOUT)
    await reading.until("response.completed")
    rollouts = site.service.rollouts
    generations = await rollouts.generations(await rollouts.get("default", "task-1"))
    assert [each.call.turn for each in generations] == [0, 1]
    assert not any(math.isnan(value) for each in generations for value in each.call.logprobs or ())


async def test_whatever_a_request_asks_for_can_be_kept() -> None:
    site = Site(CutEngine([ANSWER]))
    response = await site.ask(input="hi", max_output_tokens=2**63, logit_bias={"7": 1}, seed=-(2**63), **IN_ROLLOUT)
    assert response["status"] == "completed"
    [call] = recorded(site.store.saved[0])
    generation = Generation(number=0, call=call.call, tail=call.prompt)
    kept = orjson.loads(generation_row("rollout_1", generation).detail)
    asked = {"logit_bias": {"7": 1.0}, "seed": -(2**63)}
    assert {name: kept["sampling"].get(name) for name in asked} == asked
    assert 0 < kept["sampling"]["max_tokens"] <= 2**63


async def test_a_reward_is_of_a_turn_that_was_recorded() -> None:
    site = Site(CutEngine([ANSWER]))
    response = await site.ask(input="hi", store=False, **IN_ROLLOUT)
    rollouts = site.service.rollouts
    record = await rollouts.reward("default", "task-1", parse_reward({"reward": 1, "turn": response["id"]}))
    assert [each["turn"] for each in record.rewards] == [response["id"]]
    for project, name, code in [("default", "task-1", "invalid_value"), ("other", "task-1", "rollout_not_found")]:
        error = await refused(rollouts.reward(project, name, parse_reward({"reward": 1, "turn": "resp_other"})))
        assert error.code == code


async def test_without_a_rollout_nothing_is_recorded_and_nothing_more_is_asked() -> None:
    engine = CutEngine([ANSWER])
    site = Site(engine)
    await site.ask(input="hi")
    assert site.store.saved[0].recorded is None
    assert engine.requests[0].sampling.top_logprobs is None
