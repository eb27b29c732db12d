"""The demo engine looks at pictures: it says their format, their size and their mean colour."""

from collections.abc import Sequence

import pytest

from engine.backends.demo.engine import PICTURE_TOKENS, DemoEngine
from engine.backends.model_folder import ModelFamily
from engine.backends.scripted import ScriptedEngine
from engine.errors import EngineConfigurationError, GenerationFailed, PictureGone
from engine.formats.base import Body, PicturePart, as_tokens
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from engine.models import make_format
from engine.types import GenerationRequest
from tests.contracts.engine import collect, joined
from tests.kit.gallery import Gallery
from tests.kit.pictures import picture
from tests.unit.engine.prompts import declare

FORMAT = HarmonyFormat(sees=True)
RED, GREY = picture(), picture("#808080", (16, 4), "JPEG")
DESCRIBED = "Image 1: PNG, 8 × 8, mostly #ff0000. Image 2: JPEG, 16 × 4, mostly #808080."


def asked(gallery: Gallery, *bodies: Body, before: Sequence[int] = (), behind: Sequence[int] = ()) -> GenerationRequest:
    """Return a request with these messages of a user; `behind` is what of the turn was sampled already."""
    prompt = as_tokens(before)
    for body in bodies:
        prompt.extend(FORMAT.user(body).tokens)
    prompt.extend([*FORMAT.generation_start(), *behind])
    pictures = gallery.sources(FORMAT.pictures_of(prompt))
    return GenerationRequest(request_id="1", prompt_token_ids=prompt, pictures=pictures)


async def said(engine: DemoEngine, request: GenerationRequest) -> str:
    return decode_tokens(joined(await collect(engine, request))).rpartition("<|message|>")[2].removesuffix("<|return|>")


@pytest.fixture
async def engine() -> DemoEngine:
    made = DemoEngine(model="demo")
    await made.start()
    return made


async def test_it_names_format_size_and_mean_colour_of_each_picture(engine: DemoEngine) -> None:
    gallery = Gallery()
    body: Body = ["Please describe ", gallery.add(RED), gallery.add(GREY)]
    assert await said(engine, asked(gallery, body)) == DESCRIBED
    assert await said(engine, asked(gallery, body, "and describe them again")) == DESCRIBED
    latest: Body = ["Describe this one: ", gallery.add(GREY)]
    assert await said(engine, asked(gallery, body, latest)) == "Image 1: JPEG, 16 × 4, mostly #808080."


async def test_it_describes_what_a_tool_has_shown(engine: DemoEngine) -> None:
    gallery = Gallery()
    before = [
        *declare(screenshot=None),
        *FORMAT.user("call screenshot and describe it").tokens,
        *FORMAT.call("screenshot", "{}").tokens,
        *FORMAT.output("screenshot", [gallery.add(RED)]).tokens,
    ]
    assert await said(engine, asked(gallery, before=before)) == "Image 1: PNG, 8 × 8, mostly #ff0000."


async def test_without_the_word_or_without_pictures_it_answers_as_ever(engine: DemoEngine) -> None:
    gallery = Gallery()
    assert 'You said: "Look: [image]"' in await said(engine, asked(gallery, ["Look: ", gallery.add(RED)]))
    assert 'You said: "describe it"' in await said(engine, asked(gallery, "describe it"))


async def test_a_turn_that_was_cut_goes_on_wherever_that_was(engine: DemoEngine) -> None:
    gallery = Gallery()
    body: Body = ["describe ", gallery.add(RED), gallery.add(GREY)]
    whole = joined(await collect(engine, asked(gallery, body)))
    for cut in range(len(whole)):
        rest = joined(await collect(engine, asked(gallery, body, behind=whole[:cut])))
        assert whole[:cut] + rest == whole, cut


async def test_a_picture_is_loaded_once_however_many_turns_have_it(engine: DemoEngine) -> None:
    gallery, bodies = Gallery(), []
    for turn in range(20):
        shown = [gallery.add(picture(f"#0000{turn:02x}", (4, 5 + each))) for each in range(5)]
        bodies.append(["describe ", *shown])
        answer = await said(engine, asked(gallery, *bodies))
        assert answer.count(f"mostly #0000{turn:02x}.") == 5
    assert len(gallery.loaded) == len(set(gallery.loaded)) == 100


async def test_the_prompt_counts_what_pictures_take(engine: DemoEngine) -> None:
    gallery = Gallery()
    request = asked(gallery, ["describe ", gallery.add(RED), gallery.add(GREY)])
    [*_, last] = await collect(engine, request)
    without = asked(gallery, "describe ")
    assert last.prompt_tokens == len(without.prompt_token_ids) + 2 * PICTURE_TOKENS
    [*_, last] = await collect(engine, without)
    assert last.prompt_tokens is None


async def test_a_picture_that_cannot_be_read_breaks_its_generation_alone(engine: DemoEngine) -> None:
    gallery = Gallery()
    with pytest.raises(GenerationFailed, match="cannot be read"):
        await collect(engine, asked(gallery, ["describe ", gallery.add(RED[:40])]))
    with pytest.raises(PictureGone):
        await collect(engine, asked(gallery, ["describe ", PicturePart("0" * 64)]))
    assert await said(engine, asked(gallery, "count to 2")) == "1 2"


def test_its_format_sees_where_it_does_and_a_real_gpt_oss_never() -> None:
    family = ModelFamily(model="demo")
    assert make_format(family, DemoEngine(model="demo")).sees
    assert not make_format(family, DemoEngine(model="demo", options={"sees": False})).sees
    assert make_format(family, ScriptedEngine(model="demo", options={"sees": True})).sees
    assert not make_format(family, ScriptedEngine(model="demo")).sees
    with pytest.raises(EngineConfigurationError, match="sees to be true or false"):
        DemoEngine(model="demo", options={"sees": 1}).check()
