"""The system's Chromium, driven by playwright: one process in each file of tests, which import its fixture.

    from tests.kit.browser import browser  # in a conftest.py

A page's `problems` are all that went wrong on it: messages of the console, exceptions, and requests that failed.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.kit.failure_reports import show_problems

# The same engine without the windows of a browser around it: a start and a page cost half of the CPU.
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
# How long something may take to appear, in milliseconds; a wrong guess costs as much while one writes a test.
WAIT_MS = int(os.environ.get("BROWSER_WAIT_MS", "60000"))
expect.set_options(timeout=WAIT_MS)
SIZES = {"telephone": (360, 740), "tablet": (820, 1180), "desktop": (1440, 900)}
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"]
FLAGS += ["--disable-gpu", "--disable-software-rasterizer"]  # a GPU that is simulated costs a good part of the CPU
# Of axe's rules, those that look at colours; no other finds anything else in the dark.
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
LEFT = "net::ERR_ABORTED"  # of a request whose page was left meanwhile
needs_chromium = pytest.mark.needs("chromium")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser. While it runs, no event loop can be started on this thread."""
    assert CHROMIUM, "chromium is missing: make services installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")  # and no longer: tests with an event loop may come behind
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextmanager
def opened(browser: Browser, size: str | tuple[int, int] = "desktop", *, dark: bool = False) -> Iterator[Page]:
    """Open a page of a size, light or dark, with nothing stored."""
    width, height = SIZES[size] if isinstance(size, str) else size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        has_touch=size == "telephone",
    )
    context.set_default_timeout(WAIT_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


def problems_of(page: Page) -> list[str]:
    """Return the list to which whatever goes wrong on the page is added from now on."""
    problems: list[str] = []

    def hear(kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            problems.append(f"{kind}: {text}")

    def fail(url: str, why: str) -> None:
        if why != LEFT:
            problems.append(f"{url}: {why}")

    show_problems(page, problems)
    page.on("console", lambda told: hear(told.type, told.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: fail(request.url, str(request.failure)))
    return problems


def is_wider_than_its_window(page: Page) -> bool:
    """Whether one has to scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def axe_finds_nothing(page: Page, *schemes: Literal["light", "dark"], everything: bool = True) -> None:
    """Fail with axe's report if it finds anything: in the first colour scheme by all its rules, or only in its colours.

    In the others it looks at colours. Without schemes the page stays in the one that it has. Where a dialog is open,
    axe looks at that alone: nobody can reach the rest of the page, which is as it was without the dialog.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    run = "(options) => axe.run(document.querySelector(':modal') ?? document, options)"
    for number, scheme in enumerate(schemes or (None,)):
        if scheme:
            page.emulate_media(color_scheme=scheme)
        rules = {} if everything and number == 0 else COLOURS
        told = page.evaluate(run, {**rules, "resultTypes": ["violations"]})
        found = AxeResults(told)
        assert found.violations_count == 0, found.generate_report()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which nothing may go wrong."""
    with opened(browser) as page:
        problems = problems_of(page)
        yield page
        assert problems == []
