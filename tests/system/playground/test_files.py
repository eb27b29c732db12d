"""Files in the playground: chosen, pasted and dropped, uploaded to where they are to go, sent, and shown large."""

import base64
import json
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
from playwright.sync_api import FilePayload, Locator, Route, expect

from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.server import Server
from tests.system.playground.browser import Playground

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
LIMITS = """async (limits) => {
    const { facts } = await import('/static/playground/door.js');
    Object.assign(facts.files, limits);
}"""


def png(width: int, height: int, noise: random.Random | None = None) -> bytes:
    """Return a picture in two colours, or one of noise, which nothing makes small."""
    row = b"\x24\x59\xc9" * (width // 2) + b"\xf2\xb7\x5c" * (width - width // 2)
    rows = [b"\0" + (noise.randbytes(3 * width) if noise else row) for _ in range(height)]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    head, body = chunk(b"IHDR", size + b"\x08\x02\0\0\0"), chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IEND", b"")


def file(name: str, kind: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": content}


PHOTO, DOT = file("photo.png", "image/png", png(640, 400)), file("dot.gif", "image/gif", GIF)
NOTES = file("notes.txt", "text/plain", b"The lighthouse of Lisbon is white.")
NUMBERS = file("numbers.csv", "text/csv", b"a,b\n1,2\n3,4\n")
ARCHIVE = file("all.zip", "application/zip", b"PK\x03\x04 and so on")


def give(page: Playground, how: str, selector: str, *files: FilePayload) -> None:
    """Paste or drop files; the page takes them, so that the browser does not leave it for them."""
    given = [[each["name"], each["mimeType"], base64.b64encode(each["buffer"]).decode()] for each in files]
    assert page.page.evaluate(GIVE, [how, selector, given])


def choose(page: Playground, *files: FilePayload) -> Locator:
    """Choose files with the button; return the list of what is attached."""
    page.lane().locator(".composer input[type=file]").set_input_files(list(files))
    return page.lane().locator(".attached li")


def sent_by(page: Playground, number: int = 0) -> dict[str, object]:
    """Return a frame that has begun a turn, as the events show it."""
    if not page.find("#events").is_visible():
        page.find("[data-do=events]").click()
    page.find("#events-filter").fill("response.create")
    page.find("#events-list .row[data-way=out]:not([hidden])").nth(number).click()
    expect(page.find("#frame-title")).to_have_text("response.create")
    frame: dict[str, object] = json.loads(page.find("#frame-text").inner_text())
    return frame


@contextmanager
def held(page: Playground, pattern: str) -> Iterator[Callable[[], None]]:
    """Hold back requests of a pattern until what this yields is called."""
    waiting: list[Route] = []
    page.page.route(pattern, lambda route: waiting.append(route))

    def release() -> None:
        for route in waiting:
            if not route.request.failure:  # it was cancelled
                route.continue_()
        page.page.unroute(pattern)

    yield release


def test_what_cannot_be_read_is_told_before_it_is_uploaded(page: Playground) -> None:
    wrong = page.lane().locator(".composer .wrong")
    uploads: list[str] = []
    page.page.on("request", lambda request: uploads.append(request.url) if request.method == "POST" else None)
    title = page.lane().get_by_role("button", name="Attach files").get_attribute("title")
    assert title is not None
    assert "text, PDF and DOCX up to 32 MiB, 20 in a request" in title
    page.page.evaluate(LIMITS, {"bytes": 1000, "code": None, "images": {"count": 2, "bytes": 900}})
    choose(page, ARCHIVE)
    expect(wrong).to_have_text(
        "all.zip cannot be attached: it is not text, PDF or DOCX; it is not text, PDF, DOCX or HTML."
    )
    give(page, "paste", ".composer textarea", file("torn.png", "image/png", b"not at all"), file("no.txt", "", b""))
    expect(wrong).to_have_text("torn.png cannot be read as an image. no.txt is empty, or a folder.")
    items = choose(page, DOT, PHOTO, file("long.txt", "text/plain", b"x" * 1001))
    expect(wrong).to_contain_text("photo.png cannot be attached: a file may have 1000 B (FILE_MAX_BYTES)")
    expect(wrong).to_contain_text("long.txt cannot be attached: a file may have 1000 B (FILE_MAX_BYTES).")
    expect(items).to_have_count(1)
    give(page, "drop", "#setup", DOT, DOT)
    expect(wrong).to_contain_text("dot.gif cannot be attached: a request may have 2 images")
    expect(items).to_have_count(2)
    assert uploads == []


def test_files_and_images_are_sent_shown_and_downloaded(server: Server, page: Playground) -> None:
    """Finds bytes that change between the disk of a user, the server, and the disk of a user."""
    items = choose(page, PHOTO, NOTES)
    give(page, "paste", ".composer textarea", DOT)
    expect(items.locator("small")).to_have_text(["2.8 KiB", "34 B", "43 B"])
    items.nth(2).get_by_role("button", name="Remove dot.gif").click()
    expect(items.nth(1).get_by_role("button", name="Remove notes.txt")).to_be_focused()
    page.looks_good()
    page.find("[data-do=copy]").click()
    page.find("#copy").get_by_role("tab", name="curl").click()
    assert '"image_url": "data:image/png;base64,' in page.find("#copy-text").inner_text()
    page.page.keyboard.press("Escape")
    page.write("repeat: what is there?")
    turn = page.ended(1)
    expect(items).to_have_count(0)
    expect(turn.locator(".answer")).to_contain_text("what is there?")

    (message,) = sent_by(page)["input"]  # type: ignore[misc]
    text, image, notes = message["content"]
    assert (text["type"], image["type"], notes["type"]) == ("input_text", "input_image", "input_file")
    assert base64.b64decode(image["image_url"].partition(",")[2]) == PHOTO["buffer"]
    assert httpx.get(f"{server.base_url}/files/{notes['file_id']}/content").content == NOTES["buffer"]
    with page.page.expect_download() as download:
        turn.get_by_role("button", name="notes.txt").click()
    assert download.value.path().read_bytes() == NOTES["buffer"]

    turn.get_by_role("button", name="Fork").click()
    expect(page.lane(2).locator(".asked .enlarge img")).to_have_count(1)
    page.lane(2).get_by_role("button", name="Close Lane 2").click()
    turn.locator(".asked .enlarge").press("Enter")
    dialog = page.find("dialog.viewer")
    expect(dialog.locator("img")).to_have_js_property("naturalWidth", 640)
    image, stage = (dialog.locator(each).bounding_box() for each in ("img", ".stage-of-image"))
    assert image
    assert stage
    assert image["height"] <= stage["height"], "nothing of it is cut off"
    page.looks_good()
    page.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(turn.locator(".asked .enlarge")).to_be_focused()


def test_large_images_are_uploaded_and_draw_small(page: Playground) -> None:
    noise = random.Random(1)
    items = choose(page, *(file(f"{n}.png", "image/png", png(700, 520, noise)) for n in range(3)), PHOTO)
    expect(items.locator("small")).to_have_text(["1.0 MiB"] * 3 + ["2.8 KiB"])
    drawn = page.find(".attached img").evaluate_all("(all) => all.reduce((sum, { src }) => sum + src.length, 0)")
    assert drawn < 200_000
    page.write("repeat: large")
    turn = page.ended(1)
    frame = sent_by(page)
    assert len(json.dumps(frame)) < 10_000
    (message,) = frame["input"]  # type: ignore[misc]
    assert [sorted(part) for part in message["content"][1:]] == [["file_id", "type"]] * 3 + [["image_url", "type"]]
    expect(turn.locator(".asked img").first).to_have_js_property("naturalWidth", 700)
    turn.locator(".asked .enlarge").first.click()
    told = page.find("dialog.viewer [role=status]")
    expect(told).to_have_text("Image 1 (1 of 4)")
    for key, name in (
        ("ArrowRight", "Image 2 (2 of 4)"),
        ("ArrowLeft", "Image 1 (1 of 4)"),
        ("ArrowLeft", "Image 4 (4 of 4)"),
    ):
        page.page.keyboard.press(key)
        expect(told).to_have_text(name)
    with page.page.expect_download() as download:
        page.find("dialog.viewer").get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == PHOTO["buffer"]
    page.page.keyboard.press("Escape")


def test_sending_waits_for_uploads_and_an_upload_can_be_cancelled(page: Playground) -> None:
    field, send = page.find(".composer textarea"), page.find(".composer .primary")
    with held(page, "**/v1/files") as release:
        items = choose(page, NOTES, NUMBERS)
        expect(items.locator("progress")).to_have_count(2)
        expect(send).to_have_text("Send when uploaded")
        items.nth(1).get_by_role("button", name="Cancel numbers.csv").click()
        expect(items).to_have_count(1)
        field.fill("repeat: after")
        field.press("Enter")
        expect(send).to_have_text("Waits for uploads")
        field.press("End")
        field.type(" it")  # somebody goes on writing: it is not sent
        expect(send).to_have_text("Send when uploaded")
        field.press("Enter")
        page.looks_good()
        release()
    expect(page.ended(1).locator(".answer")).to_contain_text("after it")
    page.problems.clear()  # the upload that was cancelled


def test_a_large_file_goes_in_parts_and_goes_on_where_it_was_cut(server: Server, page: Playground) -> None:
    page.page.evaluate(LIMITS, {"part": 10})
    text = b"a" * 10 + b"b"
    parts: list[Route] = []

    def second_fails(route: Route) -> None:
        parts.append(route)
        if len(parts) == 2:
            route.abort()
        else:
            route.continue_()

    page.page.route("**/parts", second_fails)
    items = choose(page, file("long.txt", "text/plain", text))
    expect(items.locator("small")).to_have_text("The server cannot be reached. Press Retry when it is back.")
    page.find(".composer textarea").fill("repeat: it")
    page.find(".composer .primary").click()
    expect(page.find(".composer .wrong")).to_contain_text("long.txt could not be attached: press Retry, or remove it.")
    page.looks_good()
    items.get_by_role("button", name="Retry long.txt").click()
    expect(items.locator("small")).to_have_text("11 B")
    assert len(parts) == 3
    page.page.unroute("**/parts")
    page.find(".composer .primary").click()
    page.ended(1)
    (message,) = sent_by(page)["input"]  # type: ignore[misc]
    stored = httpx.get(f"{server.base_url}/files/{message['content'][1]['file_id']}/content").content
    assert stored == text
    page.problems.clear()


def test_a_file_goes_into_a_vector_store_that_is_made_or_picked(server: Server, page: Playground) -> None:
    items = choose(page, NOTES)
    where = items.get_by_role("combobox", name="Where notes.txt goes")
    where.select_option("store")
    expect(where.locator(":checked")).to_contain_text("Into Playground 20")
    expect(page.find("[name=on-file_search]")).to_be_checked()
    store = page.find("[name=vector_stores]").input_value()
    assert store.startswith("vs_")
    choose(page, file("harbour.md", "", b"The harbour has nine boats."))
    items.nth(1).locator("select").select_option(store)
    expect(items.nth(1).locator("small")).to_have_text("27 B")
    page.write("search the files for lighthouse")
    turn = page.ended(1)
    expect(turn.locator(".call", has_text="File search")).to_contain_text(
        "notes.txt The lighthouse of Lisbon is white."
    )
    expect(turn.locator(".answer sup.cite").first).to_have_text("1")
    expect(turn.locator(".answer .sources li").first).to_have_text("notes.txt a file that was searched")
    expect(turn.locator(".asked .file-chip")).to_have_text(
        ["notes.txtin a vector store", "harbour.mdin a vector store"]
    )
    files = httpx.get(f"{server.base_url}/vector_stores/{store}/files").json()["data"]
    assert [each["status"] for each in files] == ["completed"] * 2
    items = choose(page, NUMBERS)
    items.locator("select").select_option(store)
    expect(items.locator("small")).to_have_text("12 B")
    items.locator("select").select_option("message")  # and out of the store again
    expect(items.locator("small")).to_have_text("12 B")
    assert len(httpx.get(f"{server.base_url}/vector_stores/{store}/files").json()["data"]) == 2
    kept = page.page.evaluate("async () => (await (await fetch('/v1/files')).json()).data.length")
    items.get_by_role("button", name="Remove numbers.csv").click()
    page.page.wait_for_function(f"async () => (await (await fetch('/v1/files')).json()).data.length === {kept - 1}")


DRAWS = f"""python: ```python
import base64
class Drawing:
    def _repr_png_(self):
        return base64.b64decode("{base64.b64encode(png(64, 40)).decode()}")
text = open('/mnt/data/numbers.csv').read()
open('/mnt/data/upper.txt', 'w').write(text.upper())
print("six by seven is", 6 * 7)
Drawing()
```"""


@needs_bubblewrap
def test_code_reads_a_file_and_what_it_writes_and_draws_can_be_had(server: Server, page: Playground) -> None:
    """Finds files of a sandbox that the page cannot show, load or call gone."""
    items = choose(page, NUMBERS)
    items.locator("select").select_option("code")
    expect(page.find("[name=on-code_interpreter]")).to_be_checked()
    page.write(DRAWS)
    turn = page.ended(1)
    call = turn.locator(".call", has_text="Python")
    expect(call.locator(".given")).to_contain_text("class Drawing")
    expect(call.locator(".outcome").first).to_contain_text("six by seven is 42")
    rows = turn.locator(".call .written li")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="upper.txt").locator(".size")).to_have_text("12 B")
    with page.page.expect_download() as download:
        rows.get_by_role("button", name="Download upper.txt").click()
    assert download.value.path().read_bytes() == NUMBERS["buffer"].upper()
    figure = turn.get_by_role("button", name="A figure that the code drew")
    figure.press("Enter")
    expect(page.find("dialog.viewer img")).to_have_js_property("naturalWidth", 64)
    page.page.keyboard.press("Escape")
    expect(figure).to_be_focused()
    page.looks_good()

    container = sent_by(page)["tools"][0]["container"]  # type: ignore[index]
    assert len(container["file_ids"]) == 1
    for each in httpx.get(f"{server.base_url}/containers").json()["data"]:
        httpx.delete(f"{server.base_url}/containers/{each['id']}")
    rows.get_by_role("button", name="Download upper.txt").click()
    expect(rows.filter(has_text="upper.txt").locator(".size")).to_contain_text("is gone: its container has expired")
    turn.get_by_role("button", name="Fork").click()
    expect(page.lane(2).locator(".written .hint")).to_contain_text("The container has expired")
    expect(page.lane(2).locator(".written button")).to_have_count(0)
    page.lane(2).get_by_role("button", name="Close Lane 2").click()
    page.problems.clear()  # the container is not found


def test_a_draft_keeps_what_is_uploaded_and_names_what_it_cannot_keep(server: Server, page: Playground) -> None:
    noise = random.Random(3)
    middle = file("middle.png", "image/png", png(300, 300, noise))
    expect(choose(page, PHOTO, NOTES, middle).locator("small")).to_have_text(["2.8 KiB", "34 B", "264.1 KiB"])
    page.find(".composer textarea").fill("see there")
    told = page.page.evaluate(KEPT)
    assert [sorted(each) for each in told["kept"]["attachments"]] == [
        ["kind", "name", "size", "to", "url"],
        ["file_id", "kind", "name", "size", "thumb", "to"],
        ["kind", "name", "size", "to"],
    ]
    assert told["wrong"].startswith("middle.png must be attached again")
    assert [part["type"] for part in told["sent"]["content"]] == ["input_text", "input_image", "input_file"]
    assert told["again"] == told["sent"]["content"]
    httpx.delete(f"{server.base_url}/files/{told['sent']['content'][2]['file_id']}")
    page.page.evaluate(RESTORED, told["kept"])
    notes = page.lane().locator(".attached li", has_text="notes.txt")
    expect(notes.locator("small")).to_have_text("The server has it no more: remove it, and attach it again.")
    page.page.keyboard.press("Control+Enter")
    expect(page.find(".composer .wrong")).to_have_text("notes.txt is gone: remove it, then send.")
    notes.get_by_role("button", name="Remove notes.txt").click()
    expect(page.lane().locator(".attached li")).to_have_count(1)
    page.problems.clear()  # the file is not found


RESTORED = """async (kept) => {
    const { formAround } = await import('/static/playground/composer.js');
    formAround(document.querySelector('.composer textarea')).restore(kept);
}"""


KEPT = """async () => {
    const { MessageForm, formAround } = await import('/static/playground/composer.js');
    const { emptySetup } = await import('/static/playground/request.js');
    const kept = JSON.parse(JSON.stringify(formAround(document.querySelector('.composer textarea')).kept));
    let sent;
    const made = () => new MessageForm({ label: 'Edit', setup: emptySetup, send: (item) => (sent = item) });
    const first = made();
    first.restore(kept);
    const wrong = first.wrong.textContent;
    first.submit();
    const second = made();
    second.put(sent);
    return { kept, wrong, sent, again: second.draft.content };
}"""


def test_a_call_is_answered_with_an_image_and_a_file(page: Playground) -> None:
    page.find(".card", has_text="Answer a function by hand").click()
    form = page.ended(1).locator(".answer-form")
    form.locator("input[type=file]").set_input_files([PHOTO, NOTES])
    expect(form.locator("small")).to_have_text(["2.8 KiB", "34 B"])
    page.looks_good()
    form.locator("textarea").fill("This is the sky.")
    form.get_by_role("button", name="Send output").click()
    outcome = page.find(".turn").first.locator(".outcome")
    expect(outcome.locator("pre")).to_have_text("This is the sky.")
    expect(outcome.locator(".enlarge img")).to_have_js_property("naturalWidth", 640)
    expect(outcome.locator(".file-chip")).to_have_text("notes.txt")
    expect(page.ended(2).locator(".answer")).to_contain_text("This is the sky.")
    (answer,) = sent_by(page, 1)["input"]  # type: ignore[misc]
    assert [part["type"] for part in answer["output"]] == ["input_text", "input_image", "input_file"]


def test_an_image_alone_steers_and_comes_back_where_it_cannot(modules: Playground) -> None:
    """The lane alone, without a server."""
    shown = """async (item) => {
        const { Lane } = await import('/static/playground/lane.js');
        const { emptySetup } = await import('/static/playground/request.js');
        const { facts } = await import('/static/playground/door.js');
        const sent = [];
        const page = { facts, send: (frame) => sent.push(frame) };
        const lane = new Lane('lane-9', 'Lane 9', emptySetup(), page);
        lane.take({ type: 'response.created', response: { id: 'resp_1', status: 'in_progress' } });
        lane.composer.put(item);
        lane.composer.submit();
        const steer = { id: 's', input: sent[0].input };
        lane.take({ type: 'response.steer.failed', steer, error: { code: 'invalid_input', message: 'No.' } });
        const back = lane.composer.draft;
        lane.composer.submit();
        lane.take({ type: 'response.steer.accepted', steer });
        const waits = lane.element.querySelectorAll('.steering .enlarge').length;
        lane.take({ type: 'response.steer.pending', steer });
        lane.take({ type: 'response.completed', response: { id: 'resp_1', status: 'completed' } });
        lane.send([]);
        const read = lane.turns.at(-1).element.querySelectorAll('img').length;
        return [sent[0].type, sent[0].input[0], back, waits, read];
    }"""
    url = "data:image/gif;base64," + base64.b64encode(GIF).decode()
    item = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}
    assert modules.page.evaluate(shown, item) == ["response.steer", item, item, 1, 1]
