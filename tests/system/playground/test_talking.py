"""What one does in the playground beside the story: deny, warm up, read frames, let the server's tools work."""

import re

from openai import OpenAI
from playwright.sync_api import expect

from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.server import Server
from tests.system.playground.browser import Playground
from tests.system.playground.held import held


def test_a_denied_call_is_not_made(page: Playground) -> None:
    page.turn_on("tests")
    page.write('call say with "hello"')
    asked = page.ended(1).locator(".call", has_text="Approval wanted")
    asked.get_by_role("button", name="Deny").click()
    expect(asked.locator(".how")).to_have_text("denied")
    expect(page.ended(2).locator(".call", has_text="tests.say")).to_have_count(0)


def test_a_lane_is_warmed_up(page: Playground) -> None:
    page.lane().get_by_role("button", name="Warm up").click()
    expect(page.ended(1).locator("[data-measure=took]")).to_contain_text("Warmed up in")
    page.write("Hello")
    expect(page.ended(2).locator(".answer")).to_contain_text("user message 1")


def test_every_frame_is_listed(page: Playground) -> None:
    page.page.keyboard.press("Tab")  # away from the field
    page.find("[data-do=events]").click()
    page.write("repeat: frames")
    page.ended(1)
    rows = page.find("#events-list .row:not([hidden])")
    expect(rows.first.locator(".type")).to_have_text("create")
    expect(rows.filter(has_text="completed")).to_have_count(1)
    expect(rows.filter(has_text="completed").locator(".time")).to_contain_text("ms")
    rows.filter(has_text="output_text.done").click()
    expect(page.find("#frame-text")).to_contain_text('"text": "frames"')
    page.find("#events-list").press("ArrowDown")
    expect(page.find("#frame-title")).to_have_text("response.content_part.done")
    page.find("#events-filter").fill("created")
    expect(rows).to_have_count(1)


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DRAWS = f"""python: ```python
import base64
class Drawing:
    def _repr_png_(self):
        return base64.b64decode("{PNG}")
print("six by seven is", 6 * 7)
Drawing()
```"""


@needs_bubblewrap
def test_code_runs_and_its_figure_is_shown(page: Playground) -> None:
    page.turn_on("Code interpreter")
    page.write(DRAWS)
    call = page.ended(1).locator(".call", has_text="Python")
    expect(call.locator(".given")).to_contain_text("class Drawing")
    expect(call.locator(".outcome")).to_contain_text("six by seven is 42")
    drawn = call.get_by_alt_text("A figure that the code drew")
    assert drawn.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 1


@needs_bubblewrap
def test_a_file_that_code_wrote_can_be_downloaded(page: Playground) -> None:
    page.turn_on("Code interpreter")
    page.write("python: open('sum.txt', 'w').write('42');")
    source = page.ended(1).locator(".answer .sources button")
    expect(source).to_have_text("sum.txt")
    with page.page.expect_download() as download:
        source.click()
    assert download.value.suggested_filename == "sum.txt"
    assert download.value.path().read_text() == "42"


def test_a_citation_leads_to_its_source(server: Server, page: Playground) -> None:
    with OpenAI(base_url=server.base_url, api_key="none") as client:
        file = client.files.create(file=("harbour.txt", b"The lighthouse of Lisbon is white."), purpose="assistants")
        store = client.vector_stores.create(name="harbour")
        client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=100)
    page.turn_on("File search")
    page.find("[name=vector_stores]").fill(store.id)
    page.write("search the files for lighthouse")
    turn = page.ended(1)
    call = turn.locator(".call", has_text="File search")
    expect(call).to_contain_text("harbour.txt The lighthouse of Lisbon is white.")
    expect(turn.locator(".answer sup.cite")).to_have_text("1")
    expect(turn.locator(".answer .sources")).to_have_text("harbour.txt a file that was searched")


def test_what_the_web_says_is_cited(page: Playground) -> None:
    page.turn_on("Web search")
    page.write("search for shells")
    turn = page.ended(1)
    expect(turn.locator(".call .what")).to_have_text(["Web search", "Page opened"])
    expect(turn.locator(".answer sup.cite")).to_have_text("1")
    source = turn.locator(".answer .sources a")
    expect(source).to_have_text("On turtles")
    expect(source).to_have_attribute("href", re.compile(r"^http://127\.0\.0\.1:\d+/turtles$"))
    expect(source).to_have_attribute("rel", "noopener noreferrer nofollow")


def test_a_picture_is_drawn(page: Playground) -> None:
    page.find(".card", has_text="Draw a picture").click()
    call = page.ended(1).locator(".call", has_text="Image")
    expect(call.locator(".how")).to_have_text("drawn")
    expect(call.locator(".given")).to_contain_text("a lighthouse at dusk")
    image = call.locator("img")
    assert image.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") > 0


def test_a_lane_is_cleared_while_it_runs(server: Server, page: Playground) -> None:
    with held(server):
        page.write("count to 3000")
        expect(page.lane().locator(".answer")).to_contain_text("1 2 3")
        page.lane().get_by_role("button", name="Clear").click()
        expect(page.lane().locator(".turn")).to_have_count(0)
    page.write("repeat: a new beginning")
    expect(page.ended(1).locator(".answer")).to_have_text("a new beginning")
    expect(page.lane().locator(".turn")).to_have_count(1)
