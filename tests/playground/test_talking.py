"""What one does in the playground: talk, answer calls, approve, compare, fork, steer, interrupt."""

import pytest
from openai import OpenAI
from playwright.sync_api import expect

from tests.playground.browser import Playground
from tests.server import Server
from tests.tools.sandbox.sandboxes import needs_bubblewrap

pytestmark = pytest.mark.any_database

WEATHER = "Answer a function by hand"


def turn_on(page: Playground, name: str) -> None:
    """Switch something on in the setup."""
    page.find(".switch", has_text=name).first.click()


def test_an_answer_streams_in(page: Playground) -> None:
    page.write("repeat: Some **bold** words, `code` and <img src=x onerror=alert(1)>")
    turn = page.ended(1)
    expect(turn.locator(".asked")).to_contain_text("repeat:")
    answer = turn.locator(".answer")
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("code")).to_have_text("code")
    expect(answer).to_contain_text("<img src=x onerror=alert(1)>")
    expect(answer.locator("img")).to_have_count(0)
    reasoning = turn.locator("details.reasoning")
    expect(reasoning.locator("summary")).to_contain_text("Thought for")
    expect(reasoning.locator(".thought")).to_be_hidden()
    reasoning.locator("summary").click()
    expect(reasoning.locator(".thought")).to_have_text("The user wants a text repeated.")
    for measure in ("first", "speed", "in", "out"):
        expect(turn.locator(f"[data-measure={measure}]")).to_be_visible()


def test_a_function_is_answered_by_hand(page: Playground) -> None:
    page.find(".card", has_text=WEATHER).click()
    page.page.keyboard.press("Control+Enter")
    call = page.ended(1).locator(".call")
    expect(call.locator("header")).to_contain_text("get_weather")
    expect(call.locator(".given")).to_contain_text('"city": "Lisbon"')
    expect(page.lane().locator(".status")).to_have_text("Waits for you")
    call.locator("textarea").fill('{"sky": "clear"}')
    call.locator("textarea").press("Control+Enter")
    expect(page.ended(2).locator(".answer")).to_contain_text('returned: {"sky": "clear"}')
    expect(call.locator(".how")).to_have_text("answered by you")


@pytest.mark.parametrize(("button", "told", "said"), [("Approve", "approved", "hello"), ("Deny", "denied", "")])
def test_an_approval_is_a_button(page: Playground, button: str, told: str, said: str) -> None:
    turn_on(page, "tests")
    page.write('call say with "hello"')
    asked = page.ended(1).locator(".call", has_text="Approval wanted")
    expect(page.find("#said")).to_have_text("Lane 1: tests.say waits for your approval.")
    expect(page.lane().locator(".composer textarea")).to_be_focused()  # a key that is typed approves nothing
    asked.get_by_role("button", name=button).click()
    expect(asked.locator(".how")).to_have_text(told)
    turn = page.ended(2)
    expect(turn.locator(".call", has_text="tests.say")).to_have_count(1 if said else 0)
    expect(turn.locator(".answer")).to_contain_text(said)


def test_two_lanes_run_side_by_side(page: Playground) -> None:
    page.find(".card", has_text="Two lanes").click()
    for lane in (1, 2):
        expect(page.ended(1, lane).locator(".answer")).to_contain_text("WebSockets")
    page.lane(2).locator(".composer textarea").focus()
    expect(page.find("#setup-lane")).to_have_text("Lane 2")
    expect(page.find("[name=effort]:checked")).to_have_value("high")
    page.lane(2).get_by_role("button", name="Close Lane 2").click()
    expect(page.find(".lane")).to_have_count(1)


def test_a_turn_is_forked(page: Playground) -> None:
    page.write("My first message")
    page.ended(1)
    page.write("My second message")
    second = page.ended(2)
    expect(second.locator(".answer")).to_contain_text("user message 2")
    page.lane().locator(".turn").first.get_by_role("button", name="Fork").click()
    expect(page.lane(2).locator(".turn")).to_have_count(1)
    expect(page.lane(2).locator(".asked")).to_have_text("My first message")
    page.write("Another second message", lane=2)
    expect(page.ended(2, lane=2).locator(".answer")).to_contain_text("user message 2")


def test_what_runs_is_steered(page: Playground) -> None:
    page.write(f"think: {'one more thought ' * 100}")  # it can be stopped behind a thought
    expect(page.lane().locator(".thought")).to_contain_text("one more")
    page.write("repeat: Now this")
    expect(page.find(".steering")).to_contain_text("repeat: Now this")
    first = page.ended(1)
    expect(first.locator(".ending")).to_have_text("Steered")
    second = page.ended(2)
    expect(second.locator(".asked")).to_have_text("repeat: Now this")
    expect(second.locator(".answer")).to_have_text("Now this")
    expect(page.find(".steering")).to_have_count(0)


def test_what_runs_is_interrupted_and_goes_on(page: Playground) -> None:
    page.write("count to 3000")
    expect(page.lane().locator(".answer")).to_contain_text("1 2 3")
    page.page.keyboard.press("Escape")
    expect(page.ended(1).locator(".ending")).to_have_text("Interrupted")
    page.write("repeat: after it")
    expect(page.ended(2).locator(".answer")).to_have_text("after it")


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
    turn_on(page, "Code interpreter")
    page.write(DRAWS)
    call = page.ended(1).locator(".call", has_text="Python")
    expect(call.locator(".given")).to_contain_text("class Drawing")
    expect(call.locator(".outcome")).to_contain_text("six by seven is 42")
    drawn = call.get_by_alt_text("A figure that the code drew")
    assert drawn.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 1


def test_a_citation_leads_to_its_source(server: Server, page: Playground) -> None:
    with OpenAI(base_url=server.base_url, api_key="none") as client:
        file = client.files.create(file=("harbour.txt", b"The lighthouse of Lisbon is white."), purpose="assistants")
        store = client.vector_stores.create(name="harbour")
        client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=100)
    turn_on(page, "File search")
    page.find("[name=vector_stores]").fill(store.id)
    page.write("search the files for lighthouse")
    turn = page.ended(1)
    expect(turn.locator(".call", has_text="File search")).to_contain_text("harbour.txt")
    expect(turn.locator(".answer sup.cite")).to_have_text("1")
    expect(turn.locator(".answer .sources")).to_have_text("harbour.txt")


def test_a_lane_is_cleared_while_it_runs(page: Playground) -> None:
    page.write("count to 3000")
    expect(page.lane().locator(".answer")).to_contain_text("1 2 3")
    page.lane().get_by_role("button", name="Clear").click()
    expect(page.lane().locator(".turn")).to_have_count(0)
    page.write("repeat: a new beginning")
    expect(page.ended(1).locator(".answer")).to_have_text("a new beginning")
    expect(page.lane().locator(".turn")).to_have_count(1)
