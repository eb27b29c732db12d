"""Images of tools of this server, laws of takeover with images, and how many images are read at once."""

import asyncio
import gc
from dataclasses import replace

import pytest

from engine.errors import EngineError, PictureGone, PicturesRefused
from engine.formats.base import IMAGE_OMITTED
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.pictures import StoredPicture
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import OutputGiven, ToolReturned
from responses_app.protocol.session.tool_outputs import parse_tool_output
from responses_app.runs.driving import tool_calls
from responses_app.runs.plan import pictures
from responses_app.runs.plan.pictures import PictureCache
from responses_app.stores.base import AcceptedResponse
from responses_app.tools.base import ToolImage, ToolResult
from tests.kit.fakes import CALL_F, TOOL_F, FakeEngine, Site
from tests.kit.laws import assert_laws
from tests.kit.memory_pictures import MemoryPictureStore
from tests.kit.pictures import data_url
from tests.kit.waiting import eventually
from tests.unit.runs.eyes import BLUE, RED, Eyes, image, message, shown
from tests.unit.runs.readers import id_of, refused
from tests.unit.runs.test_server_tools import ANSWER, ASKED, CALL, Shell
from tests.unit.runs.test_takeover import TokenEngine, left_at, taken_over

DRAWN = f"A drawing:\n{IMAGE_OMITTED}"


def shell(*images: bytes | str) -> Shell:
    return Shell(lambda call: ToolResult(DRAWN, seen=["A drawing:", *map(ToolImage, images)]), repeatable=True)


def seeing(engine: FakeEngine, tool: Shell, *, sees: bool = True, pictures: MemoryPictureStore | None = None) -> Site:
    """Return a site with a tool, and a model that sees."""
    eyes = Eyes()
    return Site(
        engine,
        tools=[tool],
        model_format=HarmonyFormat(sees=sees),
        read_picture=eyes.read,
        pictures=pictures or MemoryPictureStore(),
    )


async def test_the_model_sees_what_a_tool_has_drawn() -> None:
    site = seeing(FakeEngine([CALL, ANSWER]), shell(RED, data_url(BLUE).partition(",")[2]))
    response = await site.ask(input="draw", tools=ASKED)
    assert await shown(site) == ["#ff0000", "#0000ff"]
    assert IMAGE_OMITTED not in decode_tokens(site.engine.prompts[1])
    await site.ask(input="and?", tools=ASKED, previous_response_id=response["id"])
    assert await shown(site) == ["#ff0000", "#0000ff"]
    before, after = site.engine.prompts[1:]
    assert after[: len(before) - 3] == before[:-3], "the same tokens"


async def test_what_cannot_be_shown_is_a_note_and_the_response_goes_on() -> None:
    site = seeing(FakeEngine([CALL, ANSWER]), shell(b"no image", "no base64!", RED))
    response = await site.ask(input="draw", tools=ASKED)
    assert response["status"] == "completed"
    assert await shown(site) == ["#ff0000"]
    told = decode_tokens(site.engine.prompts[1])
    assert "[image omitted: it is not an image that this server reads" in told
    assert "[image omitted: its data is not base64]" in told


async def test_more_than_the_model_is_shown_are_told_of() -> None:
    site = seeing(FakeEngine([CALL, ANSWER]), shell(*([RED] * (tool_calls.MAX_SHOWN + 2))))
    await site.ask(input="draw", tools=ASKED)
    assert len(await shown(site)) == tool_calls.MAX_SHOWN
    assert decode_tokens(site.engine.prompts[1]).count("there are too many") == 2


async def test_a_model_that_cannot_see_reads_the_text() -> None:
    site = seeing(FakeEngine([CALL, ANSWER]), shell(RED), sees=False)
    await site.ask(input="draw", tools=ASKED)
    assert DRAWN in decode_tokens(site.engine.prompts[1])
    assert not site.pictures.kept  # type: ignore[attr-defined]


async def test_cut_anywhere_the_stream_is_the_one_of_an_undisturbed_run() -> None:
    first = seeing(TokenEngine([CALL, ANSWER]), shell(BLUE))
    reading = await first.begin(background=True, input=[message(image())], tools=ASKED)
    kept = first.store._responses["default", id_of(reading)]
    assert isinstance(kept.of, AcceptedResponse)
    accepted = kept.of
    events = await reading.to_the_end()
    assert_laws(events)
    prompts = first.engine.prompts
    inputs = list(decode(first.store.saved[0].log))
    assert next(each.body for each in inputs if isinstance(each, ToolReturned))[0] == "A drawing:"
    for count in range(len(inputs)):
        # Pictures are read by nobody again: the store has them.
        site = seeing(TokenEngine([CALL, ANSWER]), shell(BLUE), pictures=first.pictures)  # type: ignore[arg-type]
        site.store = await left_at(replace(accepted, log=b""), encode(inputs[:count]))
        site.__post_init__()
        again = await (await taken_over(site, str(accepted.response["id"]))).to_the_end()
        assert str(again) == str(events), f"cut behind {count} of {len(inputs)} inputs"
        if site.engine.prompts:
            last = site.engine.prompts[-1]
            assert any(last[: len(prompt)] == prompt for prompt in prompts), "the same tokens"
            expected = ["#ff0000", "#0000ff"] if len(last) >= len(prompts[1]) else ["#ff0000"]
            assert await shown(site) == expected


async def test_an_output_that_a_response_waits_for_shows_its_images() -> None:
    site = seeing(FakeEngine([CALL_F, ANSWER]), shell())
    begun = await site.begin(input="hi", tools=[TOOL_F], awaits_tools=True, transport="sse")
    await begun.until("response.output_item.done")
    await eventually(lambda: getattr(begun.run._machine.due, "until", None) is not None)
    [call] = [item for item in begun.run._machine.stream.output if item["type"] == "function_call"]
    response_id, body = id_of(begun), {"tool_call_id": call["call_id"]}
    bad = parse_tool_output({**body, "output": [image(b"no image")]}, max_bytes=10_000)
    with pytest.raises(ApiError, match="Invalid image at 'output\\[0\\]'"):
        await site.outputs.give("default", response_id, bad)
    inward: JsonObject = {"type": "input_image", "image_url": "http://10.0.0.1/a.png"}
    away = parse_tool_output({**body, "output": [inward]}, max_bytes=10_000)
    error = await refused(site.outputs.give("default", response_id, away))
    assert (error.code, error.param) == ("failed_to_download_image", "output[0]")
    many = parse_tool_output({**body, "output": [image(BLUE)] * 101}, max_bytes=100_000)
    with pytest.raises(ApiError, match=r"takes 100 in one.*'output\[100\]'"):
        await site.outputs.give("default", response_id, many)
    parts = [{"type": "input_text", "text": "drawn:"}, image(BLUE)]
    await site.outputs.give("default", response_id, parse_tool_output({**body, "output": parts}, max_bytes=10_000))
    await begun.to_the_end()
    assert await shown(site) == ["#0000ff"]
    [given] = [each for each in decode(site.store.saved[0].log) if isinstance(each, OutputGiven)]
    assert given.body[0] == "drawn:"
    assert list(decode(encode([given]))) == [given]


class SlowWeb:
    """A web that answers when it is told to."""

    def __init__(self) -> None:
        self.open = 0  # fetches under way
        self.answers = asyncio.Event()

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        self.open += 1
        try:
            await self.answers.wait()
        finally:
            self.open -= 1
        return RED


async def test_no_project_has_all_places_and_who_had_none_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    web = SlowWeb()
    site = Site(
        FakeEngine([ANSWER]),
        model_format=HarmonyFormat(sees=True),
        read_picture=Eyes().read,
        fetch_picture=web.fetch,
    )
    urls = [image(image_url=f"https://slow.example/{each}") for each in range(10)]
    asked = [asyncio.create_task(site.begin(input=[message(*urls)], project="greedy")) for _ in range(5)]
    await eventually(lambda: web.open == 12)
    reading = await site.begin(input=[message(image())], project="other")
    await reading.to_the_end()
    assert web.open == 12
    monkeypatch.setattr(pictures, "READ_SECONDS", 0.0)
    error = await site.refusal(input=[message(*urls)], project="greedy")
    assert (error.status, error.code) == (503, "server_is_overloaded")
    web.answers.set()
    for reading in await asyncio.gather(*asked):
        await reading.to_the_end()


def stored(number: int, size: int) -> StoredPicture:
    return StoredPicture(digest=f"{number:064x}", media_type="image/png", width=1, height=1, content=b"x" * size)


async def test_memory_counts_what_it_keeps_and_what_others_hold() -> None:
    cache = PictureCache(MemoryPictureStore(), max_bytes=50_000)
    for number in range(100):
        cache.put("p", stored(number, 1))
    assert sum(cache.get("p", f"{number:064x}") is not None for number in range(100)) < 50, "small ones count, too"
    held = [cache.put("p", stored(number, 20_000)) for number in range(100, 110)]
    assert cache.held_bytes > 200_000
    assert cache.put("p", stored(100, 20_000)) is held[0]
    del held
    gc.collect()
    assert cache.held_bytes <= 50_000


async def test_where_all_memory_is_held_no_further_image_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    eyes = Eyes()
    site = Site(FakeEngine([ANSWER]), model_format=HarmonyFormat(sees=True), read_picture=eyes.read)
    monkeypatch.setattr(pictures, "MAX_HELD_BYTES", -1)
    assert ((await site.refusal(input=[message(image())])).status, eyes.read_count) == (503, 0)


REFUSED = "At most 1 image(s) may be provided in one prompt."
GONE = "An image of this conversation is not there any more: it was deleted."


@pytest.mark.parametrize(("error", "message"), [(PicturesRefused(REFUSED), REFUSED), (PictureGone("/secret"), GONE)])
async def test_it_is_the_request_s_fault(error: EngineError, message: str) -> None:
    site = Site(FakeEngine([[error]]))
    reading = await site.begin(input="hi")
    await reading.to_the_end()
    problem = reading.run.problem
    assert (problem.status, problem.message, problem.param) == (400, message, "input")
