"""A page of the playground in the system's Chromium, driven by playwright: it notes whatever goes wrong on it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)
SIZES = {"telephone": (360, 740), "tablet": (820, 1180), "desktop": (1440, 900)}
LAPTOP = {"laptop": (1200, 720)}  # for pictures that are small
# Frames come in their own time, and nobody should wait for what only moves.
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser. While it runs, no event loop can be started on this thread."""
    assert CHROMIUM, "chromium is missing: make services installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Playground:
    """One page. `problems` are messages of the console, exceptions, and requests that failed."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda told: self._note(told.type, told.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("requestfailed", lambda request: self.problems.append(f"{request.url}: {request.failure}"))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"{kind}: {text}")

    def open(self, url: str) -> "Playground":
        """Go there, and wait until it is connected."""
        self.page.goto(url)
        self.find("#state[data-state=open]").wait_for()
        return self

    def find(self, selector: str, **how: object) -> Locator:
        """Return what a selector means."""
        return self.page.locator(selector, **how)  # type: ignore[arg-type]

    def lane(self, number: int = 1) -> "Locator":
        """Return a lane."""
        return self.find(f"[data-lane=lane-{number}]")

    def write(self, text: str, lane: int = 1) -> None:
        """Write into a lane's field, and send it by the keyboard."""
        field = self.lane(lane).locator(".composer textarea")
        field.fill(text)
        field.press("Control+Enter")

    def ended(self, count: int, lane: int = 1) -> Locator:
        """Wait until so many turns of a lane have ended; return the last of them."""
        turn = self.lane(lane).locator(".turn[data-status]").nth(count - 1)
        turn.wait_for()
        return turn


@contextmanager
def playground(browser: Browser, size: str = "desktop", *, dark: bool = False) -> Iterator[Playground]:
    """Make a page of a size, light or dark, with nothing stored."""
    width, height = (SIZES | LAPTOP)[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        has_touch=size == "telephone",
    )
    try:
        yield Playground(context.new_page())
    finally:
        context.close()
