"""Images of requests: read, shown to the model, kept, and shown again without being read."""

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import PictureGone
from engine.formats.base import IMAGE_OMITTED
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.fields import noting
from responses_app.protocol.requests.requests import parse_create
from responses_app.resources.files.fields import NewFile
from responses_app.resources.files.store import Files
from responses_app.runs.plan.plan import Origin
from responses_app.tools.settings import PictureSettings
from tests.kit.fakes import ANSWER, CALL_F, TOOL_F, FakeEngine, Reading, Site
from tests.kit.pictures import data_url, opened, picture
from tests.unit.runs.eyes import BLUE, RED, Eyes, image, message, shown
from tests.unit.runs.readers import converse

MakeSite = Callable[..., Site]


@pytest.fixture
def eyes() -> Eyes:
    """What reads and fetches."""
    return Eyes()


@pytest.fixture
def site_of(eyes: Eyes, files: Files) -> MakeSite:
    """Make a site whose model sees."""

    def make(*turns: str, sees: bool = True, **changes: Any) -> Site:
        settings = PictureSettings(**changes)
        return Site(
            FakeEngine(turns or (ANSWER,)),
            model_format=HarmonyFormat(sees=sees),
            picture_settings=settings,
            read_picture=eyes.read,
            fetch_picture=eyes.fetch,
            files=files,
        )

    return make


@pytest.fixture
def site(site_of: MakeSite) -> Site:
    return site_of()


class TestWhereImagesStand:
    async def test_in_messages_and_in_the_outputs_of_every_kind_of_call(self, site_of: MakeSite, site: Site) -> None:
        call: JsonObject = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        custom: JsonObject = {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"}
        computer: JsonObject = {"type": "computer_call", "call_id": "c3", "id": "cc_1", "status": "completed"}
        drawn: JsonObject = {"type": "image_generation_call", "id": "ig_1", "status": "completed"}
        code: JsonObject = {"type": "code_interpreter_call", "id": "ci_1", "code": "draw()", "status": "completed"}
        screen: JsonObject = {"type": "computer_screenshot", "image_url": data_url(picture("#000003"))}
        items = [
            message(image(), image(BLUE)),
            call,
            {"type": "function_call_output", "call_id": "c1", "output": [image(picture("#000001"))]},
            {**call, "call_id": "c4", "output": [image(picture("#000006"))]},
            custom,
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [image(picture("#000002"))]},
            {**computer, "action": {"type": "screenshot"}},
            {"type": "computer_call_output", "call_id": "c3", "output": screen},
            {**code, "outputs": [{"type": "image", "url": data_url(picture("#000004"))}]},
            {**drawn, "result": data_url(picture("#000005")).partition(",")[2]},
        ]
        await site.ask(input=items, tools=[TOOL_F])
        expected = ["#ff0000", "#0000ff", "#000001", "#000006", "#000002", "#000003", "#000004", "#000005"]
        assert await shown(site) == expected
        text = decode_tokens(site.engine.prompts[0])
        assert IMAGE_OMITTED not in text
        assert "base64" not in text

    async def test_by_url_file_and_a_file_that_is_an_image(self, site_of: MakeSite, eyes: Eyes, site: Site) -> None:
        file = NewFile(filename="scan.txt", purpose="vision", bytes=len(BLUE))
        await site.files.create("default", "file-1", file, [BLUE])
        url = "https://here.example/red.png"
        parts = [
            {"type": "input_image", "image_url": url},
            {"type": "input_image", "file_id": "file-1"},
            {"type": "input_file", "file_id": "file-1"},
            {"type": "input_file", "filename": "x.pdf", "file_data": data_url(RED, "application/pdf")},
        ]
        for _ in range(2):
            await site.ask(input=[message(*parts)])
            assert await shown(site) == ["#ff0000", "#0000ff", "#0000ff", "#ff0000"]
        assert eyes.fetched == [url], "it is remembered for a while"
        assert eyes.read_count == 2

    async def test_the_detail_makes_it_small(self, site_of: MakeSite, site: Site) -> None:
        large = picture(size=(1024, 512))
        await site.ask(input=[message(image(large), image(large, detail="low"))])
        whole, small = [opened(await each.load()) for each in site.engine.requests[0].pictures]
        assert (whole.size, small.size) == ((1024, 512), (512, 256))

    async def test_a_file_is_read_only_where_scopes_of_keys_are_looked_at(self, site_of: MakeSite, site: Site) -> None:
        file = NewFile(filename="a.png", purpose="vision", bytes=len(BLUE))
        await site.files.create("default", "file-1", file, [BLUE])
        custom: JsonObject = {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"}
        code: JsonObject = {"type": "code_interpreter_call", "id": "ci_1", "code": "draw()", "status": "completed"}
        items = [
            custom,
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "image", "file_id": "file-1"}]},
            {**code, "outputs": [{"type": "input_image", "file_id": "file-1"}, {"type": "image", "file_id": "file-1"}]},
            message(),
        ]
        await site.ask(input=items)
        assert await shown(site) == []


class TestChains:
    async def test_a_continuation_has_the_same_tokens_and_reads_nothing_again(
        self, site_of: MakeSite, eyes: Eyes, site: Site
    ) -> None:
        first = await site.ask(input=[message(image())])
        await site.ask(input=[message(image(BLUE))], previous_response_id=first["id"])
        before, after = site.engine.prompts
        assert after[: len(before) - 3] == before[:-3]
        assert await shown(site) == ["#ff0000", "#0000ff"]
        assert eyes.read_count == 2

    async def test_a_client_that_sends_all_again_has_nothing_read_again(self, site_of: MakeSite, eyes: Eyes) -> None:
        site = site_of()
        items: list[JsonObject] = []
        for turn in range(20):
            items += [message(*(image(picture(f"#0000{turn:02x}", (each + 1, 1))) for each in range(5)))]
            response = await site.ask(input=items, store=False)
            items += response["output"]  # type: ignore[arg-type]
        assert eyes.read_count == 100
        assert len(site.engine.requests[-1].pictures) == 100

    async def test_what_is_not_stored_lives_with_its_connection(self, site_of: MakeSite, eyes: Eyes) -> None:
        site = site_of(input_images_memory_bytes=0)
        reading = await site.begin(input=[message(image())], store=False)
        await reading.to_the_end()
        link = reading.run.link
        assert [each.width for each in link.pictures] == [8]
        origin = Origin(transport="test", project="default")
        for store in (False, True):
            request = parse_create({"input": "and?", "store": store, "previous_response_id": link.response_id})
            reader = await site.service.create(request, origin, recall={link.response_id: link}.get)
            last = Reading(site, reader)
            events = await last.to_the_end()
            assert await shown(site) == ["#ff0000"]
        assert not site.pictures.owners.keys() - {("default", link.pictures[0].digest)}  # type: ignore[attr-defined]
        kept = str(events[-1]["response"]["id"])  # type: ignore[index,call-overload]
        # Stored now with all before it: it goes on without the connection.
        await site.ask(input="and?", previous_response_id=kept)
        assert await shown(site) == ["#ff0000"]
        assert eyes.read_count == 1

    async def test_a_picture_that_is_gone_fails_the_turn_and_no_other(self, site_of: MakeSite) -> None:
        site = site_of(input_images_memory_bytes=0)
        first = await site.ask(input=[message(image())])
        site.pictures.kept.clear()  # type: ignore[attr-defined]
        gc.collect()
        await site.ask(input="and?", previous_response_id=first["id"])
        with pytest.raises(PictureGone, match="not there any more"):
            await shown(site)

    async def test_what_continues_it_keeps_it_though_its_own_response_is_deleted_meanwhile(
        self, site_of: MakeSite
    ) -> None:
        site = site_of(input_images_memory_bytes=0)
        first = await site.ask(input=[message(image())])
        reading = await site.begin(input=[message(image(BLUE))], previous_response_id=first["id"])
        owners = site.pictures.owners.values()  # type: ignore[attr-defined]
        assert sorted(map(len, owners)) == [1, 2]
        assert all(reading.run.response_id in each for each in owners)
        await reading.to_the_end()

    async def test_it_is_kept_for_the_response_before_it_runs(self, site_of: MakeSite, site: Site) -> None:
        reading = await site.begin(input=[message(image())])
        [owners] = site.pictures.owners.values()  # type: ignore[attr-defined]
        assert owners == {reading.run.response_id}
        await reading.to_the_end()

    async def test_another_project_has_its_own(self, site_of: MakeSite, eyes: Eyes, site: Site) -> None:
        for project in ("one", "two"):
            await (await site.begin(input=[message(image())], project=project)).to_the_end()
        assert eyes.read_count == 2
        assert {project for project, _ in site.pictures.kept} == {"one", "two"}  # type: ignore[attr-defined]

    async def test_a_compaction_sums_up_what_it_saw(self, site_of: MakeSite) -> None:
        site = site_of("<|channel|>final<|message|>A red picture.<|return|>")
        first = await site.ask(input=[message(image())])
        asked = parse_create({"input": [{"type": "compaction_trigger"}], "previous_response_id": first["id"]})
        reader, messages = await site.service.compact(asked, Origin(transport="test", project="default"))
        await Reading(site, reader).to_the_end()
        assert await shown(site) == ["#ff0000"]
        [told] = messages
        content: Any = told["content"]
        assert content[0]["text"].endswith(IMAGE_OMITTED), "no digest, and no tokens of the format"
        assert "<|" not in content[0]["text"]


class TestBadImages:
    @pytest.mark.parametrize(
        ("part", "code", "reason"),
        [
            (image(b"no picture"), "invalid_image", "not an image"),
            (image(picture(size=(64, 64))[:70]), "invalid_image", "damaged"),
            (image(picture("black", (2000, 2000), mode="1")), "invalid_image", "2,000 × 2,000"),
            ({"type": "input_image", "file_id": "file-none"}, "invalid_image", "no file 'file-none'"),
            ({"type": "input_image", "image_url": "http://10.0.0.1/a.png"}, "failed_to_download_image", "internet"),
            (image(RED + b" " * 5000), "invalid_image", "INPUT_IMAGE_MAX_BYTES"),
            ({"type": "input_image"}, "invalid_image", "neither an 'image_url'"),
            ({"type": "input_image", "image_url": {"url": 3}}, "invalid_image", "neither an 'image_url'"),
        ],
        ids=["text", "cut", "pixels", "file", "inward", "bytes", "nothing", "a number"],
    )
    async def test_it_is_a_400_that_names_its_place(
        self, site_of: MakeSite, part: JsonObject, code: str, reason: str
    ) -> None:
        site = site_of(input_image_max_bytes=4096)
        error = await site.refusal(input=[message(), message(image(), part)])
        assert (error.status, error.code, error.param) == (400, code, "input[1].content[2]")
        assert re.search(reason, error.message), error.message
        assert not site.pictures.kept  # type: ignore[attr-defined]

    @pytest.mark.parametrize("role", ["system", "developer", "assistant"])
    async def test_messages_of_other_roles_than_the_user_s_can_have_none(
        self, site_of: MakeSite, eyes: Eyes, role: str
    ) -> None:
        error = await site_of().refusal(input=[message(image()), {"role": role, "content": [image()]}])
        assert (error.status, error.code, error.param) == (400, "invalid_image", "input[1].content[0]")
        assert "messages of the user and outputs of tools" in error.message
        assert eyes.read_count == 0

    async def test_too_many_are_refused_before_any_is_read(self, site_of: MakeSite, eyes: Eyes) -> None:
        error = await site_of().refusal(input=[message(*(image() for _ in range(500)))])
        assert (error.param, error.code) == ("input[0].content[101]", "invalid_image")
        assert "500" in error.message
        assert "takes 100" in error.message
        assert eyes.read_count == 0

    @pytest.mark.usefixtures("conversations")
    async def test_in_an_earlier_item_of_a_conversation_it_is_a_note(self, site_of: MakeSite, site: Site) -> None:
        await converse(site, message(image(b"gone bad")), message(image()))
        await site.ask(input="and?", conversation="conv_1")
        assert IMAGE_OMITTED in decode_tokens(site.engine.prompts[0])
        assert await shown(site) == ["#ff0000"]

    async def test_a_model_that_cannot_see_reads_a_note_and_its_client_hears_of_it(
        self, site_of: MakeSite, eyes: Eyes
    ) -> None:
        site = site_of(sees=False)
        with noting() as ignored:
            request = parse_create({"input": [message(image(), image(b"no picture at all"))]})
        reader = await site.service.create(request, Origin(transport="test", project="default"))
        await Reading(site, reader).to_the_end()
        assert str(ignored) == "input[0].content[1], input[0].content[2]"
        assert decode_tokens(site.engine.prompts[0]).count(IMAGE_OMITTED) == 2
        assert (eyes.read_count, list(site.engine.requests[0].pictures)) == (0, [])
        error = await site_of(sees=False, refuse_images=True).refusal(input=[message(image())])
        assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "input[0].content[1]")


async def test_a_turn_behind_a_call_shows_the_same_pictures(site_of: MakeSite) -> None:
    site = site_of(CALL_F, ANSWER)
    first = await site.ask(input=[message(image())], tools=[TOOL_F])
    call_id = first["output"][-1]["call_id"]  # type: ignore[index,call-overload]
    output = {"type": "function_call_output", "call_id": call_id, "output": [image(BLUE)]}
    await site.ask(input=[output], tools=[TOOL_F], previous_response_id=first["id"])
    assert await shown(site) == ["#ff0000", "#0000ff"]
