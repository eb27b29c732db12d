"""Nothing keeps people out: axe finds nothing at any width, light or dark, in whatever state; and nothing overflows."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser import SIZES, is_wider_than_its_window
from tests.playground.browser import Playground, playground
from tests.server import Server

pytestmark = pytest.mark.any_database

MARKDOWN = (
    "repeat: ## A head\n\nSome *text* with `code` and a [link](https://example.com).\n\n- one\n- two\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint('long ' * 100)\n```\n\n> quoted"
)


@pytest.fixture(scope="module")
def axe() -> Axe:
    return Axe()


def assert_clean(axe: Axe, page: Playground) -> None:
    found = axe.run(page.page)
    assert found.violations_count == 0, found.generate_report()
    assert not is_wider_than_its_window(page.page)


def show(page: Playground, view: str) -> None:
    """Go to a part of the page, where there is room for one."""
    button = page.find(f"[data-view-of={view}]")
    if button.is_visible():
        button.click()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_axe_finds_nothing(server: Server, browser: Browser, axe: Axe, size: str, dark: bool) -> None:
    with playground(browser, size, dark=dark) as page:
        page.open(server.url)
        assert_clean(axe, page)
        talk(page)
        assert_clean(axe, page)
        show(page, "setup")
        page.find("#add-function").click()
        assert_clean(axe, page)
        page.page.keyboard.press("Escape")
        if size == "desktop":
            page.find("[data-do=events]").click()
        show(page, "events")
        page.find("#events-list .row:not([hidden])").nth(2).click()
        assert_clean(axe, page)
        page.find("[data-do=copy]").click()
        assert_clean(axe, page)
        page.page.keyboard.press("Escape")
        page.find("[data-do=help]").click()
        assert_clean(axe, page)
        assert page.problems == []


def talk(page: Playground) -> None:
    """Say what shows most of what there is: Markdown, a call that waits, an approval, an error, two lanes."""
    page.find(".card", has_text="Answer a function by hand").click()
    page.page.keyboard.press("Control+Enter")
    page.ended(1)
    page.page.keyboard.press("Escape")
    page.find("[data-do=lane]").click()
    page.write(MARKDOWN, lane=2)
    expect(page.ended(1, lane=2).locator(".prose table")).to_be_visible()
