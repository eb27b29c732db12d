"""The log's bytes: what is written is read, and what an older version wrote stays readable."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.base import PicturePart
from engine.types import FinishReason, TokenLogprob, WeightsSpan
from responses_app.protocol.items.offers import AgentLimits, ApprovedCall, MadeCall, OfferedTool, PausedProgram
from responses_app.protocol.response.input_codec import BrokenLog, decode, decode_timed, encode, encode_one
from responses_app.protocol.response.steps import (
    AgentsAllowed,
    Declared,
    Ended,
    Enqueued,
    Failed,
    FunctionCalled,
    Input,
    Mode,
    OfAgent,
    Offered,
    OutputGiven,
    OutputOptions,
    Prefilled,
    ProgramCalled,
    ProgramEnded,
    ProgramPaused,
    RunStarted,
    Sampled,
    Sealed,
    Stopped,
    StopReason,
    Summaries,
    TimedOut,
    ToolProgressed,
    ToolReturned,
    ToolsFound,
    ToolsListed,
    TurnBegan,
    WaitBegan,
)

ERROR = {"code": "server_error", "message": "It broke: é 👍"}


def long(content: str) -> bytes:
    """Return the record of an input that is written as JSON."""
    data = content.encode()
    return b"\x01" + len(data).to_bytes(4, "little") + data


KEPT = [  # what has once been written, and must be read for as long as there are logs
    (Enqueued(), long('["enqueued"]')),
    (RunStarted(), long('["started","answer",null]')),
    (RunStarted(Mode.WARM_UP, 0), long('["started","warm_up",0]')),
    (RunStarted(Mode.COMPACT, 5), long('["started","compact",5]')),
    (RunStarted(Mode.COMPACT_AND_ANSWER, 1), long('["started","compact_and_answer",1]')),
    (RunStarted(waits=True), long('["started","answer",null,true]')),
    (RunStarted(Mode.COMPACT_AND_ANSWER, 7, waits=True), long('["started","compact_and_answer",7,true]')),
    (TurnBegan(9), long('["turn",9]')),
    (Sampled([1]), b"\x81\x01\x00\x00"),
    (Sampled([0x030201, 0xFFFFFF]), b"\x82\x01\x02\x03\xff\xff\xff"),
    (Sampled([]), long('["sampled",[],null,null,null]')),
    (Sampled([1, 0x1000000]), long('["sampled",[1,16777216],null,null,null]')),
    (Sampled([7], FinishReason.STOP), long('["sampled",[7],"stop",null,null]')),
    (Sampled([7], FinishReason.LENGTH, 0), long('["sampled",[7],"length",0,null]')),
    (Sampled([], FinishReason.ABORT, 3), long('["sampled",[],"abort",3,null]')),
    (Sampled([7], None, 0, None, 900), long('["sampled",[7],null,0,null,900]')),
    (ToolReturned("2", seen=("2", PicturePart("ab"))), long('["tool","2",false,{},null,["2",{"image":"ab"}]]')),
    (Sampled([7], None, 0), long('["sampled",[7],null,0,null]')),
    (Sampled([], None, None, []), long('["sampled",[],null,null,[]]')),
    (
        Sampled([7], logprobs=[TokenLogprob(7, -0.5, ((7, -0.5), (8, -1.25)))]),
        long('["sampled",[7],null,null,[[7,-0.5,[[7,-0.5],[8,-1.25]]]]]'),
    ),
    (Sampled([1], recorded=[TokenLogprob(1, -0.5)]), b"\x03\x01\x01\x00\x00\x00\x00\x00\xbf"),
    (
        Sampled([1, 2], recorded=[TokenLogprob(1, -0.5), TokenLogprob(2, -math.inf)]),
        b"\x03\x02\x01\x00\x00\x02\x00\x00\x00\x00\x00\xbf\x00\x00\x80\xff",
    ),
    (Sampled([1], recorded=[TokenLogprob(1, -0.1)]), long('["sampled",[1],null,null,null,null,[[1,-0.1,[]]],null]')),
    (
        Sampled([1], recorded=[TokenLogprob(1, -0.5)], weights_version="v2"),
        long('["sampled",[1],null,null,null,null,[[1,-0.5,[]]],"v2"]'),
    ),
    (
        Sampled([1], FinishReason.STOP, weights=[WeightsSpan("v1", 3), WeightsSpan(None, 1)]),
        long('["sampled",[1],"stop",null,null,null,null,null,[["v1",3],[null,1]]]'),
    ),
    (Declared([{"type": "function", "name": "f"}]), long('["declared",[{"type":"function","name":"f"}]]')),
    (OutputOptions(sealed=True), long('["asked",true,null]')),
    (OutputOptions(summaries=Summaries.MODEL), long('["asked",false,"model"]')),
    (OutputOptions(sealed=True, summaries=Summaries.TEXT), long('["asked",true,"text"]')),
    (OutputOptions(objects=True), long('["asked",false,null,[],[],true]')),
    (Prefilled(), long('["prefilled"]')),
    (Sealed("gAAA", None), long('["sealed","gAAA",null]')),
    (Sealed("gAAA", 4), long('["sealed","gAAA",4]')),
    (ToolReturned("2"), long('["tool","2",false]')),
    (ToolReturned("", failed=True), long('["tool","",true]')),
    (ToolReturned("2", shown={"output": "2"}), long('["tool","2",false,{"output":"2"},null]')),
    (ToolReturned("2", state={"pages": []}), long('["tool","2",false,{},{"pages":[]}]')),
    (ToolProgressed({"done": 0.5}), long('["progress",{"done":0.5}]')),
    (ToolsListed("wiki", [], [], "It is away."), long('["listed","wiki",[],[],"It is away."]')),
    (
        ToolsListed("wiki", [{"name": "ask"}], [OfferedTool(name="wiki.ask", item="mcp_call", asks=True)]),
        long('["listed","wiki",[{"name":"ask"}],[{"name":"wiki.ask","item":"mcp_call","asks":true}],null]'),
    ),
    (
        ToolsFound([{"type": "function", "name": "f"}], [OfferedTool(name="wiki.ask", item="mcp_call")]),
        long('["found",[{"type":"function","name":"f"}],[{"name":"wiki.ask","item":"mcp_call"}]]'),
    ),
    (
        ProgramCalled(OfferedTool(name="wiki.ask", item="mcp_call"), "{}"),
        long('["program_called",{"name":"wiki.ask","item":"mcp_call"},"{}"]'),
    ),
    (
        ProgramPaused([FunctionCalled("f", None, "{}"), FunctionCalled("g", "n", '{"a":1}')]),
        long('["program_paused",[["f",null,"{}"],["g","n","{\\"a\\":1}"]]]'),
    ),
    (
        Offered([], [], [], {}, (PausedProgram("call_1", "f()", (MadeCall("f", "{}", {"output": "1"}, "call_2"),)),)),
        long('["offered",[],[],[],{},[["call_1","f()",[["f","{}",{"output":"1"},"call_2"]]]]]'),
    ),
    (ProgramEnded("1"), long('["program_ended","1",false]')),
    (Offered([], [], []), long('["offered",[],[],[],{}]')),
    (
        Offered(
            [OfferedTool(name="python", item="code_interpreter_call", repeatable=True, fields={"container_id": "c"})],
            ["wiki"],
            [ApprovedCall(request_id="mcpr_1", server="wiki", tool="ask", arguments="{}")],
            {"web_search_call": {"pages": [1]}},
        ),
        long(
            '["offered",[{"name":"python","item":"code_interpreter_call","repeatable":true,'
            '"fields":{"container_id":"c"}}],["wiki"],[["mcpr_1","wiki","ask","{}"]],'
            '{"web_search_call":{"pages":[1]}}]'
        ),
    ),
    (WaitBegan(1_700_000_300.25), long('["wait",1700000300.25]')),
    (OutputGiven("call_1", "18 °C", "18 °C"), long('["output","call_1","18 °C"]')),
    (
        OutputGiven("call_1", [{"type": "output_text", "text": "é"}], "é"),
        long('["output","call_1",[{"type":"output_text","text":"é"}],"é"]'),
    ),
    (TimedOut(300.0), long('["timed_out",300.0]')),
    (Failed(ERROR), long('["failed",{"code":"server_error","message":"It broke: é 👍"}]')),
    *((Stopped(reason), long(f'["stopped","{reason.value}"]')) for reason in StopReason),
    (
        AgentsAllowed(AgentLimits(concurrent=3, total=64, depth=4, calls=1000, wait_seconds=600.0), calls_client=True),
        long('["agents",{"concurrent":3,"total":64,"depth":4,"calls":1000,"wait_seconds":600.0},true]'),
    ),
    (OfAgent(258, Sampled([7])), b"\x02\x02\x01" + encode([Sampled([7])])),
    (OfAgent(1, TurnBegan(9)), b"\x02\x01\x00" + long('["turn",9]')),
    (Ended(1_700_000_001), long('["ended",1700000001,null]')),
    (Ended(1, ERROR), long('["ended",1,{"code":"server_error","message":"It broke: é 👍"}]')),
]


@pytest.mark.parametrize(("given", "data"), KEPT)
def test_a_kind_once_written_keeps_its_meaning(given: Input, data: bytes) -> None:
    assert encode([given]) == data
    assert list(decode(data)) == [given]


def test_every_kind_of_input_and_reason_is_among_them() -> None:
    assert {type(given) for given, _ in KEPT} == set(Input.__args__)
    assert {given.mode for given, _ in KEPT if isinstance(given, RunStarted)} == set(Mode)
    assert {given.finish for given, _ in KEPT if isinstance(given, Sampled)} == {None, *FinishReason}


@pytest.mark.parametrize("at", [0, 1, 1_700_000_000_123, 2**44 - 1])
@pytest.mark.parametrize("given", [Enqueued(), Sampled([1]), Sampled([7], FinishReason.STOP, 3), Failed(ERROR)])
def test_a_time_is_white_space_which_versions_without_times_skip(given: Input, at: int) -> None:
    data = encode_one(given, at)
    assert list(decode_timed(data)) == [(given, at)]
    content = data[5:]
    assert len(content.rstrip()) == len(content) - 22
    assert list(decode(long(content.decode().rstrip()))) == [given], "what older versions make of it"
    assert list(decode_timed(encode_one(given))) == [(given, None)]


def test_a_time_once_written_keeps_its_meaning() -> None:
    written = long('["enqueued"]' + " " * 18 + "\t\n\r ")
    assert encode_one(Enqueued(), 0b01_10_11_00) == written
    assert list(decode_timed(written)) == [(Enqueued(), 0b01_10_11_00)]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
tokens = st.integers(0, 2**24 + 1)
logprobs = st.floats(max_value=0, allow_nan=False, width=32)
token_logprobs = st.builds(TokenLogprob, tokens, logprobs, st.lists(st.tuples(tokens, logprobs), max_size=2).map(tuple))
errors = st.dictionaries(texts, texts, max_size=2)
inputs = st.one_of(
    st.builds(Sampled, st.lists(tokens, max_size=5)),
    st.builds(
        Sampled,
        st.lists(tokens, max_size=5),
        st.sampled_from([None, *FinishReason]),
        st.none() | st.integers(0, 9),
        st.none() | st.lists(token_logprobs, max_size=3),
    ),
    st.builds(RunStarted, st.sampled_from(Mode), st.none() | st.integers(0, 2**53)),
    st.builds(OutputOptions, st.booleans(), st.none() | st.sampled_from(Summaries)),
    st.builds(RunStarted, st.sampled_from(Mode), st.none() | st.integers(0, 2**53), st.booleans()),
    st.builds(WaitBegan, st.floats(0, 2**33)),
    st.builds(OutputGiven, texts, texts | st.lists(errors, max_size=2), texts),
    st.builds(TimedOut, st.floats(0, 1000)),
    st.builds(Sealed, texts, st.none() | st.integers(0, 9)),
    st.builds(ToolReturned, texts, st.booleans()),
    st.builds(Failed, errors),
    st.builds(Ended, st.integers(0, 2**33), st.none() | errors),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(inputs, max_size=6))
def test_what_is_written_is_read(log: list[Input]) -> None:
    assert list(decode(encode(log))) == log


@pytest.mark.parametrize(("count", "size"), [(1, 4), (126, 379), (127, 382)])
def test_tokens_that_came_at_once_take_three_bytes_each_and_one_together(count: int, size: int) -> None:
    data = encode([Sampled([201_087] * count)])
    assert len(data) == size
    assert list(decode(data)) == [Sampled([201_087] * count)]


@pytest.mark.parametrize("count", [128, 255, 256, 1000])
def test_more_tokens_than_fit_are_written_all_the_same(count: int) -> None:
    chunk = Sampled(list(range(count)))
    assert list(decode(encode([chunk]))) == [chunk]


def test_minus_infinity_stays_what_it_is() -> None:
    """JSON has no number for it, and an engine gives it for a token that a grammar forbids."""
    chunk = Sampled([7], logprobs=[TokenLogprob(7, -math.inf, ((8, -1.0), (7, -math.inf)))])
    assert list(decode(encode([chunk]))) == [chunk]


@pytest.mark.parametrize(
    "broken",
    [
        b"\x00",
        b"\x02",
        b"\x7f",
        b"\x02" + long('["enqueued"]')[1:],
        b"\x81\x01\x00",
        b"\x82\x01\x02\x03",
        b"\x01",
        b"\x01\x05\x00\x00",
        long('["enqueued"]')[:-1],
        b"\x01\x0b\x00\x00\x00" + b'["enqueued"]',
        long("[]"),
        long("7"),
        long('["a kind of tomorrow"]'),
        long('["enqueued",1]'),
        long('["turn"]'),
        long('["started","a mode of tomorrow",null]'),
        long('["sampled",[1],"a reason of tomorrow",null,null]'),
        long('["sampled",[1],null,null,[[1]]]'),
        long('["stopped","a reason of tomorrow"]'),
    ],
)
def test_a_log_that_is_cut_or_of_another_version_says_so(broken: bytes) -> None:
    with pytest.raises(BrokenLog):
        list(decode(encode([Sampled([1])]) + broken))


@settings(max_examples=60, deadline=None)
@given(st.lists(inputs, min_size=1, max_size=4), st.data())
def test_a_log_that_is_cut_anywhere_is_never_read_as_a_whole_one(log: list[Input], data: st.DataObject) -> None:
    """What lies before the cut is read; where a record is cut in two, that is said."""
    written = encode(log)
    ends = [len(encode(log[:count])) for count in range(len(log) + 1)]
    cut = data.draw(st.integers(0, len(written)))
    before = sum(end <= cut for end in ends) - 1
    read = []
    try:
        for each in decode(written[:cut]):
            read.append(each)
        assert cut in ends
    except BrokenLog:
        assert cut not in ends
    assert read == log[:before], "nothing is read of a record that is cut"
