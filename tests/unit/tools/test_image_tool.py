"""`image_generation` inside responses: a real service on loopback, its edits, and what clients see."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from engine.formats.harmony.encoding import decode_tokens
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import ToolProgressed, ToolReturned
from responses_app.resources.files.fields import NewFile
from responses_app.resources.files.store import Files
from responses_app.tools import image_service as service_module
from responses_app.tools import image_tool as tool_module
from responses_app.tools.base import BaseTool
from tests.kit.fakes import ANSWER, FakeEngine, FakeStore, Site
from tests.kit.image_server import Answer, ImageServer, as_base64, event, image_server, image_tool, png, refusal
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event
from tests.kit.waiting import eventually
from tests.unit.runs.test_takeover import TokenEngine, left_at, taken_over, undisturbed

DRAW: JsonObject = {"type": "image_generation"}
DRAWN = "[The image was made, and is shown to the user: png, 1024x1024.]"
OF_USER: JsonObject = {
    "role": "user",
    "content": [
        {"type": "input_text", "text": "hi"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{as_base64('a photo')}"},
    ],
}
SiteOf = Callable[..., Site]


@pytest.fixture
async def images() -> AsyncIterator[ImageServer]:
    async with image_server() as server:
        yield server


@pytest.fixture
async def site_of(images: ImageServer) -> AsyncIterator[SiteOf]:
    """What makes a site whose model says some turns, and then answers."""
    tools: list[BaseTool] = []

    def made(*turns: str, **options: Any) -> Site:
        store = FakeStore()
        tools.append(image_tool(images, stored=store.items, **options))
        return Site(FakeEngine([*turns, ANSWER]), store, tools=tools[-1:])

    yield made
    for tool in tools:
        await tool.aclose()


def call(action: str = "generate", prompt: str = "a cat") -> str:
    arguments = json.dumps({"prompt": prompt})
    return f"<|channel|>commentary to=image_generation.{action} <|constrain|>json<|message|>{arguments}<|call|>"


def play(site: Site, *turns: str) -> None:
    site.engine.requests.clear()
    site.engine.turns[:] = [[turn] for turn in (*turns, ANSWER)]


def drawn(response: JsonObject) -> list[JsonObject]:
    return [item for item in response["output"] if item["type"] == "image_generation_call"]  # type: ignore[attr-defined,index]


async def events_of(site: Site, **fields: object) -> list[JsonObject]:
    """Return the events of a response, which are OpenAI's."""
    events = await site.events(**{"tools": [DRAW], **fields})
    for each in events:
        validate_event(each)
    return events


def told(site: Site, turn: int = 1) -> str:
    return decode_tokens(site.engine.prompts[turn])


async def test_an_image_is_made_and_the_model_reads_a_note(images: ImageServer, site_of: SiteOf) -> None:
    site = site_of(call())
    events = await events_of(site, tools=[{**DRAW, "size": "1024x1024", "quality": "high", "moderation": "low"}])
    (item,) = drawn(events[-1]["response"])  # type: ignore[arg-type]
    assert (item["status"], item["result"], item["action"]) == ("completed", as_base64("a cat"), "generate")
    assert (item["revised_prompt"], item["quality"]) == ("a cat, in oil", "low")
    assert (item["size"], item["output_format"], item["background"]) == ("1024x1024", "png", "auto")
    kinds = [str(each["type"]).removeprefix("response.") for each in events]
    added = kinds.index("output_item.added")
    of_call = [f"image_generation_call.{each}" for each in ("in_progress", "generating", "completed")]
    assert kinds[added : added + 5] == ["output_item.added", *of_call, "output_item.done"]
    output = f"<|start|>image_generation.generate to=assistant<|channel|>commentary<|message|>{DRAWN}<|end|>"
    assert told(site).endswith(f"{output}<|start|>assistant")
    (asked,) = images.asked
    assert (asked.path, asked.key) == ("/v1/images/generations", "Bearer sk-of-the-service")
    assert asked.parameters == {
        "prompt": "a cat", "size": "1024x1024", "quality": "high", "moderation": "low", "response_format": "b64_json"
    }  # fmt: skip


async def test_what_the_model_is_told_and_held_to(images: ImageServer, site_of: SiteOf) -> None:
    site = site_of()
    await site.ask(input="hi", tools=[DRAW])
    declared = told(site, 0)
    assert "namespace image_generation {" in declared
    assert "type generate = (_: {\nprompt: string,\n}) => any;" in declared
    assert "type edit = " in declared
    await site.ask(input="hi", tools=[{**DRAW, "action": "generate"}])
    assert "type generate = " in told(site, 1)
    assert "type edit = " not in told(site, 1)


async def test_partial_images_are_streamed(images: ImageServer, site_of: SiteOf) -> None:
    events = await events_of(site_of(call()), tools=[{**DRAW, "partial_images": 2}])
    shown = [each for each in events if str(each["type"]).endswith("partial_image")]
    assert [each["partial_image_index"] for each in shown] == [0, 1]
    assert [each["partial_image_b64"] for each in shown] == [as_base64("a cat 0"), as_base64("a cat 1")]
    assert drawn(events[-1]["response"])[0]["result"] == as_base64("a cat")  # type: ignore[arg-type]


@pytest.mark.parametrize("refused", ["stream", "partial_images"])
async def test_one_that_cannot_stream_is_not_asked_to_again(images: ImageServer, site_of: SiteOf, refused: str) -> None:
    images.refuses = {refused, "response_format"}
    site = site_of(call(), call(prompt="a dog"))
    events = await events_of(site, tools=[{**DRAW, "partial_images": 2}])
    assert [item["status"] for item in drawn(events[-1]["response"])] == ["completed"] * 2  # type: ignore[arg-type]
    assert not any(str(each["type"]).endswith("partial_image") for each in events)
    assert set(images.asked[-1].parameters) == {"prompt"}
    assert len(images.asked) == 4, "two refusals, and then two images"


async def test_a_prompt_that_speaks_of_streams_is_not_taken_for_that(images: ImageServer, site_of: SiteOf) -> None:
    async def blocked(request: web.Request) -> web.Response:
        return refusal("Your prompt, 'a stream', was rejected.")

    images.answer = blocked
    events = await events_of(site_of(call()), tools=[{**DRAW, "partial_images": 2}])
    assert drawn(events[-1]["response"])[0]["status"] == "failed"  # type: ignore[arg-type]
    assert len(images.asked) == 1


async def test_a_refused_prompt_changes_nothing_for_the_next_one(images: ImageServer, site_of: SiteOf) -> None:
    async def blocked(request: web.Request) -> web.Response:
        images.answer = blocked if len(images.asked) < 2 else None
        return refusal("Rejected: 'draw the words response_format and partial_images'.")

    images.answer = blocked
    events = await events_of(site_of(call(), call()), tools=[{**DRAW, "partial_images": 1}])
    assert [item["status"] for item in drawn(events[-1]["response"])] == ["failed", "completed"]  # type: ignore[arg-type]
    every = {"prompt", "response_format", "stream", "partial_images"}
    assert [set(each.parameters) for each in images.asked] == [every, {"prompt"}, every]


async def test_a_worker_that_dies_meanwhile_has_its_image_made_no_second_time(images: ImageServer) -> None:
    tool = image_tool(images)
    turns, fields = [call(), ANSWER], {"tools": [{**DRAW, "partial_images": 1}]}
    accepted, events = await undisturbed(turns, fields, tools=[tool])
    inputs = list(decode(accepted.log))
    asked = len(images.asked)
    for count in (at for at, each in enumerate(inputs) if isinstance(each, ToolProgressed | ToolReturned)):
        store = await left_at(accepted, encode(inputs[: count + 1]))
        site = Site(TokenEngine(turns), store, worker="heir", tools=[tool])
        again = await (await taken_over(site, str(accepted.response["id"]))).to_the_end()
        assert_laws(again)
        (item,) = drawn(again[-1]["response"])  # type: ignore[arg-type]
        has_returned = isinstance(inputs[count], ToolReturned)
        assert item["status"] == ("completed" if has_returned else "failed")
        assert again == events or not has_returned
    assert len(images.asked) == asked
    await tool.aclose()


# A service that is wrong, slow or hostile.


def plain(body: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": kind, **headers})


def data(value: object) -> web.Response:
    return plain(json.dumps({"data": [{"b64_json": value}]}).encode())


async def endless(request: web.Request) -> web.StreamResponse:
    """A gigabyte, or as much of it as somebody takes."""
    kind = "text/event-stream" if (await request.json()).get("stream") else "application/json"
    answer = web.StreamResponse(headers={"Content-Type": kind})
    await answer.prepare(request)
    with suppress(ConnectionError):  # it is left
        for _ in range(1024):
            await answer.write(b'data: {"data":' + b"A" * 1024 * 1024)
    return answer


async def chatter(line: bytes, request: web.Request) -> web.StreamResponse:
    """Small lines without an end: what reads them has work for as long as it listens."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    with suppress(ConnectionError):  # it is left
        while True:
            await answer.write(line * 1000)
    return answer


async def cut(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b'{"data": [')
    assert request.transport is not None
    request.transport.abort()
    return answer


async def cut_stream(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(event({"type": "image_generation.partial_image", "b64_json": as_base64("x")}))
    return answer


async def silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError("somebody waited for that")


async def answered(given: web.Response | Answer, request: web.Request) -> web.StreamResponse:
    if isinstance(given, web.Response):
        return web.Response(body=given.body, status=given.status, headers=given.headers)
    return await given(request)


HOSTILE: dict[str, tuple[web.Response | Answer, str]] = {
    "403": (plain(b"{}", 403), "image_service_refused"),
    "429": (plain(b"{}", 429), "rate_limit_exceeded"),
    "500": (plain(b"Traceback: secret", 500, "text/html"), "image_service_failed"),
    "404": (plain(b"{}", 404), "image_service_failed"),
    "redirect": (plain(b"", 307, Location="http://169.254.169.254/"), "image_service_redirects"),
    "html": (plain(b"<html>welcome</html>", kind="text/html"), "image_service_invalid"),
    "no data": (plain(b'{"data": []}'), "image_service_invalid"),
    "a url": (plain(b'{"data": [{"url": "http://127.0.0.1/secret"}]}'), "image_service_invalid"),
    "not base64": (data("%%%"), "image_service_invalid"),
    "no image": (data("PGh0bWw+"), "image_service_invalid"),
    "a number": (data(7), "image_service_invalid"),
    "too large": (data("iVBO" * 30_000), "image_too_large"),
    "compressed": (plain(b"x", **{"Content-Encoding": "br"}), "image_service_broke"),
    "no event": (plain(b"data: [1]\n\n", kind="text/event-stream"), "image_service_invalid"),
    "an error in the stream": (
        plain(
            event({"type": "error", "error": {"code": "moderation_blocked", "message": "No."}}),
            kind="text/event-stream",
        ),
        "moderation_blocked",
    ),
    "detail": (plain(b'{"detail": [{"loc": ["body", "prompt"]}]}', 422), "image_request_refused"),
    "endless": (endless, "image_too_large"),
    "endless small events": (partial(chatter, b"data: {}\n\n"), "image_service_invalid"),
    "endless comments": (partial(chatter, b": working\n"), "image_service_invalid"),
    "closes in the middle": (cut, "image_service_broke"),
    "closes in the stream": (cut_stream, "image_service_broke"),
}


@pytest.mark.parametrize("partial_images", [0, 2])
async def test_what_a_service_does_wrong_is_typed(images: ImageServer, site_of: SiteOf, partial_images: int) -> None:
    site = site_of()
    for wrong, (given, code) in HOSTILE.items():
        images.answer = partial(answered, given)
        play(site, call())
        async with asyncio.timeout(20):
            events = await events_of(site, tools=[{**DRAW, "partial_images": partial_images}])
        response = events[-1]["response"]
        (item,) = drawn(response)  # type: ignore[arg-type]
        error = item["error"]
        assert (item["status"], item["result"], error["code"]) == ("failed", None, code), wrong  # type: ignore[index]
        assert response["status"] == "completed", "it goes on"  # type: ignore[index]
        assert f"Error: {error['message']}" in told(site)  # type: ignore[index]
        assert "secret" not in json.dumps(events)


async def test_one_that_is_slow_or_away(images: ImageServer, site_of: SiteOf) -> None:
    images.answer = silent
    (item,) = drawn((await events_of(site_of(call(), seconds=0.2)))[-1]["response"])  # type: ignore[arg-type]
    assert item["error"]["code"] == "image_service_timeout"  # type: ignore[index]
    images.url = "http://127.0.0.1:9/v1"  # where nothing listens
    (item,) = drawn((await events_of(site_of(call())))[-1]["response"])  # type: ignore[arg-type]
    assert item["error"]["code"] == "image_service_unreachable"  # type: ignore[index]


async def test_a_project_whose_images_hang_leaves_places_to_the_others(
    images: ImageServer, site_of: SiteOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MAX_AT_ONCE", 2)
    monkeypatch.setattr(service_module, "MAX_OF_PROJECT", 1)
    site = site_of(call(prompt="slow"), call(prompt="slow"))
    hanging = [await site.begin(input="hi", tools=[DRAW], project="one") for _ in range(2)]
    await eventually(lambda: len(images.asked) == 1 and len(site.engine.requests) == 2)
    play(site, call())
    other = await site.begin(input="hi", tools=[DRAW], project="other")
    (item,) = drawn((await other.to_the_end())[-1]["response"])  # type: ignore[arg-type]
    assert item["status"] == "completed"
    assert [asked.parameters["prompt"] for asked in images.asked] == ["slow", "a cat"]
    for each in hanging:
        site.registry.cancel(each.run, reason="a test")
        await each.to_the_end()


async def test_one_that_never_had_a_place_says_so(
    images: ImageServer, site_of: SiteOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MAX_AT_ONCE", 1)
    site = site_of(call(), seconds=0.1)
    async with site.tools[0]._service._places.taken("other"):  # type: ignore[attr-defined]
        (item,) = drawn((await events_of(site))[-1]["response"])  # type: ignore[arg-type]
    assert item["error"]["code"] == "image_service_busy"  # type: ignore[index]
    assert not images.asked


async def test_a_cancelled_response_leaves_its_call(images: ImageServer, site_of: SiteOf) -> None:
    images.answer = silent
    site = site_of(call())
    reading = await site.begin(input="hi", tools=[DRAW])
    await eventually(lambda: len(images.asked) == 1)
    site.registry.cancel(reading.run, reason="a test")
    events = await reading.to_the_end()
    (item,) = drawn(events[-1]["response"])  # type: ignore[arg-type]
    assert item["status"] == "failed", "OpenAI's items of this type are never incomplete"


async def test_the_bounds_of_a_response_and_of_a_process(site_of: SiteOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_module, "MAX_IMAGES", 2)
    monkeypatch.setattr(service_module, "MAX_AT_ONCE", 1)
    site = site_of(*[call(prompt=each) for each in ("a", "b", "c")])
    first = await site.ask(input="hi", tools=[DRAW])
    assert [item["status"] for item in drawn(first)] == ["completed", "completed", "failed"]
    assert drawn(first)[2]["error"]["code"] == "too_many_images"  # type: ignore[index]
    site.engine.requests.clear()
    second = await site.ask(input="hi", tools=[DRAW], previous_response_id=first["id"])
    assert len(drawn(second)) == 3, "each response has as many"
    monkeypatch.setattr("responses_app.tools.image_tool.MAX_KEPT_BYTES", 100)
    site.engine.requests.clear()
    await site.ask(input="hi", tools=[DRAW])
    earlier = site.tools[0]._earlier  # type: ignore[attr-defined]
    ((_, image),) = earlier._kept.values()
    earlier.keep("default", next(iter(earlier._kept))[1], image)  # a call that another worker made again
    assert earlier._size == len(image.content)


async def test_it_is_refused_where_it_is_demanded_and_no_service_is_set() -> None:
    with pytest.raises(ApiError, match="IMAGE_SERVICE_URL") as refused:
        await Site().begin(input="hi", tools=[DRAW], tool_choice=DRAW)
    assert (refused.value.status, refused.value.param) == (400, "tool_choice")


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


async def test_images_and_masks_that_are_files(images: ImageServer, site_of: SiteOf, files: Files) -> None:
    for file_id, content in (("file-1", png("a photo")), ("file-2", b"text")):
        await files.create("default", file_id, NewFile(filename="a", purpose="vision", bytes=len(content)), [content])
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
