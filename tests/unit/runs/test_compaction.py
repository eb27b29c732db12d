"""Compaction in a run: on request, by a trigger, and before an answer that would have too long a prompt."""

import pytest

from engine.errors import EngineOverloaded
from engine.formats.harmony.encoding import END, decode_tokens, encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import generation_start, render_text, render_tool_output
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.compaction import REQUEST, UNREADABLE, summary_message
from responses_app.protocol.requests.requests import parse_create
from responses_app.runs.plan.plan import Origin
from tests.kit.fakes import ANSWER, CALL_F, THOUGHT, TOOL_F, FakeEngine, Site
from tests.unit.runs.readers import converse, refused, response_of

HARMONY = HarmonyFormat()
SUMMARY = "They greet each other."
SUMS_UP = f"{THOUGHT}<|channel|>final<|message|>{SUMMARY}<|return|>"
TRIGGER: JsonObject = {"type": "compaction_trigger"}
FROM_1000: JsonObject = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
LONG = "word " * 1200


def rendered(text: str = SUMMARY) -> list[int]:
    return list(summary_message(HARMONY, text).tokens)


def user(text: str) -> list[int]:
    return list(render_text("user", text).tokens)


def sampled(text: str = ANSWER) -> list[int]:
    return [*generation_start(), *encode_harmony(text)[:-1], END]


def chain(prompt: list[int]) -> list[int]:
    """Return a prompt without its system message and without `<|start|>assistant`."""
    start = list(generation_start())
    assert prompt[-len(start) :] == start
    return prompt[prompt.index(END) + 1 : -len(start)]


async def compaction_of(site: Site, **fields: object) -> JsonObject:
    response = await site.ask(**fields)
    (item,) = response["output"]  # type: ignore[misc]
    assert item["type"] == "compaction"
    return dict(item)


class TestTrigger:
    async def test_the_whole_output_is_one_compaction(self) -> None:
        site = Site(FakeEngine([SUMS_UP]))
        events = await site.events(input=[{"role": "user", "content": "hi"}, TRIGGER], tools=[TOOL_F])
        assert [str(event["type"]).removeprefix("response.") for event in events] == [
            "created",
            "in_progress",
            "output_item.added",
            "compaction.compacting",
            "output_item.done",
            "completed",
        ]
        (item,) = events[-1]["response"]["output"]  # type: ignore[index]
        assert set(item) == {"id", "type", "encrypted_content"}
        assert item["id"].startswith("cmp_")
        assert SUMMARY not in str(events)

    async def test_the_model_is_asked_with_low_effort_and_no_tools_and_bounded(self) -> None:
        site = Site(FakeEngine([SUMS_UP], max_model_len=10_000))
        asked = [{"role": "user", "content": "hi"}, TRIGGER]
        await site.ask(input=asked, tools=[TOOL_F], instructions="Rhyme.", reasoning={"effort": "high"})
        prompt = site.engine.prompts[0]
        text = decode_tokens(prompt)
        assert "Reasoning: low" in text
        assert "namespace functions" not in text
        assert "Rhyme." in text
        assert chain(prompt)[-len(user("hi")) - len(user(REQUEST)) :] == [*user("hi"), *user(REQUEST)]
        assert site.engine.requests[0].sampling.max_output_tokens == 1250

    async def test_it_sums_up_a_chain_and_begins_a_new_one(self) -> None:
        site = Site(FakeEngine([ANSWER, SUMS_UP, ANSWER, ANSWER]))
        first = await site.ask(input="one")
        second = await site.ask(input=[TRIGGER], previous_response_id=first["id"])
        assert chain(site.engine.prompts[1]) == [*user("one"), *sampled(), *user(REQUEST)]
        third = await site.ask(input="two", previous_response_id=second["id"])
        assert chain(site.engine.prompts[2]) == [*rendered(), *user("two")]
        await site.ask(input="three", previous_response_id=third["id"])
        assert chain(site.engine.prompts[3]) == [*rendered(), *user("two"), *sampled(), *user("three")]

    async def test_the_item_can_be_sent_back_or_named(self) -> None:
        site = Site(FakeEngine([SUMS_UP, ANSWER]))
        item = await compaction_of(site, input=[{"role": "user", "content": "hi"}, TRIGGER])
        for sent in (item, {"type": "item_reference", "id": item["id"]}):
            await site.ask(input=[{"role": "developer", "content": "Be kind."}, sent, {"role": "user", "content": "x"}])
            told = list(render_text("developer", "Be kind.").tokens)
            assert chain(site.engine.prompts[-1]) == [*told, *rendered(), *user("x")]

    async def test_an_item_that_was_changed_or_is_of_another_project_is_refused(self) -> None:
        site = Site(FakeEngine([SUMS_UP]))
        item = await compaction_of(site, input=[{"role": "user", "content": "hi"}, TRIGGER])
        content = str(item["encrypted_content"])
        changed = content[:40] + ("A" if content[40] != "A" else "B") + content[41:]
        for project, sent in (("other", item), ("default", {**item, "encrypted_content": changed})):
            error = await site.refusal(project=project, input=[{"role": "user", "content": "x"}, sent])
            assert (error.status, error.code) == (400, "invalid_encrypted_content")
            assert error.param == "input[1].encrypted_content"
            assert content[10:30] not in error.message

    async def test_the_engine_may_fail(self) -> None:
        site = Site(FakeEngine([["<|channel|>final<|message|>They", EngineOverloaded("full", retry_after=1)]]))
        events = await site.events(input=[{"role": "user", "content": "hi"}, TRIGGER])
        assert events[-1]["type"] == "response.failed"
        assert "output_item.done" not in str(events)

    async def test_what_does_not_fit_is_left_out_oldest_first(self) -> None:
        site = Site(FakeEngine([ANSWER, CALL_F, SUMS_UP], max_model_len=2000))
        first = await site.ask(input="old " * 1400)
        second = await site.ask(input="new", previous_response_id=first["id"], tools=[TOOL_F])
        await site.ask(input=[TRIGGER], previous_response_id=second["id"])
        text = decode_tokens(site.engine.prompts[2])
        assert "old old" not in text
        assert "<|message|>new<|end|>" in text
        assert "functions.f" in text

    @pytest.mark.parametrize(
        ("input", "param", "code"),
        [
            ([TRIGGER], "input", "invalid_value"),
            ([TRIGGER, {"role": "user", "content": "x"}], "input[0]", "invalid_value"),
            ([{"role": "user", "content": "old " * 3000}, TRIGGER], "input", "context_length_exceeded"),
        ],
    )
    async def test_refusals(self, input: list[JsonObject], param: str, code: str) -> None:
        error = await Site(FakeEngine(max_model_len=2000)).refusal(input=input)
        assert (error.status, error.param, error.code) == (400, param, code)


class TestInLine:
    async def test_below_the_threshold_nothing_happens(self) -> None:
        site = Site(FakeEngine([ANSWER]))
        first = await site.ask(input="one", **FROM_1000)
        response = await site.ask(input="two", previous_response_id=first["id"], **FROM_1000)
        assert [item["type"] for item in response["output"]] == ["message"]  # type: ignore[index, attr-defined]
        assert len(site.engine.requests) == 2

    async def test_what_came_before_is_summed_up_and_the_new_input_answered(self) -> None:
        site = Site(FakeEngine([ANSWER, SUMS_UP, ANSWER, ANSWER]))
        first = await site.ask(input=LONG)
        reading = await site.begin(input="two", previous_response_id=first["id"], tools=[TOOL_F], **FROM_1000)
        response = await response_of(reading)
        assert [item["type"] for item in response["output"]] == ["compaction", "message"]  # type: ignore[index]
        assert chain(site.engine.prompts[1]) == [*user(LONG), *sampled(), *user(REQUEST)]
        answered = site.engine.prompts[2]
        assert answered[-len(rendered()) - len(user("two")) - 2 :] == [*rendered(), *user("two"), *generation_start()]
        assert "namespace functions" in decode_tokens(answered)
        assert reading.run.link.parent is None
        await site.ask(input="three", previous_response_id=response["id"])  # type: ignore[index]
        assert chain(site.engine.prompts[3]) == [*rendered(), *user("two"), *sampled(), *user("three")]

    @pytest.mark.parametrize("pruned", [True, False])
    async def test_who_replays_the_items_gets_the_same_prompt_as_who_names_the_response(self, pruned: bool) -> None:
        site = Site(FakeEngine([ANSWER, SUMS_UP, ANSWER, ANSWER]))
        first = await site.ask(input=LONG)
        history = [{"role": "user", "content": LONG}, *first["output"], {"role": "user", "content": "two"}]  # type: ignore[misc]
        second = await site.ask(input=history, store=False, **FROM_1000)
        assert [item["type"] for item in second["output"]] == ["compaction", "message"]  # type: ignore[index, attr-defined]
        assert chain(site.engine.prompts[2]) == [*rendered(), *user("two")]
        replayed = [*([] if pruned else history), *second["output"], {"role": "user", "content": "three"}]  # type: ignore[misc]
        await site.ask(input=replayed, store=False, **FROM_1000)
        assert len(site.engine.prompts) == 4
        assert chain(site.engine.prompts[3]) == [*rendered(), *user("two"), *sampled(), *user("three")]

    @pytest.mark.parametrize("replays", [True, False])
    async def test_a_call_stays_with_its_output(self, replays: bool) -> None:
        site = Site(FakeEngine([CALL_F, SUMS_UP, ANSWER]))
        first = await site.ask(input=LONG, tools=[TOOL_F])
        call = first["output"][-1]  # type: ignore[index]
        output: JsonObject = {"type": "function_call_output", "call_id": call["call_id"], "output": "it is 1"}
        if replays:
            history = [{"role": "user", "content": LONG}, *first["output"], output]  # type: ignore[misc]
            await site.ask(input=history, tools=[TOOL_F], store=False, **FROM_1000)
        else:
            await site.ask(input=[output], tools=[TOOL_F], previous_response_id=first["id"], **FROM_1000)
        told = list(render_tool_output("functions.f", "it is 1").tokens)
        kept = [*rendered(), *generation_start(), *encode_harmony(CALL_F), *told]
        assert site.engine.prompts[2][-len(kept) - 2 :] == [*kept, *generation_start()]

    async def test_a_first_request_is_never_compacted(self) -> None:
        site = Site(FakeEngine([ANSWER]))
        response = await site.ask(input=LONG, **FROM_1000)
        assert [item["type"] for item in response["output"]] == ["message"]  # type: ignore[index, attr-defined]

    async def test_a_prompt_that_would_not_fit_is_compacted_below_the_threshold_too(self) -> None:
        site = Site(FakeEngine([ANSWER, SUMS_UP, ANSWER], max_model_len=2000))
        first = await site.ask(input=LONG)
        fields = {"context_management": [{"type": "compaction", "compact_threshold": 100_000}]}
        await site.ask(input="more " * 1000, previous_response_id=first["id"], **fields)
        assert chain(site.engine.prompts[2]) == [*rendered(), *user("more " * 1000)]

    async def test_a_failed_summary_fails_the_response(self) -> None:
        site = Site(FakeEngine([ANSWER, "<|return|>"]))
        first = await site.ask(input=LONG)
        response = await site.ask(input="two", previous_response_id=first["id"], **FROM_1000)
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")  # type: ignore[index]

    async def test_a_summary_that_is_longer_than_asked_for_fails_the_response(self) -> None:
        too_long = f"<|channel|>final<|message|>{'much ' * 3000}<|return|>"
        site = Site(FakeEngine([ANSWER, too_long], max_model_len=2000))
        first = await site.ask(input=LONG)
        response = await response_of(await site.begin(input="two", previous_response_id=first["id"], **FROM_1000))
        assert response["error"]["code"] == "invalid_prompt"  # type: ignore[index]

    async def test_what_would_leave_no_room_for_an_answer_is_not_compacted(self) -> None:
        site = Site(FakeEngine([ANSWER], max_model_len=2000))
        first = await site.ask(input=LONG)
        error = await site.refusal(input="more " * 1500, previous_response_id=first["id"], **FROM_1000)
        assert error.code == "context_length_exceeded"

    async def test_a_warm_up_does_not_compact(self) -> None:
        site = Site(FakeEngine([ANSWER]))
        first = await site.ask(input=LONG)
        response = await site.ask(input="two", previous_response_id=first["id"], generate=False, **FROM_1000)
        assert response["output"] == []


@pytest.mark.usefixtures("conversations")
class TestConversations:
    async def test_a_broken_one_is_a_note(self, caplog: pytest.LogCaptureFixture, site: Site) -> None:
        broken: JsonObject = {"id": "cmp_1", "type": "compaction", "encrypted_content": "AAAA"}
        await converse(site, broken)
        response = await site.ask(input="hi", conversation="conv_1")
        assert response["status"] == "completed"
        assert chain(site.engine.prompts[0]) == [*rendered(UNREADABLE), *user("hi")]
        assert "cmp_1" in caplog.text

    async def test_a_trigger_is_not_kept(self) -> None:
        site = Site(FakeEngine([SUMS_UP]))
        await converse(site)
        await site.ask(input=[{"role": "user", "content": "hi"}, TRIGGER], conversation="conv_1")
        append = site.store.saved[0].conversation
        assert [item["type"] for item in append.items] == ["message", "compaction"]


class TestCounting:
    async def count(self, site: Site, **fields: object) -> int:
        return await site.service.count_input_tokens(parse_create(fields), Origin(transport="test", project="default"))

    async def test_it_counts_what_is_too_long(self) -> None:
        site = Site(FakeEngine(max_model_len=1000))
        assert await self.count(site, input="word " * 5000) > 5000
        assert (await site.refusal(input="word " * 5000)).code == "context_length_exceeded"

    async def test_it_refuses_what_cannot_be_enforced(self) -> None:
        schema = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
        fields = {"input": "hi", "text": {"format": schema}}  # this engine holds a model to nothing
        site = Site(FakeEngine())
        assert (await refused(self.count(site, **fields))).message == (await site.refusal(**fields)).message

    async def test_truncation_counts_as_it_runs(self) -> None:
        site = Site(FakeEngine(max_model_len=2000))
        first = await site.ask(input=LONG)
        fields = {"input": "new " * 1000, "previous_response_id": first["id"], "truncation": "auto"}
        counted = await self.count(site, **fields)
        assert counted == (await site.ask(**fields))["usage"]["input_tokens"]  # type: ignore[index]
