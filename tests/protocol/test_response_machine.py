"""The laws of `ResponseMachine`: the same inputs give the same bytes, from any point of the log on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.base import ModelFormat
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.builders import HostedBuilder
from responses_app.protocol.commands import CallTool, Command, Finish, Generate, Prefill, Seal
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events import Event
from responses_app.protocol.ids import DerivedIds
from responses_app.protocol.input_codec import BrokenLog, decode, encode
from responses_app.protocol.inputs import (
    Ended,
    Enqueued,
    Failed,
    Input,
    Mode,
    Sampled,
    Sealed,
    Started,
    Stopped,
    StopReason,
    ToolReturned,
    TurnBegan,
)
from responses_app.protocol.requests import parse_create
from responses_app.protocol.resources import new_response
from responses_app.protocol.response import ResponseMachine
from responses_app.protocol.stream import LocalProtocolError, ResponseStream
from tests.formats.plain import FORMAT as PLAIN
from tests.protocol.laws import assert_laws, chunked, cut_sizes, mangled, text_of, transcripts, unicode_texts

KEY = b"k" * 32
RESPONSE_ID = "resp_019a0000000070008000000000000000"
AT = 1_700_000_001


class PythonBuilder(HostedBuilder):
    """A tool's item for these tests: it has the shape of a function call, so the laws of all items hold."""

    prefix = "ci_"
    delta_type = "response.function_call_arguments.delta"  # type: ignore[assignment]

    def closed(self):  # type: ignore[no-untyped-def]
        return [("response.function_call_arguments.done", {"arguments": self.text})]

    def item(self, status):  # type: ignore[no-untyped-def]
        arguments = "" if status == "in_progress" else self.text
        return {"type": "function_call", "id": self.id, "status": status, "arguments": arguments, "name": "python"}


def machine(model_format: ModelFormat, *, hosted: bool = False, one_call: bool = False) -> ResponseMachine:
    """Return the machine of a response that has said nothing yet."""
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("f", "get_weather")]
    request = parse_create({"model": "m", "input": "hi", "tools": tools})
    response = new_response(request, response_id=RESPONSE_ID, created_at=1_700_000_000, model="m", store=True)
    stream = ResponseStream(
        response,
        new_id=DerivedIds(RESPONSE_ID, created_ms=1_700_000_000_000, key=KEY),
        hosted={"python": PythonBuilder} if hosted else {},
    )
    return ResponseMachine(stream, model_format, functions=("f", "get_weather"), one_call=one_call)


@dataclass
class Driver:
    """Runs a machine on turns that are known beforehand, and keeps its inputs and events."""

    machine: ResponseMachine
    log: list[Input] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def tell(self, given: Input) -> Command | None:
        self.log.append(given)
        events, command = self.machine.receive(given)
        self.events += events
        return command

    def run(self, first: Input, turns: Iterable[Sequence[Sampled]], tools: Iterable[ToolReturned] = ()) -> None:
        """Go on from `first` to the end; a turn that is missing is aborted, a tool without an answer fails."""
        waiting, answers = iter(turns), iter(tools)
        command = self.tell(first)
        while command is not None:
            match command:
                case Generate():
                    command = self._generate(next(waiting, [Sampled((), FinishReason.ABORT)]))
                case CallTool():
                    command = self.tell(next(answers, ToolReturned("It broke.", failed=True)))
                case Seal(summary=summary):
                    command = self.tell(Sealed(f"sealed {summary}", budget=None))
                case Finish():
                    command = self.tell(Ended(AT))
                case Prefill():
                    raise AssertionError("no warm-up here")

    def _generate(self, chunks: Sequence[Sampled]) -> Command | None:
        command = self.tell(TurnBegan(9))
        for chunk in chunks:
            command = self.tell(chunk)
            if command is not None:
                return command
        raise AssertionError("the last chunk has a finish reason")

    @property
    def bytes(self) -> list[bytes]:
        return [event.as_json() for event in self.events]

    @property
    def seen(self) -> list[JsonObject]:
        return [orjson.loads(each) for each in self.bytes]

    @property
    def items(self) -> list[JsonObject]:
        return [event["item"] for event in self.seen if event["type"] == "response.output_item.done"]


def turn_of(tokens: Sequence[int], sizes: Sequence[int], finish: FinishReason = FinishReason.STOP) -> list[Sampled]:
    """Return a turn's tokens in chunks of these sizes, over and over."""
    chunks = chunked(tokens, sizes) or [()]
    return [Sampled(chunk, finish if index == len(chunks) - 1 else None) for index, chunk in enumerate(chunks)]


@st.composite
def harmony_turns(draw: st.DrawFn) -> list[list[int]]:
    """Draw the tokens of up to three turns, some of them broken."""
    turns = []
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(transcripts()).tokens
        turns.append(draw(mangled(tokens)) if draw(st.integers(0, 4)) == 0 else tokens)
    return turns


plain_lines = st.lists(
    st.tuples(st.sampled_from(["", "(thought) ", "f(", "server.python("]), unicode_texts).map("".join), max_size=4
).map(lambda lines: "\n".join(line.replace("\n", " ") for line in lines).encode())
TURNS = {"harmony": harmony_turns(), "plain": st.lists(plain_lines.map(list), min_size=1, max_size=3)}
FORMATS: dict[str, ModelFormat] = {"harmony": HarmonyFormat(), "plain": PLAIN}

finishes = st.sampled_from([FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT])
returns = st.lists(st.builds(ToolReturned, unicode_texts, st.booleans()), max_size=3)
beginnings = st.sampled_from(
    [Started(), Started(budget=20), Started(Mode.COMPACT_AND_ANSWER), Started(Mode.COMPACT, budget=5)]
)


@st.composite
def runs(draw: st.DrawFn, model: str) -> Driver:
    """Draw a response from its beginning to its end: turns, tools, compaction, and sometimes a stop in the middle."""
    driver = Driver(machine(FORMATS[model], hosted=draw(st.booleans()), one_call=draw(st.booleans())))
    if draw(st.booleans()):
        driver.tell(Enqueued())
    turns = [turn_of(tokens, draw(cut_sizes), draw(finishes)) for tokens in draw(TURNS[model])]
    driver.run(draw(beginnings), turns, draw(returns))
    return driver


def replayed(driver: Driver, log: Iterable[Input]) -> Driver:
    """Feed a log to a new machine with the same tools."""
    stream = driver.machine.stream
    again = Driver(machine(driver.machine._format, hosted=bool(stream._hosted), one_call=driver.machine._one_call))
    for each in log:
        again.tell(each)
    return again


@pytest.mark.parametrize("model", FORMATS)
class TestLaws:
    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_events_hold_the_laws_of_a_response(self, model: str, data: st.DataObject) -> None:
        assert_laws(data.draw(runs(model)).seen)

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_the_same_inputs_give_the_same_bytes_also_from_their_log(self, model: str, data: st.DataObject) -> None:
        driver = data.draw(runs(model))
        log = list(decode(encode(driver.log)))
        assert replayed(driver, log).bytes == driver.bytes

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_another_driver_goes_on_from_any_point_of_the_log(self, model: str, data: st.DataObject) -> None:
        driver = data.draw(runs(model))
        cut = data.draw(st.integers(0, len(driver.log)))
        heir = replayed(driver, driver.log[:cut])
        due = heir.machine.due
        if isinstance(due, Generate) and due.sampled:
            sampled = [token for each in driver.log[:cut] if isinstance(each, Sampled) for token in each.token_ids]
            assert list(due.sampled) == sampled[len(sampled) - len(due.sampled) :]
        for each in driver.log[cut:]:
            heir.tell(each)
        assert heir.bytes == driver.bytes
        assert heir.machine.due is None

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_any_chunking_gives_the_same_items_and_texts(self, model: str, data: st.DataObject) -> None:
        tokens = data.draw(TURNS[model])
        one_call = data.draw(st.booleans())
        stories = []
        for sizes in ([1], [len(max(tokens, key=len)) or 1], data.draw(cut_sizes)):
            driver = Driver(machine(FORMATS[model], hosted=True, one_call=one_call))
            driver.run(Started(), [turn_of(turn, sizes) for turn in tokens])
            stories.append([(item["type"], text_of(item), item.get("status")) for item in driver.items])
        assert stories[0] == stories[1] == stories[2]

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_a_stop_at_any_moment_ends_it_once(self, model: str, data: st.DataObject) -> None:
        driver = data.draw(runs(model))
        cut = data.draw(st.integers(0, len(driver.log)))
        stop = data.draw(
            st.sampled_from([*map(Stopped, StopReason), Failed({"code": "server_error", "message": "It broke."})])
        )
        stopped = replayed(driver, driver.log[:cut])
        begun = stopped.machine.stream.has_begun
        if begun:
            command = stopped.tell(stop)
            for each in driver.log[cut:]:
                if isinstance(command or stopped.machine.due, Finish) or stopped.machine.due is None:
                    break
                command = stopped.tell(each)
            if stopped.machine.due is not None:
                stopped.tell(Ended(AT))
            assert_laws(stopped.seen)
            assert stopped.machine.due is None

    @settings(max_examples=50, deadline=None)
    @given(st.data())
    def test_one_chunk_makes_one_delta_of_what_stands_together(self, model: str, data: st.DataObject) -> None:
        tokens = data.draw(TURNS[model])[0]
        driver = Driver(machine(FORMATS[model]))
        driver.run(Started(), [turn_of(tokens, [max(1, len(tokens))])])
        deltas = [event["output_index"] for event in driver.seen if str(event["type"]).endswith(".delta")]
        turns = sum(isinstance(each, TurnBegan) for each in driver.log)
        assert turns > 1 or len(deltas) == len(set(deltas)), "an item has one delta where all came at once"


class TestTools:
    def ask(self, *tools: ToolReturned, text: str = "1+1", hosted: bool = True) -> Driver:
        driver = Driver(machine(PLAIN, hosted=hosted))
        turns = [f"server.python({text})\n".encode(), b"It is 2.\n"]
        driver.run(Started(), [turn_of(list(turn), [100]) for turn in turns], tools)
        return driver

    def test_its_item_is_open_while_it_runs_and_the_result_stands_between_two_turns(self) -> None:
        driver = Driver(machine(PLAIN, hosted=True))
        driver.tell(Started())
        driver.tell(TurnBegan(9))
        command = driver.tell(Sampled(b"server.python(1+1)\n", FinishReason.STOP))
        assert command == CallTool("python", "1+1)".removesuffix(")"))
        types = [event["type"] for event in driver.seen]
        assert "response.output_item.added" in types
        assert "response.output_item.done" not in types
        command = driver.tell(ToolReturned("2"))
        assert isinstance(command, Generate)
        assert bytes(command.said[-1].tokens.tolist()) == b"Tool python: 2\n"
        assert driver.items[0]["status"] == "completed"

    def test_a_failure_is_told_to_the_model_which_goes_on(self) -> None:
        driver = self.ask(ToolReturned("It took too long.", failed=True))
        assert [item.get("status") for item in driver.items] == ["failed", "completed"]
        assert driver.seen[-1]["type"] == "response.completed"

    def test_one_that_is_not_there_is_told_once(self) -> None:
        driver = Driver(machine(PLAIN))
        calls = [turn_of(list(b"server.python(1)\n"), [100])] * 3
        driver.run(Started(), calls)
        assert [item["type"] for item in driver.items] == ["reasoning", "reasoning"]

    def test_a_call_that_is_cut_runs_nothing(self) -> None:
        driver = Driver(machine(PLAIN, hosted=True))
        driver.tell(Started())
        driver.tell(TurnBegan(9))
        command = driver.tell(Sampled(b"server.python(1", FinishReason.LENGTH))
        assert isinstance(command, CallTool | Finish)


class TestCodec:
    @given(st.lists(st.one_of(st.builds(Sampled, st.lists(st.integers(0, 2**32 - 1), max_size=300)), beginnings)))
    def test_what_is_written_is_read(self, inputs: list[Input]) -> None:
        assert list(decode(encode(inputs))) == inputs

    def test_a_token_takes_four_bytes(self) -> None:
        assert len(encode([Sampled([201_087])])) == 4

    @given(st.binary(max_size=40))
    def test_what_is_no_log_says_so(self, data: bytes) -> None:
        try:
            list(decode(data))
        except BrokenLog:
            return

    def test_two_logs_make_one(self) -> None:
        first, second = [Started(), TurnBegan(3)], [Sampled([1, 2]), Ended(AT)]
        assert list(decode(encode(first) + encode(second))) == first + second


def test_an_input_that_cannot_come_is_a_bug() -> None:
    with pytest.raises(LocalProtocolError):
        machine(PLAIN).receive(TurnBegan(1))
    with pytest.raises(LocalProtocolError):
        machine(PLAIN).receive(ToolReturned("2"))
