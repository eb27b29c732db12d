"""Images on every way in: the demo engine sees, and says what it was shown."""

import hashlib

import httpx
import pytest

from engine.formats.harmony.encoding import PICTURE
from tests.kit.clients import Frame, http_client, read_error_answer, text_of
from tests.kit.closed import ClosedServer
from tests.kit.fixtures import module_server
from tests.kit.pictures import data_url, picture, png_head
from tests.kit.server import Server
from tests.kit.stored import stored
from tests.kit.web_server import answer, redirect, web_server

LIME, RED, BLUE = picture("#00ff00"), picture("#ff0000"), picture("#0000ff", (20, 10), "JPEG")
SAYS_RED, SAYS_BLUE = "PNG, 8 × 8, mostly #ff0000.", "JPEG, 20 × 10, mostly #0000fe."


server = module_server("seeing", input_images_allowed_hosts="127.0.0.1")  # may fetch from there


def image(content: bytes = RED, **fields: object) -> Frame:
    """Return an image as a message has it."""
    return {"type": "input_image", "image_url": data_url(content), **fields}


def message(*parts: Frame, text: str = "describe") -> Frame:
    """Return a message of the user's."""
    return {"role": "user", "content": [{"type": "input_text", "text": text}, *parts]}


def in_a_chat(content: bytes, **fields: object) -> Frame:
    """Return an image as a chat has it."""
    return {"type": "image_url", "image_url": {"url": data_url(content), **fields}}


def block(content: bytes) -> Frame:
    """Return an image as a message of Anthropic's API has it."""
    data = data_url(content).partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


async def say(http: httpx.AsyncClient, messages: list[Frame]) -> httpx.Response:
    """Ask for a message of Anthropic's API."""
    body = {"model": "demo", "max_tokens": 200, "messages": messages}
    return await http.post("/messages", json=body, headers={"anthropic-version": "2023-06-01"})


async def asked(http: httpx.AsyncClient, *parts: Frame, **fields: object) -> Frame:
    """Create a response about images."""
    said = await http.post("/responses", json={"input": [message(*parts)], **fields})
    assert said.status_code == 200, said.text
    response: Frame = said.json()
    return response


async def test_it_is_seen_again_by_what_continues_it(server: Server, http: httpx.AsyncClient) -> None:
    counted = "SELECT (SELECT COUNT(*) FROM responses_app_picture), (SELECT COUNT(*) FROM responses_app_pictureuse)"
    before, red = stored(server, counted), picture("#ff0001")
    first = await asked(http, image(red), image(picture("#0000fa")))
    says = "Image 1: PNG, 8 × 8, mostly #ff0001. Image 2: PNG, 8 × 8, mostly #0000fa."
    assert text_of(first) == says
    assert first["usage"]["input_tokens"] > 100
    second = await asked(http, image(picture("#00ff00", made_as="WEBP")), previous_response_id=first["id"])
    assert "Image 1: WEBP, 8 × 8, mostly #0" in text_of(second)
    third = await asked(http, previous_response_id=second["id"])
    assert text_of(third).startswith(f"{says} Image 3: WEBP")
    listed = (await http.get(f"/responses/{first['id']}/input_items?include=message.input_image.image_url")).json()
    assert listed["data"][0]["content"][1]["image_url"] == data_url(red), "what was sent is given back"
    for response in (third, second, first):
        await http.delete(f"/responses/{response['id']}")
    assert stored(server, counted) == before


async def test_by_url_by_file_and_from_the_outputs_of_calls(http: httpx.AsyncClient) -> None:
    sent = await http.post("/files", files={"file": ("x.bin", BLUE)}, data={"purpose": "vision"})
    call: Frame = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output: Frame = {"type": "function_call_output", "call_id": "c1", "output": [image(picture("#00ff00"))]}
    async with web_server() as web:
        web.pages["/red"] = answer(RED, kind="application/octet-stream")
        web.pages["/there"] = redirect(web.url("/red"))
        parts = [
            {"type": "input_image", "image_url": web.url("/there")},
            {"type": "input_image", "file_id": sent.json()["id"]},
        ]
        for _ in range(2):
            items = [call, output, message(*parts)]
            said = await http.post("/responses", json={"input": items, "store": False})
            assert text_of(said.json()) == f"Image 1: {SAYS_RED} Image 2: {SAYS_BLUE}", said.text
        said = await http.post("/responses", json={"input": [call, output, message()], "store": False})
        assert text_of(said.json()).startswith("Image 1: PNG, 8 × 8, mostly #00ff00."), said.text
        assert len(web.asked) == 2, "a URL is remembered for a while"
        web.pages["/inward"] = redirect(f"http://[::1]:{web.port}/red")
        for path, reason in (("/inward", "not on the public internet"), ("/none", "status 404")):
            bad = message({"type": "input_image", "image_url": web.url(path)})
            refused = await http.post("/responses", json={"input": [message(), bad]})
            at = "input[1].content[1]"
            assert reason in read_error_answer(refused, status=400, code="failed_to_download_image", param=at)


BAD: dict[str, tuple[bytes, str]] = {
    "20,000 × 20,000": (png_head(20_000, 20_000), "20,000 × 20,000 pixels"),
    "cut": (picture(size=(64, 64))[:80], "damaged, or incomplete"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
    "HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
    "a page": (b"<html>%b" % RED, "not an image"),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_cannot_be_shown_is_a_400_in_the_shape_of_each_api(http: httpx.AsyncClient, case: str) -> None:
    content, reason = BAD[case]
    refused = await http.post("/responses", json={"input": [message(), message(image(), image(content))]})
    assert reason in read_error_answer(refused, status=400, code="invalid_image", param="input[1].content[2]")
    chat = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": [in_a_chat(content)]}]}
    refused = await http.post("/chat/completions", json=chat)
    assert reason in read_error_answer(refused, status=400, code="invalid_image", param="messages[1].content[0]")
    refused = await say(http, [{"role": "user", "content": [block(content)]}])
    told = refused.json()
    assert (refused.status_code, told["error"]["type"]) == (400, "invalid_request_error")
    assert reason in told["error"]["message"]
    assert "'messages[0].content[0]'" in told["error"]["message"]


async def test_in_chats_messages_and_results_of_tools(http: httpx.AsyncClient) -> None:
    describe = {"type": "text", "text": "describe"}
    chat = {"messages": [{"role": "user", "content": [in_a_chat(RED, detail="low"), describe]}]}
    said = (await http.post("/chat/completions", json=chat)).json()
    assert said["choices"][0]["message"]["content"] == f"Image 1: {SAYS_RED}"
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block(RED)]}
    messages: list[Frame] = [
        {"role": "user", "content": [block(RED), {"type": "text", "text": "look"}]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, describe]},
    ]
    told = (await say(http, messages)).json()
    assert told["content"][-1]["text"] == f"Image 1: {SAYS_RED} Image 2: {SAYS_RED}"


async def test_what_a_conversation_has_is_seen_in_it(http: httpx.AsyncClient) -> None:
    made = (await http.post("/conversations", json={"items": [message(image(), text="look")]})).json()
    for _ in range(2):
        said = await http.post("/responses", json={"input": "describe", "conversation": made["id"]})
        assert text_of(said.json()) == f"Image 1: {SAYS_RED}"


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_model_that_cannot_see(tmp_path_factory: pytest.TempPathFactory, refuses: bool) -> None:
    folder = tmp_path_factory.mktemp("blind")
    with Server(folder, engine_options={"sees": False}, refuse_images="on" if refuses else "off") as server:
        async with http_client(server) as http:
            said = await http.post("/responses", json={"input": [message(image())]})
            messages = [{"role": "user", "content": [in_a_chat(RED)]}]
            chat = await http.post("/chat/completions", json={"messages": messages})
        if refuses:
            read_error_answer(said, status=400, code="unsupported_parameter", param="input[0].content[1]")
            read_error_answer(chat, status=400, code="unsupported_parameter", param="messages[0].content[0]")
        else:
            assert said.headers["respsite-ignored"] == "input[0].content[1]"
            assert chat.headers["respsite-ignored"] == "messages[0].content[0]"
            assert "mostly" not in text_of(said.json())


async def test_nobody_reaches_the_images_of_another_project(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ClosedServer(tmp_path_factory.mktemp("closed"), auth="on", responses_compatibility_mode="false") as server:
        keys = [server.new_key("--project", project) for project in ("ann", "bob")]
        ann, bob = (httpx.Client(base_url=server.base_url, headers={"Authorization": f"Bearer {key}"}) for key in keys)
        with ann, bob:
            body = {"input": [message(image())], "enable_response_messages": True}
            said = ann.post("/responses", json=body)
            assert said.status_code == 200, said.text
            response = said.json()
            assert text_of(response) == f"Image 1: {SAYS_RED}"
            item = ann.get(f"/responses/{response['id']}/input_items").json()["data"][0]["id"]
            # Her digest stands in what her model has read: he says that his has read it, too.
            told = {"input": "describe", "previous_input_messages": response.get("input_messages") or []}
            said = bob.post("/responses", json=told)
            assert "mostly" not in said.text
            for fields in (
                {"previous_response_id": response["id"], "input": "describe"},
                {"input": [{"type": "item_reference", "id": item}, message()]},
            ):
                assert bob.post("/responses", json=fields).status_code == 400
        rows = stored(server, "SELECT project, COUNT(*) FROM responses_app_picture GROUP BY project")
        assert [tuple(row) for row in rows] == [("ann", 1)]


async def test_a_roll_out_says_where_images_stand(http: httpx.AsyncClient) -> None:
    shown = picture("#00ffff")
    first = await asked(http, image(RED), image(BLUE), metadata={"rollout_id": "images"})
    again = [message(image(shown))]
    headers = {"x-rollout-id": "images"}
    second = await http.post("/responses", json={"input": again, "previous_response_id": first["id"]}, headers=headers)
    assert second.status_code == 200, second.text
    tree = (await http.get("/rollouts/images")).json()
    found = [(node["role"], each["digest"]) for node in tree["nodes"] for each in node["images"]]
    digests = [hashlib.sha256(b"respsite picture 1\0" + content).hexdigest() for content in (RED, BLUE, shown)]
    assert found == [("user", digest) for digest in digests], "each once, in the span of the message that shows it"
    signs = [node["token_ids"][each["at"]] for node in tree["nodes"] for each in node["images"]]
    assert signs == [PICTURE] * 3
