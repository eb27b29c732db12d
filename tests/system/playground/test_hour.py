"""A new user's first hour, at three widths: from the first question to a file that one takes away."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.kit.browser import SIZES, is_wider_than_its_window
from tests.kit.people import settings_of
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.server import Server, manage
from tests.system.playground.browser import Playground, playground
from tests.system.playground.held import APPLICATION
from tests.system.playground.test_files import DRAWS, NOTES, NUMBERS, PHOTO, choose
from tests.system.playground.test_versions import versions

KEYS = f"""
from django.core.management import call_command
for project in {list(SIZES)}:
    for _ in range(2):
        call_command("create_key", "--project", project)
"""
A_DAY_PASSES = """
from datetime import timedelta
from django.db.models import F
from responses_app.models import Response
Response.objects.filter(project="{project}").update(created_at=F("created_at") - timedelta(days=1))
"""
LONG = "repeat: " + "\n\n".join(f"Boat {n} came into the harbour." for n in range(40))
SCROLLED = "() => Math.abs(document.querySelector('.transcript').scrollTop - 200) < 3"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks for a key, and where chats are shared within a project."""
    chosen = {"auth": "on", "playground_sharing": "true"}
    with Server(tmp_path_factory.mktemp("hour"), application=APPLICATION, **chosen) as server:
        yield server


@pytest.fixture(scope="module")
def keys(closed: Server) -> dict[str, list[str]]:
    """Two keys for each width, in a project of their own."""
    made = manage("shell", "--no-imports", "-c", KEYS, **settings_of(closed)).split()
    found = [word for word in made if word.startswith("sk-")]
    return {size: found[2 * n : 2 * n + 2] for n, size in enumerate(SIZES)}


class Hour:
    """One user's page."""

    def __init__(self, server: Server, page: Playground, size: str) -> None:
        self.server, self.page, self.size = server, page, size
        self.turns = page.lane().locator(".turn")
        self.field = page.lane().locator(".composer textarea")

    def asks(self) -> None:
        self.page.write(LONG)
        expect(self.page.ended(1).locator(".answer")).to_contain_text("Boat 39 came into the harbour.")

    def attaches(self) -> None:
        """An image and a file go with a message, and stand above it."""
        attached = choose(self.page, PHOTO, NOTES)
        expect(attached.locator("small")).to_have_text(["2.8 KiB", "34 B"])
        self.fits()
        self.page.write("repeat: what is there?")
        turn = self.page.ended(2)
        expect(turn.locator(".asked .enlarge img")).to_have_js_property("naturalWidth", 640)
        expect(turn.locator(".asked .file-chip")).to_have_text("notes.txt")

    def runs_code(self) -> None:
        """Code reads a file, writes another one and draws a figure, which is looked at."""
        choose(self.page, NUMBERS).locator("select").select_option("code")
        self.page.write(DRAWS)
        turn = self.page.ended(3)
        for names in (turn.locator(".call .written li code"), turn.locator(".sources button")):
            expect(names).to_have_text(["upper.txt", "figure.png"])
        self.fits()
        figure = turn.get_by_role("button", name="A figure that the code drew")
        figure.click()
        expect(self.page.find("dialog.viewer img")).to_have_js_property("naturalWidth", 64)
        self.fits()
        self.page.page.keyboard.press("Escape")
        expect(figure).to_be_focused()

    def says_it_anew(self) -> None:
        """A message is edited, its answer is made again, and all versions are there."""
        turn = self.turns.nth(1)
        turn.get_by_role("button", name="Edit your message").click()
        turn.get_by_label("Your message", exact=True).fill("repeat: what else is there?")
        self.fits()
        turn.get_by_role("button", name="Send").click()
        expect(self.page.ended(2).locator(".answer")).to_contain_text("what else is there?")
        expect(self.turns).to_have_count(2)
        self.fits()
        self.turns.nth(1).get_by_role("button", name="Regenerate").click()
        told = versions(self.turns.nth(1)).locator("span")
        expect(told).to_have_text("3/3")
        self.page.ended(2)
        for version in ("2/3", "1/3"):
            self.turns.nth(1).get_by_role("button", name="Version before").click()
            expect(told).to_have_text(version)
        expect(self.turns).to_have_count(3)
        expect(self.turns.nth(2).locator(".enlarge img")).to_have_js_property("naturalWidth", 64)

    def shares(self, browser: Browser, key: str) -> None:
        """Somebody else of the project reads it, and cannot continue it."""
        self.page.lane().get_by_role("button", name="Share").click()
        expect(self.page.find("#said")).to_have_text("Copied")
        link = self.page.page.evaluate("navigator.clipboard.readText()")
        with playground(browser, self.size) as other:
            other.page.goto(self.server.url)
            other.sign_in(key)
            other.page.goto(link)
            expect(other.lane().locator(".lane-line")).to_contain_text("Shared with you")
            expect(other.lane().locator(".answer").first).to_contain_text("Boat 39")
            expect(other.lane().locator(".composer")).to_be_hidden()
            Hour(self.server, other, self.size).fits()

    def reloads(self) -> None:
        """The draft, the setup and the place are back."""
        self.page.show("setup")
        self.page.find("[name=instructions]").fill("Speak of the sea.")
        self.fits()
        self.page.show("talk")
        self.field.fill("half a thought")
        self.page.scroll(200)
        self.page.page.wait_for_function("() => JSON.stringify(localStorage).includes('half a thought')")
        self.page.page.reload()
        expect(self.turns).to_have_count(3)
        expect(self.field).to_have_value("half a thought")
        self.page.page.wait_for_function(SCROLLED)
        expect(self.page.find("[name=instructions]")).to_have_value("Speak of the sea.")

    def finds_yesterdays_chat(self) -> None:
        """The next day it is found by what stands in it."""
        manage("shell", "--no-imports", "-c", A_DAY_PASSES.format(project=self.size), **settings_of(self.server))
        self.list().find("#chats [data-do=newChat]").click()
        self.page.write("repeat: Good morning")
        self.page.ended(1)
        self.page.page.reload()
        self.list().find("#chats-search").fill("what else is there")
        row = self.page.find(".chat")
        expect(row).to_have_count(1)
        expect(self.page.find("#chats-list section", has=row).locator("h3")).to_have_text("Yesterday")
        self.fits()
        row.locator("a").click()
        expect(self.turns.first.locator(".answer")).to_contain_text("Boat 39")
        expect(self.page.find("#chats-search")).to_be_visible(visible=self.size == "desktop")

    def exports(self) -> None:
        self.page.find("[data-do=copy]").click()
        self.page.find("#copy").get_by_role("tab", name="Markdown").click()
        expect(self.page.find("#copy-text")).to_contain_text("Boat 39 came into the harbour.")
        self.fits()
        with self.page.page.expect_download() as download:
            self.page.find("#copy-save").click()
        assert download.value.suggested_filename.endswith(".md")
        assert "what else is there?" in download.value.path().read_text()

    def list(self) -> Playground:
        if not self.page.find("#chats").is_visible():
            self.page.find(".top [data-do=chats]").click()
        return self.page

    def fits(self) -> None:
        """Nothing overflows, and nothing went wrong."""
        assert not is_wider_than_its_window(self.page.page)
        assert self.page.problems == []


@needs_bubblewrap
@pytest.mark.parametrize("size", SIZES)
def test_a_new_users_hour(closed: Server, keys: dict[str, list[str]], browser: Browser, size: str) -> None:
    """Finds what is lost on the way from one part of the page to the next, or is too wide for a screen there."""
    mine, theirs = keys[size]
    with playground(browser, size) as page:
        page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.page.goto(closed.url)
        page.sign_in(mine)
        hour = Hour(closed, page, size)
        for act in (hour.asks, hour.attaches, hour.runs_code, hour.says_it_anew):
            act()
            hour.fits()
        hour.shares(browser, theirs)
        hour.reloads()
        hour.fits()
        hour.finds_yesterdays_chat()
        hour.exports()
        hour.fits()
