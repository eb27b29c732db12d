"""What an edit of `image_generation` begins with, on a real service on loopback."""

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.stores.files import FileRecord
from tests.kit.image_server import ImageServer, as_base64, png
from tests.kit.memory_files import MemoryFileStore
from tests.unit.tools.drawing import DRAW, OF_USER, SiteOf, call, drawn, play, told


async def test_an_edit_begins_with_the_newest_image(images: ImageServer, site_of: SiteOf) -> None:
    """First with the user's, then with what was made of it, then with that of the response before, from the store."""
    site = site_of(call("edit", "older"), call("edit", "redder"))
    first = await site.ask(input=[OF_USER], tools=[{**DRAW, "input_fidelity": "high"}])
    site.tools[0]._earlier._kept.clear()  # type: ignore[attr-defined]  # as on another worker
    play(site, call("edit", "wilder"))
    second = await site.ask(input="more", tools=[DRAW], previous_response_id=first["id"])
    assert [item["action"] for item in (*drawn(first), *drawn(second))] == ["edit"] * 3
    assert [asked.path for asked in images.asked] == ["/v1/images/edits"] * 3
    began_with = [asked.files for asked in images.asked]
    assert began_with == [[("image", png(each))] for each in ("a photo", "older", "redder")]
    assert images.asked[0].parameters["input_fidelity"] == "high"
    assert "base64" not in told(site, 1)
    assert as_base64("older") not in told(site, 1)


async def test_an_edit_of_what_a_client_sends_back(images: ImageServer, site_of: SiteOf) -> None:
    """Items are replayed with the image, and without it."""
    site = site_of(call())
    first = await site.ask(input="hi", tools=[DRAW])
    (item,) = drawn(first)
    for sent in (item, {name: item[name] for name in item if name != "result"}):
        play(site, call("edit", "redder"))
        more = [{"role": "user", "content": "hi"}, sent, {"role": "user", "content": "more"}]
        second = await site.ask(input=more, tools=[DRAW], store=False)
        assert drawn(second)[0]["status"] == "completed"
        assert images.asked[-1].files == [("image", png("a cat"))]
        assert as_base64("a cat") not in told(site, 0)
        assert "to=image_generation.generate" in told(site, 0)


async def test_several_images_and_a_mask(images: ImageServer, site_of: SiteOf) -> None:
    site = site_of(call("edit"))
    url = f"data:image/png;base64,{as_base64('mask')}"
    both = {"role": "user", "content": [*OF_USER["content"], *OF_USER["content"]]}  # type: ignore[misc]
    await site.ask(input=[both], tools=[{**DRAW, "action": "edit", "input_image_mask": {"image_url": url}}])
    assert images.asked[0].files == [("image[]", png("a photo"))] * 2 + [("mask", png("mask"))]


async def test_images_and_masks_that_are_files(images: ImageServer, site_of: SiteOf) -> None:
    files = MemoryFileStore()
    for file_id, content in (("file-1", png("a photo")), ("file-2", b"text")):
        record = FileRecord(id=file_id, filename="a", purpose="vision", bytes=len(content), created_at=1)
        await files.create("default", record, [content])
    sent = [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]
    site = site_of(call("edit"), files=files)
    await site.ask(input=sent, tools=[{**DRAW, "input_image_mask": {"file_id": "file-1"}}])
    assert images.asked[0].files == [("image", png("a photo")), ("mask", png("a photo"))]
    codes = []
    for file_id in ("file-2", "file-3"):
        play(site, call("edit"))
        sent = [{"role": "user", "content": [{"type": "input_image", "file_id": file_id}]}]
        codes.append(drawn(await site.ask(input=sent, tools=[DRAW]))[0]["error"]["code"])  # type: ignore[index]
    assert codes == ["invalid_image", "file_not_found"]


async def test_where_there_is_nothing_to_edit(images: ImageServer, site_of: SiteOf) -> None:
    site = site_of(call("edit"))
    with pytest.raises(ApiError, match="no image to edit") as refused:
        await site.begin(input="hi", tools=[{**DRAW, "action": "edit"}])
    assert (refused.value.status, refused.value.param) == (400, "tools[0].action")
    (item,) = drawn(await site.ask(input="hi", tools=[DRAW]))
    assert (item["status"], item["error"]["code"]) == ("failed", "no_image")  # type: ignore[index]
    assert not images.asked


async def test_images_are_of_their_project(images: ImageServer, site_of: SiteOf) -> None:
    site = site_of(call())
    (item,) = drawn(await site.ask(input="hi", tools=[DRAW]))
    play(site, call("edit"))
    reading = await site.begin(
        project="other", input=[{"type": "image_generation_call", "id": item["id"]}], tools=[DRAW]
    )
    (stolen,) = drawn((await reading.to_the_end())[-1]["response"])  # type: ignore[arg-type]
    assert stolen["error"]["code"] == "no_image"  # type: ignore[index]
