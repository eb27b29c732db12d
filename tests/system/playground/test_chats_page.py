"""A chat is kept: it is listed, and open again with its draft, its setup and its scroll.

Only this finds a chat, a draft or a place in a chat that a browser loses over a reload or beside another tab.
"""

import re

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.kit.browser import SIZES
from tests.kit.server import Server
from tests.system.playground.browser import Playground, playground
from tests.system.playground.held import held

LONG = "repeat: " + "\n\n".join(f"Paragraph {n} of a long answer." for n in range(60))


class Listed:
    """The list of chats on a page, and what is beside it of the chat in the lane."""

    def __init__(self, page: Playground) -> None:
        self.page = page
        self.search = page.find("#chats-search")
        self.rows = page.find(".chat")
        self.toast = page.find(".toast")
        self.field = page.lane().locator(".composer textarea")

    def row(self, text: str) -> Locator:
        """Return the row with a text."""
        return self.rows.filter(has_text=text)

    def open(self, text: str) -> None:
        """Open a chat by the mouse."""
        self.row(text).locator("a").click()
        expect(self.page.lane().locator(".lane-chat")).to_contain_text(text)

    def menu(self, text: str, item: str) -> None:
        """Choose something from a chat's menu."""
        self.row(text).hover()
        self.row(text).get_by_role("button").click()
        self.page.page.get_by_role("menuitem", name=item).click()


@pytest.fixture
def listed(page: Playground) -> Listed:
    return Listed(page)


def tab_of(page: Page, url: str) -> Playground:
    """Open another tab of the same browser."""
    return Playground(page.context.new_page()).open(url)


def asked(page: Playground, text: str) -> str:
    """Say something in a new chat; return the chat's id."""
    page.find("#chats [data-do=newChat]").click()
    page.write(text)
    id_ = page.ended(1).get_attribute("data-response")
    expect(page.find(f"[data-chat={id_}]")).to_be_visible()
    return str(id_)


def test_a_chat_is_there_after_a_reload_and_in_another_tab(server: Server, page: Playground, listed: Listed) -> None:
    id_ = asked(page, "repeat: the first of two")
    page.write("repeat: the second of two")
    page.ended(2)
    expect(page.lane().locator(".reasoning summary")).to_have_text([re.compile("Thought for .* m?s")] * 2)
    numbers = page.lane().locator(".numbers, .reasoning summary").all_inner_texts()
    assert "tokens/s" in numbers[1]
    expect(page.page).to_have_url(f"{server.url}/?chat={id_}")
    listed.field.fill("half a thought")
    page.page.reload()
    expect(page.lane().locator(".answer")).to_have_text(["the first of two", "the second of two"])
    expect(listed.field).to_have_value("half a thought")
    assert page.lane().locator(".numbers, .reasoning summary").all_inner_texts() == numbers
    row = page.find(f"[data-chat={id_}]")
    expect(row.locator("a")).to_have_attribute("aria-current", "page")
    expect(row.locator(".chat-about")).to_contain_text("demo")
    expect(page.find("#chats-list section", has=row).locator("h3")).to_have_text("Today")
    other = tab_of(page.page, server.url)
    expect(other.lane().locator(".answer")).to_have_text(["the first of two", "the second of two"])
    expect(other.lane().locator(".composer textarea")).to_have_value("half a thought")
    other.page.close()


def test_a_browser_that_was_closed_finds_it_again(server: Server, browser: Browser) -> None:
    with playground(browser) as page:
        page.open(server.url)
        asked(page, "repeat: before the browser was closed")
        page.lane().locator(".composer textarea").fill("a draft of yesterday")
        page.page.goto("about:blank")
        left = page.page.context.storage_state()  # not what belongs to a tab
    context = browser.new_context(storage_state=left)
    again = Playground(context.new_page()).open(server.url)
    expect(again.lane().locator(".answer")).to_have_text(["before the browser was closed"])
    expect(again.lane().locator(".composer textarea")).to_have_value("a draft of yesterday")
    assert again.problems == []
    context.close()


def test_each_chat_has_its_setup_its_draft_and_its_scroll(page: Playground, listed: Listed) -> None:
    page.find("[name=instructions]").fill("Be long.")
    asked(page, LONG)
    page.scroll(600)
    listed.field.fill("for the long one")
    page.find("[name=instructions]").fill("Be long, still.")
    page.find("#chats [data-do=newChat]").click()
    expect(listed.field).to_have_value("")
    page.find("[name=instructions]").fill("Be short.")
    asked(page, "repeat: a short one")
    listed.open("Paragraph 0")
    expect(page.find("[name=instructions]")).to_have_value("Be long, still.")
    expect(listed.field).to_have_value("for the long one")
    page.page.wait_for_function("() => Math.abs(document.querySelector('.transcript').scrollTop - 600) < 3")
    page.page.reload()
    page.page.wait_for_function("() => Math.abs(document.querySelector('.transcript').scrollTop - 600) < 3")
    listed.open("a short one")
    expect(page.find("[name=instructions]")).to_have_value("Be short.")
    expect(listed.field).to_have_value("")
    page.page.go_back()
    expect(listed.field).to_have_value("for the long one")


def test_two_tabs_with_one_chat_keep_a_draft_each(server: Server, page: Playground, listed: Listed) -> None:
    asked(page, "repeat: seen twice")
    listed.field.fill("of the first tab")
    page.page.wait_for_function("() => JSON.stringify(localStorage).includes('of the first tab')")
    other = tab_of(page.page, server.url)
    field = other.lane().locator(".composer textarea")
    expect(field).to_have_value("of the first tab")
    field.fill("repeat: of the second tab")
    for tab in (page, other):
        tab.page.reload()
    expect(listed.field).to_have_value("of the first tab")
    expect(field).to_have_value("repeat: of the second tab")
    field.press("Control+Enter")
    other.ended(2)
    page.page.reload()
    expect(listed.field).to_have_value("of the first tab")
    expect(page.ended(2).locator(".answer")).to_have_text("of the second tab")
    other.page.reload()
    expect(field).to_have_value("of the first tab")
    other.page.close()


def test_the_keyboard_reaches_all_of_the_list(server: Server, page: Playground, listed: Listed) -> None:
    first = asked(page, "repeat: apricots by key")
    second = asked(page, "repeat: blackberries by key")
    keys = page.page.keyboard
    page.lane().locator(".transcript").focus()
    keys.press("/")
    expect(listed.search).to_be_focused()
    keys.type("berries by")
    expect(listed.rows).to_have_count(1)
    listed.search.fill("by key")
    expect(listed.row("apricots")).to_be_visible()
    keys.press("ArrowDown")
    expect(listed.row("blackberries").locator("a")).to_be_focused()
    keys.press("ArrowDown")
    expect(listed.row("apricots").locator("a")).to_be_focused()
    keys.press("Enter")
    expect(page.lane().locator(".answer")).to_have_text("apricots by key")
    page.lane().locator(".transcript").focus()
    keys.press("h")
    expect(listed.row("apricots").locator("a")).to_be_focused()
    keys.press("F2")
    keys.press("Control+A")
    keys.type("Fruit that is named")
    keys.press("Enter")
    expect(listed.row("Fruit that is named").locator("a")).to_be_focused()
    expect(page.lane().locator(".lane-chat")).to_have_text("Fruit that is named")
    listed.search.fill("")
    keys.press("ArrowDown")
    page.find(f"[data-chat={second}] a").focus()
    keys.press("p")
    expect(page.find("#chats-list section", has_text="Pinned").locator(f"[data-chat={second}]")).to_be_visible()
    expect(page.find(f"[data-chat={second}] a")).to_be_focused()
    keys.press("Delete")
    expect(page.find(f"[data-chat={second}]")).to_have_count(0)
    keys.press("z")
    expect(page.find(f"[data-chat={second}]")).to_be_visible()
    page.lane().locator(".transcript").focus()
    keys.press("o")
    expect(listed.field).to_be_focused()
    expect(page.lane().locator(".turn")).to_have_count(0)
    page.find("[data-do=help]").click()
    for what in ("New chat", "List of chats", "Search in chats", "rename the chat", "pin the chat", "delete the chat"):
        expect(page.find("#shortcuts")).to_contain_text(what)
    assert httpx.get(f"{server.base_url}/responses/{first}").status_code == 200


def test_what_is_deleted_can_be_undone_until_the_page_is_left(server: Server, page: Playground, listed: Listed) -> None:
    id_ = asked(page, "repeat: to be deleted")
    listed.menu("to be deleted", "Delete")
    expect(page.find(f"[data-chat={id_}]")).to_have_count(0)
    expect(page.lane().locator(".turn")).to_have_count(0)
    listed.toast.get_by_role("button", name="Undo").click()
    expect(page.lane().locator(".answer")).to_have_text("to be deleted")
    assert httpx.get(f"{server.base_url}/responses/{id_}").status_code == 200
    listed.menu("to be deleted", "Delete")
    page.page.reload()
    server.wait_until(f"/v1/responses/{id_}", 404)
    expect(listed.row("to be deleted")).to_have_count(0)
    page.page.goto(f"{server.url}/?chat={id_}")
    expect(page.lane().locator(".lane-line")).to_contain_text("There is no such chat here")
    expect(page.page).to_have_url(f"{server.url}/")
    page.problems[:] = [each for each in page.problems if "404" not in each]


def test_an_address_with_a_response_shows_its_turns(server: Server, page: Playground) -> None:
    first = httpx.post(f"{server.base_url}/responses", json={"input": "repeat: over the API"}).json()["id"]
    more = {"input": "repeat: and more", "previous_response_id": first}
    second = httpx.post(f"{server.base_url}/responses", json=more).json()["id"]
    page.page.goto(f"{server.url}/?response={second}")
    expect(page.lane().locator(".answer")).to_have_text(["over the API", "and more"])
    expect(page.page).to_have_url(f"{server.url}/?chat={first}")
    page.page.goto(f"{server.url}/?response={first}")
    expect(page.lane().locator(".answer")).to_have_text(["over the API"])


def test_what_is_not_stored_is_not_kept_and_says_so(page: Playground, listed: Listed) -> None:
    expect(page.lane().get_by_text("Not kept")).to_be_hidden()
    page.turn_on("Store responses")
    expect(page.lane().get_by_text("Not kept")).to_be_visible()
    page.write("repeat: written in water")
    page.ended(1)
    assert "chat=" not in page.page.url
    page.page.reload()
    expect(page.find("#state[data-state=open]")).to_be_visible()
    expect(page.lane().locator(".turn")).to_have_count(0)
    expect(listed.row("written in water")).to_have_count(0)


def test_the_model_names_a_chat(page: Playground, listed: Listed) -> None:
    id_ = asked(page, "repeat: nameless")
    with page.page.expect_request(lambda request: request.url.endswith("/v1/responses")) as request:
        listed.menu("nameless", "Let the model name it")
    assert request.value.post_data_json["store"] is False
    title = page.find(f"[data-chat={id_}] .chat-title")
    expect(title).not_to_have_text("repeat: nameless")
    assert len(title.inner_text().split()) <= 6


def test_the_list_grows_while_one_scrolls(server: Server, page: Playground, listed: Listed) -> None:
    with httpx.Client(base_url=server.base_url) as client:
        for number in range(33):
            client.post("/responses", json={"input": f"repeat: scrolled {number}"})
    asked(page, "repeat: in the page")
    expect(listed.row("in the page")).to_be_visible()
    expect(listed.row("scrolled")).to_have_count(0)
    page.find(".chats .switch", has_text="chats of the API").click()
    expect(listed.row("scrolled 32")).to_be_visible()
    page.page.reload()
    expect(listed.row("scrolled 32")).to_be_visible()
    expect(listed.rows).to_have_count(30)
    listed.search.evaluate("field => field.value = 'scrolled'")  # it is written, and not searched for yet
    listed.rows.last.scroll_into_view_if_needed()
    expect(listed.rows).not_to_have_count(30)
    listed.search.dispatch_event("input")
    expect(listed.row("in the page")).to_have_count(0)
    listed.rows.last.scroll_into_view_if_needed()
    expect(listed.row(re.compile(r"scrolled 0(?!\d)"))).to_have_count(1)
    expect(listed.rows).to_have_count(33)


# Answers to lists of chats wait in the page from now on, as they are by then; `release` lets them come.
HELD_LISTS = """async () => {
    const { door } = await import('/static/playground/door.js');
    const ask = door.ask;
    let held = [];
    window.heldLists = () => held.length;
    window.release = async () => {
        door.ask = ask;
        for (const go of held) go();
        for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
    };
    door.ask = async (path, how) => {
        const answer = await ask.call(door, path, how);
        if (path.includes('?limit=')) await new Promise((go) => held.push(go));
        how?.signal?.throwIfAborted();
        return answer;
    };
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_list_that_comes_late_has_neither_old_titles_nor_chats_that_are_gone(
    server: Server, page: Playground, listed: Listed
) -> None:
    id_ = asked(page, "repeat: listed late")
    page.page.evaluate(HELD_LISTS)
    page.page.wait_for_function("() => heldLists() > 0")
    page.find(f"[data-chat={id_}] a").focus()
    page.page.keyboard.press("F2")
    page.find(f"[data-chat={id_}] input").fill("Renamed meanwhile")
    page.page.keyboard.press("Enter")
    expect(page.find(f"[data-chat={id_}] .chat-title")).to_have_text("Renamed meanwhile")
    page.page.evaluate("() => release()")
    expect(page.find(f"[data-chat={id_}] .chat-title")).to_have_text("Renamed meanwhile")
    page.page.evaluate(HELD_LISTS)
    page.page.wait_for_function("() => heldLists() > 0")
    page.find(f"[data-chat={id_}] a").focus()
    page.page.keyboard.press("Delete")
    with page.page.expect_response(lambda answer: answer.request.method == "DELETE") as deleted:
        listed.toast.get_by_role("button", name="Close this message").click()
    deleted.value.finished()
    page.page.evaluate("() => release()")
    expect(page.find(f"[data-chat={id_}]")).to_have_count(0)


NO_ROOM = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"
SWITCHED_OFF = """for (const name of ['localStorage', 'sessionStorage'])
    Object.defineProperty(window, name, { get() { throw new DOMException('off', 'SecurityError'); } });"""


@pytest.mark.parametrize(("broken", "told"), [(NO_ROOM, "no room for it"), (SWITCHED_OFF, "stores nothing")])
def test_a_browser_that_keeps_nothing_says_so(server: Server, browser: Browser, broken: str, told: str) -> None:
    with playground(browser) as page:
        page.page.add_init_script(broken)
        page.open(server.url)
        asked(page, "repeat: all the same")
        page.lane().locator(".composer textarea").fill("a draft")
        expect(page.find("#chats-kept")).to_contain_text(told)
        page.page.reload()
        expect(page.lane().locator(".answer")).to_have_text("all the same")  # the address says which chat it is
        assert page.problems == []


def test_what_a_card_adds_goes_with_its_chat(page: Playground, listed: Listed) -> None:
    page.page.keyboard.press("?")  # no click before: the page does not begin in the field
    expect(page.find("#help")).to_be_visible()
    page.page.keyboard.press("Escape")
    page.find(".card", has_text="Answer a function").click()
    id_ = page.ended(1).get_attribute("data-response")
    functions = page.find("#functions")
    expect(functions).to_contain_text("get_weather")
    expect(listed.field).to_be_focused()
    page.page.keyboard.press("Escape")
    page.page.keyboard.press("o")
    expect(page.lane().locator(".turn")).to_have_count(0)
    expect(functions).not_to_contain_text("get_weather")
    page.find(f"[data-chat={id_}] a").click()  # other tests call it, too
    expect(functions).to_contain_text("get_weather")


def test_what_runs_goes_on_while_another_chat_is_open(server: Server, page: Playground, listed: Listed) -> None:
    asked(page, "repeat: beside it")
    page.find("#chats [data-do=newChat]").click()
    with held(server):
        page.write("count to 400")
        expect(page.lane().locator(".answer")).to_contain_text("1 2 3")
        expect(listed.row("count to 400")).to_be_visible()
        listed.open("beside it")
        page.write("repeat: said meanwhile")
        expect(page.ended(2).locator(".answer")).to_have_text("said meanwhile")
    listed.open("count to 400")
    expect(page.ended(1).locator(".answer")).to_contain_text("399 400")


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
        if size == "desktop":
            return
        # The drawer closes by Escape, and gives the keyboard back; a chat that is opened closes it, too.
        page.find("#chats-search").focus()
        page.page.keyboard.press("Escape")
        expect(page.find("#chats")).to_be_hidden()
        expect(page.find(".top [data-do=chats]")).to_be_focused()
        page.page.keyboard.press("Enter")
        page.find(".chat a").first.click()
        expect(page.find("#chats")).to_be_hidden()
        expect(page.lane().locator(".turn")).not_to_have_count(0)
