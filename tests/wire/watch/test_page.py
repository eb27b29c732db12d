"""The pages in a real browser: live, at three widths, light and dark, by the keyboard, and clean for axe."""

import os
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.kit.browser import SIZES, axe_finds_nothing, is_wider_than_its_window, needs_chromium
from tests.kit.people import NAME, PASSWORD, make_superuser
from tests.kit.scripts import WEATHER
from tests.kit.server import Server

pytestmark = [needs_chromium]


GIF = "R0lGODlhAQABAIAAAP8AAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw=="
FRAMES = {"watch": "/watch/responses/{}", "admin": "/admin/responses_app/response/{}/change/"}


@pytest.fixture(scope="module")
def server(workers: tuple[Server, Server]) -> Server:
    make_superuser(workers[1])
    return workers[1]


def shows(text: str) -> dict[str, object]:
    """A message with an image, and one that only its name stands for."""
    urls = (f"data:image/gif;base64,{GIF}", "https://elsewhere.example/a.png")
    images = [{"type": "input_image", "image_url": url} for url in urls]
    return {"role": "user", "content": [{"type": "input_text", "text": text}, *images]}


@pytest.fixture(scope="module")
def pages(server: Server) -> dict[str, str]:
    """The paths to look at: a response with forks in both frames, and two compared."""

    def ask(**asked: object) -> str:
        answer = httpx.post(f"{server.base_url}/responses", json=asked, timeout=60)
        return str(answer.json()["id"])

    first = ask(input="Hi there")
    texts = ("[weather] in Rome?", "[weather] in Oslo?")
    second, other = (ask(input=[shows(text)], previous_response_id=first, tools=[WEATHER]) for text in texts)
    frames = {name: frame.format(second) for name, frame in FRAMES.items()}
    return {**frames, "compare": f"/watch/compare?left={second}&right={other}"}


def sign_in(page: Page, server: Server) -> None:
    """Log in to the admin."""
    page.goto(f"{server.url}/admin/login/?next=/admin/")
    page.fill("#id_username", NAME)
    page.fill("#id_password", PASSWORD)
    page.click("[type=submit]")
    expect(page.locator("#user-tools")).to_contain_text(NAME)


@pytest.mark.parametrize("name", [*FRAMES, "compare"])
def test_at_every_width_in_light_and_dark_axe_finds_nothing(
    page: Page, server: Server, pages: dict[str, str], name: str
) -> None:
    folder = os.environ.get("SCREENSHOTS")
    if name == "admin":
        sign_in(page, server)
    page.goto(f"{server.url}{pages[name]}")
    page.locator("details.rs-numbers > summary").first.press("Enter")
    expect(page.locator("details.rs-numbers table").first).to_be_visible()
    page.locator(".rs-picture > summary").first.press("Enter")
    expect(page.locator(".rs-picture[open] img").first).to_be_visible()
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        assert not is_wider_than_its_window(page), f"{name} is wider than a {size}"
        if folder:
            page.screenshot(path=Path(folder) / f"watch-{name}-{size}.png", full_page=True)
    axe_finds_nothing(page, "light", "dark")


@pytest.mark.parametrize("frame", FRAMES)
def test_a_page_is_live_while_its_response_runs(page: Page, server: Server, folder_of: Path, frame: str) -> None:
    asked = {"input": f"[gate {frame}]", "background": True}
    response_id = httpx.post(f"{server.base_url}/responses", json=asked, timeout=60).json()["id"]
    if frame == "admin":
        sign_in(page, server)
    page.goto(f"{server.url}{FRAMES[frame].format(response_id)}")
    expect(page.locator(".wt-bar.wt-answer")).to_have_count(1)
    expect(page.locator(".wt-lasts")).to_have_count(1)
    expect(page.locator(".reasoning")).to_contain_text("Let me think about it.")
    page.locator("#raw-1 > summary").press("Enter")
    page.locator("#phases-run > summary").press("Enter")
    (folder_of / f"gate-{frame}").touch()
    expect(page.locator("#told")).to_have_text("It is completed now.")
    expect(page.locator(".wt-lasts")).to_have_count(0)
    for opened_id in ("#phases-run", "#raw-1"):
        assert page.locator(opened_id).evaluate("details => details.open"), "what was opened stays open"
    expect(page.locator("#raw-1")).to_contain_text('"status": "completed"')
    focused = "document.activeElement.closest('details')?.id"
    assert page.evaluate(focused) == "phases-run", "and the keyboard stays where it was"
    expect(page.locator(".rs-talk")).to_contain_text("Hello there, friend.")


def test_the_playground_goes_on_from_it_and_leads_back(page: Page, server: Server, pages: dict[str, str]) -> None:
    page.goto(f"{server.url}{pages['watch']}")
    page.locator(".wt-node a.id").first.click()  # the first of the chain, which called nothing
    expect(page.locator("li[aria-current]")).to_contain_text("Hi there")
    response_id = page.locator("h1.id").inner_text()
    page.get_by_role("link", name="Open in the playground").click()
    expect(page.locator(f".turn[data-response={response_id}]")).to_contain_text("Hi there")
    page.locator(".composer textarea").fill("And now?")
    page.locator(".composer textarea").press("Control+Enter")
    said = page.locator(".turn[data-status=completed]", has_text="And now?")
    link = said.get_by_role("link", name="Timeline")
    page.goto(f"{server.url}{link.get_attribute('href')}")
    expect(page.locator(f"#node-{response_id}")).to_have_count(1)
    expect(page.locator("li[aria-current]")).to_contain_text("And now?")
