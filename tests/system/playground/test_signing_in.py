"""Who comes into the playground where the server asks: by a key, or as a user of the admin by his session.

Only this finds a key, a cookie or a session that a real browser sends to the wrong place, or not at all.
"""

import random
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.kit.people import PASSWORD, in_the_database, log_in
from tests.kit.server import Server
from tests.system.playground.browser import Playground, playground
from tests.system.playground.held import APPLICATION
from tests.system.playground.test_files import NOTES, choose, file, png

CLERK_AND_KEY = f"""
User.objects.create_user("clerk", password={PASSWORD!r}, is_staff=True)
from django.core.management import call_command
call_command("create_key", "--project", "atlas")
call_command("create_key", "--project", "atlas", "--scopes", "api.model.read,api.responses.read,api.responses.write")
"""
PASS = {"Respsite-Session": "default"}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that wants to know who asks."""
    with Server(tmp_path_factory.mktemp("closed"), application=APPLICATION, auth="on") as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def keys(closed: Server) -> list[str]:
    """Keys for atlas: one for everything, one for responses alone. They are made together with the users."""
    return re.findall(r"sk-[\w-]{43}", in_the_database(closed, CLERK_AND_KEY))


@pytest.fixture
def key(keys: list[str]) -> str:
    return keys[0]


@pytest.fixture(scope="module")
def root(closed: Server) -> Iterator[httpx.Client]:
    with closing(log_in(closed)) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Playground]:
    with playground(browser) as page:
        yield page


def shake(server: Server, session: str, **how: Any) -> Any:
    """Open a WebSocket as a page would, with a session's cookie."""
    headers = {"Cookie": f"sessionid={session}"}
    how = {"origin": server.url, "subprotocols": ["respsite-session.default"], "additional_headers": headers, **how}
    return connect(server.ws_url, **how)


def test_a_key_goes_in_by_form(closed: Server, key: str, page: Playground) -> None:
    page.page.goto(closed.url)
    expect(page.find("#key")).to_be_visible()
    page.page.keyboard.press("Escape")
    page.write("repeat: by key")  # what is written before stays, and the form comes again
    expect(page.find(".composer .wrong")).to_contain_text("Sign in first")
    expect(page.find("#key")).to_be_visible()
    page.find("#key input").fill("sk-wrong")
    page.find("#key button.primary").click()
    expect(page.find("#key-wrong")).to_contain_text("Incorrect API key")
    page.sign_in(key)
    page.find(".composer textarea").press("Enter")
    expect(page.ended(1).locator(".answer")).to_have_text("by key")
    page.find("[data-do=copy]").click()
    copied = page.find("#copy-text").inner_text()
    assert 'os.environ["RESPSITE_API_KEY"]' in copied
    assert key not in copied
    assert key not in str(page.page.evaluate("JSON.stringify(localStorage) + document.documentElement.outerHTML"))
    assert [problem for problem in page.problems if "401" not in problem] == []


def test_a_user_of_the_admin_comes_in_by_his_session(closed: Server, key: str, page: Playground) -> None:
    page.log_in(closed.url)
    page.find("#state[data-state=open]").wait_for()
    expect(page.find("#model option")).to_have_text(["demo"])  # the model that embeds is none to talk with
    page.write("repeat: by session")
    expect(page.ended(1).locator(".answer")).to_have_text("by session")
    page.find("#sign").click()
    expect(page.find("#key-title")).to_have_text("Signed in")
    expect(page.find("#key-user")).to_be_hidden()
    page.find("[name=project]").select_option("atlas")
    page.find("#state[data-state=open]").wait_for()
    expect(page.lane().locator(".turn")).to_have_count(0)  # what was said is another project's
    page.write("repeat: for atlas")
    response_id = page.ended(1).get_attribute("data-response")
    found = httpx.get(f"{closed.base_url}/responses/{response_id}", headers={"Authorization": f"Bearer {key}"})
    assert found.status_code == 200
    assert page.problems == []


def test_a_key_for_no_files_sends_images_and_says_what_it_cannot(
    closed: Server, keys: list[str], page: Playground
) -> None:
    page.page.goto(closed.url)
    page.sign_in(keys[1])
    items = choose(page, NOTES, file("large.png", "image/png", png(700, 520, random.Random(4))))
    expect(items.nth(0).locator("small")).to_contain_text("This key may not do that with files.")
    expect(items.nth(0).locator("small")).to_contain_text("Missing scopes: api.files.write.")
    expect(items.nth(1).locator("small")).to_have_text("1.0 MiB")
    items.get_by_role("button", name="Remove notes.txt").click()
    page.write("repeat: an image")
    expect(page.ended(1).locator(".answer")).to_contain_text("an image")
    expect(page.find(".asked img")).to_have_js_property("naturalWidth", 700)


def test_an_upload_says_that_the_session_is_over(closed: Server, page: Playground) -> None:
    page.log_in(closed.url)
    page.find("#state[data-state=open]").wait_for()
    items = choose(page, NOTES)
    expect(items.locator("small")).to_have_text("34 B")
    page.page.context.clear_cookies()
    items = choose(page, NOTES)
    expect(items.nth(1).locator("small")).to_have_text(
        "You are not signed in any more. Sign in (at the top right), then press Retry."
    )


def test_a_cookie_alone_opens_nothing(closed: Server, root: httpx.Client) -> None:
    assert root.get("/v1/models", headers=PASS).status_code == 200
    assert root.get("/v1/models").status_code == 401
    other = root.get("/v1/models", headers={"Respsite-Session": "nowhere"})
    assert (other.status_code, other.json()["error"]["code"]) == (403, "project_not_allowed")
    foreign = {**PASS, "Origin": "http://127.0.0.1:1"}
    assert root.get("/v1/models", headers=foreign).status_code == 403
    assert root.post("/v1/responses", json={"input": "Hi"}, headers=foreign).status_code == 403
    assert httpx.get(f"{closed.base_url}/models", headers=PASS).status_code == 401
    assert httpx.get(f"{closed.base_url}/models", headers={**PASS, "Cookie": "sessionid=made-up"}).status_code == 401


@pytest.mark.parametrize("how", [{"origin": "http://127.0.0.1:1"}, {"origin": None}, {"subprotocols": None}])
def test_a_foreign_page_opens_no_socket(closed: Server, root: httpx.Client, how: dict[str, Any]) -> None:
    session = root.cookies["sessionid"]
    with shake(closed, session):
        pass
    with pytest.raises(InvalidStatus) as refused:
        shake(closed, session, **how)
    assert refused.value.response.status_code in (401, 403)


def test_who_may_not_use_the_playground_is_told_so(closed: Server, page: Playground) -> None:
    page.log_in(closed.url, "clerk")
    expect(page.find("#key-why")).to_have_text(
        "You are signed in as clerk, who may not use the playground. Use an API key."
    )
    expect(page.find("#key-user")).to_be_hidden()
