"""Pictures on the way to vLLM servers: their data once to each, then their names; the same answer however it is cut."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial

import pytest

from engine.backends.vllm import pictures
from engine.backends.vllm.pictures import MAX_REFUSALS, KeptPictures
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import EngineUnavailable, GenerationCut, PictureGone, PicturesRefused, PromptTooLong
from engine.formats.base import Body, PicturePart
from engine.types import PictureSource
from tests.contracts.engine import collect, joined
from tests.kit.gallery import Gallery
from tests.kit.pictures import picture
from tests.kit.waiting import eventually
from tests.unit.engine.seeing_vllm import Chat, SeeingVllm
from tests.unit.engine.vllm_engines import OpenEngine
from tests.unit.formats.families import Family
from tests.unit.formats.seeing import IDEFICS, SEEING, seeing_format

OpenSeeing = Callable[..., Awaitable[SeeingVllm]]
each_family = pytest.mark.parametrize("family", SEEING, ids=lambda family: family.name)


@pytest.fixture
async def open_seeing() -> AsyncIterator[OpenSeeing]:
    async with AsyncExitStack() as stack:

        async def open_one(family: Family = IDEFICS, **eyes: int) -> SeeingVllm:
            return await stack.enter_async_context(SeeingVllm(family, **eyes))

        yield open_one


def chat_of(family: Family, gallery: Gallery, *shown: Body) -> Chat:
    chat = Chat(seeing_format(family)[0], gallery)
    for body in shown:
        chat.user(body)
    return chat


class Seen:
    """A server that sees, an engine over it, and a gallery; its chat begins with one picture."""

    def __init__(self, server: SeeingVllm, engine: VllmServerEngine) -> None:
        self.server, self.engine, self.gallery = server, engine, Gallery()

    def chat(self, *shown: Body) -> Chat:
        return chat_of(IDEFICS, self.gallery, *(shown or (["", self.gallery.add(picture())],)))


@pytest.fixture
async def seen(open_seeing: OpenSeeing, vllm_over: OpenEngine) -> Seen:
    server = await open_seeing()
    return Seen(server, await vllm_over(server, harmony=False))


@each_family
async def test_twenty_turns_with_five_pictures_each_send_each_picture_once(
    family: Family, open_seeing: OpenSeeing, vllm_over: OpenEngine
) -> None:
    server, gallery = await open_seeing(family), Gallery()
    engine = await vllm_over(server, harmony=False)
    assert engine.supports_pictures
    chat, shown = chat_of(family, gallery), 0
    for turn in range(20):
        chat.user([f"Turn {turn}: ", *(gallery.add(picture(f"#{turn:02x}00{each:02x}")) for each in range(5))])
        shown += 5
        request = chat.asked()
        chunks = await collect(engine, request)
        assert chunks[-1].prompt_tokens == len(request.prompt_token_ids) + shown * (server.eyes.size - 1)
        assert [chunk.prompt_tokens for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chat.take(chunks).startswith("I have seen ")
    assert len(gallery.loaded) == len(server.eyes.sent) == len(set(server.eyes.sent)) == 100
    assert server.eyes.hits == sum(range(0, 100, 5))
    assert len(server.generations) == 20, "none was asked for twice"


@each_family
async def test_any_chunking_any_cut_and_another_server_say_the_same(
    family: Family, open_seeing: OpenSeeing, vllm_over: OpenEngine
) -> None:
    gallery = Gallery()
    shown: Body = ["Two: ", gallery.add(picture("#00ff00")), gallery.add(picture("#0000ff", made_as="JPEG")), "?"]
    chat = chat_of(family, gallery, shown)
    one = await vllm_over(await open_seeing(family), harmony=False)
    whole = joined(await collect(one, chat.asked()))
    large = await vllm_over(await open_seeing(family, chunk_tokens=13), harmony=False)
    assert joined(await collect(large, chat.asked())) == whole
    # As after a cut, on the same server; and as a worker goes on that has never seen it, on one that has not either.
    for engine in (one, await vllm_over(await open_seeing(family), harmony=False)):
        for cut in range(0, len(whole), 7):
            assert whole[:cut] + joined(await collect(engine, chat.asked(whole[:cut]))) == whole, cut
    other = chat_of(family, gallery, ["Two: ", gallery.add(picture("#00fe00")), gallery.add(picture("#0000ff")), "?"])
    assert joined(await collect(one, other.asked())) != whole, "what it says depends on what it sees"


async def test_a_generation_that_is_cut_goes_on_with_its_pictures(
    open_seeing: OpenSeeing, vllm_over: OpenEngine
) -> None:
    gallery = Gallery()
    chat = chat_of(IDEFICS, gallery, ["", gallery.add(picture())])
    servers = [await open_seeing(), await open_seeing()]
    engine = await vllm_over(*servers, harmony=False)
    whole = joined(await collect(engine, chat.asked()))
    for server in servers:
        server.switches.fault, server.switches.fault_after = "die", 9
    said: list[int] = []

    async def read() -> None:
        async with aclosing(engine.generate(chat.asked())) as chunks:
            async for chunk in chunks:
                said.extend(chunk.token_ids)

    with pytest.raises(GenerationCut):
        await read()
    assert said == whole[:9]
    for server in servers:
        server.switches.fault = None
    assert said + joined(await collect(engine, chat.asked(said))) == whole


async def test_a_server_that_has_forgotten_pictures_gets_them_again_at_once(seen: Seen) -> None:
    server, engine, gallery = seen.server, seen.engine, seen.gallery
    chat = seen.chat(["", gallery.add(picture("#010101")), gallery.add(picture("#020202"))])
    whole = joined(await collect(engine, chat.asked()))
    del server.eyes.kept[gallery.loaded[1]]
    chunks = await collect(engine, chat.asked())
    assert joined(chunks) == whole
    assert len(gallery.loaded) == 4
    assert joined(await collect(engine, chat.asked())) == whole
    assert len(gallery.loaded) == 4, "from then on it is known to have them"
    assert engine.replicas()["serving"] == 1, "that it had forgotten them is no fault"


async def test_a_server_that_keeps_no_pictures_is_sent_them_each_time(
    open_seeing: OpenSeeing, vllm_over: OpenEngine
) -> None:
    server, gallery = await open_seeing(has_cache=False), Gallery()
    engine = await vllm_over(server, harmony=False)
    chat = chat_of(IDEFICS, gallery, ["", gallery.add(picture())])
    whole = joined(await collect(engine, chat.asked()))
    for _ in range(5):
        assert joined(await collect(engine, chat.asked())) == whole
    assert len(gallery.loaded) == 6
    assert len(server.generations) == 6 + MAX_REFUSALS, "it is found out once"
    assert engine.replicas()["serving"] == 1


async def test_one_picture_twice_in_a_prompt_is_loaded_once(open_seeing: OpenSeeing, vllm_over: OpenEngine) -> None:
    gallery, engine = Gallery(), await vllm_over(await open_seeing(room=1), harmony=False)
    same = gallery.add(picture())
    chat = chat_of(IDEFICS, gallery, ["", same, " and ", same])
    assert chat.take(await collect(engine, chat.asked()))
    assert gallery.loaded == [same.digest]


async def test_a_prompt_loads_no_more_pictures_than_memory_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    async def load(name: str) -> bytes:
        loads.append(name)
        return b"x" * 100

    shown = [PictureSource(name, partial(load, name)) for name in "abcaabcd"]
    monkeypatch.setattr(pictures, "MAX_LOADED", 300)
    with pytest.raises(PicturesRefused, match="together"):
        await KeptPictures().data_of(shown, [each.digest for each in shown], every=True)
    assert loads == ["a", "b", "c", "d"]
    data = await KeptPictures().data_of(shown[:7], [each.digest for each in shown[:7]], every=True)
    assert None not in data


async def test_two_salts_share_no_picture(seen: Seen) -> None:
    chat, shown = seen.chat(), seen.gallery.add(picture())
    for salt in ("a", "b", "a", None, None, "b"):
        await collect(seen.engine, chat.asked(cache_salt=salt))
    sent = seen.server.eyes.sent
    assert len(sent) == len(set(sent)) == 3
    assert sent.count(shown.digest) == 1, "the name without a salt"
    assert all(len(name) == 64 for name in sent)


async def test_what_pictures_add_is_known_from_the_first_time_on(
    open_seeing: OpenSeeing, vllm_over: OpenEngine
) -> None:
    server, gallery = await open_seeing(), Gallery()
    chat = chat_of(IDEFICS, gallery, ["", *(gallery.add(picture(f"#0000{each:02x}")) for each in range(4))])
    length = len(chat.asked().prompt_token_ids)
    expanded = length + 4 * (server.eyes.size - 1)
    server.switches.max_model_len = expanded
    engine = await vllm_over(server, harmony=False)
    # Not known yet: the server says so, and how long it is.
    with pytest.raises(PromptTooLong) as refused:
        await collect(engine, chat.asked())
    assert refused.value.prompt_tokens == expanded
    server.switches.max_model_len = expanded + 5
    engine = await vllm_over(server, harmony=False)
    await collect(engine, chat.asked())
    await collect(engine, chat.asked())
    assert [asked.body["sampling_params"]["max_tokens"] for asked in server.generations[-2:]] == [
        expanded + 5 - length,
        5,
    ]
    chat.user("x" * 10)
    before = len(server.generations)
    with pytest.raises(PromptTooLong):
        await collect(engine, chat.asked())
    assert len(server.generations) == before, "it was not asked"


@pytest.mark.parametrize(
    ("content", "eyes", "expected", "says"),
    [
        (picture()[:50], {}, PicturesRefused, "does not take the images of this request: Failed to load image"),
        (picture(), {"limit": 0}, PicturesRefused, r"At most 0 image\(s\) may be provided in one prompt"),
        (None, {}, PictureGone, "is not there any more"),
    ],
    ids=["broken", "too many", "gone"],
)
async def test_what_a_server_does_not_take_is_told(
    content: bytes | None,
    eyes: dict[str, int],
    expected: type[Exception],
    says: str,
    open_seeing: OpenSeeing,
    vllm_over: OpenEngine,
) -> None:
    gallery, server = Gallery(), await open_seeing(**eyes)
    engine = await vllm_over(server, harmony=False)
    chat = chat_of(IDEFICS, gallery, ["", gallery.add(content) if content is not None else PicturePart("0" * 64)])
    with pytest.raises(expected, match=says):
        await collect(engine, chat.asked())
    assert engine.replicas()["serving"] == 1
    fine = chat_of(IDEFICS, gallery, "no picture")
    assert fine.take(await collect(engine, fine.asked()))


async def test_a_prompt_that_is_too_long_is_not_sent_again_with_all_data(seen: Seen) -> None:
    chat = seen.chat()
    await collect(seen.engine, chat.asked())
    seen.server.switches.max_model_len = 20
    with pytest.raises(PromptTooLong):
        await collect(seen.engine, chat.asked())
    assert (len(seen.server.generations), len(seen.gallery.loaded)) == (2, 1)


async def test_a_server_without_a_place_for_pictures_is_not_asked(
    open_seeing: OpenSeeing, vllm_over: OpenEngine
) -> None:
    server = await open_seeing()
    server.switches.scale_out = False
    seen = Seen(server, await vllm_over(server, harmony=False))
    assert not seen.engine.supports_pictures
    with pytest.raises(EngineUnavailable):
        await collect(seen.engine, seen.chat().asked())
    assert not server.generations


async def test_leaving_ends_it(seen: Seen) -> None:
    async with aclosing(seen.engine.generate(seen.chat().asked())) as chunks:
        await anext(chunks)
    await eventually(lambda: seen.server.connections == 0)
    assert seen.engine.replicas()["serving"] == 1
