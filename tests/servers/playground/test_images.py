"""Images in the playground: chosen, pasted and dropped, taken away, sent, forked, and copied as code."""

import base64
import json
import zlib

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import FilePayload, expect

from tests.kit.browser import SIZES, is_wider_than_its_window
from tests.servers.playground.browser import Playground

pytestmark = pytest.mark.any_database

GIF = base64.b64decode("R0lGODlhAQABAIAAAP8AAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw==")
# What a browser does when somebody pastes or drops files; only a person can do it with a real clipboard.
GIVE = """([type, selector, files]) => {
    const data = new DataTransfer();
    for (const [name, kind, base64] of files) {
        const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
        data.items.add(new File([bytes], name, { type: kind }));
    }
    const how = { clipboardData: data, dataTransfer: data, bubbles: true, cancelable: true };
    const event = type === 'paste' ? new ClipboardEvent(type, how) : new DragEvent(type, how);
    document.querySelector(selector).dispatchEvent(event);
    return event.defaultPrevented;
}"""


def png(width: int, height: int) -> bytes:
    """Return a picture in two colours."""
    rows = [b"\0" + b"\x24\x59\xc9" * (width // 2) + b"\xf2\xb7\x5c" * (width - width // 2)] * height

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    head, body = chunk(b"IHDR", size + b"\x08\x02\0\0\0"), chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IEND", b"")


def file(name: str, kind: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": content}


def give(page: Playground, how: str, selector: str, *files: FilePayload) -> None:
    """Paste or drop files; the page takes them, so that the browser does not leave it for them."""
    given = [[each["name"], each["mimeType"], base64.b64encode(each["buffer"]).decode()] for each in files]
    assert page.page.evaluate(GIVE, [how, selector, given])


def test_images_are_attached_sent_forked_and_copied(page: Playground) -> None:
    photo, dot = file("photo.png", "image/png", png(640, 400)), file("dot.gif", "image/gif", GIF)
    composer, wrong = page.lane().locator(".composer"), page.lane().locator(".composer .wrong")
    attached = composer.locator(".attached img")
    with page.page.expect_file_chooser() as chooser:
        composer.get_by_role("button", name="Attach images").click()
    chooser.value.set_files([photo, file("drawing.svg", "image/svg+xml", b"<svg/>")])
    expect(attached).to_have_count(1)
    expect(wrong).to_have_text("drawing.svg is not a PNG, JPEG, WebP or GIF.")
    give(page, "paste", ".composer textarea", dot, file("torn.png", "image/png", b"not at all"))
    expect(wrong).to_have_text("torn.png cannot be read as an image.")
    expect(attached).to_have_count(2)
    give(page, "drop", "#setup", *[dot] * 9)
    expect(wrong).to_have_text("dot.gif is one too many: a message may have 10 images.")
    expect(attached).to_have_count(10)
    for _ in range(8):
        composer.get_by_role("button", name="Remove dot.gif").last.click()
    expect(composer.get_by_role("button", name="Remove dot.gif")).to_be_focused()

    page.find("[data-do=copy]").click()
    page.find("#copy").get_by_role("tab", name="curl").click()
    code = page.find("#copy-text").inner_text()
    assert '"image_url": "data:image/png;base64,' in code
    assert base64.b64encode(GIF).decode() in code
    assert len(code) < 2_000
    expect(page.find("#copy-hint")).to_contain_text("Images are shortened")
    page.page.keyboard.press("Escape")

    page.write("repeat: what is there?")
    turn = page.ended(1)
    expect(attached).to_have_count(0)
    expect(turn.locator(".answer")).to_contain_text("what is there?")
    thumbnail = turn.locator(".asked .thumbnail").first
    shown = thumbnail.get_by_alt_text("Image 1 of 2")
    assert shown.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 640
    small = shown.bounding_box()
    thumbnail.locator("summary").press("Enter")
    large = shown.bounding_box()
    assert small
    assert large
    assert large["height"] > 2 * small["height"]

    page.find("[data-do=events]").click()
    page.find("#events-filter").fill("response.create")
    page.find("#events-list .row:not([hidden])").first.click()
    sent = json.loads(page.find("#frame-text").inner_text())
    (message,) = sent["input"]
    assert [part["type"] for part in message["content"]] == ["input_text", "input_image", "input_image"]
    assert base64.b64decode(message["content"][1]["image_url"].partition(",")[2]) == photo["buffer"]

    turn.get_by_role("button", name="Fork").click()
    expect(page.lane(2).locator(".asked .thumbnail img")).to_have_count(2)
    page.lane(2).get_by_role("button", name="Close Lane 2").click()
    page.page.set_viewport_size(dict(zip(("width", "height"), SIZES["telephone"], strict=True)))  # type: ignore[arg-type]
    give(page, "drop", ".lane", photo)
    expect(attached).to_have_count(1)
    assert not is_wider_than_its_window(page.page)
    for scheme in ("light", "dark"):
        page.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        found = Axe().run(page.page)
        assert found.violations_count == 0, found.generate_report()


def test_an_image_alone_steers_comes_back_where_it_cannot_and_has_to_fit(page: Playground) -> None:
    """The lane alone, without a server."""
    shown = """async (url) => {
        const { Lane } = await import('/static/playground/lane.js');
        const { emptySetup } = await import('/static/playground/request.js');
        const sent = [];
        const page = { facts: { tools: [], servers: [], message_bytes: 1e6 }, send: (frame) => sent.push(frame) };
        const lane = new Lane('lane-9', 'Lane 9', emptySetup(), page);
        lane.take({ type: 'response.created', response: { id: 'resp_1', status: 'in_progress' } });
        lane.composer.images.put([url]);
        lane.composer.submit();
        const steer = { id: 's', input: sent[0].input };
        lane.take({ type: 'response.steer.failed', steer, error: { code: 'invalid_input', message: 'No.' } });
        const back = lane.composer.images.urls;
        lane.composer.submit();
        lane.take({ type: 'response.steer.accepted', steer });
        const waits = lane.element.querySelectorAll('.steering .thumbnail').length;
        lane.take({ type: 'response.steer.pending', steer });
        lane.take({ type: 'response.completed', response: { id: 'resp_1', status: 'completed' } });
        lane.send([]);
        const { images, wrong } = lane.composer;
        images.add([new File([new Uint8Array(600000)], 'big.png', { type: 'image/png' })]);
        await images.done;
        const read = lane.turns.at(-1).element.querySelectorAll('img').length;
        return [sent[0].type, sent[0].input, back, waits, read, images.urls.length, wrong.textContent];
    }"""
    url = "data:image/gif;base64," + base64.b64encode(GIF).decode()
    kind, said, back, waits, read, *large = page.page.evaluate(shown, url)
    assert kind == "response.steer"
    assert said == [{"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}]
    assert (back, waits, read) == ([url], 1, 1)
    assert large == [0, "big.png is too large: the images of a message may have 553.4 kB together."]
