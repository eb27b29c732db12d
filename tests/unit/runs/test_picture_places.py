"""How many images are read at once, of a request, a project, all; and what is said of those that are not."""

import asyncio
import gc

import pytest

from engine.errors import EngineError, PictureGone, PicturesRefused
from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.pictures import StoredPicture
from responses_app.runs.plan.pictures import PictureShelf
from responses_app.runs.planning import pictures
from tests.kit.fakes import ANSWER, FakeEngine, Site
from tests.kit.memory_pictures import MemoryPictureStore
from tests.kit.waiting import eventually
from tests.unit.runs.eyes import RED, Eyes, image, message


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
    shelf = PictureShelf(MemoryPictureStore(), max_bytes=50_000)
    for number in range(100):
        shelf.put("p", stored(number, 1))
    assert sum(shelf.get("p", f"{number:064x}") is not None for number in range(100)) < 50, "small ones count, too"
    held = [shelf.put("p", stored(number, 20_000)) for number in range(100, 110)]
    assert shelf.held_bytes > 200_000
    assert shelf.put("p", stored(100, 20_000)) is held[0]
    del held
    gc.collect()
    assert shelf.held_bytes <= 50_000


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
