"""Sealed reasoning and summaries through the service: loops without a store, other workers, keys, engines that fail."""

from dataclasses import replace

import pytest

from engine.errors import EngineError
from engine.formats.harmony.encoding import decode_tokens
from engine.types import CallRule, TurnRules
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.output.builders import first_sentences
from responses_app.protocol.requests.requests import RulesOfTurns
from responses_app.protocol.response.steps import Generate
from responses_app.protocol.response.turns import SUMMARY_REQUEST
from responses_app.protocol.sealing import Sealer
from responses_app.runs.driving.generating import request_for
from tests.kit.fakes import ANSWER, TOOL_F, FakeEngine, FakeStore, Site, run_settings
from tests.unit.runs.readers import converse, response_of
from tests.unit.runs.test_client_tools import OUTPUTS, SAID, TOOLS

ENCRYPTED = {"include": ["reasoning.encrypted_content"], "tools": [TOOL_F]}
OTHER_ORDER = (
    "<|channel|>analysis<|message|>Hm.<|end|>"
    "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>"
)
THINKING = f"<|channel|>analysis<|message|>{'I look at it from every side. ' * 20}<|end|><|start|>assistant"
AUTO = {"reasoning": {"summary": "auto"}, "tools": [TOOL_F]}


def sealer(*secrets: str) -> Sealer:
    return Sealer(secrets or ("a secret of all workers",), random_bytes=lambda count: b"r" * count)


def output_of(response: JsonObject) -> list[JsonObject]:
    output = response["output"]
    assert isinstance(output, list)
    return output


def answered(items: list[JsonObject]) -> list[JsonObject]:
    """Return items as a client sends them again, with an output of every call behind them."""
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    return [*as_input(items), *({"type": "function_call_output", "call_id": each, "output": "18"} for each in calls)]


def as_input(items: list[JsonObject]) -> list[JsonObject]:
    """Return items as a client sends them that keeps no ids and shows no thoughts."""
    hidden = {"reasoning": ("id", "status", "content")}
    return [
        {name: value for name, value in item.items() if name not in hidden.get(str(item["type"]), ("id", "status"))}
        for item in items
    ]


async def test_it_may_be_replayed_into_another_chain_and_never_into_another_project() -> None:
    site = Site(FakeEngine([OTHER_ORDER, ANSWER, OTHER_ORDER, ANSWER]), sealer=sealer())
    items = output_of(await site.ask(input="hi", **ENCRYPTED))
    await site.ask(input=[{"role": "user", "content": "Something else."}, *answered(items)], **ENCRYPTED)
    assert "to=functions.f<|channel|>commentary json" in decode_tokens(site.engine.prompts[1])
    error = await site.refusal(input=answered(items), project="another", **ENCRYPTED)
    assert (error.code, error.param) == ("invalid_encrypted_content", "input[0].encrypted_content")


@pytest.mark.usefixtures("conversations")
async def test_a_conversation_goes_on_with_what_is_left_where_a_key_is_lost() -> None:
    before = Site(FakeEngine([OTHER_ORDER]), sealer=sealer("the key that will be lost"))
    items = answered(output_of(await before.ask(input="hi", **ENCRYPTED)))
    site = Site(sealer=sealer())
    with pytest.raises(ApiError, match="could not be verified"):
        await site.begin(input=items)
    await converse(site, *items)
    assert (await site.ask(input="Go on.", conversation="conv_1"))["status"] == "completed"
    prompt = decode_tokens(site.engine.prompts[0])
    assert "it was sealed elsewhere" in prompt
    assert "to=functions.f <|constrain|>json<|message|>{}<|call|>" in prompt


async def test_what_is_stored_is_what_was_asked_for() -> None:
    site = Site(FakeEngine([OTHER_ORDER]), sealer=sealer())
    for fields, sealed in ((ENCRYPTED, True), ({"tools": [TOOL_F]}, False)):
        response = await site.ask(input="hi", **fields)
        kept = await site.store.response("default", str(response["id"]))
        assert kept is not None
        for body in (response, kept):
            assert any("encrypted_content" in item for item in output_of(dict(body))) is sealed


async def test_with_another_first_key_the_same_stream_has_its_seals() -> None:
    store = FakeStore()
    owner = Site(FakeEngine([OTHER_ORDER]), store, sealer=sealer("the old key of it all"))
    events = await (await owner.begin(input="hi", **ENCRYPTED)).to_the_end()
    response_id = str(events[0]["response"]["id"])  # type: ignore[index]
    same = await (await Site(store=store, sealer=sealer("the old key of it all")).follow(response_id)).to_the_end()
    assert same == events
    rotated = sealer("the new key of it all", "the old key of it all")
    again = await (await Site(store=store, sealer=rotated).follow(response_id)).to_the_end()
    assert [event["type"] for event in again] == [event["type"] for event in events]
    assert again != events
    for items in (again[-1]["response"]["output"], events[-1]["response"]["output"]):  # type: ignore[index]
        await Site(sealer=rotated).ask(input=[*answered(items), {"role": "user", "content": "Go on."}])


class TestSummaries:
    async def test_it_reads_what_was_said_and_nobody_else_reads_it(self) -> None:
        site = Site(FakeEngine([f"{THINKING}{ANSWER}", "I looked.<|return|>", ANSWER]))
        response = await response_of(await site.begin(input="hi", max_output_tokens=1000, **AUTO))
        output = response["output"]  # type: ignore[index]
        assert output[0]["summary"] == [{"type": "summary_text", "text": "I looked."}]
        first, aside, last = site.engine.prompts
        assert last[: len(first)] == first == aside[: len(first)], "the engine's cache has it"
        assert SUMMARY_REQUEST in decode_tokens(aside)
        assert decode_tokens(aside).endswith("<|start|>assistant<|channel|>final<|message|>")
        assert decode_tokens(last[len(first) :]) == THINKING
        limits = [request.sampling.max_output_tokens for request in site.engine.requests]
        assert limits[:2] == [1000, 200]
        await site.ask(input="And?", previous_response_id=response["id"])  # type: ignore[index]
        assert SUMMARY_REQUEST not in decode_tokens(site.engine.prompts[-1])

    @pytest.mark.parametrize("before", [[], ["I looked at "]])
    async def test_where_its_turn_fails_the_response_does_not(
        self, before: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        site = Site(FakeEngine([f"{THINKING}{ANSWER}", [*before, EngineError("out of memory")], ANSWER]))
        response = await site.ask(input="hi", **AUTO)
        assert response["status"] == "completed"
        thought = output_of(response)[0]
        shown = "".join(before) or first_sentences("I look at it from every side. " * 20)
        assert thought["summary"] == [{"type": "summary_text", "text": shown}]
        assert "no summary: EngineError: out of memory" in caplog.text

    async def test_what_fails_behind_it_fails(self) -> None:
        site = Site(FakeEngine([f"{THINKING}{ANSWER}", "I looked.<|return|>", [EngineError("out of memory")]]))
        assert (await site.ask(input="hi", **AUTO))["status"] == "failed"

    @pytest.mark.parametrize("who", ["text", "off"])
    async def test_an_operator_can_leave_the_model_out_of_it(self, who: str) -> None:
        site = Site(FakeEngine([f"{THINKING}{ANSWER}"]), settings=run_settings(reasoning_summaries=who))
        response = await site.ask(input="hi", **AUTO)
        assert len(site.engine.requests) == 1
        assert bool(output_of(response)[0]["summary"]) is (who == "text")

    async def test_it_is_held_to_no_grammar(self) -> None:
        reading = await Site().begin(input="hi")
        rules = TurnRules(must_call=True, calls=(CallRule("f"),))
        plan = replace(reading.run.plan, rules=RulesOfTurns(rules, rules))
        assert request_for(plan, Generate(1, aside=True)).grammar is None
        assert request_for(plan, Generate(1)).grammar is not None
        await reading.to_the_end()

    async def test_text_that_is_held_back_is_told_in_it_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("responses_app.protocol.response.turns.MIN_THOUGHT", 2)
        engine = FakeEngine([f"{THINKING}{ANSWER}", ["I ", "looked", ".<|return|>"], ANSWER])
        site = Site(engine, settings=run_settings(stream_delta_ms=50))
        response = await response_of(await site.begin(input="hi", **AUTO))
        output = response["output"]  # type: ignore[index]
        assert output[0]["summary"] == [{"type": "summary_text", "text": "I looked."}]


@pytest.mark.parametrize("said", [said for said, _ in SAID])
async def test_calls_of_every_kind_of_tool_come_back_as_they_were_sampled(said: str) -> None:
    fields = {**ENCRYPTED, "tools": TOOLS}
    owner = Site(FakeEngine([said, ANSWER]), sealer=sealer())
    first = await owner.ask(input="hi", **fields)
    items = output_of(first)
    kind = OUTPUTS[str(items[0]["type"])]
    output = {"type": kind, "call_id": items[0]["call_id"], "id": "x", "status": "completed", "output": "ok"}
    await owner.ask(input=[output], previous_response_id=first["id"], **fields)
    other = Site(sealer=sealer())
    await other.ask(input=[{"role": "user", "content": "hi"}, *as_input(items), output], store=False, **fields)
    assert other.engine.prompts[0] == owner.engine.prompts[1]
