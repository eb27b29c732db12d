"""What a request asks of the engine itself: salt, tier, warm-up, log probabilities; fields without effect."""

from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest

from docs.extension.fields import rows
from engine.backends.llama.wire import completion
from engine.backends.scripted import with_logprobs
from engine.errors import EngineUnavailable
from engine.formats.harmony.encoding import encode_text
from engine.types import (
    SAMPLED,
    GenerationRequest,
    SamplingOptions,
    TokenChunk,
    TokenSampling,
    carried,
    digest_of,
    kind_of,
)
from responses_app.protocol.chat.request import parse_chat
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.requests.create_fields import ENCRYPTED_REASONING, KNOWN_INCLUDES, LOGPROBS, Fields
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.rollouts.requests import NewRollout, RolloutRef, as_sampling, parse_rollout
from responses_app.protocol.stateless.completions import parse_completion
from responses_app.protocol.tiers import BEHIND_ALL, PRIORITIES
from responses_app.runs.plan.plan import Origin
from tests.kit.fakes import ANSWER, CALL_F, TOOL_F, FakeEngine, Reading, Site, run_settings
from tests.kit.oracle import validate_event, validate_response
from tests.unit.protocol.refusals import refusal
from tests.unit.runs.readers import refused

INCLUDE = ["message.output_text.logprobs"]
SMILE = "<|channel|>final<|message|>a 🥹<|return|>"  # three tokens make the last character


class LogprobsEngine(FakeEngine):
    """A fake engine that gives the log probabilities it is asked for."""

    supports_logprobs = True

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenChunk]:  # type: ignore[override]
        async for chunk in super().generate(request):
            yield with_logprobs(chunk, request.sampling.top_logprobs)


def text_events(events: list[JsonObject], kind: str) -> list[JsonObject]:
    """Return the `output_text` events of a kind."""
    return [event for event in events if event["type"] == f"response.output_text.{kind}"]


@pytest.mark.parametrize(
    ("details", "param"),
    [
        (EngineDetails(wanted_logprobs=0), "prompt_logprobs"),
        (EngineDetails(given_transfer={"to": "b"}), "kv_transfer_params"),
    ],
)
async def test_what_the_engine_has_not_is_refused(details: EngineDetails, param: str) -> None:
    site = Site()
    error = await refused(
        site.service.create(parse_create({"input": "hi"}), Origin(transport="chat", project="p"), details=details)
    )
    assert (error.code, error.param) == ("unsupported_parameter", param)
    assert not site.engine.requests


def test_a_request_has_so_many_log_probabilities_of_its_prompt() -> None:
    """Those of 100,000 tokens, with 20 alternatives each, took 20 s of the event loop."""
    details = EngineDetails(wanted_logprobs=19)
    details.check_prompts(25_000)
    assert refusal(details.check_prompts, 25_001).param == "prompt_logprobs"
    EngineDetails().check_prompts(1_000_000)


@pytest.mark.parametrize("name", ["prompt_cache_key", "cache_salt"])
async def test_keys_and_salts_of_clients_become_salts_that_never_meet(name: str, site: Site) -> None:
    for project, key in (("a", "k"), ("a", "k"), ("a", "l"), ("b", "k")):
        await (await site.begin(project=project, input="hi", **{name: key})).to_the_end()  # type: ignore[arg-type]
    first, same, other_key, other_project = (request.cache_salt for request in site.engine.requests)
    assert first == same
    assert len({first, other_key, other_project, "k"}) == 4
    assert (await site.ask(input="hi"))["prompt_cache_key"] is None
    assert site.engine.requests[-1].cache_salt is None, "without one the cache is shared"


async def test_of_a_salt_and_a_key_the_log_says_which_counts(caplog: pytest.LogCaptureFixture, site: Site) -> None:
    await site.ask(input="hi", cache_salt="s")
    assert "cache_salt" not in caplog.text
    await site.ask(input="hi", cache_salt="s", prompt_cache_key="k")
    assert "its cache_salt counts" in caplog.text
    salted, both = (request.cache_salt for request in site.engine.requests)
    assert salted == both


@pytest.mark.parametrize(("name", "value"), [("priority", 3), ("cache_salt", "s")])
async def test_an_engine_that_cannot_do_what_is_asked_for_says_so(name: str, value: object) -> None:
    engine = FakeEngine()
    engine.supports_priority = engine.supports_cache_salt = False
    error = await Site(engine).refusal(input="hi", **{name: value})
    assert (error.code, error.param) == ("unsupported_parameter", name)


def test_an_empty_key_is_refused() -> None:
    assert refusal(parse_create, {"input": "hi", "prompt_cache_key": ""}).param == "prompt_cache_key"


async def test_a_chain_keeps_its_affinity_and_a_key_decides_it(site: Site) -> None:
    first = await site.ask(input="hi")
    second = await site.ask(input="more", previous_response_id=first["id"])
    await site.ask(input="more", previous_response_id=second["id"])
    await site.ask(input="other")
    await site.ask(input="more", previous_response_id=first["id"], prompt_cache_key="k")
    sessions = [request.session for request in site.engine.requests]
    assert sessions[0] == sessions[1] == sessions[2]
    assert len({session.id for session in sessions[2:]} - {""}) == 3, "another chain, and another key"
    assert [session.shared for session in sessions] == [False] * 4 + [True]


@pytest.mark.usefixtures("rollout_store")
async def test_attempts_at_one_task_share_their_beginning_and_keep_their_own_home(site: Site) -> None:
    for attempt in ("a", "b"):
        await site.service.rollouts.create("p", NewRollout(id=attempt, group="task"))
    await site.service.rollouts.create("p", NewRollout(id="alone"))
    for attempt, key in (("a", "k1"), ("a", None), ("b", "k2"), ("alone", None)):
        origin = Origin(transport="http", project="p", rollout=RolloutRef(attempt))
        request = parse_create({"input": "hi", **({"prompt_cache_key": key} if key else {})})
        await Reading(site, await site.service.create(request, origin)).to_the_end()
    keyed, first, second, alone = site.engine.requests
    assert keyed.kin == first.kin == second.kin != ""
    assert keyed.cache_salt == first.cache_salt == second.cache_salt, "whatever their keys are"
    assert len({request.session.id for request in site.engine.requests} - {""}) == 4
    assert alone.kin == ""


@pytest.mark.parametrize(
    ("asked", "ran"),
    [
        *((None, "default"), ("auto", "default"), ("fast", "priority")),
        *((tier, tier) for tier in ("default", "flex", "scale", "priority", "ultrafast")),
    ],
)
async def test_the_tier_is_echoed_and_becomes_a_priority(asked: str | None, ran: str, site: Site) -> None:
    response = await site.ask(input="hi", service_tier=asked)
    assert response["service_tier"] == ran
    assert site.engine.requests[0].priority == PRIORITIES[ran]
    validate_response(response)


def test_more_urgent_tiers_run_first() -> None:
    assert sorted(PRIORITIES, key=lambda tier: PRIORITIES[tier]) == [
        *("ultrafast", "priority", "scale", "default", "flex")
    ]


async def test_the_operator_says_what_auto_is_and_what_is_allowed() -> None:
    site = Site(
        settings=run_settings(responses_default_service_tier="flex", responses_allowed_service_tiers=("auto", "flex"))
    )
    for asked in (None, "auto", "flex"):
        assert (await site.ask(input="hi", service_tier=asked))["service_tier"] == "flex"
    with pytest.raises(ApiError, match="auto, flex") as refused:
        await site.ask(input="hi", service_tier="priority")
    assert (refused.value.param, refused.value.status) == ("service_tier", 400)


@pytest.mark.parametrize("name", ["fast", "priority"])
async def test_fast_is_another_name_of_priority(name: str) -> None:
    site = Site(
        settings=run_settings(responses_default_service_tier=name, responses_allowed_service_tiers=("auto", name))
    )
    for asked in (None, "fast", "priority"):
        assert (await site.ask(input="hi", service_tier=asked))["service_tier"] == "priority"
    with pytest.raises(ApiError, match="RESPONSES_ALLOWED_SERVICE_TIERS"):
        await site.ask(input="hi", service_tier="ultrafast")


async def test_an_engine_without_these_is_not_asked_for_them() -> None:
    engine = FakeEngine()
    engine.supports_priority = engine.supports_cache_salt = False
    await Site(engine).ask(input="hi", service_tier="priority", prompt_cache_key="k")
    assert (engine.requests[0].priority, engine.requests[0].cache_salt) == (0, None)


async def test_a_warm_up_leaves_the_prompt_in_the_engine(site: Site) -> None:
    warm = await site.ask(input="hi", generate=False, prompt_cache_key="k")
    assert (warm["status"], warm["output"], warm["usage"]) == ("completed", [], None)
    await site.ask(input=[], previous_response_id=warm["id"], prompt_cache_key="k", max_output_tokens=9)
    prefill, turn = site.engine.requests
    assert prefill.sampling.max_output_tokens == 1
    assert list(prefill.prompt_token_ids) == list(turn.prompt_token_ids)
    assert prefill.cache_salt == turn.cache_salt


async def test_a_warm_up_survives_an_engine_that_does_not() -> None:
    site = Site(FakeEngine([[EngineUnavailable("gone")], ANSWER]))
    warm = await site.ask(input="hi", generate=False)
    assert warm["status"] == "completed"
    assert (await site.ask(input="and?", previous_response_id=warm["id"]))["status"] == "completed"


@pytest.mark.parametrize(
    ("fields", "top"),
    [({"include": INCLUDE}, 0), ({"include": INCLUDE, "top_logprobs": 2}, 2), ({"top_logprobs": 3}, 3)],
)
async def test_logprobs_come_with_the_text(fields: JsonObject, top: int) -> None:
    reading = await Site(LogprobsEngine([SMILE])).begin(input="hi", **fields)
    events = await reading.to_the_end()
    for event in events:
        validate_event(event)
    deltas = text_events(events, "delta")
    (done,) = text_events(events, "done")
    content = encode_text("a 🥹")
    assert len(content) > len(deltas) >= 1, "the last character takes several tokens"
    assert [entry for delta in deltas for entry in delta["logprobs"]] == done["logprobs"]  # type: ignore[attr-defined]
    assert len(done["logprobs"]) == len(content)  # type: ignore[arg-type]
    part = events[-1]["response"]["output"][-1]["content"][0]  # type: ignore[index]
    assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode() == part["text"] == "a 🥹"
    assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {top}
    assert events[-1]["response"]["top_logprobs"] == top  # type: ignore[index]


async def test_only_messages_have_logprobs() -> None:
    reading = await Site(LogprobsEngine([CALL_F])).begin(input="hi", tools=[TOOL_F], include=INCLUDE)
    events = await reading.to_the_end()
    assert not [event for event in events if "logprobs" in event]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "function_call"]  # type: ignore[index]


async def test_without_being_asked_there_are_none() -> None:
    site = Site(LogprobsEngine())
    events = await (await site.begin(input="hi")).to_the_end()
    assert site.engine.requests[0].sampling.top_logprobs is None
    assert {str(event["logprobs"]) for event in events if "logprobs" in event} == {"[]"}
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == []  # type: ignore[index]


async def test_an_engine_without_logprobs_refuses_a_number_of_them_and_ignores_the_include(site: Site) -> None:
    error = await site.refusal(input="hi", top_logprobs=1)
    assert (error.code, error.param) == ("unsupported_parameter", "top_logprobs")
    assert (await site.ask(input="hi", include=INCLUDE))["status"] == "completed"


@pytest.mark.parametrize("top", [21, -1, 1.5, "many"])
def test_more_logprobs_than_there_are_is_refused(top: object) -> None:
    assert refusal(parse_create, {"input": "hi", "top_logprobs": top}).param == "top_logprobs"


async def test_minus_infinity_is_a_number() -> None:
    class Certain(LogprobsEngine):
        async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenChunk]:  # type: ignore[override]
            async for chunk in FakeEngine.generate(self, request):
                marked = with_logprobs(chunk, request.sampling.top_logprobs)
                for entry in marked.logprobs or ():
                    object.__setattr__(entry, "top", ((entry.token_id, float("-inf")),))
                yield marked

    response = await Site(Certain()).ask(input="hi", top_logprobs=1)
    part = response["output"][-1]["content"][0]  # type: ignore[index]
    assert part["logprobs"][0]["top_logprobs"][0]["logprob"] == -9999.0


OF_KIND: dict[type, object] = {float: 0.5, int: 7, bool: True, dict: {"264": -100.0}}
WISHES: dict[str, object] = {name: OF_KIND[kind_of(name)] for name in SAMPLED}


async def test_each_declared_field_reaches_the_engine(site: Site) -> None:
    await site.ask(input="hi", stop_token_ids=[264], **WISHES)
    sampling = site.engine.requests[-1].sampling
    assert sampling.named() == WISHES  # as vLLM is told it
    assert sampling.stop_token_ids[-1] == 264
    chat = parse_chat({"messages": [{"role": "user", "content": "hi"}], **WISHES}, parse_create)
    assert chat.create.wishes() == WISHES
    assert parse_completion({"prompt": "hi", **WISHES}).fields.wishes() == WISHES
    of_tokens = {name: value for name, value in WISHES.items() if name in TokenSampling.model_fields}
    assert as_sampling(parse_rollout({"sampling": WISHES}).sampling) == of_tokens
    said = orjson.loads(completion(site.engine.requests[-1], (), max_tokens=9, streamed=True, ping_seconds=3))
    names = {carried(name).llama or name for name in SAMPLED if carried(name).llama is not None}
    assert names <= said.keys()  # as llama.cpp is told it


async def test_a_top_p_of_0_asks_for_the_likeliest_token(site: Site) -> None:
    """In words that every engine knows: vLLM takes no 0."""
    await site.ask(input="hi", top_p=0, temperature=1.5)
    sampling = site.engine.requests[-1].sampling
    assert (sampling.top_p, sampling.temperature) == (None, 0.0)


@pytest.mark.parametrize("fields", [{"stop_token_ids": [999_999_999]}, {"logit_bias": {"999999999": 1}}])
async def test_a_token_that_the_model_has_not_is_refused(fields: JsonObject) -> None:
    assert (await Site().refusal(input="hi", **fields)).param == next(iter(fields))


async def test_each_choice_of_a_chat_has_a_seed_of_its_own() -> None:
    chat = parse_chat({"messages": [{"role": "user", "content": "hi"}], "seed": 5, "n": 3}, parse_create)
    assert [chat.choice(place).seed for place in range(3)] == [5, 6, 7]
    assert [SamplingOptions(seed=5).of_choice(place).seed for place in range(3)] == [5, 6, 7]


async def test_what_may_take_hours_comes_behind_everything_else(site: Site) -> None:
    options = {"completion_window": "8h", "continuation_id": "c"}
    await site.ask(input="hi", background=True, background_options=options)
    await site.ask(input="hi", background=True, background_options={"completion_window": "soonest"})
    late, soon = site.engine.requests
    assert (late.priority, late.session.id) == (BEHIND_ALL, digest_of("default", "c"))
    assert soon.priority < late.priority
    for more in ({}, {"background": True, "stream": True}, {"background": True, "service_tier": "flex"}):
        error = await site.refusal(input="hi", background_options=options, **more)
        assert error.param == "background_options.completion_window"


VALUES: dict[str, object] = {  # where a field's name would be a wrong value for it
    "text.verbosity": "high",
    "prompt_cache_options.ttl": "12h",
    "prompt_cache_options.mode": "explicit",
    "client_metadata": {"a": "b"},
}
OTHERS: dict[str, JsonObject] = {
    "include": {"include": sorted(KNOWN_INCLUDES - {LOGPROBS, ENCRYPTED_REASONING})},
    "metadata": {"metadata": {"a": "b"}},
    "user": {"user": "somebody"},
    "safety_identifier": {"safety_identifier": "somebody"},
}


def body_of(path: str) -> JsonObject:
    body: object = VALUES.get(path, path)
    for name in reversed(path.split(".")):
        body = {name: body}
    assert isinstance(body, dict)
    return body


WITHOUT_EFFECT = [body_of(name) for name, becomes, _ in rows(Fields) if becomes == "without effect"]


@pytest.mark.parametrize("fields", [*WITHOUT_EFFECT, *OTHERS.values()], ids=str)
async def test_it_is_accepted_and_without_effect(fields: JsonObject, site: Site) -> None:
    site.service.new_id = lambda prefix: f"{prefix}_1"
    plain = await site.ask(input="hi", tools=[TOOL_F])
    other = await site.ask(input="hi", **{"tools": [TOOL_F], **fields})
    assert other["output"] == plain["output"]
    first, second = site.engine.requests
    assert replace(second, request_id=first.request_id) == first
