"""Whose chats a page shows: those of the key or user that asks, and those that are shared with them.

Only this finds a chat or a credential that stays in the browser for the next key.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.kit.people import in_the_database
from tests.kit.server import Server
from tests.system.playground.browser import Playground, playground
from tests.system.playground.held import APPLICATION

TESTS = 3  # of this file, each of which takes two keys
KEYS = f"""
from django.core.management import call_command
for _ in range({2 * TESTS}):
    call_command("create_key", "--project", "atlas")
"""
KEPT = "JSON.stringify(localStorage) + JSON.stringify(sessionStorage)"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that wants to know who asks, and where chats are shared within a project."""
    chosen = {"auth": "on", "playground_sharing": "true", "mcp_server_urls": "true"}
    with Server(tmp_path_factory.mktemp("closed"), application=APPLICATION, **chosen) as server:
        yield server


@pytest.fixture(scope="module")
def all_keys(closed: Server) -> list[str]:
    """Keys of one project; they are made before there is a browser, beside which Django's database cannot be used."""
    return [word for word in in_the_database(closed, KEYS).split() if word.startswith("sk-")]


@pytest.fixture
def keys(all_keys: list[str]) -> list[str]:
    """Two of them that have no chats yet, whatever test came before."""
    return [all_keys.pop(), all_keys.pop()]


@pytest.fixture
def page(browser: Browser) -> Iterator[Playground]:
    with playground(browser) as page:
        page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        yield page
        assert [problem for problem in page.problems if "401" not in problem and "404" not in problem] == []


def test_a_chat_is_shared_and_a_forgotten_key_leaves_nothing(closed: Server, keys: list[str], page: Playground) -> None:
    page.page.goto(closed.url)
    expect(page.find("#chats-foot")).to_have_text("Sign in to see your chats.")
    page.page.keyboard.press("Escape")
    page.lane().locator(".composer textarea").fill("repeat: between us")
    page.sign_in(keys[0])
    page.lane().locator(".composer textarea").press("Control+Enter")
    id_ = page.ended(1).get_attribute("data-response")
    expect(page.find(".chat")).to_have_count(1)
    page.lane().get_by_role("button", name="Share").click()
    expect(page.find("#said")).to_have_text("Copied")
    link = page.page.evaluate("navigator.clipboard.readText()")
    assert link == f"{closed.url}/?chat={id_}"
    page.lane().locator(".composer textarea").fill("a secret draft")
    page.page.reload()
    expect(page.lane().locator(".composer textarea")).to_have_value("a secret draft")
    page.find("#sign").click()
    page.find("#key-forget").click()
    expect(page.find("#key-title")).to_have_text("Sign in")  # of the new page
    expect(page.find("#key")).to_be_visible()
    left = page.page.evaluate(KEPT) + page.find("body").inner_text() + page.page.url
    assert [each for each in ("secret draft", "between us", id_) if str(each) in left] == []

    page.sign_in(keys[1])
    expect(page.find("#chats-foot")).to_contain_text("No chats yet")
    page.page.goto(link)
    expect(page.lane().locator(".answer")).to_have_text("between us")
    expect(page.lane().locator(".lane-line")).to_contain_text("Shared with you")
    expect(page.lane().locator(".composer")).to_be_hidden()
    expect(page.lane().get_by_role("button", name="Share")).to_be_hidden()
    expect(page.lane().get_by_role("button", name="Copy").first).to_be_visible()
    expect(page.lane().get_by_role("button", name="Edit your message")).to_have_count(0)
    page.find("#chats [data-do=newChat]").click()
    expect(page.lane().locator(".composer")).to_be_visible()


def test_another_key_in_the_tab_sees_nothing_of_the_first(closed: Server, keys: list[str], page: Playground) -> None:
    page.page.goto(closed.url)
    page.sign_in(keys[0])
    page.write("repeat: mine alone")
    page.ended(1)
    page.lane().locator(".composer textarea").fill("my draft")
    page.sign_in(keys[1])
    expect(page.lane().locator(".turn")).to_have_count(0)
    expect(page.lane().locator(".composer textarea")).to_have_value("")
    expect(page.find("#chats-foot")).to_contain_text("No chats yet")
    expect(page.page).to_have_url(f"{closed.url}/")
    page.sign_in(keys[0])
    expect(page.lane().locator(".answer")).to_have_text("mine alone")
    expect(page.lane().locator(".composer textarea")).to_have_value("my draft")


def test_ways_into_mcp_servers_are_not_kept_or_passed_on(closed: Server, keys: list[str], page: Playground) -> None:
    page.page.goto(closed.url)
    page.sign_in(keys[0])
    page.find("#add-server").evaluate("button => button.click()")
    form = page.find("#server-form")
    for name, value in (
        ("server_label", "wiki"),
        ("server_url", "https://user:secret-1@wiki.example/mcp?token=secret-2"),
        ("authorization", "secret-3"),
    ):
        form.locator(f"[name={name}]").fill(value)
    form.locator("button.primary").click()
    expect(page.find("#servers")).to_contain_text("secret-1")
    page.page.wait_for_function(f"() => ({KEPT}).includes('wiki.example')")
    assert "secret" not in page.page.evaluate(KEPT)
    page.sign_in(keys[1])
    expect(page.find("#chats-foot")).to_contain_text("No chats yet")
    expect(page.find("#servers")).not_to_contain_text("secret")
