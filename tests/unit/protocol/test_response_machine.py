"""The laws of `ResponseMachine`: the same inputs give the same bytes, from any point of the log on."""

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.base import ModelFormat
from engine.formats.harmony.encoding import encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.response.input_codec import BrokenLog, decode, encode
from responses_app.protocol.response.steps import (
    Ended,
    Enqueued,
    Failed,
    Finish,
    Generate,
    Input,
    Mode,
    OutputOptions,
    RunStarted,
    Sampled,
    Stopped,
    StopReason,
    Summaries,
    ToolReturned,
    TurnBegan,
)
from tests.kit.laws import assert_laws, cut_sizes, mangled, transcripts, unicode_texts
from tests.kit.plain_format import FORMAT as PLAIN
from tests.unit.formats.rendering import FAMILIES, format_of
from tests.unit.formats.turns import family_turns
from tests.unit.protocol.machines import AT, PYTHON, Driver, is_call, machine, sampled, told, turn_of


@pytest.fixture(autouse=True, scope="module")
def short_thoughts_are_summed_up() -> Iterator[None]:
    """The thoughts of these tests are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("responses_app.protocol.response.turns.MIN_THOUGHT", 2)
        yield


LONG_THOUGHT = encode_harmony("<|channel|>analysis<|message|>I think about it.<|end|><|start|>assistant")


@st.composite
def harmony_turns(draw: st.DrawFn) -> list[list[int]]:
    """Draw the tokens of up to three turns, some of them broken."""
    turns = []
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(transcripts()).tokens
        tokens = draw(mangled(tokens)) if draw(st.integers(0, 4)) == 0 else tokens
        turns.append([*(LONG_THOUGHT if draw(st.booleans()) else ()), *tokens])
    return turns


plain_lines = st.lists(
    st.tuples(st.sampled_from(["", "(thought) ", "f(", "server.python("]), unicode_texts).map("".join), max_size=4
).map(lambda lines: "\n".join(line.replace("\n", " ") for line in lines).encode())
TURNS = {
    "harmony": harmony_turns(),
    "plain": st.lists(plain_lines.map(list), min_size=1, max_size=3),
    **{family.name: st.lists(family_turns(family), min_size=1, max_size=3) for family in FAMILIES},
}
FORMATS: dict[str, ModelFormat] = {
    "harmony": HarmonyFormat(),
    "plain": PLAIN,
    **{family.name: format_of(family)[0] for family in FAMILIES},
}

finishes = st.sampled_from([FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT])
returns = st.lists(st.builds(ToolReturned, unicode_texts, st.booleans()), max_size=3)
asked = st.builds(
    OutputOptions, st.booleans(), st.sampled_from([None, Summaries.TEXT, Summaries.MODEL, Summaries.MODEL])
)
beginnings = st.sampled_from(
    [
        RunStarted(),
        RunStarted(budget=20),
        RunStarted(Mode.COMPACT_AND_ANSWER),
        RunStarted(Mode.COMPACT, budget=5),
        RunStarted(waits=True),
        RunStarted(budget=200, waits=True),
    ]
)


@st.composite
def runs(draw: st.DrawFn, model: str) -> Driver:
    """Draw a response from its beginning to its end: turns, tools, compaction, and sometimes a stop in the middle."""
    driver = Driver(machine(FORMATS[model], hosted=draw(st.booleans()), one_call=draw(st.booleans())))
    driver.outputs, driver.eager = draw(st.lists(unicode_texts, max_size=5)), draw(st.booleans())
    if draw(st.booleans()):
        driver.tell(Enqueued())
    if draw(st.integers(0, 3)):
        driver.tell(draw(asked))
    turns = [turn_of(tokens, draw(cut_sizes), draw(finishes)) for tokens in draw(TURNS[model])]
    driver.run(draw(beginnings), turns, draw(returns))
    return driver


def replayed(driver: Driver, log: Iterable[Input]) -> Driver:
    """Feed a log to a new machine with the same tools."""
    stream = driver.machine.stream
    again = Driver(machine(driver.machine._format, hosted=stream.called.hosts, one_call=driver.machine.reader.one_call))
    again.tell_all(log)
    return again


@pytest.mark.parametrize("model", ["harmony", "plain"])
class TestLaws:
    """`tests/unit/formats/test_cut_turns.py` holds the families to these, with fewer examples."""

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
            begun = len(FORMATS[model].answer_start()) if due.aside else 0
            count = len(due.sampled) - begun
            assert list(due.sampled)[begun:] == sampled[len(sampled) - count :]
        heir.tell_all(driver.log[cut:])
        assert heir.bytes == driver.bytes
        assert heir.machine.due is None

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_any_chunking_gives_the_same_items_and_texts(self, model: str, data: st.DataObject) -> None:
        tokens = data.draw(TURNS[model])
        one_call, wanted = data.draw(st.booleans()), data.draw(asked)
        stories = []
        for sizes in ([1], [len(max(tokens, key=len)) or 1], data.draw(cut_sizes)):
            driver = Driver(machine(FORMATS[model], hosted=True, one_call=one_call))
            driver.tell(wanted)
            driver.run(RunStarted(), [turn_of(turn, sizes) for turn in tokens])
            stories.append([{**item, "id": None, "call_id": None} for item in driver.items])
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
        driver.run(RunStarted(), [turn_of(tokens, [max(1, len(tokens))])])
        deltas = [event["output_index"] for event in driver.seen if str(event["type"]).endswith(".delta")]
        turns = sum(isinstance(each, TurnBegan) for each in driver.log)
        assert turns > 1 or len(deltas) == len(set(deltas)), "an item has one delta where all came at once"


class TestTools:
    def ask(self, *tools: ToolReturned, text: str = "1+1", hosted: bool = True) -> Driver:
        driver = Driver(machine(PLAIN, hosted=hosted))
        turns = [f"server.python({text})\n".encode(), b"It is 2.\n"]
        driver.run(RunStarted(), [turn_of(list(turn), [100]) for turn in turns], tools)
        return driver

    def test_a_failure_is_told_to_the_model_which_goes_on(self) -> None:
        driver = self.ask(ToolReturned("It took too long.", failed=True))
        assert [item.get("status") for item in driver.items] == ["failed", "completed"]
        assert driver.seen[-1]["type"] == "response.completed"

    def test_a_call_that_ends_with_a_token_which_stops_no_engine_is_run(self) -> None:
        said = PYTHON.replace("<|call|>", "<|endoftext|><|start|>assistant<|channel|>final<|message|>No.<|return|>")
        _, command = told(RunStarted(), TurnBegan(9), sampled(said), hosted=True)
        assert is_call(command, "python", "1+1")


class TestCodec:
    @given(st.binary(max_size=40))
    def test_what_is_not_a_log_says_so(self, data: bytes) -> None:
        try:
            list(decode(data))
        except BrokenLog:
            return

    def test_two_logs_make_one(self) -> None:
        first, second = [RunStarted(), TurnBegan(3)], [Sampled([1, 2]), Ended(AT)]
        assert list(decode(encode(first) + encode(second))) == first + second
