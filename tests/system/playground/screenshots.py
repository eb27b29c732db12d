"""Pictures of the playground: `python -m tests.system.playground.screenshots FOLDER [SIZE …]`. Look at them.

Each state is taken at three widths, light and dark, on the demo engine.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx
from playwright.sync_api import expect

from tests.kit.browser import SIZES, chromium
from tests.kit.people import settings_of
from tests.kit.server import Server, manage
from tests.system.playground.browser import Playground, playground
from tests.system.playground.test_files import ARCHIVE, PHOTO, choose, file, held

ALL_SIZES = {**SIZES, "laptop": (1280, 800)}  # the last for the pictures of the docs

ANSWER = """repeat: A response can be read **while it is made**. Which way fits depends on who reads:

| Way | Best for | Reconnects |
|---|---|---|
| WebSocket | agents with many turns | with `previous_response_id` |
| Server-sent events | a single answer | with `starting_after` |
| Polling | background work | always |

1. Open the connection once.
2. Send `response.create` for each turn.
3. Read until `response.completed`.

```python
with client.responses.connect() as connection:
    connection.response.create(model="gpt-oss-20b", input="Hello")
```"""

SCHEMA = """{
  "type": "object",
  "properties": {
    "harbour": { "type": "string" },
    "depth": { "type": "number", "minimum": 0 }
  }
  "required": ["harbour"]
}"""

THOUGHT = """think: It is 21 degrees and the sky is clear. Lisbon lies on the Atlantic, so the evenings are cool even in
summer, and the wind comes from the north. Somebody who walks up to the castle wants shoes with a grip, water, and a
light jacket for the way back. The museum of tiles is open until six; the tram is full at noon, and empty before nine.
If rain comes, which the forecast does not say, the aquarium is the better plan. I should give one suggestion for the
morning, one for the afternoon and one for the evening, and say how long it takes to get from each to the next."""


TRIP = """repeat: **Sintra.** The train takes 40 minutes.

1. Walk up to the castle before ten, while it is cool.
2. Have lunch in the old town.
3. Take the bus to the cape for the evening."""

CHART = """python: ```python
import zlib
values = [int(n) for line in open("/mnt/data/boats.csv").read().split()[1:] for n in line.split(",")[1:]]
white, blue, grid = b"\\xff\\xff\\xff", b"\\x24\\x59\\xc9", b"\\xe3\\xe7\\xed"
def colour(x, y):
    is_bar = 11 < x % 80 < 68 and values[x // 80] * 40 >= 400 - y
    return blue if is_bar else grid if y % 80 == 79 else white
rows = [b"\\0" + b"".join(colour(x, y) for x in range(80 * len(values))) for y in range(400)]
def chunk(kind, data):
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
class Chart:
    def _repr_png_(self):
        size = (80 * len(values)).to_bytes(4, "big") + (400).to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
        body = chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")
        return bytes.fromhex("89504e470d0a1a0a") + body
open("/mnt/data/total.txt", "w").write(str(sum(values)))
Chart()
```"""
BEFORE = {  # titles of chats, and how many days ago they were
    "The tram in the morning": 0,
    "A schema for harbours": 1,
    "Compare two prompts": 1,
    "Which tools does the wiki have?": 3,
    "A plan for the week": 4,
    "Notes on prefix caching": 6,
}
DAYS_AGO = """
from datetime import timedelta
from django.db.models import F
from responses_app.models import Response
for id, days in {made}.items():
    Response.objects.filter(id=id).update(created_at=F("created_at") - timedelta(days=days))
"""
BOATS = file("boats.csv", "text/csv", b"month,boats\nMay,3\nJune,5\nJuly,9\nAugust,8\nSeptember,6\nOctober,2\n")


def take(folder: Path, size: str, *, dark: bool, server: Server, page: Playground) -> None:
    """Take all states of one page."""
    name = f"{size}-{'dark' if dark else 'light'}"

    def save(state: str) -> None:
        page.page.screenshot(path=str(folder / f"{state}-{name}.png"))

    begin(server)
    page.open(server.url)
    page.find("#model option").first.wait_for(state="attached")
    save("empty")
    files(server, page, save)
    page.open(server.url, anew=True)
    schema(page, save)
    say(server, page, ANSWER, "What are the ways to stream a response?")
    save("answer")
    chats(page, size, save)
    page.lane().get_by_role("button", name="Clear").click()
    versions(server, page, save)
    page.lane().get_by_role("button", name="Clear").click()
    page.find(".card", has_text="Answer a function by hand").click()
    page.ended(1)
    save("function")
    page.find(".answer-form textarea").fill('{"temperature": 21, "sky": "clear"}')
    page.find(".answer-form textarea").press("Control+Enter")
    page.ended(2)
    if size in ("desktop", "laptop"):
        page.find("[data-do=events]").click()
    else:
        page.find("[data-view-of=events]").click()
    page.find("#events-list .row:not([hidden])").filter(has_text="output_text.done").click()
    save("events")
    if size in ("desktop", "laptop"):
        page.find("[data-do=events]").click()
    else:
        page.find("[data-view-of=setup]").click()
        save("setup")
        page.find("[data-view-of=talk]").click()
    two_lanes(page, size)
    save("lanes")
    page.find("[data-do=copy]").click()
    save("copy")
    page.page.keyboard.press("Escape")
    page.find("[data-do=help]").click()
    save("help")


def begin(server: Server) -> None:
    """Leave no chats but those that somebody would have had."""
    with httpx.Client(base_url=server.base_url) as client:
        for chat in client.get("/playground/chats?limit=100").json()["data"]:
            client.delete(f"/playground/chats/{chat['id']}")
        made = {}
        for title, days in reversed(BEFORE.items()):
            id_ = client.post("/responses", json={"input": f"repeat: {title}"}).json()["id"]
            client.post(f"/playground/chats/{id_}", json={"title": title})
            made[id_] = days
    manage("shell", "--no-imports", "-c", DAYS_AGO.format(made=made), **settings_of(server))


def say(server: Server, page: Playground, command: str, words: str, turn: int = 1) -> None:
    """Give the demo engine a command; it shall look like words, which are the title of a chat that they begin."""
    page.write(command)
    asked = page.lane().locator(".turn").nth(turn - 1)
    expect(asked).to_have_attribute("data-response", re.compile("resp_"))
    id_ = asked.get_attribute("data-response")
    if turn == 1:
        httpx.post(f"{server.base_url}/playground/chats/{id_}", json={"title": words}).raise_for_status()
    page.ended(turn)
    look_like(page, words, turn)
    expect(page.find(".chat").first).to_contain_text(words if turn == 1 else "")


def look_like(page: Playground, words: str, turn: int = 1) -> None:
    """Show other words above a turn."""
    said = page.lane().locator(".turn").nth(turn - 1).locator(".asked")
    said.evaluate("(element, words) => element.textContent = words", words)


def schema(page: Playground, save: Callable[[str], None]) -> None:
    """Write a schema with a mistake in it."""
    page.show("setup")
    page.find(".segments label", has_text="Schema").click()
    page.find("#edit-schema").click()
    page.find("#schema textarea").fill(SCHEMA)
    page.find("#schema .json-told[data-tone=bad]").wait_for()
    save("schema")
    page.page.keyboard.press("Escape")
    page.find(".segments label", has_text="Text").click()
    page.show("talk")


def versions(server: Server, page: Playground, save: Callable[[str], None]) -> None:
    """Ask twice; the first answer has two versions, and the second question is being edited."""
    say(server, page, TRIP, "Where shall we go on Saturday?")
    page.ended(1).get_by_role("button", name="Regenerate").click()
    expect(page.ended(1).locator(".versions")).to_have_attribute("aria-label", "Version 2 of 2")
    page.ended(1)
    look_like(page, "Where shall we go on Saturday?")
    say(
        server, page, "repeat: Then take the tram to the museum of tiles: it is open until six.", "What if it rains?", 2
    )
    turn = page.ended(2)
    turn.hover()
    turn.get_by_role("button", name="Edit your message").click()
    turn.get_by_label("Your message", exact=True).fill("What if it rains all day?")
    save("versions")
    page.page.keyboard.press("Escape")


def chats(page: Playground, size: str, save: Callable[[str], None]) -> None:
    """Show the list, the menu of a chat, its title while it is written, and what can be undone."""
    is_drawer = size not in ("desktop", "laptop")
    if is_drawer:
        page.find(".top [data-do=chats]").click()
    row = page.find(".chat").first
    expect(row).to_be_visible()
    save("chats")
    row.hover()
    row.get_by_role("button").click()
    save("chats-menu")
    page.page.get_by_role("menuitem", name="Rename").click()
    page.page.keyboard.type("Ways to stream a response")
    save("chats-rename")
    page.page.keyboard.press("Enter")
    expect(row.locator(".chat-title")).to_have_text("Ways to stream a response")
    row.locator("a").press("Delete")
    expect(page.find(".toast")).to_be_visible()
    save("chats-undo")
    page.find(".toast").get_by_role("button", name="Undo").click()
    row.locator("a").press("Enter")
    page.ended(1)


def files(server: Server, page: Playground, save: Callable[[str], None]) -> None:
    """Attach files, of which one upload fails and the others are held; then look at a figure."""
    page.page.route("**/v1/uploads", lambda route: route.abort())
    with held(page, "**/v1/files") as release:
        long = file("a report of the harbour.txt", "text/plain", b"x" * 9_000_000)
        attached = choose(page, PHOTO, BOATS, ARCHIVE, long)
        attached.nth(1).locator("select").select_option("code")
        page.find(".composer textarea").fill("How many boats came in which month?")
        expect(page.find("li[data-state=failed]")).to_have_count(1)
        save("files")
        release()
    page.lane().get_by_role("button", name="Remove a report of the harbour.txt").click()
    expect(page.find("li[data-state=busy]")).to_have_count(0)
    page.page.unroute("**/v1/uploads")
    say(server, page, CHART, "How many boats came in which month?")
    expect(page.ended(1).locator(".written .size").first).to_have_text("2 B")
    save("written")
    page.find(".call .enlarge").press("Enter")
    expect(page.find("dialog.viewer img")).to_have_js_property("naturalWidth", 480)
    save("figure")
    page.page.keyboard.press("Escape")


def two_lanes(page: Playground, size: str) -> None:
    """Approve a call in one lane, steer the other one while it thinks."""
    if size == "laptop":
        page.find(".top [data-do=chats]").click()  # room for both
    page.lane().get_by_role("button", name="Fork").last.click()
    view = page.find("[data-view-of=setup]")
    if view.is_visible():
        view.click()
    page.turn_on("tests")
    if view.is_visible():
        page.find("[data-view-of=talk]").click()
    page.write('Now call say with "It is 21 degrees in Lisbon."', lane=2)
    expect(page.lane(2).get_by_role("button", name="Approve")).to_be_visible()
    page.write(THOUGHT)
    expect(page.lane().locator(".thought").last).to_contain_text("It is 21 degrees")
    page.lane().locator(".asked").last.evaluate("e => e.textContent = 'What shall we do in Lisbon today?'")
    page.write("In one sentence, please.")
    expect(page.find(".steering")).to_be_visible()


def main(folder: Path) -> None:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "engine_options": json.dumps({"tokens_per_second": 60}),
        "mcp_servers": json.dumps({"tests": f"{sys.executable} -m tests.kit.mcp_program"}),
    }
    with tempfile.TemporaryDirectory() as own, Server(Path(own), **settings) as server, chromium() as browser:
        for size in sys.argv[2:] or SIZES:
            for dark in (False, True):
                with playground(browser, ALL_SIZES[size], dark=dark) as page:
                    take(folder, size, dark=dark, server=server, page=page)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
