"""The list of chats at three widths, light and dark: it fits, the keyboard goes in and out, and axe finds nothing."""

import pytest
from playwright.sync_api import Browser, expect

from tests.kit.browser import SIZES
from tests.kit.server import Server
from tests.system.playground.browser import Playground, playground


@pytest.mark.parametrize("size", SIZES)
def test_the_list_of_chats(server: Server, browser: Browser, size: str) -> None:
    """Finds a list that does not fit, a state of it that axe complains of, and a keyboard that does not come back."""
    with playground(browser, size) as page:
        page.open(server.url)
        page.write(f"repeat: looked at {size}, with a title that is longer than the list is wide, for once")
        page.ended(1)
        row = page.find(".chat", has_text=f"looked at {size}")
        button = page.find(".top [data-do=chats]")
        if size == "desktop":
            expect(row).to_be_visible()
            button.click()
            expect(page.find("#chats")).to_be_hidden()
            page.page.reload()
            expect(page.find("#state[data-state=open]")).to_be_visible()
            expect(page.find("#chats")).to_be_hidden()
        expect(button).to_have_attribute("aria-expanded", "false")
        button.click()
        expect(row).to_be_visible()
        page.looks_good()
        row.locator("a").focus()
        page.page.keyboard.press("Tab")
        page.page.keyboard.press("Enter")
        expect(page.page.get_by_role("menuitem", name="Rename")).to_be_focused()
        page.looks_good()
        page.page.keyboard.press("Escape")
        expect(row.get_by_role("button")).to_be_focused()
        row.locator("a").press("F2")
        page.looks_good()
        page.page.keyboard.press("Escape")
        expect(row.locator("a")).to_be_focused()
        row.locator("a").press("Delete")
        expect(page.find(".toast")).to_be_visible()
        page.find(".toast button").first.focus()  # its time stands still
        page.looks_good()
        page.find(".toast button").first.click()
        expect(row).to_be_visible()
        leave(page, size)


def leave(page: Playground, size: str) -> None:
    """The drawer closes by Escape, and gives the keyboard back; a chat that is opened closes it, too."""
    if size == "desktop":
        return
    page.find("#chats-search").focus()
    page.page.keyboard.press("Escape")
    expect(page.find("#chats")).to_be_hidden()
    expect(page.find(".top [data-do=chats]")).to_be_focused()
    page.page.keyboard.press("Enter")
    page.find(".chat a").first.click()
    expect(page.find("#chats")).to_be_hidden()
    expect(page.lane().locator(".turn")).not_to_have_count(0)
