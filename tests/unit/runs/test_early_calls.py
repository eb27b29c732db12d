"""Calls that only read begin before they are asked for; nobody but the clock can tell that they did."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.errors import EngineUnavailable, GenerationCut
from engine.types import FinishReason, GenerationRequest, TokenChunk
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import OutputGiven, StopReason
from responses_app.runs.driving import early, generating
from responses_app.runs.plan.served import MAX_EARLY, MAX_EARLY_OF_PROJECT, EarlyRoom
from responses_app.stores.base import AcceptedResponse
from responses_app.tools.base import ToolCall
from tests.kit.fakes import ANSWER, TOOL_F, FakeEngine, Reading, Site, run_settings
from tests.kit.laws import assert_laws
from tests.kit.waiting import eventually
from tests.unit.formats.families import QWEN
from tests.unit.formats.rendering import format_of
from tests.unit.formats.test_chat_template import FamilyEngine
from tests.unit.runs.early import WIKI, OnwardSite, Wiki, read, turn, write
from tests.unit.runs.readers import id_of, response_of
from tests.unit.runs.test_programs import PROGRAM, PROGRAMS, Programs, wiki
from tests.unit.runs.test_takeover import left_at, taken_over

TOOLS = [WIKI]
DONE = turn("Done.")
THREE = [turn(read("a"), read("b"), read("c")), turn(read("b"), read("c")), turn(read("c")), DONE]


@pytest.fixture
def tool() -> Wiki:
    return Wiki()


def texts(events: Sequence[JsonObject]) -> list[object]:
    """Return what the calls of a response gave back."""
    response = events[-1]["response"]
    return [item.get("output") for item in response["output"] if item["type"] == "mcp_call"]


async def ahead(
    turns: Sequence[str], *, held: str = "a", tools: Sequence[JsonObject] = TOOLS, **options: Any
) -> tuple[Wiki, OnwardSite, Reading]:
    """Begin a response whose read of "a" waits until two calls have begun; others that are `held` never end."""
    tool = Wiki()
    tool.holds = {name: asyncio.Event() for name in held}
    site = OnwardSite(turns, tool)
    reading = await site.begin(input="hi", tools=tools, **options)
    await eventually(lambda: len(tool.calls) == 2)
    tool.holds["a"].set()
    return tool, site, reading


# What the model goes on to write.


async def test_calls_that_the_model_goes_on_to_write_run_beside_the_first() -> None:
    tool, held = Wiki(), asyncio.Event()
    tool.holds = dict.fromkeys("abc", held)
    site = OnwardSite(THREE, tool)
    reading = await site.begin(input="hi", tools=TOOLS)
    await eventually(lambda: tool.running == 3)
    held.set()
    events = await reading.to_the_end()
    assert texts(events) == ["a behind []", "b behind []", "c behind []"]
    assert sorted(tool.calls) == [("read", "a"), ("read", "b"), ("read", "c")], "each is made once"
    assert (site.count("used"), site.count("unused"), site.count("failed")) == (2, 0, 0)
    (guess,) = site.engine.guesses
    assert bytes(list(guess.prompt_token_ids)).decode().endswith("Assistant: server.wiki.read(a)\n")


@pytest.mark.parametrize("setting", ["off", "known"])
async def test_nothing_is_guessed_where_that_is_not_wanted(setting: str, tool: Wiki) -> None:
    site = OnwardSite(THREE, tool, setting)
    events = await site.events(tools=TOOLS)
    assert len(texts(events)) == 3
    assert (tool.most, site.engine.guesses) == (1, [])


@pytest.mark.parametrize(
    ("turns", "fields", "begun"),
    [
        ([turn(write("a"), read("b")), DONE], {}, [("write", "a")]),
        ([turn(read("a"), write("b"), read("c")), DONE], {}, [("read", "a")]),
        ([turn(read("a"), "server.wiki.ask(b)", read("c")), DONE], {}, [("read", "a")]),
        ([turn(read("a"), "I say:", read("c")), DONE], {}, [("read", "a")]),
        ([turn(read("a"), read("b")), DONE], {"max_tool_calls": 1}, [("read", "a")]),
        ([turn(read("a"), read("b")), DONE], {"parallel_tool_calls": False}, [("read", "a")]),
        ([turn("f(1)", read("a"), read("b")), DONE], {"tools": [WIKI, TOOL_F]}, [("read", "a")]),
        ([turn(read("a")), DONE], {}, [("read", "a")]),
    ],
    ids=["behind a write", "a write", "an approval", "a text", "max_tool_calls", "one a turn", "the client's", "alone"],
)
async def test_what_never_begins_early(
    turns: list[str], fields: dict[str, object], begun: list[tuple[str, str]], tool: Wiki
) -> None:
    site = OnwardSite(turns, tool)
    await site.events(**{"tools": TOOLS, **fields})
    assert tool.calls == begun


async def test_what_is_not_asked_for_is_cancelled_and_not_recorded() -> None:
    tool, site, reading = await ahead([turn(read("a"), read("b")), turn(read("other")), DONE], held="ab")
    events = await reading.to_the_end()
    assert texts(events) == ["a behind []", "other behind []"]
    await eventually(lambda: tool.running == 0)
    assert (tool.cancelled, site.count("unused")) == (1, 1)
    assert "'b" not in str(list(decode(site.store.saved[0].log)))


async def test_a_write_makes_what_was_read_before_it_worthless() -> None:
    tool, _, reading = await ahead([turn(read("a"), read("b")), turn(write("x")), turn(read("b")), DONE])
    events = await reading.to_the_end()
    assert texts(events) == ["a behind []", "done", "b behind ['x']"]
    assert tool.calls.count(("read", "b")) == 2
    assert tool.written == ["x"]


async def test_so_does_an_output_of_the_client() -> None:
    turns = [turn(read("a"), read("b")), turn("f(1)"), turn(read("b")), DONE]
    tool, _, reading = await ahead(turns, tools=[WIKI, TOOL_F], awaits_tools=True)
    await eventually(lambda: reading.run.waits)
    tool.written.append("by the client")
    (call,) = [item for item in reading.run.response()["output"] if item["type"] == "function_call"]
    reading.run.take_outputs([OutputGiven(str(call["call_id"]), "1", "1")])
    events = await reading.to_the_end()
    assert texts(events)[-1] == "b behind ['by the client']"


async def test_what_is_too_old_is_read_again(monkeypatch: pytest.MonkeyPatch, tool: Wiki) -> None:
    monkeypatch.setattr(early, "FRESH_SECONDS", 0.0)
    site = OnwardSite([turn(read("a"), read("b")), turn(read("b")), DONE], tool)
    events = await site.events(tools=TOOLS)
    assert texts(events) == ["a behind []", "b behind []"]
    assert (tool.calls.count(("read", "b")), site.count("used")) == (2, 0)


async def test_what_failed_is_called_again(tool: Wiki) -> None:
    tool.holds["a"] = asyncio.Event()
    site = OnwardSite([turn(read("a"), read("bad")), turn(read("bad")), DONE], tool)
    reading = await site.begin(input="hi", tools=TOOLS)
    await eventually(lambda: len(tool.calls) == 2 and tool.running == 1)
    tool.holds["a"].set()
    events = await reading.to_the_end()
    failed = [item for item in events[-1]["response"]["output"] if item["type"] == "mcp_call"][1]  # type: ignore[index]
    assert failed["error"]["content"][0]["text"] == "Error: no bad"
    assert (tool.calls.count(("read", "bad")), site.count("failed")) == (2, 1)


async def test_reports_are_told_once_the_call_is_asked_for() -> None:
    turns = [turn(read("a"), read("long")), turn(read("long")), DONE]
    plain, early_ = [await OnwardSite(turns, Wiki(), setting).events(tools=TOOLS) for setting in ("off", "predicted")]
    assert early_ == plain


async def test_a_tool_that_reports_too_much_is_called_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "MAX_REPORTS", 0)
    tool = Wiki()
    tool.holds["a"] = asyncio.Event()
    site = OnwardSite([turn(read("a"), read("long")), turn(read("long")), DONE], tool)
    reading = await site.begin(input="hi", tools=TOOLS)
    await eventually(lambda: tool.cancelled == 1)
    tool.holds["a"].set()
    assert texts(await reading.to_the_end()) == ["a behind []", "long behind []"]


@pytest.mark.parametrize("problem", [EngineUnavailable("away"), ValueError("broken")], ids=["away", "broken"])
async def test_an_engine_that_does_not_guess_changes_nothing(problem: Exception) -> None:
    site = OnwardSite(THREE, Wiki())
    site.engine.guess_fails = problem
    assert len(texts(await site.events(tools=TOOLS))) == 3
    assert len(site.engine.guesses) == 2


async def test_a_turn_that_cannot_be_read_again_is_not_guessed_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_badly(*_: object) -> bool:
        raise ValueError("broken")

    monkeypatch.setattr(generating._CallReader, "read", read_badly)
    site = OnwardSite(THREE, Wiki())
    assert len(texts(await site.events(tools=TOOLS))) == 3
    assert site.engine.guesses == []
    assert "its guess broke" in caplog.text


async def test_nobody_guesses_while_others_wait_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    tool, gate = Wiki(), asyncio.Event()
    site = OnwardSite(THREE, tool, max_running=1)
    generate = site.engine.generate

    async def gated(request: GenerationRequest) -> AsyncIterator[TokenChunk]:
        await gate.wait()
        async for chunk in generate(request):
            yield chunk

    monkeypatch.setattr(site.engine, "generate", gated)
    reading = await site.begin(input="hi", tools=TOOLS)
    await eventually(lambda: site.turns.running == 1)
    other = site.turns.place("other", "default", 0)
    assert not other.ask()
    gate.set()
    await eventually(lambda: site.turns.waiting["default"] == 1 and tool.calls == [("read", "a")])
    assert site.engine.guesses == []
    other.leave()
    assert len(texts(await reading.to_the_end())) == 3


async def test_a_guess_goes_on_behind_a_turn_that_was_cut(monkeypatch: pytest.MonkeyPatch, tool: Wiki) -> None:
    tool.holds["a"] = asyncio.Event()
    site = OnwardSite(THREE, tool)
    whole = site.engine.generate

    async def cut_once(request: GenerationRequest) -> AsyncIterator[TokenChunk]:
        first = not site.engine.requests
        count = 0
        async for chunk in whole(request):
            yield chunk
            count += 1
            if first and count == 5:
                raise GenerationCut("gone")

    monkeypatch.setattr(site.engine, "generate", cut_once)
    reading = await site.begin(input="hi", tools=TOOLS)
    await eventually(lambda: len(tool.calls) == 3)
    tool.holds["a"].set()
    assert len(texts(await reading.to_the_end())) == 3


async def test_a_turn_that_is_cut_and_says_something_else_then_gets_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tool: Wiki
) -> None:
    site = OnwardSite([turn(read("a"), read("b")), turn(read("b")), DONE], tool)
    whole, cut = site.engine.generate, asyncio.Event()

    async def other_behind_a_cut(request: GenerationRequest) -> AsyncIterator[TokenChunk]:
        count = 0
        async for chunk in whole(request):
            yield chunk
            count += 1
            if request.request_id.endswith("-1") and count == len("server.wiki.read(") and not cut.is_set():
                cut.set()
                site.engine.turns[1] = [turn(read("z"))]
                raise GenerationCut("gone")

    monkeypatch.setattr(site.engine, "generate", other_behind_a_cut)
    events = await site.events(tools=TOOLS)
    assert cut.is_set()
    assert texts(events) == ["a behind []", "z behind []"]
    assert (site.count("used"), site.count("unused")) == (0, 1)


async def test_a_family_of_models_that_writes_several_calls_in_a_turn() -> None:
    def call(what: str) -> str:
        return f'<tool_call>\n{{"name": "wiki.read", "arguments": {{"q": "{what}"}}}}\n</tool_call>'

    model_format, renderer = format_of(QWEN)
    tool, held = Wiki(), asyncio.Event()
    tool.holds = {f'{{"q": "{what}"}}': held for what in "abc"}
    first = [call("a"), "\n<tool_call>", call("b").removeprefix("<tool_call>"), "\n", call("c"), QWEN.end]
    turns = [first, ["".join(first[1:3]), "\n", call("c"), QWEN.end], [call("c"), QWEN.end], [f"Done.{QWEN.end}"]]
    engine = TurnEngine(QWEN, renderer, tuple(turns))
    settings_ = run_settings(server_tool_early="predicted")
    site = Site(engine, settings=settings_, model_format=model_format, tools=[tool])
    reading = await site.begin(input="hi", tools=TOOLS)
    await eventually(lambda: tool.running == 3)
    held.set()
    assert len(texts(await reading.to_the_end())) == 3
    assert len(tool.calls) == 3


class TurnEngine(FamilyEngine):
    """Gives the pieces of a turn that its prompt does not end with."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenChunk]:  # type: ignore[override]
        number = int(re.findall(r"-(\d+)", request.request_id)[-1])
        pieces = [self.encode(str(piece)) for piece in self.turns[number]]
        prompt = list(request.prompt_token_ids)
        if request.request_id.endswith("-early"):
            whole = [list(chain.from_iterable(pieces[:count])) for count in range(len(pieces))]
            said = max(count for count, tokens in enumerate(whole) if prompt[len(prompt) - len(tokens) :] == tokens)
            pieces = pieces[said:]
        for piece in pieces:
            yield TokenChunk(token_ids=piece, finish_reason=FinishReason.STOP if piece is pieces[-1] else None)
            await asyncio.sleep(0)


# Bounds and owners.


async def test_a_response_begins_so_many_and_a_worker_so_many(monkeypatch: pytest.MonkeyPatch, tool: Wiki) -> None:
    monkeypatch.setattr(early, "MAX_EARLY", 2)
    names = [f"p{number}" for number in range(6)]
    tool.holds.update({name: asyncio.Event() for name in names})
    site = OnwardSite([turn(*map(read, names)), DONE], tool)
    reading = await site.begin(input="hi", tools=TOOLS)
    await eventually(lambda: site.engine.running == 0 and len(tool.calls) == 3)
    model = site.service.machines.models.first
    with_room = 0
    while model.early.take("default"):
        with_room += 1
    assert with_room == MAX_EARLY_OF_PROJECT - 2
    second = await site.begin(input="hi", tools=TOOLS)
    await eventually(lambda: len(tool.calls) == 4 and site.engine.running == 0)
    for run in (reading.run, second.run):
        site.registry.cancel(run, reason="a test")
    await reading.to_the_end()
    await second.to_the_end()
    await eventually(lambda: not site.registry.running)
    assert (tool.running, tool.cancelled) == (0, 4)
    assert model.early.take("default"), "room is given back"
    assert model.early.take("default")
    assert not model.early.take("default")


def test_no_project_takes_the_room_of_all_others() -> None:
    room = EarlyRoom()
    assert sum(room.take("one") for _ in range(2 * MAX_EARLY)) == MAX_EARLY_OF_PROJECT
    assert room.take("two")
    assert sum(room.take(f"project {number}") for number in range(MAX_EARLY)) == MAX_EARLY - MAX_EARLY_OF_PROJECT - 1
    assert not room.take("three"), "the worker has a bound, too"
    for _ in range(MAX_EARLY_OF_PROJECT):
        room.give_back("one")
    assert room.take("three")
    assert "one" not in room._taken


async def test_all_ends_with_the_response(tool: Wiki) -> None:
    tool.holds.update({name: asyncio.Event() for name in "abc"})
    site = OnwardSite(THREE, tool)
    reading = await site.begin(input="hi", tools=TOOLS)
    await eventually(lambda: len(tool.calls) == 3)
    site.registry.cancel(reading.run, reason="a test")
    events = await reading.to_the_end()
    assert events[-1]["response"]["status"] == "cancelled"  # type: ignore[index]
    await eventually(lambda: not site.registry.running)
    assert (tool.running, tool.cancelled, site.engine.running) == (0, 3, 0)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("early")]


async def test_a_worker_that_dies_anywhere_leaves_nothing_of_it() -> None:
    turns = [turn(read("a"), read("b")), turn(read("b"), write("x")), turn(write("x")), turn(read("b")), DONE]
    accepted, events = await undisturbed(turns)
    inputs = list(decode(accepted.log))
    for count in range(0, len(inputs), 3):
        tool = Wiki()
        site = OnwardSite(turns, tool, store=await left_at(accepted, encode(inputs[:count])), worker="heir")
        again = await (await taken_over(site, str(accepted.response["id"]))).to_the_end()
        left = inputs[:count]
        assert len(tool.written) <= 1
        if not any("wrote" in str(each) for each in left) and tool.written:  # else what it gave is in the log
            assert again == events, f"cut behind {count} of {len(inputs)} inputs"
        assert_laws(again)


async def undisturbed(turns: list[str]) -> tuple[AcceptedResponse, list[JsonObject]]:
    """Let a background response run to its end; return how it was accepted, with its log, and its events."""
    site = OnwardSite(turns, Wiki())
    reading = await site.begin(input="hi", tools=TOOLS, background=True)
    kept = site.store._responses["default", id_of(reading)]
    assert isinstance(kept.of, AcceptedResponse)
    accepted = kept.of
    events = await reading.to_the_end()
    return replace(accepted, log=site.store.saved[0].log), events


# Programs.


def program_of(*batches: Sequence[tuple[str, str]]) -> Programs:
    """Return what runs a program that makes these calls, those of a batch together."""

    async def program(call: ToolCall) -> str:
        given = []
        for batch in batches:
            calls = [{"name": f"wiki.{name}", "arguments": {"q": what}} for name, what in batch]
            given.append(await call.answer({"calls": calls}))
        return str(given)

    return Programs(program)


def program_site(tool: Wiki, early: str, *batches: Sequence[tuple[str, str]]) -> Site:
    engine = FakeEngine([PROGRAM, ANSWER])
    return Site(engine, settings=run_settings(server_tool_early=early), tools=[tool, program_of(*batches)])


CALLED = {"tools": [wiki("programmatic"), PROGRAMS]}


async def test_calls_that_a_program_makes_together_run_at_once() -> None:
    tool, held = Wiki(), asyncio.Event()
    tool.holds = {f'{{"q":"{what}"}}': held for what in "abc"}
    site = program_site(tool, "known", [("read", what) for what in "abc"])
    reading = await site.begin(input="hi", **CALLED)
    await eventually(lambda: tool.running == 3)
    held.set()
    response = await response_of(reading)
    assert [call["arguments"] for call in response["output"] if call["type"] == "mcp_call"] == [  # type: ignore[index]
        '{"q":"a"}',
        '{"q":"b"}',
        '{"q":"c"}',
    ]
    assert len(tool.calls) == 3


@pytest.mark.parametrize(
    ("setting", "fields"), [("off", {}), ("known", {"max_tool_calls": 2})], ids=["off", "max_tool_calls"]
)
async def test_one_after_another(setting: str, fields: dict[str, object], tool: Wiki) -> None:
    site = program_site(tool, setting, [("read", what) for what in "abc"])
    await site.ask(input="hi", **CALLED, **fields)
    assert tool.most == 1


async def test_a_program_that_halts_leaves_no_call_behind(tool: Wiki) -> None:
    tool.holds = {'{"q":"a"}': asyncio.Event(), '{"q":"b"}': asyncio.Event()}
    site = program_site(tool, "known", [("read", "a"), ("read", "b")])
    reading = await site.begin(input="hi", **CALLED)
    await eventually(lambda: tool.running == 2)
    site.registry.cancel(reading.run, reason="a test")
    await reading.to_the_end()
    assert (tool.running, tool.cancelled) == (0, 2)


# Whatever is called.

_LINES = st.sampled_from(
    [*map(read, ("1", "2", "bad", "long")), write("1"), write("2"), "server.wiki.ask(1)", "f(1)", "(thought) Hm."]
)
_TURNS = st.lists(st.lists(_LINES, min_size=1, max_size=5), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    turns=_TURNS,
    most=st.sampled_from([None, None, 1, 3]),
    awaits=st.booleans(),
    background=st.booleans(),
    together=st.booleans(),
)
def test_whatever_a_model_says_events_log_and_effects_are_the_same(
    turns: list[list[str]], most: int | None, awaits: bool, background: bool, together: bool
) -> None:
    fields: dict[str, object] = {"background": background, "parallel_tool_calls": together}
    if most is not None:
        fields["max_tool_calls"] = most

    async def told(setting: str) -> object:
        tool = Wiki()
        site = OnwardSite([*(turn(*lines) for lines in turns), DONE], tool, setting)
        reading = await site.begin(input="hi", tools=[WIKI, TOOL_F], awaits_tools=awaits, **fields)
        while not reading.reader.ended:
            await eventually(lambda: reading.run.waits or not site.registry.running)
            if not reading.run.waits:
                break
            tool.written.append("by the client")
            calls = reading.run._machine.calls
            reading.run.take_outputs([OutputGiven(call_id, "1", "1") for call_id in calls.unanswered])
        events = await reading.to_the_end()
        assert (tool.running, site.engine.running) == (0, 0)
        return events, list(decode(site.store.saved[0].log)), tool.written

    async def both() -> None:
        assert await told("off") == await told("predicted")

    asyncio.run(both())


@settings(max_examples=40, deadline=None)
@example(turns=[[write("1")]], place=24, reason=StopReason.SERVER_STOPPED)
@given(turns=_TURNS, place=st.integers(0, 60), reason=st.sampled_from(StopReason))
def test_stopped_anywhere_it_has_changed_only_what_it_says(
    turns: list[list[str]], place: int, reason: StopReason
) -> None:
    async def stopped() -> None:
        tool = Wiki()
        site = OnwardSite([*(turn(*lines) for lines in turns), DONE], tool)
        reading = await site.begin(input="hi", tools=[WIKI, TOOL_F], transport="sse")
        run = reading.run
        for _ in range(place):
            await asyncio.sleep(0)
        run.stop(reason)
        events = await reading.to_the_end()
        await eventually(lambda: not site.registry.running)
        assert (tool.running, site.engine.running) == (0, 0)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("early")]
        output = events[-1]["response"]["output"]  # type: ignore[index]
        said = [item["arguments"] for item in output if item["type"] == "mcp_call" and item["name"] == "write"]
        # What was being said may be dropped; what was done before stays. A response that fails with its server drops
        # the call that was being made, and has told it in its events.
        dropped = reason in (StopReason.DISCARDED, StopReason.SERVER_STOPPED)
        assert len(tool.written) <= len(said) + dropped
        assert tool.written[: len(said)] == said[: len(tool.written)]
        added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
        writes = {item["id"] for item in added if item.get("name") == "write"}  # type: ignore[attr-defined, index]
        done = [event for event in events if event["type"] == "response.mcp_call_arguments.done"]
        told = [event["arguments"] for event in done if event["item_id"] in writes]
        assert tool.written == told[: len(tool.written)] or reason is StopReason.DISCARDED

    asyncio.run(stopped())


_BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(["read", "read", "write", "ask", "gone"]), st.sampled_from("12b")), max_size=6),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(batches=_BATCHES, most=st.sampled_from([None, None, 2]))
def test_whatever_a_program_calls_events_log_and_effects_are_the_same(
    batches: list[list[tuple[str, str]]], most: int | None
) -> None:
    fields = {} if most is None else {"max_tool_calls": most}

    async def told(setting: str) -> object:
        tool = Wiki()
        site = program_site(tool, setting, *batches)
        events = await site.events(**CALLED, **fields)
        return events, list(decode(site.store.saved[0].log)), tool.written, len(tool.calls)

    async def both() -> None:
        assert await told("off") == await told("known")

    asyncio.run(both())
