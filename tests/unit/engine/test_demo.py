"""The demo engine: the contract, its options, and what it answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from threading import Semaphore

import pytest

from engine.backends.demo.arguments import Hints, make_argument, make_content, read_functions, read_hints
from engine.backends.demo.engine import DemoEngine, _rest_of_reply
from engine.backends.demo.replies import reply_to, reply_tokens
from engine.backends.demo.tools import DemoCall
from engine.backends.simulated import PromptTranscript
from engine.contents.derivations import derives
from engine.errors import EngineConfigurationError, EngineUnavailable
from engine.formats.base import ItemKind, MessageKind, RenderedMessage
from engine.formats.harmony.encoding import CALL, RETURN, decode_tokens, encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import (
    generation_start,
    render_assistant,
    render_call,
    render_text,
    render_tool_output,
)
from engine.types import FinishReason, Lark, Session
from responses_app.protocol.items.calls import CLIENT_KINDS
from responses_app.protocol.items.compaction import summary_message, summary_request
from responses_app.protocol.response.turns import SummaryTurns
from tests.contracts.engine import EngineContract, ask, assert_whole, collect, joined
from tests.unit.engine.grammars import APPLY_PATCH
from tests.unit.engine.prompts import answer, called, declare, prompt, users

HARMONY = HarmonyFormat()
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RICH = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The city: where {it} is\nand a line more"},
        "days": {"type": "integer", "default": 3},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "link": {"type": "string", "enum": ["https://example.org"]},
        "place": {
            "type": "object",
            "properties": {"latitude": {"type": "number"}, "note": {"type": ["string", "null"]}, "any": {}},
            "required": ["latitude"],
        },
        "tags": {"type": "array", "items": {"type": "string"}},
        "kinds": {"type": "array", "items": {"type": "string", "enum": ["rain", "snow"]}},
        "stops": {"type": "array", "items": {"type": "object", "properties": {"open": {"type": "boolean"}}}},
        "either": {"oneOf": [{"type": "number"}, {"type": "string"}], "description": "One of two"},
        "optional_list": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "days", "link", "place", "tags", "kinds", "stops", "either"],
}


class TestDemoEngineContract(EngineContract):
    @pytest.fixture
    def new_engine(self) -> DemoEngine:
        return DemoEngine(model="demo")

    def short_prompt(self) -> list[int]:
        return prompt("Hello")

    def long_prompt(self) -> list[int]:
        return prompt("count to 300")


class TestDemoEngineInChunksContract(TestDemoEngineContract):
    @pytest.fixture
    def new_engine(self) -> DemoEngine:
        return DemoEngine(model="demo", options={"chunk_tokens": 7, "tokens_per_second": 50_000, "max_model_len": 5000})

    async def test_aclose_ends_what_runs(self) -> None:  # type: ignore[override]
        slow = DemoEngine(model="demo", options={"chunk_tokens": 7, "tokens_per_second": 100})  # 7 s: it still runs
        await super().test_aclose_ends_what_runs(slow)

    async def test_only_the_last_chunk_has_a_finish_reason(self) -> None:  # type: ignore[override]
        # A reader that comes late gets all that is due in one chunk: with this one nobody is a second late.
        slow = DemoEngine(model="demo", options={"chunk_tokens": 7, "tokens_per_second": 1_000})
        await slow.start()
        await super().test_only_the_last_chunk_has_a_finish_reason(slow)


def call(token_ids: list[int]) -> tuple[str, object]:
    reply = reply_to(PromptTranscript(token_ids))
    assert isinstance(reply, DemoCall), reply
    return reply.name, json.loads(reply.arguments)


def test_it_goes_on_with_an_answer_that_was_cut() -> None:
    begun = [token for text in ("1 2 ", "3 ") for token in HARMONY.said(ItemKind.ANSWER, text).tokens]
    assert answer(prompt("count to 5", after=begun)) == "4 5"


def test_a_patch_that_it_makes_up_is_harmless() -> None:
    made = make_content(Lark(APPLY_PATCH), Hints("hi", 1))
    assert made == "*** Begin Patch\n*** Add File: example.txt\n+example\n*** End Patch"
    assert derives(APPLY_PATCH, made)
    deletes = 'start: "*** Begin Patch\\n*** Delete File: " /.+/ "\\n*** End Patch"'  # and cannot do anything else
    assert derives(deletes, make_content(Lark(deletes), Hints("hi", 1)))


class TestAnswers:
    def test_it_is_honest_and_counts_the_turns(self) -> None:
        past = [*users("One"), *encode_harmony("<|start|>assistant<|channel|>final<|message|>1<|end|>")]
        assert answer(prompt("Hello  there", before=past)) == (
            'This is the demo engine (no model is loaded). You said: "Hello there". '
            "This is user message 2 of this conversation."
        )

    def test_it_shortens_what_it_quotes(self) -> None:
        said = answer(prompt("word " * 50_000))
        assert "…" in said
        assert len(said) < 350

    def test_it_answers_without_a_user(self) -> None:
        assert "no user message" in answer(list(generation_start()))
        assert "no user message" in answer([])

    def test_it_sums_up_what_the_user_said_and_what_an_earlier_summary_says(self) -> None:
        asked = list(summary_request(HARMONY).tokens)
        said = answer([*users("One", "Two\n2"), *asked, *generation_start()])
        summary = 'Summary by the demo engine (no model is loaded).\n- The user said: "One"\n- The user said: "Two 2"'
        assert said == summary
        later = [*summary_message(HARMONY, said).tokens, *users("Three")]
        assert "behind a summary of 2 before" in answer([*later, *generation_start()])
        assert answer([*later, *asked, *generation_start()]) == f'{summary}\n- The user said: "Three"'

    def test_a_summary_is_bounded(self) -> None:
        said = answer([*users(*map(str, range(50))), *summary_request(HARMONY).tokens, *generation_start()])
        assert "(30 earlier messages are left out.)" in said
        assert said.endswith('"49"')

    def test_it_thinks_what_it_is_told_and_sums_that_up_behind_the_beginning_of_an_answer(self) -> None:
        asked = prompt("think: The bridge is out. We swim.")
        thought, _, answered = decode_tokens(reply_tokens(asked)).partition("<|end|>")
        assert thought == "<|channel|>analysis<|message|>The bridge is out. We swim."
        assert answered.endswith("The demo engine thought what it was told.<|return|>")
        said = HARMONY.said(ItemKind.REASONING, "The bridge is out. We swim.").tokens
        aside = SummaryTurns(HARMONY, "auto").begin(1, [RenderedMessage(MessageKind.ANALYSIS, said)])
        whole = [token for message in aside.said for token in message.tokens]
        before = [*asked[: -len(generation_start())], *whole, *generation_start(), *aside.sampled]
        summary = '**Thinking as told**\n\nThe demo engine thought: "The bridge is out. We swim."'
        rest = list(_rest_of_reply(before, None))
        assert decode_tokens(rest) == f"{summary}<|return|>"
        assert list(_rest_of_reply([*before, *rest[:7]], None)) == rest[7:], "also where it was cut"

    def test_it_thinks_and_then_answers_in_harmony(self) -> None:
        text = decode_tokens(reply_tokens(prompt("repeat: Hi")))
        thought = "The user wants a text repeated."
        assert text == (
            f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"
        )

    @pytest.mark.parametrize(
        "text", ["a\n  b ", "Zürich 東京 👩‍👩‍👧", "<|return|><|start|>user", "", "get_weather in Rome"]
    )
    def test_it_repeats_exactly(self, text: str) -> None:
        asked = prompt(f"repeat: {text}", before=declare(get_weather=WEATHER))
        assert answer(asked) == text
        assert reply_tokens(asked)[-1] == RETURN
        assert reply_tokens(asked).count(RETURN) == 1

    @pytest.mark.parametrize(
        ("asked", "last"), [("Please count to 12!", 12), ("count to 1,000", 1000), ("Count to 1", 1)]
    )
    def test_it_counts(self, asked: str, last: int) -> None:
        assert answer(prompt(asked)) == " ".join(map(str, range(1, last + 1)))

    @pytest.mark.parametrize("asked", ["count to 0", "count to 10001", "count to 99999999999999999999", "count to me"])
    def test_it_does_not_count_too_far(self, asked: str) -> None:
        assert "no model is loaded" in answer(prompt(asked))


class TestCalls:
    def test_it_calls_what_the_user_names(self) -> None:
        asked = prompt("Please call get_weather for Paris.", before=declare(get_weather=WEATHER))
        assert call(asked) == ("get_weather", {"city": "Paris"})
        tokens = reply_tokens(asked)
        assert tokens[-1] == CALL
        assert decode_tokens(tokens).endswith(
            "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
            '{"city": "Paris"}<|call|>'
        )

    def test_what_an_agent_reminds_the_model_of_is_not_the_users(self) -> None:
        reminder = "<system-reminder>\nUse get_weather for the weather.\n</system-reminder>\n"
        tools = declare(get_weather=WEATHER)
        assert answer(prompt(f"{reminder}count to 3", before=tools)) == "1 2 3"
        assert answer(prompt(f"count to 3\n{reminder}{reminder}", before=tools)) == "1 2 3"
        assert call(prompt(f"{reminder}call get_weather for Paris", before=tools)) == ("get_weather", {"city": "Paris"})

    def test_it_calls_one_a_turn_and_then_reports(self) -> None:
        tools = declare(get_weather=WEATHER, nop=None)
        text = "call get_weather for Paris and get_weather for Rome, then nop"
        done: list[int] = []
        for wanted in (("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"}), ("nop", {})):
            assert call(prompt(text, before=tools, after=done)) == wanted
            done += called(wanted[0], f"output {len(done)}")
        said = answer(prompt(text, before=tools, after=done))
        assert said.startswith("The demo engine called get_weather and it returned: output 0. It called get_weather")
        assert said.count("it returned") == 3

    def test_calls_before_the_last_user_message_do_not_count(self) -> None:
        before = [*declare(nop=None), *users("nop"), *called("nop", "done")]
        assert call(prompt("nop again", before=before)) == ("nop", {})

    def test_it_shortens_what_was_returned(self) -> None:
        said = answer(prompt("x", after=called("get-it.now", "<|call|>" + "long " * 1000)))
        assert said.startswith("The demo engine called get-it.now and it returned: <|call|>long")
        assert len(said) < 600

    def test_the_longest_name_wins_and_parts_of_words_do_not_count(self) -> None:
        tools = declare(**{"get": None, "get-weather": WEATHER, "a.get_x": None})
        assert call(prompt("use get-weather.", before=tools))[0] == "get-weather"
        assert call(prompt("use a.get_x, please", before=tools))[0] == "a.get_x"
        assert call(prompt("(get)", before=tools))[0] == "get"
        for text in ("forget it", "getting", "get.it", "a.get"):
            assert "no model" in answer(prompt(text, before=tools))

    def test_it_calls_nothing_that_is_not_declared(self) -> None:
        fake = "namespace functions {\n\ntype nop = () => any;\n\n}"
        assert "no model" in answer(prompt(f"{fake} nop"))
        assert "no model" in answer(prompt("nop", before=declare()))

    def test_a_developer_message_in_the_middle_hides_nothing(self) -> None:
        tools = declare(nop=None)
        late = list(render_text("developer", "Be brief.").tokens)
        assert call(prompt("nop", before=tools, after=late)) == ("nop", {})

    def test_it_does_not_call_after_its_own_answer(self) -> None:
        said = encode_harmony("<|start|>assistant<|channel|>final<|message|>Done<|end|>")
        assert "no model" in answer(prompt("nop", before=declare(nop=None), after=said))


class TestArguments:
    def test_it_fills_what_a_schema_declares(self) -> None:
        name, arguments = call(prompt('forecast for "New Delhi", 5 days', before=declare(forecast=RICH)))
        assert name == "forecast"
        assert isinstance(arguments, dict)
        assert (
            arguments.items()
            >= {
                "city": "New Delhi",
                "days": 5,
                "link": "https://example.org",
                "place": {"latitude": 5},
                "tags": ["New Delhi"],
                "kinds": ["rain"],
                "stops": [{"open": True}],
                "either": 5,
            }.items()
        )
        assert not arguments.keys() & {"unit", "optional_list"}

    def test_what_a_client_need_not_be_told_is_left_to_it(self) -> None:
        shell = declare(shell=json.loads(CLIENT_KINDS["shell"].shown))
        assert call(prompt("call shell 'ls'", before=shell)) == ("shell", {"commands": ["ls"]})
        optional = {"type": "object", "properties": {"city": {"type": "string"}, "any": {}}}
        assert call(prompt("forecast for Rome", before=declare(forecast=optional))) == ("forecast", {"city": "Rome"})

    @pytest.mark.parametrize(
        ("text", "string", "number"),
        [
            ("nothing", "example", 1),
            ("in New York at 7", "New York", 7),
            ("of “a thing” and -2.5 of it", "a thing", -2.5),
            ("it's 'so', isn't it?", "so", 1),
            ("for Zürich on 2026-11-20", "Zürich", 1),
            ("12345678901234567890", "example", 123456789012345),
        ],
    )
    def test_hints(self, text: str, string: str, number: float) -> None:
        hints = read_hints(text)
        assert (hints.string, hints.number) == (string, number)

    def test_the_text_nearest_to_the_mention_goes_first(self) -> None:
        tools = declare(get_weather=WEATHER)
        assert call(prompt("In Oslo: get_weather in Rome", before=tools)) == ("get_weather", {"city": "Rome"})
        assert call(prompt("How is it in Oslo? get_weather", before=tools)) == ("get_weather", {"city": "Oslo"})

    @pytest.mark.parametrize(
        "body",
        [
            "",
            "{",
            "}",
            "{\na",
            "{\na: ",
            "{\na: (",
            "{ : }",
            "{\n]]]]\n}",
            "{\na: {\nb: " * 40,
            "[][]",
            "| |",
            '{\na: "x',
        ],
    )
    def test_broken_declarations_do_no_harm(self, body: str) -> None:
        functions = read_functions(
            f"x\nnamespace functions {{\n\ntype broken = (_: {body}) => any;\n\ntype nop = () => any;\n"
        )
        assert [name for name, _ in functions] == ["broken", "nop"]
        for _, parameters in functions:
            json.dumps(make_argument(parameters, read_hints("")))


OpenDemo = Callable[..., Awaitable[DemoEngine]]


class TestEngine:
    @pytest.fixture
    async def open_demo(self) -> AsyncIterator[OpenDemo]:
        async with AsyncExitStack() as stack:

            async def open_one(options: Mapping[str, object] | None = None) -> DemoEngine:
                engine = DemoEngine(model="demo", options=options or {})
                await engine.start()
                stack.push_async_callback(engine.aclose)
                return engine

            yield open_one

    async def test_the_context_bounds_the_output(self) -> None:
        asked = prompt("count to 300")
        engine = DemoEngine(model="demo", options={"max_model_len": len(asked) + 10})
        assert (await engine.start()).max_model_len == len(asked) + 10
        chunks = await collect(engine, ask(asked, max_output_tokens=50))
        assert joined(chunks) == reply_tokens(asked)[:10]
        assert chunks[-1].finish_reason is FinishReason.LENGTH
        await engine.aclose()

    async def test_it_cuts_chunks_and_knows_no_cache(self, open_demo: OpenDemo) -> None:
        engine = await open_demo({"chunk_tokens": 8})
        chunks = await collect(engine, ask(prompt("count to 50")))
        assert {len(chunk.token_ids) for chunk in chunks[:-1]} == {8}
        assert chunks[-1].cached_tokens == 0
        assert_whole(chunks)

    async def test_the_loop_runs_between_chunks(self, open_demo: OpenDemo) -> None:
        engine = await open_demo()
        order: list[str] = []

        async def read(name: str) -> None:
            async for _ in engine.generate(ask(prompt("count to 20"))):
                order.append(name)

        await asyncio.gather(read("a"), read("b"))
        assert order == ["a", "b"] * (len(order) // 2)

    async def test_of_each_project_one_long_prompt_is_read_at_once(
        self, open_demo: OpenDemo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Released for each prompt that begins to be read, and for each that may be read to its end.
        begun, go_on, lengths = Semaphore(0), Semaphore(0), list[int]()

        def read(token_ids: Sequence[int], *_: object) -> list[int]:
            lengths.append(len(token_ids))
            begun.release()
            go_on.acquire()
            return [RETURN]

        monkeypatch.setattr("engine.backends.demo.engine._rest_of_reply", read)
        demo = await open_demo()
        flood, other = prompt("word " * 2000), prompt("word " * 3000)
        requests = [replace(ask(flood), session=Session(project="flood")) for _ in range(3)]
        requests.append(replace(ask(other), session=Session(project="other")))
        try:
            tasks = [asyncio.create_task(collect(demo, request)) for request in requests]
            for _ in range(2):
                await asyncio.to_thread(begun.acquire)
            assert sorted(lengths) == [len(flood), len(other)]
        finally:
            go_on.release(len(requests))
        await asyncio.gather(*tasks)
        assert sorted(lengths) == [*[len(flood)] * 3, len(other)]

    @pytest.mark.parametrize(("options", "at_once"), [({}, 8), ({"tokens_per_second": 200}, 0)])
    async def test_answers_without_a_pace_take_turns(self, options: dict[str, object], at_once: int) -> None:
        engine = DemoEngine(model="demo", options=options)
        assert (await engine.start()).at_once == at_once
        await engine.aclose()

    async def test_it_keeps_its_pace(self, open_demo: OpenDemo) -> None:
        engine = await open_demo({"tokens_per_second": 200})
        began = asyncio.get_running_loop().time()
        await collect(engine, ask(prompt("x"), max_output_tokens=20))
        assert asyncio.get_running_loop().time() - began >= 0.09

    async def test_what_is_due_comes_in_one_chunk(self, open_demo: OpenDemo) -> None:
        engine = await open_demo({"tokens_per_second": 1000})
        chunks = []
        async with aclosing(engine.generate(ask(prompt("count to 200"), max_output_tokens=100))) as generation:
            async for chunk in generation:
                chunks.append(chunk)
                await asyncio.sleep(0.02)
        sizes = [len(chunk.token_ids) for chunk in chunks]
        assert sum(sizes) == 100
        assert max(sizes) >= 10, "20 tokens are due while the reader does something else"
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason is not None

    async def test_closing_ends_a_slow_start(self) -> None:
        slow = DemoEngine(model="demo", options={"start_seconds": 3600})
        starting = asyncio.create_task(slow.start())
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailable, match="not started"):
            await slow.health()
        await slow.aclose()
        with pytest.raises(EngineUnavailable, match="closed"):
            await starting

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"speed": 1}, "does not know 'speed'; it knows chunk_tokens, max_model_len, sees, start_seconds"),
            ({"tokens_per_second": 0}, "tokens_per_second to be a number above 0, not 0"),
            ({"tokens_per_second": "fast"}, "tokens_per_second to be a number, not 'fast'"),
            ({"tokens_per_second": float("nan")}, "tokens_per_second to be a number, not nan"),
            ({"tokens_per_second": True}, "tokens_per_second to be a number, not True"),
            ({"chunk_tokens": 0}, "chunk_tokens to be a whole number of 1 or more, not 0"),
            ({"chunk_tokens": 1.5}, "chunk_tokens to be a whole number of 1 or more, not 1.5"),
            ({"chunk_tokens": True}, "chunk_tokens to be a whole number"),
            ({"max_model_len": 1}, "max_model_len to be a whole number of 2 or more, not 1"),
            ({"start_seconds": -1}, "start_seconds to be a number of 0 or more, not -1"),
            ({"start_seconds": "x" * 500}, "start_seconds to be a number, not 'x+…"),
        ],
    )
    async def test_wrong_options_are_said(self, options: dict[str, object], message: str) -> None:
        engine = DemoEngine(model="demo", options=options)
        with pytest.raises(EngineConfigurationError, match=rf"^The demo engine .*{message}"):
            engine.check()
        with pytest.raises(EngineConfigurationError):
            await engine.start()

    def test_right_options_are_taken(self) -> None:
        DemoEngine(model="demo").check()
        options = {"tokens_per_second": 0.5, "chunk_tokens": 3, "max_model_len": 4096, "start_seconds": None}
        DemoEngine(model="demo", options=options).check()


REPEATED = "call lookup and then store"


@pytest.mark.parametrize("place", ["before the output", "behind the output", "with the call"])
def test_a_message_that_comes_again_with_the_outputs_calls_nothing_again(place: str) -> None:
    functions = declare(lookup=None, store=None)
    tokens = [*functions, *users(REPEATED)]
    made: list[str] = []
    for _ in range(5):
        reply = reply_to(PromptTranscript([*tokens, *generation_start()]))
        if not isinstance(reply, DemoCall):
            break
        made.append(reply.name)
        call = list(render_call(f"functions.{reply.name}", "{}").tokens)
        output = list(render_tool_output(f"functions.{reply.name}", f"{reply.name} is done").tokens)
        again = users(REPEATED)
        tokens += {
            "before the output": [*call, *again, *output],
            "behind the output": [*call, *output, *again],
            "with the call": [*call, *again, *call, *output],
        }[place]
    assert made == ["lookup", "store"]
    said = answer([*tokens, *generation_start()])
    assert "called lookup and it returned: lookup is done." in said
    assert "called store and it returned: store is done." in said


def test_the_same_message_behind_an_answer_is_a_new_turn() -> None:
    answered = list(render_assistant("final", "Done.").tokens)
    tokens = [*declare(lookup=None), *users(REPEATED), *called("lookup", "a"), *answered, *users(REPEATED)]
    reply = reply_to(PromptTranscript([*tokens, *generation_start()]))
    assert isinstance(reply, DemoCall)
    assert reply.name == "lookup"
