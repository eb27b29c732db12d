"""What one does in the playground beside the story: deny, warm up, read frames, let the server's tools work.

Only this finds a button of the page that does nothing at a real server.
"""

import re

from playwright.sync_api import expect

from tests.system.playground.browser import Playground


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
