"""STREAM_DELTA_MS: text waits for more of it, and nothing else waits."""

import asyncio
from collections.abc import Sequence

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.types import FinishReason, TokenLogprob
from responses_app.protocol.requests.resources import Ending, Status
from responses_app.protocol.response.steps import Command, Finish, Sampled
from responses_app.runs.driving.generating import Tell, delayed
from tests.kit.fakes import CALL_F, TOOL_F, FakeEngine, Site, run_settings
from tests.kit.laws import assert_laws

END = 9  # ends an item
SHORT, LONG = 0.02, 3600.0
FINISHED = Finish(Ending(status=Status.COMPLETED))


class Told:
    """What a run is told, in place of a run."""

    def __init__(self) -> None:
        self.all: list[Sampled] = []
        self.news = asyncio.Event()
        self.problem: Exception | None = None

    def __call__(self, sampled: Sampled) -> Command | None:
        if self.problem is not None:
            raise self.problem
        self.all.append(sampled)
        self.news.set()
        return FINISHED if sampled.finish else None

    @property
    def tokens(self) -> list[list[int]]:
        return [list(sampled.token_ids) for sampled in self.all]


def is_text(token_ids: Sequence[int]) -> bool:
    return END not in token_ids


async def test_text_that_comes_early_waits_and_is_told_as_one() -> None:
    told, loop = Told(), asyncio.get_running_loop()
    with delayed(told, is_text, seconds=SHORT) as tell:
        began = loop.time()
        assert tell(Sampled([1])) is None
        assert told.tokens == [[1]], "the first goes at once"
        told.news.clear()
        tell(Sampled([2], cached_tokens=7))
        tell(Sampled([3]))
        assert told.tokens == [[1]]
        await told.news.wait()
        assert loop.time() - began >= SHORT
        assert told.tokens == [[1], [2, 3]]
        assert told.all[1].cached_tokens == 7
        told.news.clear()
        tell(Sampled([4]))
        await told.news.wait()
        assert told.tokens == [[1], [2, 3], [4]]


async def test_text_after_a_silence_goes_at_once() -> None:
    told, loop = Told(), asyncio.get_running_loop()
    with delayed(told, is_text, seconds=SHORT) as tell:
        tell(Sampled([1]))
        silence = loop.create_future()
        loop.call_at(loop.time() + SHORT, silence.set_result, None)
        await silence
        tell(Sampled([2]))
        assert told.tokens == [[1], [2]]


async def test_what_is_more_than_text_waits_for_nothing_and_takes_along_what_waits() -> None:
    told = Told()
    with delayed(told, is_text, seconds=LONG) as tell:
        tell(Sampled([1]))
        tell(Sampled([2]))
        tell(Sampled([3, END]))
        assert told.tokens == [[1], [2, 3, END]]
        tell(Sampled([4]))
        assert tell(Sampled([5], FinishReason.STOP)) is FINISHED
        assert told.tokens[2:] == [[4, 5]]
        assert told.all[2].finish is FinishReason.STOP


@pytest.mark.parametrize("problem", [None, ValueError, asyncio.CancelledError])
async def test_the_end_tells_what_waits_however_it_comes(problem: type[BaseException] | None) -> None:
    told = Told()

    def read() -> None:
        with delayed(told, is_text, seconds=LONG) as tell:
            tell(Sampled([1]))
            tell(Sampled([2]))
            if problem is not None:
                raise problem

    if problem is None:
        read()
    else:
        with pytest.raises(problem):
            read()
    assert told.tokens == [[1], [2]]


async def test_log_probabilities_stay_with_their_tokens() -> None:
    told, one, two = Told(), TokenLogprob(2, -0.5), TokenLogprob(3, -0.25)
    with delayed(told, is_text, seconds=LONG) as tell:
        tell(Sampled([1]))
        tell(Sampled([2], logprobs=[one]))
        tell(Sampled([3], logprobs=[two]))
        tell(Sampled([4]))
    assert [(sampled.token_ids, sampled.logprobs) for sampled in told.all] == [
        ([1], None),
        ([2, 3], [one, two]),
        ([4], None),
    ]


async def test_without_a_time_there_is_nothing_between() -> None:
    told: Tell = Told()
    with delayed(told, is_text, seconds=0) as tell:
        assert tell is told


async def test_what_breaks_when_the_time_is_up_breaks_the_run() -> None:
    told, loop = Told(), asyncio.get_running_loop()

    async def read() -> None:
        with delayed(told, is_text, seconds=SHORT) as tell:
            tell(Sampled([1]))
            tell(Sampled([2]))
            told.problem = ValueError("broken")
            later = loop.create_future()
            loop.call_at(loop.time() + 2 * SHORT, later.set_result, None)
            await later

    with pytest.raises(ValueError, match="broken"):
        await read()


async def test_a_whole_response_has_fewer_deltas_and_is_the_same() -> None:
    """Of every item: its first text, and all the rest, since nothing but its end comes in time."""
    outputs = []
    for seconds in (0.0, LONG):
        engine = FakeEngine([token_by_token(CALL_F.replace("Hm.", "One two three four five."))])
        site = Site(engine, settings=run_settings(stream_delta_ms=round(seconds * 1000)))
        events = await site.events(tools=[TOOL_F])
        deltas = [event["output_index"] for event in events if str(event["type"]).endswith(".delta")]
        outputs.append(events[-1]["response"]["output"])
    assert len(outputs[0]) == 2
    assert [{**item, "id": ""} for item in outputs[0]] == [{**item, "id": ""} for item in outputs[1]]
    assert deltas == [0, 0, 1, 1]


async def test_a_response_that_is_cancelled_has_said_what_waited() -> None:
    never = asyncio.Event()
    engine = FakeEngine([["<|channel|>final<|message|>", "One", " two", " three", never]])
    reading = await Site(engine, settings=run_settings(stream_delta_ms=round(LONG * 1000))).begin(input="hi")
    await engine.waits.wait()
    reading.site.registry.cancel(reading.run, reason="a test")
    events = await reading.to_the_end()
    assert "".join(str(event.get("delta", "")) for event in events) == "One two three"
    assert_laws(events)


def token_by_token(said: str) -> list[str]:
    """Cut what a model says into its tokens, as text."""
    return [decode_tokens([token]) for token in encode_harmony(said)]
