"""A page of the playground in the browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Browser, Locator, Page, expect

from tests.kit.browser import axe_finds_nothing, is_wider_than_its_window, opened, problems_of
from tests.kit.people import NAME, PASSWORD

# The page follows an answer that has just ended to its last line, in a frame of its own: a reader scrolls behind that.
SCROLLS = """async (element, to) => {
    do {
        element.scrollTop = to
        element.dispatchEvent(new Event('scroll'))
        for (const _ of [1, 2, 3]) await new Promise(requestAnimationFrame)
    } while (Math.abs(element.scrollTop - to) > 2)
}"""


def drawn(turn: Locator) -> None:
    """Wait until all that a turn says is drawn: texts come in later frames than what tells that it has ended."""
    expect(turn.locator("[aria-busy=true]")).to_have_count(0)


class Playground:
    """One page; `problems` are all that went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems = problems_of(page)

    def open(self, url: str, *, anew: bool = False) -> "Playground":
        """Go there, and wait until it is connected; `anew` forgets what was stored."""
        if anew and self.page.url.startswith(url):
            self.page.goto(f"{url}/static/respsite/icon.svg")  # a page that is left keeps its drafts
            self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
            self.problems.clear()
        self.page.goto(url)
        self.find("#state[data-state=open]").wait_for()
        return self

    def find(self, selector: str, **how: object) -> Locator:
        return self.page.locator(selector, **how)  # type: ignore[arg-type]

    def lane(self, number: int = 1) -> "Locator":
        return self.find(f"[data-lane=lane-{number}]")

    def write(self, text: str, lane: int = 1) -> None:
        """Write into a lane's field, and send it by the keyboard."""
        field = self.lane(lane).locator(".composer textarea")
        field.fill(text)
        field.press("Control+Enter")

    def ended(self, count: int, lane: int = 1) -> Locator:
        """Wait until so many turns of a lane have ended, and are drawn; return the last of them."""
        turn = self.lane(lane).locator(".turn[data-status]").nth(count - 1)
        turn.wait_for()
        drawn(turn)
        return turn

    def scroll(self, to: int) -> None:
        """Scroll the first lane, as a reader does."""
        self.lane().locator(".transcript").evaluate(SCROLLS, to)

    def turn_on(self, name: str) -> None:
        self._open(self.find("#setup details", has=self.find(".switch", has_text=name)))
        self.find("#setup .switch", has_text=name).first.click()

    def group(self, title: str) -> Locator:
        group = self.find("#setup details", has=self.find(f'h3:text-is("{title}")'))
        self._open(group)
        return group

    def sign_in(self, key: str) -> None:
        if not self.find("#key").is_visible():
            self.find("#sign").click()
        self.find("#key input").fill(key)
        self.find("#key button.primary").click()
        self.find("#state[data-state=open]").wait_for()

    def log_in(self, url: str, name: str = NAME) -> None:
        self.page.goto(f"{url}/admin/login/?next=/")
        self.find("#id_username").fill(name)
        self.find("#id_password").fill(PASSWORD)
        self.find("[type=submit]").click()

    def looks_good(self, *schemes: Literal["light", "dark"]) -> None:
        """Nothing overflows, and axe finds nothing, in these colour schemes."""
        assert not is_wider_than_its_window(self.page)
        axe_finds_nothing(self.page, *(schemes or ("light", "dark")))

    def _open(self, group: Locator) -> None:
        if group.get_attribute("open") is None:
            group.locator("summary").click()

    def show(self, view: str) -> None:
        """Go to a part of the page, where there is room for one: setup, talk or events."""
        button = self.find(f"[data-view-of={view}]")
        if button.is_visible():
            button.click()


@contextmanager
def playground(
    browser: Browser, size: str | tuple[int, int] = "desktop", *, dark: bool = False
) -> Iterator[Playground]:
    """Make a page of a size, light or dark, with nothing stored."""
    with opened(browser, size, dark=dark) as page:
        yield Playground(page)
